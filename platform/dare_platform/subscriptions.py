"""Wishes to be told when something ends. Opt in: nobody is told who has not asked."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from dare_platform.database import now
from dare_platform.errors import PlatformError
from dare_platform.ids import new_id
from dare_platform.mail import is_mail_address
from dare_platform.models import Account, Channel, Delivery, Entry, Run, Subscription
from dare_platform.settings import Settings
from dare_platform.viewer import Viewer
from dare_platform.webhook import AddressError, parts_of

MOST = 10
"""Live subscriptions of one account."""
SHOWN_FAILURES = 5


class SubscriptionError(PlatformError):
    """A wish that cannot be granted. The sentence is for the one who has it."""


@dataclass(frozen=True)
class Failure:
    """A message that did not arrive."""

    entry_id: str
    entry_name: str
    run_id: str
    tries: int
    problem: str
    given_up: bool


@dataclass(frozen=True)
class SubscriptionView:
    """One wish, and how it went."""

    id: str
    channel: Channel
    target: str
    entry_id: str | None
    each_run: bool
    created_at: float
    sent: int
    waiting: int
    failed: int
    failures: tuple[Failure, ...]
    """The newest that have not arrived."""


@dataclass(frozen=True)
class Subscribed:
    """A new subscription. A webhook's secret is told this once."""

    id: str
    secret: str | None


def subscribe(
    session: Session,
    settings: Settings,
    viewer: Viewer,
    channel: Channel,
    target: str,
    entry_id: str | None = None,
    each_run: bool = False,
) -> Subscribed:
    """Tell this account when an entry of its own ends, or each of its runs."""
    viewer.require("submit")
    assert viewer.account_id is not None
    target = target.strip()
    _check_target(session, settings, viewer.account_id, channel, target)
    if entry_id is not None:
        entry = session.get(Entry, entry_id)
        if entry is None or not viewer.is_owner(entry):
            raise SubscriptionError(f"You have no entry `{entry_id}`.")
    live = select(func.count()).select_from(Subscription).where(
        Subscription.account_id == viewer.account_id, Subscription.ended_at.is_(None)
    )  # fmt: skip
    if session.execute(live).scalar_one() >= MOST:
        raise SubscriptionError(f"You have {MOST} already; end one first.")
    secret = secrets.token_urlsafe(32) if channel == "webhook" else None
    made = Subscription(
        id=new_id(), account_id=viewer.account_id, channel=channel, target=target, secret=secret, entry_id=entry_id,
        each_run=each_run, created_at=now(session),
    )  # fmt: skip
    session.add(made)
    session.flush()
    return Subscribed(made.id, secret)


def _check_target(session: Session, settings: Settings, account_id: str, channel: Channel, target: str) -> None:
    if channel == "webhook":
        try:
            parts_of(target, settings.webhook_hosts)
        except AddressError as error:
            raise SubscriptionError(f"{error}.") from error
        return
    if settings.smtp_url is None:
        raise SubscriptionError("This installation sends no mail: an operator sets DARE_SMTP_URL.")
    if not is_mail_address(target):
        raise SubscriptionError(f"`{target}` is no mail address.")
    known = session.get_one(Account, account_id).email
    if settings.sign_in == "oidc" and target != known:
        raise SubscriptionError("Mail goes to the address that you sign in with, and to no other.")


def end_subscription(session: Session, viewer: Viewer, id: str) -> None:
    """Tell no more. What has not been sent is not sent."""
    found = session.get(Subscription, id)
    if found is None or viewer.account_id is None or found.account_id != viewer.account_id:
        raise SubscriptionError(f"You have no subscription `{id}`.")
    if found.ended_at is None:
        found.ended_at = now(session)
        session.flush()


def subscriptions_of(session: Session, viewer: Viewer) -> Sequence[SubscriptionView]:
    """Live subscriptions of this account, oldest first."""
    if viewer.account_id is None:
        return ()
    rows = session.execute(
        select(Subscription)
        .where(Subscription.account_id == viewer.account_id, Subscription.ended_at.is_(None))
        .order_by(Subscription.created_at, Subscription.id)
    ).scalars()
    return tuple(_view(session, row) for row in rows)


def _view(session: Session, row: Subscription) -> SubscriptionView:
    rows = session.execute(
        select(Delivery.state, func.count()).where(Delivery.subscription_id == row.id).group_by(Delivery.state)
    )
    counted: dict[str, int] = {state: number for state, number in rows}  # noqa: C416  # rows are no pairs to mypy
    bad = session.execute(
        select(Delivery, Entry.id, Entry.name)
        .join(Run, Run.id == Delivery.run_id)
        .join(Entry, Entry.id == Run.entry_id)
        .where(Delivery.subscription_id == row.id, Delivery.problem.is_not(None), Delivery.state != "sent")
        .order_by(Run.finished_at.desc(), Run.id)
        .limit(SHOWN_FAILURES)
    ).all()
    failures = tuple(
        Failure(entry, name, found.run_id, found.tries, found.problem or "", found.state == "failed")
        for found, entry, name in bad
    )
    return SubscriptionView(
        id=row.id, channel=row.channel, target=row.target, entry_id=row.entry_id, each_run=row.each_run,
        created_at=row.created_at, sent=counted.get("sent", 0), waiting=counted.get("pending", 0),
        failed=counted.get("failed", 0), failures=failures,
    )  # fmt: skip
