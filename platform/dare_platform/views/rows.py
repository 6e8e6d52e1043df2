"""Rows of runs, workers and events turned into the shapes that are shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import case, or_, select, true
from sqlalchemy.orm import Session

from dare.spec import HyperparameterValue
from dare_platform.models import (
    ACTIVE,
    Algorithm,
    AlgorithmVersion,
    Attempt,
    Backbone,
    BackboneRevision,
    Entry,
    Run,
    RunEvent,
    Worker,
)
from dare_platform.states import CAUSES
from dare_platform.viewer import NOBODY, Viewer
from dare_platform.views.shapes import Alarm, Ending, EventView, RunSummary, WorkerView
from dare_platform.views.words import state_in_words

ALIVE_SECONDS = 60.0
"""A worker that has been silent for longer is not counted as alive."""
SHOWN_EVENTS = 200
PRIVATE = "private entry"
"""What a run in the queue is called for somebody who does not see its entry."""
WITHHELD = "withheld"
"""The algorithm of an anonymous entry, for everybody but its author."""
KINDS = {"check": "the check", "train": "training", "evaluate": "evaluation", "score": "scoring"}


def summaries(
    session: Session, *conditions: Any, viewer: Viewer, order: Any = None, limit: int | None = None
) -> list[RunSummary]:
    """Runs that meet all conditions and that somebody sees."""
    own = true() if viewer.may("operate") else Entry.submitted_by == viewer.account_id
    shown = case(
        (or_(Entry.visibility == "public", AlgorithmVersion.built_in.is_(True), own), Algorithm.slug), else_=WITHHELD
    )
    query = (
        select(Run, Entry.name, Backbone.slug, case((Algorithm.slug.is_not(None), shown)), Worker.name)
        .join(Entry, Entry.id == Run.entry_id)
        .join(BackboneRevision, BackboneRevision.id == Run.backbone_revision_id)
        .join(Backbone, Backbone.id == BackboneRevision.backbone_id)
        .outerjoin(AlgorithmVersion, AlgorithmVersion.id == Entry.algorithm_version_id)
        .outerjoin(Algorithm, Algorithm.id == AlgorithmVersion.algorithm_id)
        .outerjoin(Worker, Worker.id == Run.lease_owner)
        .where(*conditions, viewer.sees())
        .order_by(*(order if order is not None else (Run.created_at.desc(), Run.id.desc())))
    )
    rows = session.execute(query.limit(limit) if limit else query).all()
    return [_summary(run, entry, backbone, algorithm, worker) for run, entry, backbone, algorithm, worker in rows]


def _summary(run: Run, entry: str, backbone: str, algorithm: str | None, worker: str | None) -> RunSummary:
    return RunSummary(
        id=run.id,
        entry_id=run.entry_id,
        entry_name=entry,
        algorithm=algorithm or "untouched",
        kind=run.kind,
        backbone=backbone,
        seed=run.seed,
        state=run.state,
        cause=run.cause,
        attempts=run.attempts,
        max_attempts=run.max_attempts,
        step=run.step,
        of=run.of,
        created_at=run.created_at,
        finished_at=run.finished_at,
        queue=run.queue,
        worker=worker,
        sentence=state_in_words(run.kind, run.state, run.step, run.of, run.stage, run.cause),
    )


def without_trace(summary: RunSummary) -> RunSummary:
    """A run that takes its place in the queue, for somebody who does not see its entry."""
    words = "at work" if summary.state in ACTIVE else "waiting"
    return replace(
        summary, id="", entry_id="", entry_name=PRIVATE, algorithm=PRIVATE, backbone="", seed=0, cause=None, step=None,
        of=None, attempts=0, sentence=words,
    )  # fmt: skip


def workers(session: Session, at: float, viewer: Viewer = NOBODY) -> tuple[WorkerView, ...]:
    """All workers that have not been stopped in good order, the ones seen last first; what they work on where seen."""
    seen = select(Run.id, Run.lease_owner, case((viewer.sees(), 1), else_=0)).join(Entry, Entry.id == Run.entry_id)
    busy: dict[str | None, str] = {
        owner: run if sees else "" for run, owner, sees in session.execute(seen.where(Run.state.in_(ACTIVE)))
    }
    rows = session.execute(
        select(Worker).where(Worker.state != "stopped").order_by(Worker.last_seen_at.desc(), Worker.name)
    ).scalars()
    return tuple(
        WorkerView(
            id=row.id,
            name=row.name,
            state=row.state,
            queues=tuple(f"family_{family}" for family in row.families.split(",") if family),
            device=row.device,
            hardware=row.hardware,
            last_seen_seconds=max(0.0, at - row.last_seen_at),
            alive=row.state in ("starting", "idle", "busy", "draining") and at - row.last_seen_at < ALIVE_SECONDS,
            run_id=busy.get(row.id),
        )
        for row in rows
    )


def ending(run: Run) -> Ending | None:
    """Cause, sentence, next step and who pays of a failed run."""
    if run.state != "failed" or run.cause is None:
        return None
    rule = CAUSES[run.cause]
    return Ending(
        cause=run.cause,
        sentence=run.sentence or rule.sentence,
        next_step=run.next_step or rule.next_step,
        charged=bool(run.charged),
    )


def events(session: Session, run_ids: Sequence[str], viewer: Viewer = NOBODY) -> tuple[EventView, ...]:
    """The history of some runs, oldest first: changes of state and holder, and wishes to cancel."""
    rows = session.execute(
        select(RunEvent, Run.kind, Run.seed, Backbone.slug, Entry)
        .join(Run, Run.id == RunEvent.run_id)
        .join(Entry, Entry.id == Run.entry_id)
        .join(BackboneRevision, BackboneRevision.id == Run.backbone_revision_id)
        .join(Backbone, Backbone.id == BackboneRevision.backbone_id)
        .where(RunEvent.run_id.in_(run_ids), RunEvent.kind.in_(("state", "cancel", "adopted")), viewer.sees())
        .order_by(RunEvent.at.desc(), RunEvent.run_id, RunEvent.seq.desc())
        .limit(SHOWN_EVENTS)
    ).all()
    actors = _actors(session, {row.actor for row, *_ in rows})
    return tuple(
        EventView(
            at=row.at,
            actor=_person(row.actor, entry, viewer) or actors[row.actor],
            kind=row.kind,
            sentence=_event(row),
            run_id=row.run_id,
            run=f"{kind} · {backbone} · seed {seed}",
        )
        for row, kind, seed, backbone, entry in reversed(rows)
    )


def _person(actor: str, entry: Entry, viewer: Viewer) -> str | None:
    """A person by what they are to the entry, never by name; None for what is no person."""
    kind, _, account = actor.partition(" ")
    if kind != "account":
        return None
    if account == viewer.account_id:
        return "you"
    return "its author" if account == entry.submitted_by else "an operator"


def _actors(session: Session, found: set[str]) -> dict[str, str]:
    """Who did something, as people know them: `worker ID` becomes the worker's name, `run ID` what that run is."""
    by_kind: dict[str, list[str]] = {"worker": [], "run": []}
    for kind, _, id in (actor.partition(" ") for actor in found):
        by_kind.get(kind, []).append(id)
    workers = session.execute(select(Worker.id, Worker.name).where(Worker.id.in_(by_kind["worker"])))
    runs = session.execute(select(Run.id, Run.kind, Run.seed).where(Run.id.in_(by_kind["run"])))
    names = {f"worker {id}": f"worker {name}" for id, name in workers}
    names |= {f"run {id}": f"end of {KINDS[kind]}, seed {seed}" for id, kind, seed in runs}
    return {actor: names.get(actor, actor) for actor in found}


