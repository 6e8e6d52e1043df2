"""What a worker that died left behind on its host: a process that goes on is taken over, anything else taken back.

Whoever takes over gets a new lease token and a new attempt over the old directory and process. The dead holder can
write no more, should it be alive after all, and leaves alone what has another holder.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import psutil
from sqlalchemy import CursorResult, or_, select, update
from sqlalchemy.orm import Session

from dare_platform import host
from dare_platform.database import now
from dare_platform.endings import close_attempt
from dare_platform.gpu import take_gpu
from dare_platform.lease import Claim, claim_of, has_killed_enough, lose, new_attempt
from dare_platform.models import ACTIVE, Run, Worker
from dare_platform.states import record

MISSED_BEATS = 1.5
"""Beats that a holder whose process cannot be looked at must have missed."""
TAKEN_OVER = "Its worker ended; another one on the same host went on with the running process."
TAKEN_BACK = "The run's worker ended while it held the run, and left nothing that could be gone on with."


@dataclass(frozen=True)
class LeftBehind:
    """A run that a dead worker still holds."""

    run_id: str
    lease_token: int
    job_token: int


def left_behind(
    session: Session, worker: Worker, lease_seconds: float, ours: frozenset[str] = frozenset()
) -> Sequence[LeftBehind]:
    """Runs whose holder was a worker like this one, on this host, and is dead. `ours`: workers of this process."""
    rows = session.execute(
        select(Run, Worker)
        .join(Worker, Worker.id == Run.lease_owner)
        .where(
            Run.state.in_(ACTIVE),
            Worker.id != worker.id,
            Worker.host == worker.host,
            Worker.device == worker.device,
            Worker.gpu_uuid.is_not_distinct_from(worker.gpu_uuid),
            or_(Run.kind == "score", Run.queue.in_([f"family_{family}" for family in worker.families.split(",")])),
        )
        .order_by(Run.id)
    ).all()
    at = now(session) if rows else 0.0
    return [
        LeftBehind(run.id, run.lease_token, run.job_token)
        for run, holder in rows
        if _is_dead(holder, at - _last_sign(run, holder, lease_seconds), lease_seconds, ours)
    ]


def _last_sign(run: Run, holder: Worker, lease_seconds: float) -> float:
    """When the holder was last heard of: it renews its lease four times in the lease's length."""
    renewed = run.lease_expires_at - lease_seconds if run.lease_expires_at is not None else 0.0
    return max(renewed, holder.last_seen_at)


def _is_dead(holder: Worker, silent_seconds: float, lease_seconds: float, ours: frozenset[str]) -> bool:
    """Certain where the holder's process would be in sight. Another container of this name may hide a living one."""
    if holder.boot_id != host.boot_id():
        return silent_seconds > MISSED_BEATS * lease_seconds / 4
    if holder.pid == os.getpid():
        return holder.id not in ours
    try:
        return bool(psutil.Process(holder.pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False


def adopt(
    session: Session, worker: Worker, found: LeftBehind, lease_seconds: float, source_revision: str | None = None
) -> Claim | None:
    """Hold the run that `found` left running. None: somebody else has it, or it has cost too many workers already."""
    locked = select(Run).where(Run.id == found.run_id).with_for_update().execution_options(populate_existing=True)
    run = session.execute(locked).scalar_one()
    if run.lease_token != found.lease_token or run.state not in ACTIVE:
        return None
    actor, token, state = f"worker {worker.id}", run.lease_token + 1, run.state
    if has_killed_enough(session, run.id, run.lease_token):
        lose(session, run.id, run.lease_token, actor=actor)
        return None
    at = now(session)
    _is_gone(session, run.id, run.lease_token)
    close_attempt(session, run.id, run.lease_token, "lost", sentence=TAKEN_OVER)
    guarded = update(Run).where(Run.id == run.id, Run.lease_token == found.lease_token, Run.state.in_(ACTIVE))
    moved = session.execute(
        guarded.values(lease_token=token, lease_owner=worker.id, lease_expires_at=at + lease_seconds).execution_options(
            synchronize_session=False
        )
    )
    if not isinstance(moved, CursorResult) or moved.rowcount != 1:
        return None
    attempt = new_attempt(session, worker, run.id, token, found.job_token, at, source_revision)
    if run.device == "gpu" and run.kind != "score":
        take_gpu(session, worker, run.id, token, at)
    detail = {"sentence": TAKEN_OVER, "token": token, "job_token": found.job_token}
    record(session, run.id, "adopted", actor=actor, token=token, at=at, detail=detail)
    return claim_of(session, run, worker, token, found.job_token, attempt.number, state)


def take_back(session: Session, worker: Worker, found: LeftBehind) -> Literal["queued", "failed", "cancelled"] | None:
    """Into the queue again, without waiting for the end of the lease."""
    session.execute(select(Run.id).where(Run.id == found.run_id).with_for_update())  # locked first, as everywhere
    _is_gone(session, found.run_id, found.lease_token)
    return lose(session, found.run_id, found.lease_token, actor=f"worker {worker.id}", sentence=TAKEN_BACK)


def _is_gone(session: Session, run_id: str, token: int) -> None:
    """Show the holder as lost. One that lives after all says otherwise at its next beat."""
    holder = select(Run.lease_owner).where(Run.id == run_id, Run.lease_token == token).scalar_subquery()
    gone = update(Worker).where(Worker.id == holder).values(state="lost")
    session.execute(gone.execution_options(synchronize_session=False))
