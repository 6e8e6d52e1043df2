"""What all tables share: the closed sets, the base class, and ways to say a column or a constraint."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Literal, get_args

from sqlalchemy import Boolean, CheckConstraint, Float, ForeignKey, Text, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from dare_platform.database import UtcDateTime, metadata
from dare_platform.ids import new_id

Gate = Literal["draft", "validating", "rejected", "accepted", "withdrawn"]
Visibility = Literal["private", "anonymous", "public"]
EntryKind = Literal["reference", "baseline", "control", "method"]
WorkKind = Literal["check", "train", "evaluate", "score"]
State = Literal["blocked", "queued", "leased", "preparing", "working", "finalizing", "succeeded", "failed", "cancelled"]
WorkerState = Literal["starting", "idle", "busy", "draining", "stopped", "lost", "disabled"]
Outcome = Literal["succeeded", "failed", "cancelled", "lost", "returned"]
Device = Literal["cpu", "gpu"]
GpuHealth = Literal["ok", "suspect", "bad", "absent"]
Role = Literal["viewer", "submitter", "operator", "admin"]
"""Each may do what those before it may."""
Channel = Literal["webhook", "mail"]
DeliveryState = Literal["pending", "sent", "failed"]

ACTIVE: tuple[State, ...] = ("leased", "preparing", "working", "finalizing")
FINISHED: tuple[State, ...] = ("succeeded", "failed", "cancelled")

LOCAL_ACCOUNT = "local"
"""Id of the one account that exists from the first migration: the person at this machine."""
LOG_TAIL_CHARACTERS = 65536
LOG_CHUNK_BYTES = 65536

IMMUTABLE = (
    "algorithm_version", "audit_log", "prediction", "quota_ledger", "result", "run_event", "score_item", "snapshot",
)  # fmt: skip


class Base(DeclarativeBase):
    """Declarative base; the naming convention lives in `metadata`."""

    metadata = metadata
    type_annotation_map = {  # noqa: RUF012  # SQLAlchemy reads it from the class
        str: Text(),
        float: Float(53),
        datetime: UtcDateTime(),
    }


def one_of(column: str, values: object) -> CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in get_args(values))
    return CheckConstraint(f"{column} IN ({listed})", name=column)


def finite(column: str) -> CheckConstraint:
    """PostgreSQL holds NaN greater than every number, so a range refuses it and both infinities."""
    return CheckConstraint(f"{column} BETWEEN -1e300 AND 1e300", name=f"{column}_finite")


def not_negative(*columns: str) -> Iterable[CheckConstraint]:
    return (CheckConstraint(f"{column} BETWEEN 0 AND 1e300", name=f"{column}_not_negative") for column in columns)


def flag(name: str, default: bool | None = None) -> Mapped[bool]:
    given = None if default is None else text("true" if default else "false")
    return mapped_column(Boolean(create_constraint=True, name=name), default=default, server_default=given)


def row_id() -> Mapped[str]:
    return mapped_column(primary_key=True, default=new_id)


def to(target: str) -> ForeignKey:
    return ForeignKey(target, ondelete="RESTRICT")
