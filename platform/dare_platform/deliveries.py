"""Messages about what has ended: planned from finished runs, sent at least once, given up after some tries.

A message is a row before it is sent, unique per subscription and run, so that a plan may be made again at any time and
by two at once. A sender first counts its try and puts the next one off; only then it talks to the outside, without a
transaction. One that dies in between is made up for by the next try, with the same delivery id.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import CursorResult, and_, or_, select, update
from sqlalchemy.orm import Session, aliased

from dare_platform import mail, webhook
from dare_platform.database import Database, now
from dare_platform.errors import PlatformError
from dare_platform.messages import Message, delivery_id, message_about
from dare_platform.models import FINISHED, Delivery, Entry, Run, Subscription
from dare_platform.settings import Settings

AT_ONCE = 50
MOST_TRIES = 6
FIRST_DELAY = 30.0
"""Seconds; each further delay is four times as long: 30 s, 2 min, 8 min, 32 min, about 2 h."""
DAYS = 3
"""What ended earlier is not told any more, should nobody have sent anything for so long."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Due:
    subscription: str
    run: str
    tries: int
    """This one included."""
    target: str
    secret: str | None
    message: Message | None


def send_deliveries(settings: Settings, database: Database) -> int:
    """Plan and send what is due; how many messages arrived. A chore: call it again and again."""
    with database.write() as session:
        plan(session)
    sent = 0
    for subscription, run, tries in _waiting(database):
        due = _taken(settings, database, subscription, run, tries)
        if due is None:
            continue
        problem, at = None, due.message.content["at"] if due.message else None
        if due.message is None:
            problem = "its entry is gone from your sight"
        else:
            try:
                _send(settings, due, due.message, database)
            except PlatformError as error:
                problem = str(error)
                log.warning("delivery %s of what ended at %s: %s", delivery_id(subscription, run), at, error)
        _record(database, due, problem)
        sent += problem is None
    return sent


def plan(session: Session) -> int:
    """A row for every message that is owed and not planned yet."""
    other = aliased(Run)
    is_open = select(other.id).where(other.entry_id == Run.entry_id, other.state.not_in(FINISHED)).exists()
    is_later = (
        select(other.id)
        .where(
            other.entry_id == Run.entry_id,
            or_(other.finished_at > Run.finished_at, and_(other.finished_at == Run.finished_at, other.id > Run.id)),
        )
        .exists()
    )  # the entry ended with its last run
    planned = (
        select(Delivery.run_id).where(Delivery.subscription_id == Subscription.id, Delivery.run_id == Run.id).exists()
    )
    owed = session.execute(
        select(Subscription.id, Run.id)
        .join(Entry, Entry.submitted_by == Subscription.account_id)
        .join(Run, Run.entry_id == Entry.id)
        .where(
            Subscription.ended_at.is_(None),
            or_(Subscription.entry_id.is_(None), Subscription.entry_id == Entry.id),
            Run.state.in_(FINISHED),
            Run.finished_at > Subscription.created_at,
            Run.finished_at > now(session) - DAYS * 86400,
            or_(Subscription.each_run, and_(~is_open, ~is_later)),
            ~planned,
        )
    ).all()
    for subscription, run in owed:
        session.add(Delivery(subscription_id=subscription, run_id=run, state="pending"))
    session.flush()
    return len(owed)


def _waiting(database: Database) -> list[tuple[str, str, int]]:
    with database.read() as session:
        rows = session.execute(
            select(Delivery.subscription_id, Delivery.run_id, Delivery.tries)
            .join(Subscription, Subscription.id == Delivery.subscription_id)
            .where(Delivery.state == "pending", Delivery.not_before <= now(session), Subscription.ended_at.is_(None))
            .order_by(Delivery.not_before, Delivery.subscription_id, Delivery.run_id)
            .limit(AT_ONCE)
        )
        return [(subscription, run, tries) for subscription, run, tries in rows]


def _taken(settings: Settings, database: Database, subscription: str, run: str, tries: int) -> _Due | None:
    """Count a try before it is made; None when another sender was quicker."""
    with database.write() as session:
        delay = FIRST_DELAY * 4**tries
        moved = session.execute(
            update(Delivery)
            .where(
                Delivery.subscription_id == subscription,
                Delivery.run_id == run,
                Delivery.state == "pending",
                Delivery.tries == tries,
            )
            .values(tries=tries + 1, not_before=now(session) + delay)
        )
        if cast(CursorResult[Any], moved).rowcount == 0:
            return None
        wish = session.get_one(Subscription, subscription)
        message = message_about(session, wish, session.get_one(Run, run), settings.public_url)
        return _Due(subscription, run, tries + 1, wish.target, wish.secret, message)


def _send(settings: Settings, due: _Due, message: Message, database: Database) -> None:
    if due.secret is not None:
        with database.read() as session:
            timestamp = str(int(now(session)))
        webhook.post(due.target, due.secret, message.content, timestamp, settings.webhook_hosts)
    elif settings.smtp_url is None:
        raise mail.NotMailedError("this installation sends no mail")
    else:
        delivery = delivery_id(due.subscription, due.run)
        mail.send(settings.smtp_url, settings.mail_from, due.target, message.subject, message.text, delivery)


def _record(database: Database, due: _Due, problem: str | None) -> None:
    state = "sent" if problem is None else "failed" if due.tries >= MOST_TRIES or due.message is None else "pending"
    with database.write() as session:
        session.execute(
            update(Delivery)
            .where(
                Delivery.subscription_id == due.subscription, Delivery.run_id == due.run, Delivery.state == "pending"
            )
            .values(state=state, problem=problem, sent_at=now(session) if problem is None else None)
        )