def _event(row: RunEvent) -> str:
    detail = json.loads(row.detail_json)
    why = detail.get("sentence") or detail.get("reason")
    if row.kind == "cancel":
        return "asked to cancel"
    if row.kind == "adopted":
        return str(why)
    moved = f"{row.from_state} → {row.to_state}" if row.from_state else f"created, {row.to_state}"
    return f"{moved}: {why}" if why else moved


def alarms(session: Session, run_id: str) -> tuple[Alarm, ...]:
    """Alarms that a run raised, in all its attempts."""
    rows = session.execute(
        select(RunEvent.detail_json).where(RunEvent.run_id == run_id, RunEvent.kind == "alarm").order_by(RunEvent.seq)
    ).scalars()
    found = []
    for row in rows:
        detail = json.loads(row)
        name = str(detail.get("stage") or "alarm")
        found.append(Alarm(step=detail.get("step"), name=name, sentence=str(detail.get("detail") or name)))
    return tuple(found)


def last_attempt(session: Session, run_id: str) -> Attempt | None:
    """The newest attempt of a run."""
    return session.execute(
        select(Attempt).where(Attempt.run_id == run_id).order_by(Attempt.number.desc()).limit(1)
    ).scalar_one_or_none()


def hyperparameters(version: AlgorithmVersion) -> dict[str, HyperparameterValue]:
    """Values that a version was submitted with."""
    values: dict[str, HyperparameterValue] = json.loads(version.hyperparameters_json)
    return values
