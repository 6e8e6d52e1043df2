"""The tables. Names follow the design's nouns; every constraint has a name and holds on SQLite and PostgreSQL.

Closed sets are CHECK lists, so that adding a value is an ordinary migration. Columns named `*_at` of type float are
epoch seconds of the database's clock, which decides about leases; aware UTC times are for people. Nothing is deleted:
foreign keys restrict, and the tables of `IMMUTABLE` refuse UPDATE and DELETE by trigger.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Literal, get_args

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from dare.spec import Cause
from dare_platform.database import UtcDateTime, metadata
from dare_platform.ids import new_id

Gate = Literal["draft", "validating", "rejected", "accepted", "withdrawn"]
Visibility = Literal["private", "anonymous", "public"]
EntryKind = Literal["reference", "baseline", "control", "method"]
WorkKind = Literal["check", "train", "evaluate", "score"]
State = Literal["blocked", "queued", "leased", "preparing", "working", "finalizing", "succeeded", "failed", "cancelled"]
WorkerState = Literal["starting", "idle", "busy", "draining", "stopped", "lost", "disabled"]
Outcome = Literal["succeeded", "failed", "cancelled", "lost", "returned"]
ItemStatus = Literal["ok", "no_answer", "truncated", "error"]
Device = Literal["cpu", "gpu"]

ACTIVE: tuple[State, ...] = ("leased", "preparing", "working", "finalizing")
FINISHED: tuple[State, ...] = ("succeeded", "failed", "cancelled")

LOCAL_ACCOUNT = "local"
"""Id of the one account that exists from the first migration: the person at this machine."""
LOG_TAIL_CHARACTERS = 65536

IMMUTABLE = ("algorithm_version", "audit_log", "prediction", "result", "run_event", "score_item")


class Base(DeclarativeBase):
    """Declarative base; the naming convention lives in `metadata`."""

    metadata = metadata
    type_annotation_map = {  # noqa: RUF012  # SQLAlchemy reads it from the class
        str: Text(),
        float: Float(53),
        datetime: UtcDateTime(),
    }


def _one_of(column: str, values: object) -> CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in get_args(values))
    return CheckConstraint(f"{column} IN ({listed})", name=column)


def _finite(column: str) -> CheckConstraint:
    """PostgreSQL holds NaN greater than every number, so a range refuses it and both infinities."""
    return CheckConstraint(f"{column} BETWEEN -1e300 AND 1e300", name=f"{column}_finite")


def _not_negative(*columns: str) -> Iterable[CheckConstraint]:
    return (CheckConstraint(f"{column} BETWEEN 0 AND 1e300", name=f"{column}_not_negative") for column in columns)


def _flag(name: str, default: bool | None = None) -> Mapped[bool]:
    given = None if default is None else text("true" if default else "false")
    return mapped_column(Boolean(create_constraint=True, name=name), default=default, server_default=given)


def _id() -> Mapped[str]:
    return mapped_column(primary_key=True, default=new_id)


def _to(target: str) -> ForeignKey:
    return ForeignKey(target, ondelete="RESTRICT")


# --- who ---------------------------------------------------------------------------------------------------------


class Account(Base):
    """A person. Erasing one anonymises the row; it never removes what they entered."""

    __tablename__ = "account"
    id: Mapped[str] = _id()
    handle: Mapped[str] = mapped_column(unique=True)
    role: Mapped[str]
    auth_provider: Mapped[str]
    auth_subject: Mapped[str]
    active: Mapped[bool] = _flag("active", default=True)
    created_at: Mapped[datetime]
    __table_args__ = (
        UniqueConstraint("auth_provider", "auth_subject"),
        CheckConstraint("role IN ('viewer', 'submitter', 'operator', 'admin')", name="role"),
    )


# --- what is compared --------------------------------------------------------------------------------------------


class Algorithm(Base):
    """A method by name, whatever its versions. `slug` is the file name of a built-in one."""

    __tablename__ = "algorithm"
    id: Mapped[str] = _id()
    slug: Mapped[str] = mapped_column(unique=True)
    title: Mapped[str]
    owner_id: Mapped[str] = mapped_column(_to("account.id"))
    created_at: Mapped[datetime]


class AlgorithmVersion(Base):
    """One source text with one set of hyperparameters. Immutable."""

    __tablename__ = "algorithm_version"
    id: Mapped[str] = _id()
    algorithm_id: Mapped[str] = mapped_column(_to("algorithm.id"))
    version: Mapped[int]
    class_name: Mapped[str]
    source: Mapped[str]
    """The whole file, also of built-in algorithms: what ran can always be read."""
    source_sha256: Mapped[str]
    hyperparameters_json: Mapped[str]
    content_sha256: Mapped[str]
    """Of source and hyperparameters together: equal content is one version."""
    trains_on: Mapped[str]
    built_in: Mapped[bool] = _flag("built_in")
    created_at: Mapped[datetime]
    __table_args__ = (
        UniqueConstraint("algorithm_id", "version"),
        UniqueConstraint("algorithm_id", "content_sha256"),
        CheckConstraint("version >= 1", name="version"),
        CheckConstraint("trains_on IN ('demonstrations', 'preferences', 'prompts')", name="trains_on"),
    )


class Backbone(Base):
    """A checkpoint by name."""

    __tablename__ = "backbone"
    id: Mapped[str] = _id()
    slug: Mapped[str] = mapped_column(unique=True)
    family: Mapped[str]
    parameters: Mapped[int] = mapped_column(BigInteger)
    tiny: Mapped[bool] = _flag("tiny")
    """Small enough for a CPU worker; only these are claimed by one."""
    __table_args__ = (CheckConstraint("parameters > 0", name="parameters"),)


class BackboneRevision(Base):
    """A backbone's exact content."""

    __tablename__ = "backbone_revision"
    id: Mapped[str] = _id()
    backbone_id: Mapped[str] = mapped_column(_to("backbone.id"))
    source_revision: Mapped[str]
    weights_sha256: Mapped[str]
    tokenizer_sha256: Mapped[str]
    __table_args__ = (UniqueConstraint("backbone_id", "source_revision", "weights_sha256", "tokenizer_sha256"),)


