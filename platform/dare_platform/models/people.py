"""Tables of people: accounts, their API tokens, what they have used up, and how they want to be told."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKeyConstraint, Index, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from dare_platform.models.base import Base, Channel, DeliveryState, Role, finite, flag, one_of, row_id, to


class Account(Base):
    """A person. Erasing one anonymises the row; it never removes what they entered."""

    __tablename__ = "account"
    id: Mapped[str] = row_id()
    handle: Mapped[str] = mapped_column(unique=True)
    role: Mapped[Role] = mapped_column(Text())
    auth_provider: Mapped[str]
    """`local`, or the issuer that vouches for `auth_subject`."""
    auth_subject: Mapped[str]
    active: Mapped[bool] = flag("active", default=True)
    created_at: Mapped[datetime]
    email: Mapped[str | None]
    """For messages they asked for; shown to nobody else."""
    entries_per_day: Mapped[int | None]
    """Instead of the installation's quota."""
    device_hours_per_week: Mapped[float | None]
    __table_args__ = (
        UniqueConstraint("auth_provider", "auth_subject"),
        one_of("role", Role),
    )


class ApiToken(Base):
    """A key for programs. The token itself is shown once; what is kept is its SHA-256."""

    __tablename__ = "api_token"
    id: Mapped[str] = row_id()
    account_id: Mapped[str] = mapped_column(to("account.id"))
    name: Mapped[str]
    token_sha256: Mapped[str] = mapped_column(unique=True)
    scopes: Mapped[str]
    """Comma-separated, sorted: of read, submit, operate, admin."""
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    __table_args__ = (Index("ix_api_token_account_id", "account_id"),)


class QuotaLedger(Base):
    """What an account has used up, and what was given back. Immutable: a reversal is a row with the opposite amount."""

    __tablename__ = "quota_ledger"
    id: Mapped[str] = row_id()
    account_id: Mapped[str] = mapped_column(to("account.id"))
    kind: Mapped[str]
    """`entries`, counted, or `device_seconds`."""
    amount: Mapped[float]
    entry_id: Mapped[str | None] = mapped_column(to("entry.id"))
    run_id: Mapped[str | None] = mapped_column(to("run.id"))
    reverses: Mapped[str | None] = mapped_column(to("quota_ledger.id"), unique=True)
    """A row is reversed once."""
    at: Mapped[float]
    note: Mapped[str]
    __table_args__ = (
        CheckConstraint("kind IN ('entries', 'device_seconds')", name="kind"),
        finite("amount"),
        UniqueConstraint("run_id", "kind", "reverses", name="uq_quota_ledger_run"),
        Index("ix_quota_ledger_account", "account_id", "kind", "at"),
    )


class Subscription(Base):
    """A wish to be told when a run ends: by POST to an address, or by mail. Opt in."""

    __tablename__ = "subscription"
    id: Mapped[str] = row_id()
    account_id: Mapped[str] = mapped_column(to("account.id"))
    channel: Mapped[Channel] = mapped_column(Text())
    target: Mapped[str]
    """The webhook's address, or a mail address."""
    secret: Mapped[str | None]
    """Signs what a webhook gets."""
    entry_id: Mapped[str | None] = mapped_column(to("entry.id"))
    """One entry; None for all of the account's."""
    each_run: Mapped[bool] = flag("each_run", default=False)
    """A message for every run, not only one when the whole entry has ended."""
    created_at: Mapped[float]
    ended_at: Mapped[float | None]
    __table_args__ = (one_of("channel", Channel), Index("ix_subscription_account_id", "account_id"))


class Delivery(Base):
    """One message to one subscription: about one run, or about the entry that ended with this run."""

    __tablename__ = "delivery"
    subscription_id: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(to("run.id"), primary_key=True)
    state: Mapped[DeliveryState] = mapped_column(Text())
    tries: Mapped[int] = mapped_column(default=0, server_default="0")
    not_before: Mapped[float] = mapped_column(default=0.0, server_default="0")
    sent_at: Mapped[float | None]
    problem: Mapped[str | None]
    __table_args__ = (
        ForeignKeyConstraint(
            ["subscription_id"], ["subscription.id"], name="fk_delivery_subscription_id", ondelete="RESTRICT"
        ),
        one_of("state", DeliveryState),
        Index("ix_delivery_state", "state", "not_before"),
    )
