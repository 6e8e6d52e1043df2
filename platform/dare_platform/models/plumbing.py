"""Tables that no board shows: messages to the broker, and changes made by hand."""

from __future__ import annotations

from sqlalchemy import Index, Integer, text
from sqlalchemy.orm import Mapped, mapped_column

from dare_platform.models.base import Base, to


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
    actor_id: Mapped[str | None] = mapped_column(to("account.id"))
    action: Mapped[str]
    subject: Mapped[str]
    before_sha256: Mapped[str | None]
    after_sha256: Mapped[str | None]
    note: Mapped[str | None]
