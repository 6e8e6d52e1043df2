"""Who holds a run, and for how long: claim, heartbeat, and the reaper that takes back what nobody renews.

A claim raises the run's token; every later write of the holder carries it and changes nothing once it is old. All
times are the database's. Everything here may be called by any number of workers at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, and_, false, func, or_, select, update
from sqlalchemy.orm import Session

from dare.spec import JobSpec
from dare_platform.database import epoch_now, now
from dare_platform.endings import fail
from dare_platform.gpu import gpu_can_be_taken, take_gpu
from dare_platform.models import (
    ACTIVE,
    AlgorithmVersion,
    Attempt,
    Backbone,
    BackboneRevision,
    Entry,
    Run,
    State,
    Worker,
)
from dare_platform.states import announce, move

POISON_WORKERS = 3
"""A run during which so many different workers died is not given to another."""
LOST_AFTER_LEASES = 3.0
"""A worker unseen for so many leases is shown as lost."""


@dataclass(frozen=True)
class Claim:
    """A run that a worker holds, with everything it needs to start it, or to go on with it."""

    run_id: str
    token: int
    """Proves that the run is held, in every write."""
    job_token: int
    """Names directory and process: older than `token` where another worker has started them."""
    attempt: int
    worker_id: str
    job: JobSpec
    job_json: str
    job_sha256: str
    depends_on: str | None
    source: str | None
    """Text of the submitted algorithm; None for built-in ones and for runs without one."""
    state: State = "leased"
    """In which the run was when it became ours."""

    @property
    def actor(self) -> str:
        """Who acts, for events."""
        return f"worker {self.worker_id}"

    @property
    def name(self) -> str:
        """Of its process, as launchers know it."""
        return f"{self.run_id}-{self.job_token}"

    @property
    def is_adopted(self) -> bool:
        """Another worker has started it."""
        return self.job_token != self.token

    @property
    def runs_submitted_code(self) -> bool:
        """The run executes code of an entry: what its process does is the entry's doing."""
        return self.source is not None


def queue_order() -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    """Sort key of waiting runs: one step of priority is worth an hour of waiting, so nothing waits for ever."""
    return ((Run.priority * 3600.0 - Run.enqueued_at).desc(), Run.id.asc())


def claim(session: Session, worker: Worker, lease_seconds: float, source_revision: str | None = None) -> Claim | None:
    """Take the first waiting run that this worker may do, with its device, or None.

    A CPU worker takes tiny backbones only, one with a GPU what its device is free and healthy for. A score run loads
    no backbone, so that anybody may do it.
    """
    can_load = and_(Run.device == worker.device, Backbone.family.in_(worker.families.split(",")))
    if worker.device == "cpu":
        can_load = and_(can_load, Backbone.tiny)
    elif not gpu_can_be_taken(session, worker):
        can_load = false()
    candidates = (
        select(Run)
        .join(BackboneRevision, BackboneRevision.id == Run.backbone_revision_id)
        .join(Backbone, Backbone.id == BackboneRevision.backbone_id)
        .where(
            Run.state == "queued",
            Run.cancel_requested_at.is_(None),
            Run.not_before <= epoch_now(),
            Run.attempts < Run.max_attempts,
            or_(Run.kind == "score", can_load),
        )
        .order_by(*queue_order())
        .limit(1)
        .with_for_update(skip_locked=True, of=Run)
        .execution_options(populate_existing=True)  # a row seen earlier in this session may be out of date
    )
    run = session.execute(candidates).scalar_one_or_none()
    if run is None:
        return None
    at = now(session)
    token = run.lease_token + 1
    held = {
        "lease_token": token,
        "job_token": token,
        "lease_owner": worker.id,
        "lease_expires_at": at + lease_seconds,
        "attempts": run.attempts + 1,
        "started_at": run.started_at or at,
        "stage": None,
        "step": None,
        "of": None,
        "reward": None,
    }
    if not move(session, run.id, "leased", actor=f"worker {worker.id}", changes=held, detail={"token": token}):
        return None
    attempt = new_attempt(session, worker, run.id, token, token, at, source_revision)
    if run.device == "gpu" and run.kind != "score":
        take_gpu(session, worker, run.id, token, at)
    return claim_of(session, run, worker, token, token, attempt.number, "leased")


def new_attempt(
    session: Session, worker: Worker, run_id: str, token: int, job_token: int, at: float, source_revision: str | None
) -> Attempt:
    """The row of an attempt that begins now."""
    last = session.execute(select(func.max(Attempt.number)).where(Attempt.run_id == run_id)).scalar_one()
    attempt = Attempt(
        run_id=run_id,
        number=(last or 0) + 1,
        token=token,
        job_token=job_token,
        worker_id=worker.id,
        started_at=at,
        host=worker.host,
        hardware=worker.hardware,
        software_version=worker.software_version,
        source_revision=source_revision,
    )
    session.add(attempt)
    session.flush()
    return attempt


