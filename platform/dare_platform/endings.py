"""How runs begin and end: created, failed or tried again, cancelled, and what that means for the runs that wait."""

from __future__ import annotations

import random
from typing import Literal

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from dare.spec import Cause, JobSpec
from dare_platform import quotas
from dare_platform.database import now
from dare_platform.errors import UnknownRunError
from dare_platform.ids import new_id
from dare_platform.models import (
    ACTIVE,
    FINISHED,
    LOG_TAIL_CHARACTERS,
    Attempt,
    Backbone,
    BackboneRevision,
    Device,
    GpuLease,
    Outcome,
    Run,
    Usage,
)
from dare_platform.states import CAUSES, announce, move, record

FIRST_BACK_OFF_SECONDS = 5.0
LONGEST_BACK_OFF_SECONDS = 300.0


def add_run(
    session: Session,
    *,
    entry_id: str,
    backbone_revision_id: str,
    job: JobSpec,
    device: Device,
    depends_on: str | None = None,
    priority: int = 0,
) -> Run:
    """A new run: queued, or blocked until the run that it depends on has succeeded."""
    family = session.execute(
        select(Backbone.family)
        .join(BackboneRevision, BackboneRevision.backbone_id == Backbone.id)
        .where(BackboneRevision.id == backbone_revision_id)
    ).scalar_one()
    at = now(session)
    run = Run(
        id=new_id(),
        entry_id=entry_id,
        backbone_revision_id=backbone_revision_id,
        kind=job.kind,
        seed=job.seed,
        depends_on=depends_on,
        queue=f"family_{family}",
        device=device,
        priority=priority,
        job_json=job.model_dump_json(),
        job_sha256=job.digest(),
        state="blocked" if depends_on else "queued",
        created_at=at,
        enqueued_at=None if depends_on else at,
        announced_at=None if depends_on else at,
    )
    session.add(run)
    session.flush()
    record(session, run.id, "state", actor="platform", at=at, moved=(None, run.state))
    if depends_on is None:
        announce(session, "queued", {"run_id": run.id, "queue": run.queue}, at)
    elif session.execute(select(Run.state).where(Run.id == depends_on).with_for_update()).scalar_one() in FINISHED:
        release_dependants(session, depends_on)  # it ended before this run was asked for
        session.refresh(run)
    return run


def fail(
    session: Session,
    run_id: str,
    cause: Cause,
    sentence: str | None = None,
    *,
    actor: str,
    token: int | None = None,
    outcome: Outcome = "failed",
    for_good: bool = False,
) -> Literal["queued", "failed", "cancelled"] | None:
    """End an attempt badly: again in the queue for infrastructure faults with attempts left, failed otherwise.

    None when the caller no longer holds the run. `sentence` is what happened here; the cause's own is the default.
    `for_good`: not tried again, whatever the cause.
    """
    rule = CAUSES[cause]
    run = session.execute(
        select(Run.state, Run.attempts, Run.max_attempts, Run.cancel_requested_at, Run.lease_token)
        .where(Run.id == run_id)
        .with_for_update()
    ).one()
    if token is not None and (run.lease_token != token or run.state not in ACTIVE):
        return None
    said = sentence or rule.sentence
    explained = {"cause": cause, "sentence": said, "next_step": rule.next_step, "charged": rule.charged}
    if run.state in ACTIVE:
        close_attempt(session, run_id, run.lease_token, outcome, cause=cause, sentence=said)
    if run.cancel_requested_at is not None and run.state in ACTIVE:
        return "cancelled" if _end_as_cancelled(session, run_id, actor, token) else None
    if rule.retried and not for_good and run.attempts < run.max_attempts and run.state in ACTIVE:
        wait = _back_off(run.attempts)
        changes = {**explained, "not_before": now(session) + wait}
        waits = {"cause": cause, "sentence": said, "waits_seconds": round(wait, 1)}
        if not move(session, run_id, "queued", actor=actor, token=token, changes=changes, detail=waits):
            return None
        return "queued"
    if not move(
        session,
        run_id,
        "failed",
        actor=actor,
        token=token,
        changes=explained,
        detail={"cause": cause, "sentence": said},
    ):
        return None
    release_dependants(session, run_id)
    if not rule.charged and cause != "dependency":  # a run behind another one is lost for that one's reason
        quotas.give_back(session, _entry_of(session, run_id), f"lost: {cause}")
    return "failed"


def give_back(session: Session, run_id: str, token: int, actor: str) -> bool:
    """Return a run to the queue at once, without using up an attempt: the worker stops in good order."""
    if not _holds(session, run_id, token):
        return False
    close_attempt(
        session, run_id, token, "returned", sentence="The worker was stopped; the run went back to the queue."
    )
    changes = {"attempts": Run.attempts - 1, "not_before": 0.0}
    return move(
        session, run_id, "queued", actor=actor, token=token, changes=changes, detail={"reason": "the worker stops"}
    )


