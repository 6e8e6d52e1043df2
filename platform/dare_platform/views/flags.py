"""What the flags of a board are made of: devices, scorers, alarms and silent groups of its entries, smaller siblings.

Every query goes by the runs of the board's own entries: nothing here reads an item.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from dare_platform.board import Board
from dare_platform.board_flags import EntryRecord, FlagFacts, Sibling, Told
from dare_platform.models import (
    Attempt,
    Backbone,
    BackboneRevision,
    Entry,
    MetricPoint,
    Result,
    Run,
    RunEvent,
    TaskVersion,
    TrackVersion,
)
from dare_platform.views.backbones import newest_revision

ZERO_ADVANTAGE_METRIC = "zero_advantage_groups"
ALARMS = ("collapse", "overlap")
"""By their names in the runner's diary."""


def flag_facts(session: Session, board: Board) -> FlagFacts:
    """Of one board, whoever looks: its rows are what was asked for."""
    revision = newest_revision(session, board.backbone)
    if revision is None:
        return FlagFacts()
    ids = [row.entry_id for row in board.rows]
    hardware, scorers = _hardware(session, ids, revision), _scorers(session, ids, revision)
    alarms, silent = _alarms(session, ids, revision), _silent_groups(session, ids, revision)
    return FlagFacts(
        entries={
            entry: EntryRecord(
                hardware=frozenset(hardware[entry]),
                scorers={task: frozenset(names) for task, names in scorers[entry].items()},
                alarms=tuple(alarms[entry]),
                zero_advantage=silent.get(entry),
            )
            for entry in ids
        },
        parameters=session.execute(select(Backbone.parameters).where(Backbone.slug == board.backbone)).scalar_one(),
        siblings=_siblings(session, board),
    )


def _hardware(session: Session, ids: Sequence[str], revision: str) -> dict[str, set[str]]:
    rows = session.execute(
        select(Run.entry_id, Attempt.hardware)
        .join(Attempt, Attempt.run_id == Run.id)
        .where(
            Run.entry_id.in_(ids),
            Run.backbone_revision_id == revision,
            Run.kind == "train",
            Attempt.outcome == "succeeded",
        )
        .distinct()
    )
    found: dict[str, set[str]] = defaultdict(set)
    for entry, hardware in rows:
        found[entry].add(hardware)
    return found


def _scorers(session: Session, ids: Sequence[str], revision: str) -> dict[str, dict[str, set[str]]]:
    rows = session.execute(
        select(Run.entry_id, TaskVersion.task_slug, Result.scorer)
        .join(Result, Result.run_id == Run.id)
        .join(TaskVersion, TaskVersion.id == Result.task_version_id)
        .where(Run.entry_id.in_(ids), Run.backbone_revision_id == revision, Run.state == "succeeded")
        .distinct()
    )
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for entry, task, scorer in rows:
        found[entry][task].add(scorer)
    return found


def _alarms(session: Session, ids: Sequence[str], revision: str) -> dict[str, list[Told]]:
    rows = session.execute(
        select(Run.entry_id, Run.seed, RunEvent.detail_json)
        .join(RunEvent, RunEvent.run_id == Run.id)
        .where(Run.entry_id.in_(ids), Run.backbone_revision_id == revision, RunEvent.kind == "alarm")
        .order_by(Run.seed, RunEvent.seq)
    )
    found: dict[str, list[Told]] = defaultdict(list)
    for entry, seed, text in rows:
        detail = json.loads(text)
        if detail.get("stage") in ALARMS:
            found[entry].append(Told(seed, detail["stage"], str(detail.get("detail") or detail["stage"])))
    return found


def _silent_groups(session: Session, ids: Sequence[str], revision: str) -> dict[str, float]:
    rows = session.execute(
        select(Run.entry_id, func.avg(MetricPoint.value))
        .join(Attempt, Attempt.run_id == Run.id)
        .join(MetricPoint, (MetricPoint.run_id == Attempt.run_id) & (MetricPoint.token == Attempt.token))
        .where(
            Run.entry_id.in_(ids),
            Run.backbone_revision_id == revision,
            Run.kind == "train",
            MetricPoint.name == ZERO_ADVANTAGE_METRIC,
        )
        .group_by(Run.entry_id)
    )
    return {entry: float(share) for entry, share in rows}


def _siblings(session: Session, board: Board) -> tuple[Sibling, ...]:
    """Untouched backbones of the family under this track; the board's own is none, nor is an older content of it."""
    rows = session.execute(
        select(Backbone.slug, Backbone.parameters, TaskVersion.task_slug, func.avg(Result.value))
        .join(BackboneRevision, BackboneRevision.backbone_id == Backbone.id)
        .join(Run, Run.backbone_revision_id == BackboneRevision.id)
        .join(Entry, Entry.id == Run.entry_id)
        .join(TrackVersion, TrackVersion.id == Entry.track_version_id)
        .join(Result, Result.run_id == Run.id)
        .join(TaskVersion, TaskVersion.id == Result.task_version_id)
        .where(
            Entry.kind == "reference",
            Entry.visibility != "private",
            Entry.gate == "accepted",
            TrackVersion.track_slug == board.track,
            TrackVersion.version == board.version,
            Backbone.family == board.family,
            Backbone.slug != board.backbone,
            Run.state == "succeeded",
            Result.metric == "solved",
            Result.decoding == "greedy",
            Result.scorer == board.scorer,
        )
        .group_by(Backbone.slug, Backbone.parameters, TaskVersion.task_slug)
        .order_by(Backbone.parameters, Backbone.slug)
    )
    found: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    for backbone, parameters, task, solved in rows:
        found[backbone, parameters][task] = float(solved)
    return tuple(Sibling(backbone, parameters, solved) for (backbone, parameters), solved in found.items())