def claim_of(
    session: Session, run: Run, worker: Worker, token: int, job_token: int, attempt: int, state: State
) -> Claim:
    """What its new holder is told of a run."""
    job = JobSpec.model_validate_json(run.job_json)
    return Claim(
        run_id=run.id,
        token=token,
        job_token=job_token,
        attempt=attempt,
        worker_id=worker.id,
        job=job,
        job_json=run.job_json,
        job_sha256=run.job_sha256,
        depends_on=run.depends_on,
        source=_submitted_source(session, run.entry_id, job),
        state=state,
    )


def _submitted_source(session: Session, entry_id: str, job: JobSpec) -> str | None:
    part = job.train or job.check
    if part is None or part.algorithm.source == "builtin":
        return None
    return session.execute(
        select(AlgorithmVersion.source)
        .join(Entry, Entry.algorithm_version_id == AlgorithmVersion.id)
        .where(Entry.id == entry_id)
    ).scalar_one()


def heartbeat(session: Session, run_id: str, token: int, lease_seconds: float) -> Literal["held", "cancel", "lost"]:
    """Renew a lease. `cancel`: still held, but somebody asked for its end. `lost`: write nothing more."""
    renewed = (
        update(Run)
        .where(Run.id == run_id, Run.lease_token == token, Run.state.in_(ACTIVE))
        .values(lease_expires_at=epoch_now() + lease_seconds)
        .returning(Run.cancel_requested_at)
        .execution_options(synchronize_session=False)
    )
    row = session.execute(renewed).one_or_none()
    if row is None:
        return "lost"
    return "held" if row.cancel_requested_at is None else "cancel"


def lose(
    session: Session, run_id: str, token: int, *, actor: str, sentence: str | None = None
) -> Literal["queued", "failed", "cancelled"] | None:
    """Take a run back from a worker that is gone: again in the queue, or failed after its last attempt.

    A run whose workers died one after the other is not given to the next. None: it is held by somebody else by now.
    """
    if not has_killed_enough(session, run_id, token):
        return fail(session, run_id, "lost_worker", sentence, actor=actor, token=token, outcome="lost")
    last = session.execute(select(Attempt).where(Attempt.run_id == run_id, Attempt.token == token)).scalar_one()
    on_what = session.execute(select(Worker.gpu_uuid).where(Worker.id == last.worker_id)).scalar_one()
    said = (
        f"{POISON_WORKERS} workers stopped answering while they held this run, the last one on {last.host}"
        f"{f' with {on_what}' if on_what else ''}{f' from image {last.image_id[:19]}' if last.image_id else ''}: it is "
        "not given to another."
    )
    return fail(session, run_id, "lost_worker", said, actor=actor, token=token, outcome="lost", for_good=True)


def has_killed_enough(session: Session, run_id: str, token: int) -> bool:
    """Whether the holder under `token`, which is gone, makes it as many different workers as one run may cost."""
    gone = select(func.count(Attempt.worker_id.distinct())).where(
        Attempt.run_id == run_id, or_(Attempt.outcome == "lost", Attempt.token == token)
    )
    return session.execute(gone).scalar_one() >= POISON_WORKERS


def reap(session: Session, lease_seconds: float) -> list[str]:
    """Take back every run whose lease has ended: into the queue with a pause, or failed after its last attempt."""
    expired = session.execute(
        select(Run.id, Run.lease_token)
        .where(Run.lease_expires_at < epoch_now())
        .order_by(Run.id)
        .with_for_update(skip_locked=True)
    ).all()
    for run_id, token in expired:
        lose(session, run_id, token, actor="reaper")
    silent = Worker.last_seen_at < epoch_now() - LOST_AFTER_LEASES * lease_seconds
    lost = update(Worker).where(Worker.state.in_(("starting", "idle", "busy", "draining")), silent)
    session.execute(lost.values(state="lost").execution_options(synchronize_session=False))
    return [run_id for run_id, _ in expired]


def announce_again(session: Session, older_than_seconds: float) -> list[str]:
    """Ring once more for runs that have waited for `older_than_seconds` since the last ring: messages may be lost."""
    waiting = session.execute(
        select(Run.id, Run.queue)
        .where(
            Run.state == "queued",
            Run.not_before <= epoch_now(),
            Run.announced_at < epoch_now() - older_than_seconds,
        )
        .with_for_update(skip_locked=True)
    ).all()
    at = now(session)
    for run_id, queue in waiting:
        announce(session, "queued", {"run_id": run_id, "queue": queue}, at)
        session.execute(
            update(Run).where(Run.id == run_id).values(announced_at=at).execution_options(synchronize_session=False)
        )
    return [run_id for run_id, _ in waiting]