def cancel(session: Session, run_id: str, actor: str) -> Literal["cancelled", "asked", "already finished"]:
    """Cancel a waiting run at once; ask the holder of an active one, who kills it first."""
    state = session.execute(select(Run.state).where(Run.id == run_id).with_for_update()).scalar_one_or_none()
    if state is None:
        raise UnknownRunError(f"there is no run {run_id!r}")
    if state in FINISHED:
        return "already finished"
    if state in ACTIVE:
        asked = update(Run).where(Run.id == run_id, Run.cancel_requested_at.is_(None))
        session.execute(asked.values(cancel_requested_at=now(session)).execution_options(synchronize_session=False))
        record(session, run_id, "cancel", actor=actor)
        return "asked"
    _end_as_cancelled(session, run_id, actor, None)
    return "cancelled"


def end_cancelled(session: Session, run_id: str, token: int, actor: str) -> bool:
    """The holder has killed the run and says so."""
    if not _holds(session, run_id, token):
        return False
    close_attempt(session, run_id, token, "cancelled")
    return _end_as_cancelled(session, run_id, actor, token)


def _end_as_cancelled(session: Session, run_id: str, actor: str, token: int | None) -> bool:
    if not move(session, run_id, "cancelled", actor=actor, token=token):
        return False
    release_dependants(session, run_id)
    quotas.give_back_unseen(session, _entry_of(session, run_id))
    return True


def _entry_of(session: Session, run_id: str) -> str:
    return session.execute(select(Run.entry_id).where(Run.id == run_id)).scalar_one()


def _holds(session: Session, run_id: str, token: int) -> bool:
    held = select(Run.id).where(Run.id == run_id, Run.lease_token == token, Run.state.in_(ACTIVE)).with_for_update()
    return session.execute(held).first() is not None


def close_attempt(
    session: Session, run_id: str, token: int, outcome: Outcome, cause: Cause | None = None, sentence: str | None = None
) -> None:
    """Write how an attempt ended, and let go of its device. An attempt ends once.

    One without a result of its runner costs the time that passed; who asked for its end pays for it, unless it was
    the check, which is free.
    """
    at = now(session)
    leased = update(GpuLease).where(GpuLease.run_id == run_id, GpuLease.token == token, GpuLease.released_at.is_(None))
    session.execute(leased.values(released_at=at).execution_options(synchronize_session=False))
    values = {"outcome": outcome, "ended_at": at, "cause": cause, "sentence": sentence}
    open_one = update(Attempt).where(Attempt.run_id == run_id, Attempt.token == token, Attempt.ended_at.is_(None))
    closed = session.execute(
        open_one.values(**values)
        .returning(Attempt.ended_at - Attempt.started_at)
        .execution_options(synchronize_session=False)
    ).scalar_one_or_none()
    if closed is not None and outcome in ("lost", "returned", "cancelled"):
        kind = session.execute(select(Run.kind).where(Run.id == run_id)).scalar_one()
        charged = outcome == "cancelled" and kind != "check"
        cost = Usage(run_id=run_id, token=token, wall_seconds=max(0.0, closed), charged=charged)
        session.add(cost)
        session.flush()
        quotas.charge_attempt(session, cost)


def release_dependants(session: Session, run_id: str) -> list[str]:
    """Move the runs that wait for a finished one: into the queue, or to the same kind of end. Returns their ids."""
    state = session.execute(select(Run.state).where(Run.id == run_id)).scalar_one()
    waiting = session.execute(
        select(Run.id).where(Run.depends_on == run_id, Run.state == "blocked").order_by(Run.id).with_for_update()
    ).scalars()
    released = list(waiting)
    for dependant in released:
        actor = f"run {run_id}"
        if state == "succeeded":
            move(session, dependant, "queued", actor=actor, expected="blocked")
        elif state == "failed":
            fail(session, dependant, "dependency", actor=actor)
        elif state == "cancelled":
            _end_as_cancelled(session, dependant, actor, None)
    return released if state in FINISHED else []


def tail(text: str) -> str:
    """The end of a log, as much as an attempt keeps; characters that PostgreSQL cannot hold are replaced."""
    return text.replace("\x00", "\ufffd")[-LOG_TAIL_CHARACTERS:]


def _back_off(attempts: int) -> float:
    """Doubles with every attempt; a random half keeps runs that failed together from returning together."""
    longest: float = min(FIRST_BACK_OFF_SECONDS * 2 ** (attempts - 1), LONGEST_BACK_OFF_SECONDS)
    return longest * random.uniform(0.5, 1.0)
