"""A sweep: one YAML file that makes several entries of one method, each counted as a try. Touches no database.

algorithm: my_method.py        a file beside this one, or a built-in method
name: my-method                every entry's name begins with it; the method's own by default
track: tiny
backbones: [llada-tiny]        all of the track by default
hyperparameters: {kl_coef: 0}  the same for all; or the name of a file beside this one
grid: {blame: [0.1, 0.25]}     every combination; or `entries:` with one mapping for each
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dare.source.problems import Problem
from dare_platform.asking import MOST_ENTRIES, SubmitRequest, SubmittedFile, SweepPoint, SweepRequest
from dare_platform.errors import PlatformError
from dare_platform.tracks import Track
from dare_platform.uploads import NAME, UNTOUCHED, Submission, UploadReport

Values = Mapping[str, Any]


class SweepError(PlatformError):
    """The file describes no sweep. One sentence."""


class SweepFile(BaseModel):
    """What a person writes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    algorithm: str
    name: str | None = None
    track: str = "tiny"
    backbones: tuple[str, ...] = ()
    control: bool = False
    hyperparameters: str | dict[str, Any] = Field(default_factory=dict)
    grid: dict[str, list[Any]] | None = None
    entries: tuple[dict[str, Any], ...] | None = None

    @model_validator(mode="after")
    def _one_way_to_name_the_entries(self) -> Self:
        if (self.grid is None) == (self.entries is None):
            raise ValueError("give either `grid` or `entries`")
        if self.grid is not None and (not self.grid or not all(self.grid.values())):
            raise ValueError("`grid` needs at least one hyperparameter, and each of them at least one value")
        if self.entries is not None and not self.entries:
            raise ValueError("`entries` is empty")
        return self

    @property
    def points(self) -> tuple[Values, ...]:
        """The hyperparameters that differ, one mapping per entry, in the order of the file."""
        if self.entries is not None:
            return self.entries
        assert self.grid is not None
        return tuple(dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values()))

    @property
    def size(self) -> int:
        """How many entries, without making them."""
        return len(self.entries) if self.entries is not None else math.prod(map(len, (self.grid or {}).values()))


@dataclass(frozen=True)
class Sweep:
    """What reading a sweep found: a report per entry, and everything that is wrong, each sentence once."""

    reports: tuple[UploadReport, ...]
    names: tuple[str, ...]
    problems: tuple[Problem, ...]

    @property
    def submissions(self) -> tuple[Submission, ...]:
        """What can be submitted; as many as there are names when there is no problem."""
        return tuple(report.submission for report in self.reports if report.submission is not None)

    @property
    def runs(self) -> int:
        """All runs, checks included."""
        return sum(report.runs + report.check_runs for report in self.reports)


def read_file(path: Path) -> SweepFile:
    """The file as it was written; SweepError says what is wrong with it."""
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
        sweep = SweepFile.model_validate(given)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SweepError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise SweepError(
            f"{path}: {where}{': ' if where else ''}{first['msg'].removeprefix('Value error, ')}"
        ) from error
    if sweep.size > MOST_ENTRIES:
        raise SweepError(f"{path} makes {sweep.size} entries; {MOST_ENTRIES} are the most: sweep in parts")
    return sweep


def request_of(path: Path, sweep: SweepFile) -> SweepRequest:
    """What the file asks for, with the files beside it that it names; SweepError where it contradicts itself."""
    settings, fixed = _fixed(path, sweep)
    prefix = sweep.name or Path(sweep.algorithm).stem.replace("_", "-")
    if sweep.algorithm == UNTOUCHED:
        raise SweepError(f"{path}: the untouched backbone has no hyperparameters to sweep over")
    file = None
    if sweep.algorithm.endswith(".py"):
        beside = path.parent / sweep.algorithm
        if not beside.is_file():
            raise SweepError(f"{path}: there is no file {beside}")
        file = SubmittedFile.of(beside.name, beside.read_bytes())
    shared = SubmitRequest(
        algorithm=None if file else sweep.algorithm, file=file, settings=settings, assignments=fixed,
        track=sweep.track, backbones=sweep.backbones, name=prefix, control=sweep.control and file is not None,
    )  # fmt: skip
    points = [
        SweepPoint(name=name, assignments=dict(point))
        for name, point in zip(entry_names(prefix, sweep.points), sweep.points, strict=True)
    ]
    return SweepRequest(shared=shared, points=tuple(points))


def read_sweep(asked: SweepRequest, track: Track, with_data: bool) -> Sweep:
    """Read every entry of a sweep as if it were submitted by itself."""
    names = tuple(point.name for point in asked.points)
    reports = [asked.request_at(point).report(track, with_data, asked.shared.name) for point in asked.points]
    problems = {problem.text: problem for report in reports for problem in report.problems}
    return Sweep(tuple(reports), names, (*problems.values(), *_repeated(names, reports)))


def entry_names(prefix: str, points: Sequence[Values]) -> tuple[str, ...]:
    """`prefix blame 0.25 kl_coef 0`; where that is no name, or not one of its own, a number."""
    spelled = [" ".join([prefix, *(f"{name} {_spelled(value)}" for name, value in point.items())]) for point in points]
    if len(set(spelled)) == len(spelled) and all(NAME.fullmatch(name) for name in spelled):
        return tuple(spelled)
    digits = len(str(len(points)))
    return tuple(f"{prefix} {number:0{digits}}" for number in range(1, len(points) + 1))


def _spelled(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def _fixed(path: Path, sweep: SweepFile) -> tuple[str | None, dict[str, Any]]:
    """The hyperparameters that all entries share, as text or as values. One that is swept over too is a mistake."""
    if isinstance(sweep.hyperparameters, str):
        file = path.parent / sweep.hyperparameters
        if not file.is_file():
            raise SweepError(f"{path}: there is no file {file}")
        return file.read_text(encoding="utf-8", errors="replace"), {}
    both = sorted(set(sweep.hyperparameters) & {name for point in sweep.points for name in point})
    if both:
        raise SweepError(f"{path}: `{both[0]}` is in `hyperparameters` and is swept over; keep one")
    return None, dict(sweep.hyperparameters)


def _repeated(names: Sequence[str], reports: Sequence[UploadReport]) -> list[Problem]:
    """Two entries of equal content would be one entry and one try."""
    first: dict[str, str] = {}
    problems = []
    for name, report in zip(names, reports, strict=True):
        content = report.submission.content_sha256 if report.submission is not None else None
        if content is not None and content in first:
            text = f"`{name}` is the same as `{first[content]}`: every entry needs values of its own."
            problems.append(Problem("sweep", None, text))
        elif content is not None:
            first[content] = name
    return problems
