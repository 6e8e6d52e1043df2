"""Sends the messages that transactions left behind. A broker that is away delays them and loses none.

At least once: a relay that dies between sending and marking sends again, and receivers do not mind.
"""

from __future__ import annotations

import json
import logging
from typing import NamedTuple, Protocol

from sqlalchemy import select, update

from dare_platform.database import Database, now
from dare_platform.models import Outbox

AT_ONCE = 100

log = logging.getLogger(__name__)


class Publisher(Protocol):
    """Hands one message to the broker; raises ConnectionError (or another OSError) when it is away."""

    def __call__(self, run_id: str, queue: str) -> None:
        """Tell the queue to look at a run."""


class Relayed(NamedTuple):
    """What one call of `relay` did."""

    sent: int
    broker_is_away: bool = False


def relay(database: Database, publish: Publisher) -> Relayed:
    """Send pending messages, oldest first, up to the first that the broker does not take."""
    sent = 0
    with database.read() as session:
        pending = session.execute(
            select(Outbox.id, Outbox.payload_json)
            .where(Outbox.published_at.is_(None))
            .order_by(Outbox.id)
            .limit(AT_ONCE)
        ).all()
    for message, payload in pending:  # no transaction is open while we talk to the broker
        said = json.loads(payload)
        try:
            publish(said["run_id"], said["queue"])
        except OSError as error:
            log.warning("the broker does not take messages (%s); %d wait", error, len(pending) - sent)
            _tried(database, message)
            return Relayed(sent, broker_is_away=True)
        with database.write() as session:
            marked = update(Outbox).where(Outbox.id == message, Outbox.published_at.is_(None))
            session.execute(
                marked.values(published_at=now(session), tries=Outbox.tries + 1).execution_options(
                    synchronize_session=False
                )
            )
        sent += 1
    return Relayed(sent)


def _tried(database: Database, message: int) -> None:
    with database.write() as session:
        once_more = update(Outbox).where(Outbox.id == message).values(tries=Outbox.tries + 1)
        session.execute(once_more.execution_options(synchronize_session=False))
