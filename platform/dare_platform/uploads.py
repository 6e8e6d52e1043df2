"""From a file or a name to an entry that could be submitted, or to all that is wrong with it. Touches no database."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dare.catalog import BackboneRecord, UnknownAlgorithmError, algorithms, backbones, load_source, unsupported
from dare.source import AlgorithmSource, check_hyperparameters, read_source
from dare.source.hyperparameters import Settings, parse_settings
from dare.source.problems import Problem, nearest
from dare.spec import Hyperparameters
from dare_platform import archives
from dare_platform.board import RowKind
from dare_platform.entry_settings import SettingView, compare
from dare_platform.tracks import Track

UNTOUCHED = "untouched"
"""Name of the reference: the backbone as it is, evaluated and never trained."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+-]{0,59}")


@dataclass(frozen=True)
class Submission:
    """An entry that could be submitted: everything checked that can be checked without a database."""

    name: str
    """Shown on the board; one row per name."""
    algorithm: str
    """Slug: the file name of a built-in one, made from the entry's name for a submitted file."""
    kind: RowKind
    built_in: bool
    source: AlgorithmSource | None
    """None for the untouched backbone."""
    hyperparameters: Hyperparameters
    """Every hyperparameter with its value, defaults included."""
    track: Track
    backbones: tuple[BackboneRecord, ...]
    seeds: tuple[int, ...]
    """Of the track's seeds, those to run: all of them unless someone wants a first look."""
    with_data: bool = False
    """Evaluate transfer tasks too: their data is at hand."""

    @property
    def content_sha256(self) -> str | None:
        """Of source and hyperparameters together: equal content is one version."""
        if self.source is None:
            return None
        content = json.dumps([self.source.sha256, self.hyperparameters], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()


@dataclass(frozen=True)
class UploadReport:
    """What reading found. `submission` is None while there is a problem; the rest is shown either way."""

    submission: Submission | None
    problems: tuple[Problem, ...]
    source: AlgorithmSource | None
    settings: tuple[SettingView, ...]
    bytes: int
    sha256: str | None
    train_runs: int
    evaluate_runs: int
    check_runs: int

    @property
    def runs(self) -> int:
        """All runs that the button will queue, checks not counted."""
        return self.train_runs + self.evaluate_runs


def read_upload(
    file_name: str,
    content: bytes,
    settings_text: str | None,
    track: Track,
    backbones: Sequence[str],
    *,
    name: str | None = None,
    kind: RowKind = "method",
    assignments: Mapping[str, Any] | None = None,
    seeds: Sequence[int] | None = None,
    with_data: bool = False,
    catalog: Mapping[str, BackboneRecord] | None = None,
    algorithm: str | None = None,
) -> UploadReport:
    """Read a submitted file: its source, its settings, and whether this track can run it on these backbones.

    An entry may call itself a control: it is then shown beside the baselines and never ranked. `algorithm` is the name
    whose tries it counts among, where that is not its own. An archive is read without being unpacked.
    """
    archived: list[Problem] = []
    size, sha256 = len(content), hashlib.sha256(content).hexdigest()
    if archives.is_archive(file_name):
        file_name, content, settings_text, archived = _opened(file_name, content, settings_text)
    reading = read_source(content, _slug(name or file_name.rpartition("/")[2].removesuffix(".py")), file_name)
    source = reading.algorithm
    shown_as = name or (source.class_name if source else "entry")
    problems = archived or list(reading.problems)
    slug = _slug(algorithm or shown_as)
    if slug == UNTOUCHED or slug.replace("-", "_") in algorithms():
        problems.append(Problem("name", None, f"`{shown_as}` is the name of a built-in algorithm. Choose another."))
    return _report(
        source, problems, settings_text, assignments, track, backbones,
        name=shown_as, slug=slug, kind=kind, built_in=False, seeds=seeds, with_data=with_data, catalog=catalog,
        size=size, sha256=sha256,
    )  # fmt: skip


def _opened(file_name: str, content: bytes, settings_text: str | None) -> tuple[str, bytes, str | None, list[Problem]]:
    """The file in an archive with its name and settings, and what is wrong with the archive."""
    try:
        opened = archives.open_entry(file_name, content)
    except archives.ArchiveError as error:
        return archives.ALGORITHM, b"", None, [Problem("archive", None, str(error))]
    problems = []
    if opened.settings is not None and (settings_text or "").strip():
        text = f"`{file_name}` has a `{archives.SETTINGS}`, and settings are given beside it. Give them once."
        problems.append(Problem("archive", None, text))
    elif opened.settings is not None:
        settings_text = opened.settings.decode(errors="replace")
    return archives.ALGORITHM, opened.algorithm, settings_text, problems


def read_builtin(
    name: str,
    settings_text: str | None,
    track: Track,
    backbones: Sequence[str],
    *,
    entry_name: str | None = None,
    assignments: Mapping[str, Any] | None = None,
    seeds: Sequence[int] | None = None,
    with_data: bool = False,
    catalog: Mapping[str, BackboneRecord] | None = None,
) -> UploadReport:
    """The same for a built-in algorithm, or for `untouched`, which has no code and no settings."""
    problems: list[Problem] = []
    source = None
    if name == UNTOUCHED:
        if (settings_text or "").strip() or assignments:
            problems.append(Problem("settings", None, "The untouched backbone has no settings."))
    else:
        try:
            source = load_source(name)
        except UnknownAlgorithmError as error:
            problems.append(Problem("unknown_algorithm", None, str(error)))
    return _report(
        source, problems, settings_text if source else None, assignments if source else None, track, backbones,
        name=entry_name or name, slug=name, kind=kind_of(name), built_in=True, seeds=seeds,
        with_data=with_data, catalog=catalog,
        size=len(source.text.encode()) if source else 0, sha256=source.sha256 if source else None,
    )  # fmt: skip


def kind_of(built_in: str) -> RowKind:
    """What part a built-in algorithm plays on a board: imitating the right answers is the baseline of all RL."""
    if built_in == UNTOUCHED:
        return "reference"
    source = algorithms().get(built_in)
    return "baseline" if source is not None and source.trains_on == "demonstrations" else "method"


def _report(
    source: AlgorithmSource | None,
    problems: list[Problem],
    settings_text: str | None,
    assignments: Mapping[str, Any] | None,
    track: Track,
    chosen: Sequence[str],
    *,
    name: str,
    slug: str,
    kind: RowKind,
    built_in: bool,
    seeds: Sequence[int] | None,
    with_data: bool,
    catalog: Mapping[str, BackboneRecord] | None,
    size: int,
    sha256: str | None,
) -> UploadReport:
    wanted = tuple(track.seeds if seeds is None else seeds)
    settings = parse_settings(settings_text) if settings_text else Settings({}, {})
    given = {**settings.values, **(assignments or {})}
    problems += settings.problems
    if source is not None:
        problems += check_hyperparameters(source, given, settings.lines)
    records, misplaced = _backbones(source, track, chosen, backbones() if catalog is None else catalog)
    problems += misplaced
    if not NAME.fullmatch(name):
        text = f"The name `{name[:60]}` is not possible. Use letters, digits, space, `.`, `_`, `+`, `-`; 60 at most."
        problems.append(Problem("name", None, text))
    if track.state != "open":
        state = "closed" if track.state == "closed" else "a draft"
        problems.append(Problem("track", None, f"Track {track.name} is {state}. Submit to an open one."))
    hyperparameters = source.settled(given) if source is not None and not problems else {}
    settings_shown = {key: value for key, value in given.items() if isinstance(value, bool | int | float | str | None)}
    submission = None
    if not problems:
        submission = Submission(name, slug, kind, built_in, source, hyperparameters, track, records, wanted, with_data)
    cells = len(records) * len(wanted)
    return UploadReport(
        submission=submission,
        problems=tuple(problems),
        source=source,
        settings=compare(source.hyperparameters, hyperparameters or settings_shown) if source else (),
        bytes=size,
        sha256=sha256,
        train_runs=0 if kind == "reference" else cells,
        evaluate_runs=cells,
        check_runs=0 if built_in else len({record.family for record in records}),
    )


def _backbones(
    source: AlgorithmSource | None, track: Track, chosen: Sequence[str], catalog: Mapping[str, BackboneRecord]
) -> tuple[tuple[BackboneRecord, ...], list[Problem]]:
    """Records of the chosen backbones, in the track's order, and why some of them will not do."""
    problems: list[Problem] = []
    records: list[BackboneRecord] = []
    if not chosen:
        trainable = [name for name in track.backbones if source is None or not _no_data(source, track, name)]
        text = f"Choose a backbone. Track {track.name} has: {_list(trainable)}."
        if source is not None and not trainable:
            text = f"No backbone of track {track.name} has {source.trains_on}, which `{source.class_name}` trains on."
        problems.append(Problem("backbones", None, text))
    for name in dict.fromkeys(chosen):
        if name not in track.backbones:
            text = f"Track {track.name} has no backbone `{name}`.{nearest(name, track.backbones)}"
            problems.append(Problem("backbones", None, text))
        elif name not in catalog:
            text = f"Backbone `{name}` is not on this machine. `dare backbone list` shows what is."
            problems.append(Problem("backbones", None, text))
        else:
            records.append(catalog[name])
    for record in records if source is not None else ():
        if source is not None and (problem := unsupported(source, record)):
            problems.append(problem)
        if source is not None and (reason := _no_data(source, track, record.name)):
            problems.append(Problem("trains_on", None, reason))
    order = list(track.backbones)
    return tuple(sorted(records, key=lambda record: order.index(record.name))), problems


def _no_data(source: AlgorithmSource, track: Track, backbone: str) -> str | None:
    return track.without_data(source.class_name, source.trains_on, backbone)


def _slug(name: str) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name)
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")[:60]


def _list(names: Sequence[str] | Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}`" for name in names)