class TaskVersion(Base):
    """A task's item list under one version. Its items are rows of `task_item`."""

    __tablename__ = "task_version"
    id: Mapped[str] = _id()
    task_slug: Mapped[str]
    version: Mapped[str]
    split: Mapped[str]
    n_items: Mapped[int]
    items_sha256: Mapped[str]
    metric: Mapped[str]
    direction: Mapped[str]
    lower_bound: Mapped[float]
    upper_bound: Mapped[float]
    hidden: Mapped[bool] = _flag("hidden", default=False)
    __table_args__ = (
        UniqueConstraint("task_slug", "version", "split"),
        CheckConstraint("n_items > 0", name="n_items"),
        CheckConstraint("direction IN ('max', 'min')", name="direction"),
        CheckConstraint("lower_bound < upper_bound", name="bounds"),
        _finite("lower_bound"),
        _finite("upper_bound"),
    )


class TaskItem(Base):
    """One question of a task version; its text stays in the task."""

    __tablename__ = "task_item"
    task_version_id: Mapped[str] = mapped_column(_to("task_version.id"), primary_key=True)
    item_id: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int]
    item_sha256: Mapped[str]
    cluster_id: Mapped[str | None]
    __table_args__ = (
        UniqueConstraint("task_version_id", "position"),
        CheckConstraint("position >= 0", name="position"),
    )


class TrackVersion(Base):
    """A ruleset; `rules_json` is the whole track as it was when registered."""

    __tablename__ = "track_version"
    id: Mapped[str] = _id()
    track_slug: Mapped[str]
    version: Mapped[str]
    state: Mapped[str]
    title: Mapped[str]
    device: Mapped[Device] = mapped_column(Text())
    rules_sha256: Mapped[str]
    rules_json: Mapped[str]
    created_at: Mapped[datetime]
    __table_args__ = (
        UniqueConstraint("track_slug", "version"),
        CheckConstraint("state IN ('draft', 'open', 'closed')", name="state"),
        _one_of("device", Device),
    )


