"""The page of one entry, and the list of all."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import func, not_, select
from sqlalchemy.orm import Session

from dare.source import AlgorithmSource, read_source
from dare_platform.entry_settings import SettingView, compare
from dare_platform.entry_status import EntryStatus, sentence_of, status_of
from dare_platform.models import (
    Algorithm,
    AlgorithmVersion,
    AuditLog,
    Backbone,
    BackboneRevision,
    Entry,
    Run,
    TrackVersion,
)
from dare_platform.tracks import tracks
from dare_platform.viewer import NOBODY, Viewer
from dare_platform.views.queue import place_of
from dare_platform.views.rows import WITHHELD, ending, events, hyperparameters, summaries
from dare_platform.views.shapes import CellRuns, Ending, EntrySummary, EntryView, RunSummary
from dare_platform.views.sight import author_of, is_withheld, may_act

CODE_WITHHELD = "This entry is anonymous: its code, settings and logs are shown when its author makes it public."
UNTOUCHED = "The backbone as it is: evaluated, never trained. All gains are taken against it."


def entries_list(session: Session, track: str | None = None, viewer: Viewer = NOBODY) -> tuple[EntrySummary, ...]:
    """All entries that somebody sees, newest first; of one track (`tiny 1.0`) when named."""
    named = () if track is None else (TrackVersion.track_slug + " " + TrackVersion.version == track,)
    return tuple(_summaries(session, viewer, *named))


def entries_on(
    session: Session, backbone: str, viewer: Viewer = NOBODY, most: int = 20
) -> tuple[tuple[EntrySummary, ...], int]:
    """The newest entries that somebody sees with runs on one backbone, and how many there are in all."""
    has_runs = (
        select(Run.id)
        .join(BackboneRevision, BackboneRevision.id == Run.backbone_revision_id)
        .join(Backbone, Backbone.id == BackboneRevision.backbone_id)
        .where(Run.entry_id == Entry.id, Backbone.slug == backbone)
        .exists()
    )
    in_all = session.execute(select(func.count()).select_from(Entry).where(has_runs, viewer.sees())).scalar_one()
    newest = select(Entry.id).where(has_runs, viewer.sees()).order_by(Entry.created_at.desc(), Entry.id.desc())
    ids = session.execute(newest.limit(most)).scalars().all()
    return tuple(_summaries(session, viewer, Entry.id.in_(ids))), in_all


def entry_view(session: Session, entry_id: str, viewer: Viewer = NOBODY) -> EntryView | None:
    """The page of one entry."""
    rows = _rows(session, viewer, Entry.id == entry_id)
    if not rows:
        return None
    entry, algorithm, version, track = rows[0]
    runs = _runs(session, [entry_id], viewer)[entry_id]
    summary = _summary(session, viewer, rows[0], runs, _hidden_tries(session, viewer))
    withheld = is_withheld(viewer, entry, version)
    source = None if withheld else read_again(version)
    others = _others(session, entry, version, viewer)
    worst, waiting = _worst(session, runs), _first_waiting(session, runs)
    withdrawal = session.execute(
        select(AuditLog.note).where(AuditLog.action == "withdraw", AuditLog.subject == entry_id)
    ).scalar_one_or_none()
    command = "" if withheld else _command(entry, algorithm, version, track, summary.backbones, source)
    is_open = any(run.state not in ("succeeded", "failed", "cancelled") for run in runs)
    return EntryView(
        summary=summary,
        headline=summary.sentence + _too_few_seeds(summary, runs),
        summary_sentence=CODE_WITHHELD
        if withheld
        else source.summary
        if source
        else UNTOUCHED
        if version is None
        else "",
        class_name=version.class_name if version and not withheld else None,
        base=source.base if source else None,
        settings=_settings(version, source),
        source=version.source if version and not withheld else None,
        settings_text=_settings_text(version, source),
        overridden=source.overridden if source else (),
        cells=_cells(runs),
        check=next((run for run in runs if run.kind == "check"), None),
        ending=worst,
        place=place_of(session, waiting) if waiting else None,
        tries=1 + sum(other.track == summary.track for other in others),
        others=tuple(others),
        withdrawn_at=entry.withdrawn_at.timestamp() if entry.withdrawn_at else None,
        withdrawn_reason=withdrawal,
        rerun_command=command,
        digest=WITHHELD if withheld else version.content_sha256 if version else track.rules_sha256,
        history=events(session, [run.id for run in runs], viewer),
        can_cancel=is_open,
        can_retry=not is_open and summary.status in ("partial", "failed", "rejected", "withdrawn"),
        may_act=may_act(viewer, entry),
        withheld=withheld,
    )


def _too_few_seeds(summary: EntrySummary, runs: Sequence[RunSummary]) -> str:
    """What a rank still needs when every run that was asked for has succeeded."""
    track = tracks().get(summary.track)
    if summary.status != "complete" or track is None:
        return ""
    seeds: dict[str, set[int]] = defaultdict(set)
    for run in runs:
        if run.kind == "evaluate":
            seeds[run.backbone].add(run.seed)
    fewest = min((len(found) for found in seeds.values()), default=0)
    if fewest >= track.seeds_required:
        return ""
    return f" Preliminary: {fewest} of the {track.seeds_required} seeds that a place on the board needs."


_Row = tuple[Entry, Algorithm | None, AlgorithmVersion | None, TrackVersion]


def _summaries(session: Session, viewer: Viewer, *conditions: Any) -> list[EntrySummary]:
    rows = _rows(session, viewer, *conditions)
    runs = _runs(session, [entry.id for entry, *_ in rows], viewer)
    hidden = _hidden_tries(session, viewer)
    return [_summary(session, viewer, row, runs[row[0].id], hidden) for row in rows]


def _rows(session: Session, viewer: Viewer, *conditions: Any) -> list[_Row]:
    rows = session.execute(
        select(Entry, Algorithm, AlgorithmVersion, TrackVersion)
        .join(TrackVersion, TrackVersion.id == Entry.track_version_id)
        .outerjoin(AlgorithmVersion, AlgorithmVersion.id == Entry.algorithm_version_id)
        .outerjoin(Algorithm, Algorithm.id == AlgorithmVersion.algorithm_id)
        .where(*conditions, viewer.sees())
        .order_by(Entry.created_at.desc(), Entry.id.desc())
    )
    return [(entry, algorithm, version, track) for entry, algorithm, version, track in rows]


def _runs(session: Session, ids: Sequence[str], viewer: Viewer) -> dict[str, list[RunSummary]]:
    """Runs by entry, by backbone and seed, in the order they are worked off."""
    found: dict[str, list[RunSummary]] = defaultdict(list)
    for run in summaries(session, Run.entry_id.in_(list(ids)), viewer=viewer, order=(Run.created_at, Run.id)):
        found[run.entry_id].append(run)
    return found


_Tries = Mapping[tuple[str | None, str], Sequence[int]]


def _hidden_tries(session: Session, viewer: Viewer) -> _Tries:
    """By algorithm and track, which tries are private and not this person's: they count in nothing that is shown."""
    hidden: dict[tuple[str | None, str], list[int]] = defaultdict(list)
    if viewer.may("operate"):
        return hidden
    rows = session.execute(
        select(AlgorithmVersion.algorithm_id, Entry.track_version_id, Entry.ordinal)
        .select_from(Entry)
        .outerjoin(AlgorithmVersion, AlgorithmVersion.id == Entry.algorithm_version_id)
        .where(not_(viewer.sees()))
    )
    for algorithm, track, ordinal in rows:
        hidden[algorithm, track].append(ordinal)
    return hidden


