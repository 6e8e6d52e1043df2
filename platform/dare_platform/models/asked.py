"""Tables of what is asked for and how it goes: entries, checks, workers, devices, runs, attempts, events and logs."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    ForeignKeyConstraint,
    Index,
    LargeBinary,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from dare.spec import Cause
from dare_platform.models.base import (
    ACTIVE,
    FINISHED,
    LOG_CHUNK_BYTES,
    LOG_TAIL_CHARACTERS,
    Base,
    Device,
    EntryKind,
    Gate,
    GpuHealth,
    Outcome,
    State,
    Visibility,
    WorkerState,
    WorkKind,
    finite,
    flag,
    one_of,
    row_id,
    to,
)


class Entry(Base):
    """An algorithm version under a track version. The reference entry is the untouched backbone: no algorithm."""

    __tablename__ = "entry"
    id: Mapped[str] = row_id()
    algorithm_version_id: Mapped[str | None] = mapped_column(to("algorithm_version.id"))
    track_version_id: Mapped[str] = mapped_column(to("track_version.id"))
    submitted_by: Mapped[str] = mapped_column(to("account.id"))
    idempotency_key: Mapped[str]
    name: Mapped[str]
    kind: Mapped[EntryKind] = mapped_column(Text())
    gate: Mapped[Gate] = mapped_column(Text())
    visibility: Mapped[Visibility] = mapped_column(Text())
    ordinal: Mapped[int]
    """n-th try of this algorithm under this track, counted in public."""
    rerun_of: Mapped[str | None] = mapped_column(to("entry.id"))
    rejection: Mapped[str | None]
    """Why it was rejected, in words for its author."""
    created_at: Mapped[datetime]
    withdrawn_at: Mapped[datetime | None]
    __table_args__ = (
        UniqueConstraint("submitted_by", "idempotency_key"),
        one_of("kind", EntryKind),
        one_of("gate", Gate),
        one_of("visibility", Visibility),
        CheckConstraint("ordinal >= 1", name="ordinal"),
        CheckConstraint("length(name) BETWEEN 1 AND 200", name="name_length"),
        CheckConstraint("(kind = 'reference') = (algorithm_version_id IS NULL)", name="reference_has_no_algorithm"),
        CheckConstraint("(gate = 'withdrawn') = (withdrawn_at IS NOT NULL)", name="withdrawn_at"),
        CheckConstraint("(gate = 'rejected') = (rejection IS NOT NULL)", name="rejection"),
        Index("ix_entry_track", "track_version_id", "gate"),
    )


class CheckResult(Base):
    """What the algorithm contract said of a source text; asked once per family and runner version."""

    __tablename__ = "check_result"
    content_sha256: Mapped[str] = mapped_column(primary_key=True)
    family: Mapped[str] = mapped_column(primary_key=True)
    runner_version: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str | None] = mapped_column(to("run.id"))
    passed: Mapped[bool] = flag("passed")
    message: Mapped[str]
    log_tail: Mapped[str] = mapped_column(default="", server_default="")
    created_at: Mapped[datetime]


class Worker(Base):
    """A process that claims runs. `last_seen_at` is the database's clock."""

    __tablename__ = "worker"
    id: Mapped[str] = row_id()
    name: Mapped[str] = mapped_column(unique=True)
    host: Mapped[str]
    pid: Mapped[int]
    boot_id: Mapped[str]
    device: Mapped[Device] = mapped_column(Text())
    families: Mapped[str]
    """Comma-separated, sorted."""
    state: Mapped[WorkerState] = mapped_column(Text())
    hardware: Mapped[str]
    software_version: Mapped[str]
    started_at: Mapped[float]
    last_seen_at: Mapped[float]
    gpu_uuid: Mapped[str | None]
    """The one device of a gpu worker."""
    __table_args__ = (one_of("device", Device), one_of("state", WorkerState))


