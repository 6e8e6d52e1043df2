"""The housekeeper: every chore again and again, whatever becomes of another."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select, update
from world import add_entry, add_train_run, add_worker, build, state_of

from dare_platform import control, host, signs_of_life
from dare_platform.control import SENT_IS_KEPT_SECONDS, Chore, Control, chores, forget_sent
from dare_platform.database import Database, now
from dare_platform.lease import claim
from dare_platform.models import Outbox
from dare_platform.outbox import relay
from dare_platform.settings import Settings


def published(run_id: str, queue: str) -> None:
    """A broker that takes everything."""


def run_for(one: Control, seconds: float) -> None:
    thread = threading.Thread(target=one.run)
    thread.start()
    time.sleep(seconds)
    one.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_a_chore_that_fails_is_tried_again_and_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    done = {"bad": 0, "good": 0}

    def bad() -> None:
        done["bad"] += 1
        raise RuntimeError("no luck")

    def good() -> None:
        done["good"] += 1

    run_for(Control([Chore("bad", 0.02, bad), Chore("good", 0.02, good)]), 0.3)
    assert done["bad"] > 2
    assert done["good"] > 2
    assert "the chore 'bad' failed" in caplog.text


def test_a_chore_that_waits_delays_no_other() -> None:
    released, done = threading.Event(), threading.Event()
    one = Control([Chore("waits", 60.0, lambda: released.wait(5)), Chore("works", 0.01, done.set)])
    threading.Timer(0.2, released.set).start()
    run_for(one, 0.1)
    assert done.is_set()


def test_it_shows_signs_of_life_until_a_chore_is_stuck(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "alive"
    monkeypatch.setenv(signs_of_life.VARIABLE, str(file))
    monkeypatch.setattr(control, "LOOK_SECONDS", 0.02)
    run_for(Control([Chore("works", 0.01, lambda: None)]), 0.1)
    assert file.exists()
    file.unlink()
    monkeypatch.setattr(control, "STUCK_SECONDS", 0.0)
    hangs = threading.Event()
    one = Control([Chore("hangs", 60.0, lambda: hangs.wait(5))])
    threading.Timer(0.15, hangs.set).start()
    run_for(one, 0.1)
    assert not file.exists()


def test_signs_of_life_are_written_only_where_somebody_looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(signs_of_life.VARIABLE, raising=False)
    signs_of_life.show()
    monkeypatch.setenv(signs_of_life.VARIABLE, str(tmp_path / "no folder" / "alive"))
    signs_of_life.show()
    assert list(tmp_path.iterdir()) == []


def test_without_a_broker_nothing_is_announced(database: Database, sqlite_settings: Settings) -> None:
    alone = {chore.name for chore in chores(sqlite_settings, database)}
    with_broker = {chore.name for chore in chores(sqlite_settings, database, published)}
    assert with_broker - alone == {"send messages", "announce again"}


def test_a_lost_run_is_taken_back_and_its_message_sent(database: Database, sqlite_settings: Settings) -> None:
    with database.write() as session:
        world = build(session)
        run = add_train_run(session, world, add_entry(session, world)).id
        assert claim(session, add_worker(session), 0.05) is not None
    settings = replace(sqlite_settings, lease_seconds=0.1, poll_seconds=0.05)
    time.sleep(0.1)
    run_for(Control(chores(settings, database, published)), 0.4)
    with database.read() as session:
        assert state_of(session, run) == "queued"
        assert session.execute(select(Outbox.id).where(Outbox.published_at.is_(None))).all() == []


def test_only_messages_that_were_sent_long_ago_are_forgotten(database: Database) -> None:
    with database.write() as session:
        world = build(session)
        entry = add_entry(session, world)
        for seed in range(3):
            add_train_run(session, world, entry, seed=seed)
    relay(database, published)
    with database.write() as session:
        add_train_run(session, world, entry, seed=3)  # never sent
        first = session.execute(select(Outbox.id).order_by(Outbox.id).limit(1)).scalar_one()
        long_ago = now(session) - SENT_IS_KEPT_SECONDS - 1
        session.execute(update(Outbox).where(Outbox.id == first).values(published_at=long_ago))
        before = set(session.execute(select(Outbox.id)).scalars())
    assert forget_sent(database) == 1
    assert forget_sent(database) == 0
    with database.read() as session:
        assert set(session.execute(select(Outbox.id)).scalars()) == before - {first}


def test_an_image_says_of_which_revision_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DARE_SOURCE_REVISION", "c0ffee")
    assert host.source_revision() == "c0ffee"
    monkeypatch.setenv("DARE_SOURCE_REVISION", "")
    assert host.source_revision() != ""