def _summary(session: Session, viewer: Viewer, row: _Row, runs: Sequence[RunSummary], hidden: _Tries) -> EntrySummary:
    entry, algorithm, version, track = row
    before = sum(ordinal < entry.ordinal for ordinal in hidden.get((algorithm.id if algorithm else None, track.id), ()))
    withheld = is_withheld(viewer, entry, version)
    work = [run.state for run in runs if run.kind != "check"]
    counted = [run.state for run in runs if run.kind != "check" or run.state not in ("succeeded", "cancelled")]
    status: EntryStatus = status_of(entry.gate, counted)
    return EntrySummary(
        id=entry.id,
        name=entry.name,
        algorithm=WITHHELD if withheld else algorithm.slug if algorithm else "untouched",
        kind=entry.kind,
        built_in=version is None or version.built_in,
        track=f"{track.track_slug} {track.version}",
        backbones=tuple(dict.fromkeys(run.backbone for run in runs if run.kind != "check")),
        status=status,
        sentence=sentence_of(status, work, entry.rejection),
        runs_done=work.count("succeeded"),
        runs_total=len(work),
        try_number=entry.ordinal - before,
        submitted_at=entry.created_at.timestamp(),
        code_sha256=version.source_sha256 if version and not withheld else None,
        visibility=entry.visibility,
        author=author_of(session, viewer, entry),
    )