class Cell(Base):
    """A column of one backbone's board: (backbone revision, task version, budget) of a track version."""

    __tablename__ = "cell"
    id: Mapped[str] = _id()
    track_version_id: Mapped[str] = mapped_column(_to("track_version.id"))
    backbone_revision_id: Mapped[str] = mapped_column(_to("backbone_revision.id"))
    task_version_id: Mapped[str] = mapped_column(_to("task_version.id"))
    budget_json: Mapped[str]
    budget_sha256: Mapped[str]
    position: Mapped[int]
    role: Mapped[str]
    seeds_required: Mapped[int]
    reference_value: Mapped[float | None]
    """Frozen score of the untouched backbone; None until it is measured."""
    chance_floor: Mapped[float]
    __table_args__ = (
        UniqueConstraint(
            "track_version_id", "backbone_revision_id", "task_version_id", "budget_sha256", name="uq_cell_identity"
        ),
        CheckConstraint("role IN ('ranked', 'shown', 'transfer')", name="role"),
        CheckConstraint("seeds_required >= 1", name="seeds_required"),
        CheckConstraint("position >= 0", name="position"),
        _finite("reference_value"),
        _finite("chance_floor"),
    )


# --- what is asked for -------------------------------------------------------------------------------------------


class Entry(Base):
    """An algorithm version under a track version. The reference entry is the untouched backbone: no algorithm."""

    __tablename__ = "entry"
    id: Mapped[str] = _id()
    algorithm_version_id: Mapped[str | None] = mapped_column(_to("algorithm_version.id"))
    track_version_id: Mapped[str] = mapped_column(_to("track_version.id"))
    submitted_by: Mapped[str] = mapped_column(_to("account.id"))
    idempotency_key: Mapped[str]
    name: Mapped[str]
    kind: Mapped[EntryKind] = mapped_column(Text())
    gate: Mapped[Gate] = mapped_column(Text())
    visibility: Mapped[Visibility] = mapped_column(Text())
    ordinal: Mapped[int]
    """n-th try of this algorithm under this track, counted in public."""
    rerun_of: Mapped[str | None] = mapped_column(_to("entry.id"))
    rejection: Mapped[str | None]
    """Why it was rejected, in words for its author."""
    created_at: Mapped[datetime]
    withdrawn_at: Mapped[datetime | None]
    __table_args__ = (
        UniqueConstraint("submitted_by", "idempotency_key"),
        _one_of("kind", EntryKind),
        _one_of("gate", Gate),
        _one_of("visibility", Visibility),
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
    run_id: Mapped[str | None] = mapped_column(_to("run.id"))
    passed: Mapped[bool] = _flag("passed")
    message: Mapped[str]
    log_tail: Mapped[str] = mapped_column(default="", server_default="")
    created_at: Mapped[datetime]


class Worker(Base):
    """A process that claims runs. `last_seen_at` is the database's clock."""

    __tablename__ = "worker"
    id: Mapped[str] = _id()
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
    __table_args__ = (_one_of("device", Device), _one_of("state", WorkerState))


class Run(Base):
    """One kind of work for one entry, backbone and seed. Only `states.move` changes `state`."""

    __tablename__ = "run"
    id: Mapped[str] = _id()
    entry_id: Mapped[str] = mapped_column(_to("entry.id"))
    backbone_revision_id: Mapped[str] = mapped_column(_to("backbone_revision.id"))
    kind: Mapped[WorkKind] = mapped_column(Text())
    seed: Mapped[int]
    depends_on: Mapped[str | None] = mapped_column(_to("run.id"))
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
    lease_owner: Mapped[str | None] = mapped_column(_to("worker.id"))
    lease_expires_at: Mapped[float | None]
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
        _one_of("kind", WorkKind),
        _one_of("device", Device),
        _one_of("state", State),
        _one_of("cause", Cause),
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
        _finite("lease_expires_at"),
        _finite("not_before"),
        _finite("reward"),
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
    run_id: Mapped[str] = mapped_column(_to("run.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    token: Mapped[int]
    worker_id: Mapped[str] = mapped_column(_to("worker.id"))
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
        _one_of("outcome", Outcome),
        _one_of("cause", Cause),
        CheckConstraint("(outcome IS NULL) = (ended_at IS NULL)", name="ended_at"),
        CheckConstraint(f"length(log_tail) <= {LOG_TAIL_CHARACTERS}", name="log_tail"),
        CheckConstraint("number >= 1", name="number"),
    )


class RunEvent(Base):
    """What happened to a run, in order. Append-only."""

    __tablename__ = "run_event"
    run_id: Mapped[str] = mapped_column(_to("run.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[float]
    actor: Mapped[str]
    token: Mapped[int | None]
    from_state: Mapped[State | None] = mapped_column(Text())
    to_state: Mapped[State | None] = mapped_column(Text())
    kind: Mapped[str]
    """`state`, `cancel`, `alarm` or `sample`."""
    detail_json: Mapped[str] = mapped_column(default="{}", server_default="{}")
    __table_args__ = (_one_of("from_state", State), _one_of("to_state", State))


# --- what came out -----------------------------------------------------------------------------------------------


def _of_attempt() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["run_id", "token"], ["attempt.run_id", "attempt.token"], ondelete="RESTRICT")


class MetricPoint(Base):
    """One number of one step, as the runner reported it while it worked."""

    __tablename__ = "metric_point"
    run_id: Mapped[str] = mapped_column(primary_key=True)
    token: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[float]
    device_seconds: Mapped[float | None]
    forwards: Mapped[float | None]
    __table_args__ = (
        _of_attempt(),
        _finite("value"),
        *_not_negative("device_seconds", "forwards"),
        CheckConstraint("step >= 0", name="step"),
    )


class Prediction(Base):
    """What a policy answered to one item, before any scorer saw it. Sample 0 is the greedy one. Immutable."""

    __tablename__ = "prediction"
    run_id: Mapped[str] = mapped_column(primary_key=True)
    task_version_id: Mapped[str] = mapped_column(primary_key=True)
    item_id: Mapped[str] = mapped_column(primary_key=True)
    sample: Mapped[int] = mapped_column(primary_key=True)
    token: Mapped[int]
    prompt_sha256: Mapped[str]
    output: Mapped[str]
    output_sha256: Mapped[str]
    tokens: Mapped[int]
    nfe: Mapped[int]
    truncated: Mapped[bool] = _flag("truncated")
    __table_args__ = (
        _of_attempt(),
        ForeignKeyConstraint(
            ["task_version_id", "item_id"], ["task_item.task_version_id", "task_item.item_id"], ondelete="RESTRICT"
        ),
        CheckConstraint("sample >= 0", name="sample"),
        CheckConstraint("tokens >= 0", name="tokens"),
        CheckConstraint("nfe >= 0", name="nfe"),
    )


class ScoreItem(Base):
    """What one scorer says of one prediction. A better scorer adds rows. Immutable."""

    __tablename__ = "score_item"
    run_id: Mapped[str] = mapped_column(primary_key=True)
    task_version_id: Mapped[str] = mapped_column(primary_key=True)
    item_id: Mapped[str] = mapped_column(primary_key=True)
    sample: Mapped[int] = mapped_column(primary_key=True)
    scorer: Mapped[str] = mapped_column(primary_key=True)
    score: Mapped[float]
    reward: Mapped[float]
    status: Mapped[ItemStatus] = mapped_column(Text())
    answer: Mapped[str | None]
    __table_args__ = (
        ForeignKeyConstraint(
            ["run_id", "task_version_id", "item_id", "sample"],
            ["prediction.run_id", "prediction.task_version_id", "prediction.item_id", "prediction.sample"],
            name="fk_score_item_prediction",
            ondelete="RESTRICT",
        ),
        _one_of("status", ItemStatus),
        _finite("score"),
        _finite("reward"),
    )


class Result(Base):
    """One number of one run: a task's metric under a scorer and a way of decoding. Immutable."""

    __tablename__ = "result"
    run_id: Mapped[str] = mapped_column(primary_key=True)
    task_version_id: Mapped[str] = mapped_column(_to("task_version.id"), primary_key=True)
    scorer: Mapped[str] = mapped_column(primary_key=True)
    metric: Mapped[str] = mapped_column(primary_key=True)
    decoding: Mapped[str] = mapped_column(primary_key=True)
    token: Mapped[int]
    value: Mapped[float]
    standard_error: Mapped[float | None]
    """Over items; says nothing about seeds."""
    n: Mapped[int]
    n_no_answer: Mapped[int]
    n_truncated: Mapped[int]
    protocol: Mapped[str]
    recorded_at: Mapped[float]
    __table_args__ = (
        _of_attempt(),
        CheckConstraint("decoding IN ('greedy', 'sampled')", name="decoding"),
        CheckConstraint("n > 0", name="n"),
        CheckConstraint("n_no_answer >= 0", name="n_no_answer"),
        CheckConstraint("n_truncated >= 0", name="n_truncated"),
        _finite("value"),
        *_not_negative("standard_error"),
        Index("ix_result_task", "task_version_id", "scorer"),
    )


class Usage(Base):
    """What one attempt cost, by clock. `wall_seconds` is the platform's own measurement; the rest is the runner's."""

    __tablename__ = "usage"
    run_id: Mapped[str] = mapped_column(primary_key=True)
    token: Mapped[int] = mapped_column(primary_key=True)
    wall_seconds: Mapped[float]
    prepare_seconds: Mapped[float] = mapped_column(default=0.0, server_default="0")
    train_seconds: Mapped[float] = mapped_column(default=0.0, server_default="0")
    evaluate_seconds: Mapped[float] = mapped_column(default=0.0, server_default="0")
    overhead_seconds: Mapped[float] = mapped_column(default=0.0, server_default="0")
    device_seconds: Mapped[float] = mapped_column(default=0.0, server_default="0")
    """CPU seconds on the cpu device."""
    gradient_forwards: Mapped[float] = mapped_column(default=0.0, server_default="0")
    """Gradient-carrying forwards per completion, summed over the run."""
    forwards: Mapped[float] = mapped_column(default=0.0, server_default="0")
    tokens_decoded: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    tokens_kept: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    optimiser_steps: Mapped[int] = mapped_column(default=0, server_default="0")
    energy_joules: Mapped[float | None]
    charged: Mapped[bool] = _flag("charged")
    __table_args__ = (
        _of_attempt(),
        *_not_negative(
            "wall_seconds",
            "prepare_seconds",
            "train_seconds",
            "evaluate_seconds",
            "overhead_seconds",
            "device_seconds",
            "gradient_forwards",
            "forwards",
            "tokens_decoded",
            "tokens_kept",
            "optimiser_steps",
            "energy_joules",
        ),
    )


class Artifact(Base):
    """A file that some run left, once per content. `storage_key` is relative to DARE_HOME."""

    __tablename__ = "artifact"
    id: Mapped[str] = _id()
    sha256: Mapped[str] = mapped_column(unique=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    storage_key: Mapped[str]
    expires_at: Mapped[float | None]
    purged_at: Mapped[float | None]
    __table_args__ = (CheckConstraint("size_bytes >= 0", name="size_bytes"),)


class RunArtifact(Base):
    """Which file a run left where; `role` is its path in the job directory, such as `model/model.safetensors`."""

    __tablename__ = "run_artifact"
    run_id: Mapped[str] = mapped_column(primary_key=True)
    token: Mapped[int] = mapped_column(primary_key=True)
    role: Mapped[str] = mapped_column(primary_key=True)
    artifact_id: Mapped[str] = mapped_column(_to("artifact.id"))
    __table_args__ = (_of_attempt(),)


# --- plumbing ----------------------------------------------------------------------------------------------------


class Outbox(Base):
    """A message to the broker, written with the change that it announces and sent afterwards."""

    __tablename__ = "outbox"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    topic: Mapped[str]
    payload_json: Mapped[str]
    created_at: Mapped[float]
    published_at: Mapped[float | None]
    tries: Mapped[int] = mapped_column(default=0, server_default="0")
    __table_args__ = (
        Index(
            "ix_outbox_pending",
            "id",
            sqlite_where=text("published_at IS NULL"),
            postgresql_where=text("published_at IS NULL"),
        ),
    )


class AuditLog(Base):
    """Who changed what by hand. Append-only."""

    __tablename__ = "audit_log"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    at: Mapped[float]
    actor_id: Mapped[str | None] = mapped_column(_to("account.id"))
    action: Mapped[str]
    subject: Mapped[str]
    before_sha256: Mapped[str | None]
    after_sha256: Mapped[str | None]
    note: Mapped[str | None]
