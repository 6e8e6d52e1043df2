"""The queue: who works, who waits, for what, and for how long at most."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from dare_platform.database import now
from dare_platform.lease import queue_order
from dare_platform.models import ACTIVE, Run
from dare_platform.settings import Limits
from dare_platform.viewer import LOCAL, NOBODY, Viewer
from dare_platform.views.rows import summaries, without_trace, workers
from dare_platform.views.shapes import QueuePlace, QueueView, RunSummary, WaitingRun, WorkerView
from dare_platform.views.words import duration


@dataclass(frozen=True)
class _Waiting:
    id: str
    queue: str
    device: str
    anybodys: bool
    """Without a backbone to load: any worker takes it."""
    since: float
    longest_seconds: float


def queue_view(session: Session, viewer: Viewer = NOBODY) -> QueueView:
    """Who works, who waits and for what. A run whose entry somebody does not see takes its place without a name."""
    at = now(session)
    seen = workers(session, at, viewer)
    line = _line(session)
    running = _for(session, viewer, Run.state.in_(ACTIVE), order=(Run.started_at, Run.id))
    by_id = _for(session, viewer, Run.state == "queued")
    waiting = [_waiting(by_id[one.id], position, one, line, seen, at) for position, one in enumerate(line, 1)]
    blocked = len(session.execute(select(Run.id).where(Run.state == "blocked")).all())
    alive = sum(worker.alive for worker in seen)
    return QueueView(
        headline=_headline(len(running), len(waiting), blocked, alive),
        running=tuple(running.values()),
        waiting=tuple(waiting),
        blocked=blocked,
        workers=seen,
        workers_alive=alive,
        oldest_wait_seconds=max((at - one.since for one in line), default=None),
        at=at,
    )


def _for(session: Session, viewer: Viewer, condition: Any, order: Any = None) -> dict[str, RunSummary]:
    """All runs that meet a condition by id, as far as somebody sees them."""
    every = summaries(session, condition, viewer=LOCAL, order=order)
    if viewer.may("operate"):
        return {run.id: run for run in every}
    seen = {run.id: run for run in summaries(session, condition, viewer=viewer)}
    return {run.id: seen.get(run.id) or without_trace(run) for run in every}


def _headline(running: int, waiting: int, blocked: int, alive: int) -> str:
    idle = f"{alive} {'worker is' if alive == 1 else 'workers are'}"
    if not running and not waiting:
        return f"**Nothing is waiting.** {idle if alive else 'No worker is'} alive."
    behind = f", {blocked} behind them" if blocked else ""
    if not alive:
        runs = "1 run waits and loses" if waiting == 1 else f"{waiting} runs wait and lose"
        return f"**No worker is alive.** {runs} nothing. Start one: `dare worker`."
    return f"**{running} running, {waiting} waiting{behind}.** {idle} alive."


def _line(session: Session) -> list[_Waiting]:
    """Waiting runs in the order in which workers take them."""
    rows = session.execute(select(Run).where(Run.state == "queued").order_by(*queue_order())).scalars()
    return [
        _Waiting(
            id=run.id,
            queue=run.queue,
            device=run.device,
            anybodys=run.kind == "score",
            since=run.enqueued_at or run.created_at,
            longest_seconds=_longest(run.job_json),
        )
        for run in rows
    ]


def _longest(job_json: str) -> float:
    """Wall-clock limit of a job. Read without validation: a queue may be thousands long."""
    train = json.loads(job_json).get("train")
    return float(train["budget"]["wall_seconds"]) if train else Limits().wall_seconds


def _takers(one: _Waiting, seen: Sequence[WorkerView]) -> int:
    return sum(
        worker.alive and (one.anybodys or (worker.device == one.device and one.queue in worker.queues))
        for worker in seen
    )


def _at_most(one: _Waiting, line: Sequence[_Waiting], seen: Sequence[WorkerView]) -> float | None:
    """Limits of all runs ahead in the same queue, and of those at work, shared by its workers; None without any."""
    takers = _takers(one, seen)
    if not takers:
        return None
    ahead = line[: next(index for index, other in enumerate(line) if other.id == one.id)]
    busy = sum(worker.alive and worker.run_id is not None and one.queue in worker.queues for worker in seen)
    longest = sum(other.longest_seconds for other in ahead if (other.queue, other.device) == (one.queue, one.device))
    return (longest + busy * Limits().wall_seconds) / takers


def _waiting(
    run: RunSummary, position: int, one: _Waiting, line: Sequence[_Waiting], seen: Sequence[WorkerView], at: float
) -> WaitingRun:
    return WaitingRun(
        position=position,
        run=run,
        waits_for=one.queue,
        since_seconds=max(0.0, at - one.since),
        at_most_seconds=_at_most(one, line, seen),
    )


def place_of(session: Session, run: Run) -> QueuePlace | None:
    """Where a waiting or blocked run stands; None for any other."""
    at = now(session)
    if run.state == "blocked":
        what = session.execute(select(Run.kind).where(Run.id == run.depends_on)).scalar_one()
        names = {"train": "its training run", "check": "its check", "evaluate": "the evaluation that it scores"}
        name = names.get(what, "another run")
        sentence = f"**Waiting for {name}.** It starts when run `{run.depends_on}` has succeeded."
        return QueuePlace(0, 0, str(run.depends_on), at - run.created_at, None, 0, sentence)
    if run.state != "queued":
        return None
    line, seen = _line(session), workers(session, at)
    one = next(waiting for waiting in line if waiting.id == run.id)
    same = [other for other in line if (other.queue, other.device) == (one.queue, one.device)]
    position, takers, at_most = same.index(one) + 1, _takers(one, seen), _at_most(one, line, seen)
    if at_most is None:
        family = one.queue.removeprefix("family_")
        sentence = f"**Waiting for a worker for {family}.** None is alive. Nothing is lost; it starts when one comes."
    else:
        last = min(worker.last_seen_seconds for worker in seen if worker.alive)
        ahead = f" At most {duration(at_most)} ahead." if at_most else ""
        alive = f"{takers} {'worker' if takers == 1 else 'workers'} alive, last seen {duration(last)} ago."
        sentence = f"**Waiting: position {position} of {len(same)} in {one.queue}.**{ahead} {alive}"
    return QueuePlace(position, len(same), one.queue, max(0.0, at - one.since), at_most, takers, sentence)