def read_again(version: AlgorithmVersion | None) -> AlgorithmSource | None:
    """A stored version's source, read as it was submitted; None for the untouched backbone."""
    if version is None:
        return None
    return read_source(version.source.encode(), version.class_name, built_in=True).algorithm


def _settings(version: AlgorithmVersion | None, source: AlgorithmSource | None) -> tuple[SettingView, ...]:
    return compare(source.hyperparameters, hyperparameters(version)) if version and source else ()


def _settings_text(version: AlgorithmVersion | None, source: AlgorithmSource | None) -> str:
    """YAML of what differs from the defaults: what one would write to submit it again."""
    changed = [setting for setting in _settings(version, source) if setting.changed]
    return "".join(f"{setting.name}: {_yaml(setting.value)}\n" for setting in changed)


def _yaml(value: object) -> str:
    text = json.dumps(value)
    if isinstance(value, float) and "e" in text and "." not in text:
        mantissa, exponent = text.split("e")
        return f"{mantissa}.0e{exponent}"  # YAML reads 1e-05 as text
    return text


def _others(session: Session, entry: Entry, version: AlgorithmVersion | None, viewer: Viewer) -> list[EntrySummary]:
    """Other entries of the same algorithm. Of a submitted one, nothing leads from an anonymous try to a public one."""
    if version is None:
        return _summaries(session, viewer, Entry.algorithm_version_id.is_(None), Entry.id != entry.id)
    same = (AlgorithmVersion.algorithm_id == version.algorithm_id, Entry.id != entry.id)
    if version.built_in or viewer.is_owner(entry) or viewer.may("operate"):
        return _summaries(session, viewer, *same)
    if entry.visibility == "anonymous":
        return []
    return _summaries(session, viewer, *same, Entry.visibility == "public")


def _cells(runs: Sequence[RunSummary]) -> tuple[CellRuns, ...]:
    cells: dict[tuple[str, int], list[RunSummary]] = defaultdict(list)
    for run in runs:
        if run.kind != "check":
            cells[run.backbone, run.seed].append(run)
    return tuple(CellRuns(backbone, seed, tuple(found)) for (backbone, seed), found in cells.items())


def _worst(session: Session, runs: Sequence[RunSummary]) -> Ending | None:
    """The most common failure that is not the mere consequence of another."""
    failed = [run for run in runs if run.state == "failed" and run.cause != "dependency"]
    if not failed:
        return None
    cause = Counter(run.cause for run in failed).most_common(1)[0][0]
    return ending(session.get_one(Run, next(run.id for run in failed if run.cause == cause)))


def _first_waiting(session: Session, runs: Sequence[RunSummary]) -> Run | None:
    if any(run.state in ("leased", "preparing", "working", "finalizing") for run in runs):
        return None
    waiting = next((run for run in runs if run.state == "queued"), None)
    return session.get(Run, waiting.id) if waiting else None


def _command(
    entry: Entry,
    algorithm: Algorithm | None,
    version: AlgorithmVersion | None,
    track: TrackVersion,
    backbones: Sequence[str],
    source: AlgorithmSource | None,
) -> str:
    """The command that submits the same again."""
    what = "untouched" if version is None else algorithm.slug if version.built_in and algorithm else "algorithm.py"
    parts = ["dare", "submit", what, "--track", track.track_slug]
    parts += [part for backbone in backbones for part in ("--backbone", backbone)]
    if entry.name != what:
        parts += ["--name", f"'{entry.name}'" if " " in entry.name else entry.name]
    changed = [setting for setting in _settings(version, source) if setting.changed]
    return " ".join(parts + [f"--set {setting.name}={setting.value}" for setting in changed])
