"""Messages are sent after the change that they announce, at least once; a broker that is away loses none."""

from __future__ import annotations

import json
import random

import pytest
from sqlalchemy import select
from world import add_entry, add_train_run, build

from dare_platform.database import Database
from dare_platform.models import Outbox
from dare_platform.outbox import relay


class Broker:
    """Keeps what it is sent; may be away, or drop, double and reorder."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, str]] = []
        self.away_after: int | None = None

    def __call__(self, run_id: str, queue: str) -> None:
        if self.away_after is not None and len(self.messages) >= self.away_after:
            raise ConnectionRefusedError("no broker here")
        self.messages.append((run_id, queue))


@pytest.fixture
def runs(database: Database) -> list[str]:
    with database.write() as session:
        world = build(session)
        entry = add_entry(session, world)
        return [add_train_run(session, world, entry, seed=seed).id for seed in range(5)]


def test_pending_messages_are_sent_once_and_in_order(database: Database, runs: list[str]) -> None:
    broker = Broker()
    assert relay(database, broker).sent == 5
    assert broker.messages == [(run, "family_llada") for run in runs]
    assert relay(database, broker).sent == 0


def test_a_broker_that_goes_away_gets_the_rest_later(database: Database, runs: list[str]) -> None:
    broker = Broker()
    broker.away_after = 2
    assert relay(database, broker).sent == 2
    assert relay(database, broker).sent == 0
    with database.read() as session:
        tries = session.execute(select(Outbox.tries).order_by(Outbox.id)).scalars().all()
    assert tries == [1, 1, 2, 0, 0]
    broker.away_after = None
    assert relay(database, broker).sent == 3
    assert [run for run, _ in broker.messages] == runs


def test_a_change_that_is_rolled_back_announces_nothing(database: Database) -> None:
    with database.write() as session:
        add_train_run(session, build(session))
        session.rollback()
    assert relay(database, Broker()).sent == 0


def test_two_relays_at_once_lose_nothing(database: Database, runs: list[str]) -> None:
    broker = Broker()

    def interrupted(run_id: str, queue: str) -> None:
        broker(run_id, queue)
        if random.random() < 0.5:
            relay(database, broker)  # another relay is at work between sending and marking

    random.seed(1)
    relay(database, interrupted)
    assert {run for run, _ in broker.messages} == set(runs)
    with database.read() as session:
        assert session.execute(select(Outbox).where(Outbox.published_at.is_(None))).first() is None
        payload = session.execute(select(Outbox.payload_json)).scalars().first()
    assert json.loads(str(payload)).keys() == {"run_id", "queue"}