class Run(Base):
    """One kind of work for one entry, backbone and seed. Only `states.move` changes `state`."""

    __tablename__ = "run"
    id: Mapped[str] = row_id()
    entry_id: Mapped[str] = mapped_column(to("entry.id"))
    backbone_revision_id: Mapped[str] = mapped_column(to("backbone_revision.id"))
    kind: Mapped[WorkKind] = mapped_column(Text())
    seed: Mapped[int]
    depends_on: Mapped[str | None] = mapped_column(to("run.id"))
    queue: Mapped[str]
    """`family_<name>`."""
    device: Mapped[Device] = mapped_column(Text())
    priority: Mapped[int] = mapped_column(default=0, server_default="0")
    job_json: Mapped[str]
    job_sha256: Mapped[str]
    state: Mapped[State] = mapped_column(Text())
    cause: Mapped[Cause | None] = mapped_column(Text())
    """Why it failed, from the closed list; in state queued, why the attempt before this one failed."""
    sentence: Mapped[str | None]
    """The same for a person."""
    next_step: Mapped[str | None]
    charged: Mapped[bool | None] = mapped_column(Boolean(create_constraint=True, name="charged"))
    cancel_requested_at: Mapped[float | None]
    attempts: Mapped[int] = mapped_column(default=0, server_default="0")
    """Attempts that count against `max_attempts`; a worker's orderly stop gives one back."""
    max_attempts: Mapped[int] = mapped_column(default=3, server_default="3")
    lease_token: Mapped[int] = mapped_column(default=0, server_default="0")
    """Grows with every change of holder; a write with an older one changes nothing."""
    lease_owner: Mapped[str | None] = mapped_column(to("worker.id"))
    lease_expires_at: Mapped[float | None]
    job_token: Mapped[int] = mapped_column(default=0, server_default="0")
    """Token of the attempt that made the job directory and started the process; a worker that adopts a running process
    has a newer `lease_token`."""
    not_before: Mapped[float] = mapped_column(default=0.0, server_default="0")
    created_at: Mapped[float]
    enqueued_at: Mapped[float | None]
    announced_at: Mapped[float | None]
    """When the queue was last told of it."""
    started_at: Mapped[float | None]
    finished_at: Mapped[float | None]
    stage: Mapped[str | None]
    """Progress as the runner reports it: stage, step, steps in all, mean reward of the last step."""
    step: Mapped[int | None]
    of: Mapped[int | None]
    reward: Mapped[float | None]
    __table_args__ = (
        UniqueConstraint("entry_id", "backbone_revision_id", "kind", "seed"),
        one_of("kind", WorkKind),
        one_of("device", Device),
        one_of("state", State),
        one_of("cause", Cause),
        CheckConstraint("seed BETWEEN 0 AND 2147483647", name="seed"),
        CheckConstraint(
            f"(state IN ({', '.join(repr(s) for s in ACTIVE)})) "
            "= (lease_owner IS NOT NULL AND lease_expires_at IS NOT NULL)",
            name="lease",
        ),
        CheckConstraint("(lease_owner IS NULL) = (lease_expires_at IS NULL)", name="lease_whole"),
        CheckConstraint(
            "state <> 'failed' OR (cause IS NOT NULL AND sentence IS NOT NULL AND next_step IS NOT NULL "
            "AND charged IS NOT NULL)",
            name="failure_is_explained",
        ),
        CheckConstraint("state <> 'succeeded' OR cause IS NULL", name="success_has_no_cause"),
        CheckConstraint("state <> 'blocked' OR depends_on IS NOT NULL", name="blocked"),
        CheckConstraint(
            f"(state IN ({', '.join(repr(s) for s in FINISHED)})) = (finished_at IS NOT NULL)", name="finished_at"
        ),
        CheckConstraint("attempts BETWEEN 0 AND max_attempts", name="attempts"),
        CheckConstraint("lease_token >= 0", name="lease_token"),
        finite("lease_expires_at"),
        finite("not_before"),
        finite("reward"),
        Index(
            "ix_run_claim",
            "queue",
            "priority",
            "enqueued_at",
            "id",
            sqlite_where=text("state = 'queued'"),
            postgresql_where=text("state = 'queued'"),
        ),
        Index(
            "ix_run_lease",
            "lease_expires_at",
            sqlite_where=text("lease_expires_at IS NOT NULL"),
            postgresql_where=text("lease_expires_at IS NOT NULL"),
        ),
        Index("ix_run_depends_on", "depends_on"),
    )


