"""What the database knows of one track on one backbone, as plain facts that a board is made of. Reads only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session

from dare.spec import JobSpec
from dare_platform.entry_status import EntryStatus, statuses
from dare_platform.models import (
    Algorithm,
    AlgorithmVersion,
    Attempt,
    Backbone,
    BackboneRevision,
    Cell,
    Entry,
    EntryKind,
    Result,
    Run,
    TaskVersion,
    TrackVersion,
    Usage,
)
from dare_platform.viewer import NOBODY, Viewer


@dataclass(frozen=True)
class Number:
    """One stored result of one seed."""

    task: str
    seed: int
    metric: str
    decoding: str
    value: float
    n: int
    scorer: str


@dataclass(frozen=True)
class RunFact:
    """How one run stands."""

    kind: str
    seed: int
    state: str
    cause: str | None = None
    charged: bool | None = None
    sentence: str | None = None
    attempts: int = 0
    max_attempts: int = 3
    step: int | None = None
    of: int | None = None


@dataclass(frozen=True)
class Spent:
    """What the training run of one seed cost, all its attempts together."""

    device_seconds: float
    gradient_forwards: float
    optimiser_steps: float
    hardware: str


@dataclass(frozen=True)
class EntryFacts:
    """One entry on one backbone."""

    id: str
    name: str
    algorithm: str
    kind: EntryKind
    built_in: bool
    gate: str
    status: EntryStatus
    submitted_at: float
    asked: frozenset[str]
    """Tasks that its evaluations are asked for."""
    runs: tuple[RunFact, ...]
    numbers: tuple[Number, ...]
    spent: tuple[Spent, ...]
    class_name: str | None = None
    anonymous: bool = False
    private: bool = False
    """Beside the board, for somebody who sees it: it changes nothing of any other row."""


@dataclass(frozen=True)
class TaskFacts:
    """A column as registered: its items and its floor."""

    items: int
    chance_floor: float


@dataclass(frozen=True)
class BoardFacts:
    """Everything that one board is made of. Entries are in order of submission."""

    family: str
    tasks: Mapping[str, TaskFacts]
    entries: tuple[EntryFacts, ...]


def collect(
    session: Session,
    track_slug: str,
    version: str,
    backbone: str,
    viewer: Viewer = NOBODY,
    beside: str | None = None,
) -> BoardFacts | None:
    """Facts of one board; None when the track or the backbone is not registered here.

    No private entry is among them, except the one that is named by `beside`, for somebody who sees it.
    """
    track = session.execute(
        select(TrackVersion.id).where(TrackVersion.track_slug == track_slug, TrackVersion.version == version)
    ).scalar_one_or_none()
    revisions = session.execute(
        select(BackboneRevision.id, Backbone.family)
        .join(Backbone, Backbone.id == BackboneRevision.backbone_id)
        .where(Backbone.slug == backbone)
        .order_by(BackboneRevision.id)
    ).all()
    if track is None or not revisions:
        return None
    revision, family = revisions[-1]  # the newest content: results on another one are not comparable
    entries = _entries(session, track, revision, viewer, beside)
    return BoardFacts(family=family, tasks=_tasks(session, track, revision), entries=entries)


def _tasks(session: Session, track: str, revision: str) -> dict[str, TaskFacts]:
    rows = session.execute(
        select(TaskVersion.task_slug, TaskVersion.n_items, Cell.chance_floor)
        .join(Cell, Cell.task_version_id == TaskVersion.id)
        .where(Cell.track_version_id == track, Cell.backbone_revision_id == revision)
        .order_by(Cell.position)
    )
    return {slug: TaskFacts(items, floor) for slug, items, floor in rows}


def _entries(session: Session, track: str, revision: str, viewer: Viewer, beside: str | None) -> tuple[EntryFacts, ...]:
    public = Entry.visibility != "private"
    condition = public if beside is None else or_(public, and_(Entry.id == beside, viewer.sees()))
    rows = session.execute(
        select(Entry, Algorithm.slug, AlgorithmVersion.built_in, AlgorithmVersion.class_name)
        .outerjoin(AlgorithmVersion, AlgorithmVersion.id == Entry.algorithm_version_id)
        .outerjoin(Algorithm, Algorithm.id == AlgorithmVersion.algorithm_id)
        .where(
            Entry.track_version_id == track,
            condition,
            select(Run.id).where(Run.entry_id == Entry.id, Run.backbone_revision_id == revision).exists(),
        )
        .order_by(Entry.created_at, Entry.id)
    ).all()
    ids = [entry.id for entry, *_ in rows]
    stands = statuses(session, {entry.id: entry.gate for entry, *_ in rows}, revision)
    runs, asked = _runs(session, ids, revision)
    numbers, spent = _numbers(session, ids, revision), _spent(session, ids, revision)
    return tuple(
        EntryFacts(
            id=entry.id,
            name=entry.name,
            algorithm=slug or "untouched",
            kind=entry.kind,
            built_in=built_in is not False,
            gate=entry.gate,
            status=stands[entry.id],
            submitted_at=entry.created_at.timestamp(),
            asked=asked[entry.id],
            runs=tuple(runs[entry.id]),
            numbers=tuple(numbers[entry.id]),
            spent=tuple(spent[entry.id]),
            class_name=class_name,
            anonymous=entry.visibility == "anonymous",
            private=entry.visibility == "private",
        )
        for entry, slug, built_in, class_name in rows
    )


def _runs(
    session: Session, ids: Sequence[str], revision: str
) -> tuple[dict[str, list[RunFact]], dict[str, frozenset[str]]]:
    runs: dict[str, list[RunFact]] = defaultdict(list)
    asked: dict[str, frozenset[str]] = defaultdict(frozenset)
    query = (
        select(
            Run.entry_id, Run.job_json, Run.kind, Run.seed, Run.state, Run.cause, Run.charged, Run.sentence,
            Run.attempts, Run.max_attempts, Run.step, Run.of,
        )
        .where(Run.entry_id.in_(ids), Run.backbone_revision_id == revision, Run.kind != "check")
        .order_by(Run.seed, Run.id)
    )  # fmt: skip
    for entry, job_json, kind, *fact in session.execute(query):
        runs[entry].append(RunFact(kind, *fact))
        if kind == "evaluate" and entry not in asked:
            asked[entry] = _tasks_asked(job_json)
    return runs, asked


@lru_cache(maxsize=1024)
def _tasks_asked(job_json: str) -> frozenset[str]:
    """Of one job. All entries of a track have much the same, and a job never changes."""
    evaluate = JobSpec.model_validate_json(job_json).evaluate
    return frozenset(protocol.task for protocol in evaluate.protocols) if evaluate else frozenset()


def _numbers(session: Session, ids: Sequence[str], revision: str) -> dict[str, list[Number]]:
    numbers: dict[str, list[Number]] = defaultdict(list)
    query = (
        select(
            Run.entry_id, Run.seed, TaskVersion.task_slug,
            Result.metric, Result.decoding, Result.value, Result.n, Result.scorer,
        )
        .join(Result, Result.run_id == Run.id)
        .join(TaskVersion, TaskVersion.id == Result.task_version_id)
        .where(Run.entry_id.in_(ids), Run.backbone_revision_id == revision, Run.state == "succeeded")
        .order_by(Run.seed, TaskVersion.task_slug)
    )  # fmt: skip
    for entry, seed, task, metric, decoding, value, n, scorer in session.execute(query):
        numbers[entry].append(Number(task, seed, metric, decoding, value, n, scorer))
    return numbers


def _spent(session: Session, ids: Sequence[str], revision: str) -> dict[str, list[Spent]]:
    """Cost of every succeeded training run: the attempt that succeeded, not the ones that we lost."""
    spent: dict[str, list[Spent]] = defaultdict(list)
    query = (
        select(Run.entry_id, Usage, Attempt.hardware)
        .join(Usage, Usage.run_id == Run.id)
        .join(Attempt, (Attempt.run_id == Usage.run_id) & (Attempt.token == Usage.token))
        .where(
            Run.entry_id.in_(ids),
            Run.backbone_revision_id == revision,
            Run.kind == "train",
            Run.state == "succeeded",
            Attempt.outcome == "succeeded",
        )
        .order_by(Run.seed)
    )
    for entry, usage, hardware in session.execute(query):
        spent[entry].append(Spent(usage.device_seconds, usage.gradient_forwards, usage.optimiser_steps, hardware))
    return spent
