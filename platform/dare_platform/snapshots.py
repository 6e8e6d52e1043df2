"""Boards that never change: taken once, found by their hash, checked against it, compared with one another.

A snapshot is the public board of one moment. Its hash is that of its whole content, so that one board is one snapshot,
whoever takes it and how often. Beside it stand the runs that its numbers come from, and a hash of those numbers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from dare_platform import rankings
from dare_platform.board import Board, Estimate, Row
from dare_platform.errors import PlatformError
from dare_platform.models import Backbone, BackboneRevision, Entry, Result, Run, Snapshot, TaskVersion, TrackVersion
from dare_platform.results import insert_new
from dare_platform.tracks import Track
from dare_platform.viewer import NOBODY

SHORTEST_HASH = 8
HEXADECIMAL = frozenset("0123456789abcdef")
_BOARD = TypeAdapter(Board)


class UnknownSnapshotError(PlatformError):
    """No snapshot, or more than one, begins with what was given."""


@dataclass(frozen=True)
class Taken:
    """A stored board."""

    sha256: str
    board: Board
    runs: tuple[str, ...]
    inputs_sha256: str
    is_intact: bool
    """Whether its content still has its hash. One that has not must not be cited."""


def take(session: Session, track: Track, backbone: str) -> str:
    """Keep the public board as it is now; its hash. UnknownTrackError for a track or backbone that there is not."""
    board = rankings.board(session, track, backbone, NOBODY)
    track_id = session.execute(
        select(TrackVersion.id).where(TrackVersion.track_slug == track.track, TrackVersion.version == track.version)
    ).scalar_one_or_none()
    if track_id is None:
        raise UnknownSnapshotError(f"track {track.name} has no entry here yet: there is no board to keep")
    runs = _runs_of(session, board)
    row = {
        "sha256": board.digest,
        "track_version_id": track_id,
        "backbone": backbone,
        "made_at": board.made_at,
        "board_json": rankings.canonical(board),
        "runs_json": json.dumps(runs),
        "inputs_sha256": inputs_of(session, runs, board.scorer, board.made_at),
    }
    insert_new(session, Snapshot.__table__, [row])
    return board.digest


def find(session: Session, sha256: str) -> Taken:
    """The snapshot whose hash begins so; UnknownSnapshotError for none, for several, and for too short a beginning."""
    begin = sha256.strip().lower()
    if len(begin) < SHORTEST_HASH or not set(begin) <= HEXADECIMAL:
        raise UnknownSnapshotError(f"{sha256!r} is no hash: at least {SHORTEST_HASH} of 0 to 9 and a to f")
    rows = session.execute(select(Snapshot).where(Snapshot.sha256.startswith(begin)).limit(2)).scalars().all()
    if not rows:
        raise UnknownSnapshotError(f"there is no snapshot {sha256}")
    if len(rows) > 1:
        raise UnknownSnapshotError(f"more than one snapshot begins with {sha256}: give more of its hash")
    return _taken(rows[0])


def listed(session: Session, track: Track, backbone: str, most: int = 50) -> list[tuple[str, float]]:
    """Hash and time of the snapshots of one board, newest first."""
    query = (
        select(Snapshot.sha256, Snapshot.made_at)
        .join(TrackVersion, TrackVersion.id == Snapshot.track_version_id)
        .where(
            TrackVersion.track_slug == track.track,
            TrackVersion.version == track.version,
            Snapshot.backbone == backbone,
        )
        .order_by(Snapshot.made_at.desc())
        .limit(most)
    )
    return [(sha256, made_at) for sha256, made_at in session.execute(query)]


def take_what_changed(session: Session, seen: dict[tuple[str, str], float]) -> list[str]:
    """Keep every board that has a number newer than `seen` says, which is brought up to date; their hashes.

    With an empty `seen` it looks at all boards, which does no harm: an unchanged one is the snapshot that is there.
    """
    newest = (
        select(TrackVersion.id, TrackVersion.rules_json, Backbone.slug, func.max(Result.recorded_at))
        .join(Entry, Entry.track_version_id == TrackVersion.id)
        .join(Run, Run.entry_id == Entry.id)
        .join(Result, Result.run_id == Run.id)
        .join(BackboneRevision, BackboneRevision.id == Run.backbone_revision_id)
        .join(Backbone, Backbone.id == BackboneRevision.backbone_id)
        .where(Entry.visibility != "private")
        .group_by(TrackVersion.id, TrackVersion.rules_json, Backbone.slug)
    )
    kept = []
    for track_id, rules, backbone, at in session.execute(newest).all():
        if at > seen.get((track_id, backbone), 0.0):
            kept.append(take(session, Track.model_validate_json(rules), backbone))
            seen[track_id, backbone] = at
    return kept


def inputs_of(session: Session, runs: Sequence[str], scorer: str, until: float) -> str:
    """SHA-256 of the numbers that some runs have by one scorer, as they were recorded up to a moment.

    One line for each, `run task metric decoding value n`, sorted; a value in the shortest form that reads back exactly.
    """
    rows = session.execute(
        select(Result.run_id, TaskVersion.task_slug, Result.metric, Result.decoding, Result.value, Result.n)
        .join(TaskVersion, TaskVersion.id == Result.task_version_id)
        .where(Result.run_id.in_(runs), Result.scorer == scorer, Result.recorded_at <= until)
    )
    lines = sorted(" ".join((*texts, repr(value), str(n))) for *texts, value, n in rows)
    return hashlib.sha256("".join(line + "\n" for line in lines).encode()).hexdigest()


def _runs_of(session: Session, board: Board) -> list[str]:
    query = (
        select(Run.id)
        .join(BackboneRevision, BackboneRevision.id == Run.backbone_revision_id)
        .join(Backbone, Backbone.id == BackboneRevision.backbone_id)
        .where(
            Run.entry_id.in_([row.entry_id for row in board.rows]),
            Backbone.slug == board.backbone,
            Run.kind == "evaluate",
            Run.state == "succeeded",
        )
    )
    return sorted(session.execute(query).scalars())


def _taken(row: Snapshot) -> Taken:
    try:
        content = json.loads(row.board_json)
        board = _BOARD.validate_python({**content, "made_at": row.made_at, "digest": row.sha256})
    except (ValueError, ValidationError) as error:
        raise UnknownSnapshotError(f"snapshot {row.sha256[:SHORTEST_HASH]} cannot be read any more: {error}") from error
    intact = hashlib.sha256(row.board_json.encode()).hexdigest() == row.sha256
    return Taken(row.sha256, board, tuple(json.loads(row.runs_json)), row.inputs_sha256, intact)


# --- what changed between two ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """What became of one row."""

    name: str
    what: str
    """`entered`, `left`, `rank`, `gain`, or a task."""
    before: Any
    after: Any
    why: str | None = None


def changes(before: Board, after: Board) -> tuple[Change, ...]:
    """Rows that entered or left, and ranks and numbers that moved, with the cause where the boards know it."""
    old, new = ({row.name: row for row in board.rows} for board in (before, after))
    found = [Change(name, "entered", None, row.rank) for name, row in new.items() if name not in old]
    found += [Change(name, "left", row.rank, None) for name, row in old.items() if name not in new]
    scorer = None if before.scorer == after.scorer else f"scorer {before.scorer} → {after.scorer}"
    for name in (name for name in new if name in old):
        found += _moved(old[name], new[name], scorer)
    return tuple(found)


def _moved(before: Row, after: Row, scorer: str | None) -> list[Change]:
    anew = "submitted again" if before.entry_id != after.entry_id else None
    seeds = f"{before.seeds} → {after.seeds} seeds" if before.seeds != after.seeds else None
    why = scorer or anew or seeds
    pairs: list[tuple[str, Any, Any]] = [
        ("rank", before.rank, after.rank),
        ("gain", _value(before.gain), _value(after.gain)),
    ]
    for task in after.cells:
        then = before.cells.get(task)
        pairs.append((task, _value(then.greedy) if then else None, _value(after.cells[task].greedy)))
    return [Change(after.name, what, old, new, why) for what, old, new in pairs if old != new]


def _value(estimate: Estimate | None) -> float | None:
    return estimate.value if estimate else None