class Attempt(Base):
    """One try of a run under one lease token, with everything known about where and how it ran."""

    __tablename__ = "attempt"
    run_id: Mapped[str] = mapped_column(to("run.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    token: Mapped[int]
    worker_id: Mapped[str] = mapped_column(to("worker.id"))
    started_at: Mapped[float]
    ended_at: Mapped[float | None]
    outcome: Mapped[Outcome | None] = mapped_column(Text())
    cause: Mapped[Cause | None] = mapped_column(Text())
    sentence: Mapped[str | None]
    host: Mapped[str]
    hardware: Mapped[str]
    software_version: Mapped[str]
    """Version of this package."""
    source_revision: Mapped[str | None]
    """Commit of the checkout it ran from, where there is one."""
    job_token: Mapped[int | None]
    """Whose directory and process it went on with, where it adopted them; its own token otherwise."""
    image_id: Mapped[str | None]
    """Container image; None for a plain process."""
    isolation: Mapped[str | None]
    """What kept the run apart from the host, in one sentence."""
    versions_json: Mapped[str] = mapped_column(default="{}", server_default="{}")
    """What the runner says of libraries, sampler, dtype, attention, threads and batch size."""
    exit_code: Mapped[int | None]
    peak_memory_bytes: Mapped[int | None] = mapped_column(BigInteger)
    log_tail: Mapped[str] = mapped_column(default="", server_default="")
    __table_args__ = (
        UniqueConstraint("run_id", "token"),
        one_of("outcome", Outcome),
        one_of("cause", Cause),
        CheckConstraint("(outcome IS NULL) = (ended_at IS NULL)", name="ended_at"),
        CheckConstraint(f"length(log_tail) <= {LOG_TAIL_CHARACTERS}", name="log_tail"),
        CheckConstraint("number >= 1", name="number"),
    )


class RunEvent(Base):
    """What happened to a run, in order. Append-only."""

    __tablename__ = "run_event"
    run_id: Mapped[str] = mapped_column(to("run.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[float]
    actor: Mapped[str]
    token: Mapped[int | None]
    from_state: Mapped[State | None] = mapped_column(Text())
    to_state: Mapped[State | None] = mapped_column(Text())
    kind: Mapped[str]
    """`state`, `cancel`, `adopted`, `alarm` or `sample`."""
    detail_json: Mapped[str] = mapped_column(default="{}", server_default="{}")
    __table_args__ = (one_of("from_state", State), one_of("to_state", State))


class LogChunk(Base):
    """A piece of what an attempt printed, as it came. Offsets are in bytes; together the pieces have no gaps.

    Unlike records, logs may be purged.
    """

    __tablename__ = "log_chunk"
    run_id: Mapped[str] = mapped_column(primary_key=True)
    token: Mapped[int] = mapped_column(primary_key=True)
    offset: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    content: Mapped[bytes] = mapped_column(LargeBinary)
    __table_args__ = (
        ForeignKeyConstraint(
            ["run_id", "token"], ["attempt.run_id", "attempt.token"], name="fk_log_chunk_attempt", ondelete="RESTRICT"
        ),
        CheckConstraint(f"length(content) BETWEEN 1 AND {LOG_CHUNK_BYTES}", name="content"),
        CheckConstraint('"offset" >= 0', name="offset"),
    )


class GpuDevice(Base):
    """A GPU that workers have seen. Only healthy ones get work; nobody resets one automatically."""

    __tablename__ = "gpu_device"
    uuid: Mapped[str] = mapped_column(primary_key=True)
    host: Mapped[str]
    model: Mapped[str]
    memory_mib: Mapped[int]
    health: Mapped[GpuHealth] = mapped_column(Text())
    note: Mapped[str | None]
    """Why it is not healthy."""
    seen_at: Mapped[float]
    __table_args__ = (one_of("health", GpuHealth), CheckConstraint("memory_mib > 0", name="memory_mib"))


class GpuLease(Base):
    """Which attempt has which GPU. One at a time."""

    __tablename__ = "gpu_lease"
    id: Mapped[str] = row_id()
    gpu_uuid: Mapped[str] = mapped_column(to("gpu_device.uuid"))
    run_id: Mapped[str]
    token: Mapped[int]
    acquired_at: Mapped[float]
    released_at: Mapped[float | None]
    __table_args__ = (
        ForeignKeyConstraint(
            ["run_id", "token"], ["attempt.run_id", "attempt.token"], name="fk_gpu_lease_attempt", ondelete="RESTRICT"
        ),
        Index(
            "uq_gpu_lease_active",
            "gpu_uuid",
            unique=True,
            sqlite_where=text("released_at IS NULL"),
            postgresql_where=text("released_at IS NULL"),
        ),
    )
