"""Tables of what came out: curves, predictions, scores, results, cost and files."""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, ForeignKeyConstraint, Index, Text
from sqlalchemy.orm import Mapped, mapped_column

from dare.spec import ItemStatus
from dare_platform.models.base import Base, finite, flag, not_negative, one_of, row_id, to


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
        finite("value"),
        *not_negative("device_seconds", "forwards"),
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
    truncated: Mapped[bool] = flag("truncated")
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
    """What one scorer says of one prediction, whenever it was asked: `run_id` is the run that made the prediction, also
    where a score run or a rescoring judged it. A better scorer adds rows. Immutable."""

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
        one_of("status", ItemStatus),
        finite("score"),
        finite("reward"),
    )


class Result(Base):
    """One number of one run: a task's metric under a scorer and a way of decoding. Immutable.

    `run_id` and `token` are those of the attempt whose answers it is about, `protocol` what they were asked under.
    """

    __tablename__ = "result"
    run_id: Mapped[str] = mapped_column(primary_key=True)
    task_version_id: Mapped[str] = mapped_column(to("task_version.id"), primary_key=True)
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
    n_undecoded: Mapped[int] = mapped_column(default=0, server_default="0")
    n_error: Mapped[int] = mapped_column(default=0, server_default="0")
    """Answers that the scorer failed on; in neither `value` nor `n`."""
    protocol: Mapped[str]
    scored_by: Mapped[str | None] = mapped_column(to("run.id"))
    """The score run that gave it. None: the evaluation itself did, or `dare rescore`, of which the audit log tells."""
    recorded_at: Mapped[float]
    __table_args__ = (
        _of_attempt(),
        CheckConstraint("decoding IN ('greedy', 'sampled')", name="decoding"),
        CheckConstraint("n > 0", name="n"),
        CheckConstraint("n_no_answer >= 0", name="n_no_answer"),
        CheckConstraint("n_truncated >= 0", name="n_truncated"),
        CheckConstraint("n_undecoded >= 0", name="n_undecoded"),
        CheckConstraint("n_error >= 0", name="n_error"),
        finite("value"),
        *not_negative("standard_error"),
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
    charged: Mapped[bool] = flag("charged")
    __table_args__ = (
        _of_attempt(),
        *not_negative(
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
    id: Mapped[str] = row_id()
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
    artifact_id: Mapped[str] = mapped_column(to("artifact.id"))
    __table_args__ = (_of_attempt(),)
