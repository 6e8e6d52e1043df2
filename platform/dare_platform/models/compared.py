"""Tables of what is compared: algorithms, backbones, tasks with their items, tracks and their cells."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, Index, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from dare_platform.models.base import Base, Device, finite, flag, one_of, row_id, to


class Algorithm(Base):
    """A method by name, whatever its versions. `slug` is the file name of a built-in one."""

    __tablename__ = "algorithm"
    id: Mapped[str] = row_id()
    slug: Mapped[str]
    title: Mapped[str]
    owner_id: Mapped[str] = mapped_column(to("account.id"))
    created_at: Mapped[datetime]
    __table_args__ = (UniqueConstraint("owner_id", "slug"),)


class AlgorithmVersion(Base):
    """One source text with one set of hyperparameters. Immutable."""

    __tablename__ = "algorithm_version"
    id: Mapped[str] = row_id()
    algorithm_id: Mapped[str] = mapped_column(to("algorithm.id"))
    version: Mapped[int]
    class_name: Mapped[str]
    source: Mapped[str]
    """The whole file, also of built-in algorithms: what ran can always be read."""
    source_sha256: Mapped[str]
    hyperparameters_json: Mapped[str]
    content_sha256: Mapped[str]
    """Of source and hyperparameters together: equal content is one version."""
    trains_on: Mapped[str]
    built_in: Mapped[bool] = flag("built_in")
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
    id: Mapped[str] = row_id()
    slug: Mapped[str] = mapped_column(unique=True)
    family: Mapped[str]
    parameters: Mapped[int] = mapped_column(BigInteger)
    tiny: Mapped[bool] = flag("tiny")
    """Small enough for a CPU worker; only these are claimed by one."""
    __table_args__ = (CheckConstraint("parameters > 0", name="parameters"),)


class BackboneRevision(Base):
    """A backbone's exact content."""

    __tablename__ = "backbone_revision"
    id: Mapped[str] = row_id()
    backbone_id: Mapped[str] = mapped_column(to("backbone.id"))
    source_revision: Mapped[str]
    weights_sha256: Mapped[str]
    tokenizer_sha256: Mapped[str]
    __table_args__ = (UniqueConstraint("backbone_id", "source_revision", "weights_sha256", "tokenizer_sha256"),)


class TaskVersion(Base):
    """A task's item list under one version. Its items are rows of `task_item`."""

    __tablename__ = "task_version"
    id: Mapped[str] = row_id()
    task_slug: Mapped[str]
    version: Mapped[str]
    split: Mapped[str]
    n_items: Mapped[int]
    items_sha256: Mapped[str]
    metric: Mapped[str]
    direction: Mapped[str]
    lower_bound: Mapped[float]
    upper_bound: Mapped[float]
    hidden: Mapped[bool] = flag("hidden", default=False)
    __table_args__ = (
        UniqueConstraint("task_slug", "version", "split"),
        CheckConstraint("n_items > 0", name="n_items"),
        CheckConstraint("direction IN ('max', 'min')", name="direction"),
        CheckConstraint("lower_bound < upper_bound", name="bounds"),
        finite("lower_bound"),
        finite("upper_bound"),
    )


class TaskItem(Base):
    """One question of a task version; its text stays in the task."""

    __tablename__ = "task_item"
    task_version_id: Mapped[str] = mapped_column(to("task_version.id"), primary_key=True)
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
    id: Mapped[str] = row_id()
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
        one_of("device", Device),
    )


class Cell(Base):
    """A column of one backbone's board: (backbone revision, task version, budget) of a track version."""

    __tablename__ = "cell"
    id: Mapped[str] = row_id()
    track_version_id: Mapped[str] = mapped_column(to("track_version.id"))
    backbone_revision_id: Mapped[str] = mapped_column(to("backbone_revision.id"))
    task_version_id: Mapped[str] = mapped_column(to("task_version.id"))
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
        finite("reference_value"),
        finite("chance_floor"),
    )


class Snapshot(Base):
    """A board as it was shown once, to cite and to check. Immutable."""

    __tablename__ = "snapshot"
    sha256: Mapped[str] = mapped_column(primary_key=True)
    """Of `board_json`: an unchanged board is one snapshot, however often it is taken."""
    track_version_id: Mapped[str] = mapped_column(to("track_version.id"))
    backbone: Mapped[str]
    made_at: Mapped[float]
    board_json: Mapped[str]
    """Everything that was shown but the time, in the form that is hashed."""
    runs_json: Mapped[str]
    """The evaluations whose numbers it shows, as a sorted list of ids."""
    inputs_sha256: Mapped[str]
    """Of those numbers, as they are stored: see `snapshots.inputs_of`."""
    __table_args__ = (
        CheckConstraint("length(sha256) = 64", name="sha256"),
        CheckConstraint("length(inputs_sha256) = 64", name="inputs_sha256"),
        Index("ix_snapshot_board", "track_version_id", "backbone", "made_at"),
    )
