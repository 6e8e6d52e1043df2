"""A run has one holder at a time: claims, heartbeats, the reaper, fences, and what waits behind a run."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import select, text
from world import add_entry, add_evaluate_run, add_gpu, add_train_run, add_worker, build, state_of

from dare_platform.database import Database, now
from dare_platform.heartbeat import Heartbeat
from dare_platform.lease import announce_again, claim, heartbeat, queue_order, reap
from dare_platform.models import Attempt, Outbox, Run, RunEvent, Worker
from dare_platform.settings import Settings
from dare_platform.states import move


def test_a_claim_makes_an_attempt_and_the_next_finds_nothing(database: Database) -> None:
    with database.write() as session:
        run = add_train_run(session, build(session))
        worker = add_worker(session)
        held = claim(session, worker, 10, "abc")
        assert held is not None
        assert (held.run_id, held.token, held.attempt) == (run.id, 1, 1)
        assert held.source == "class Mine:\n    pass\n"
        assert claim(session, worker, 10) is None
    with database.read() as session:
        attempt = session.execute(select(Attempt)).scalar_one()
        assert (attempt.token, attempt.host, attempt.source_revision) == (1, "test", "abc")
        row = session.get(Run, run.id)
        assert row is not None
        assert (row.state, row.attempts, row.lease_owner) == ("leased", 1, worker.id)
        assert row.lease_expires_at is not None
        assert 8 < row.lease_expires_at - now(session) <= 10


def test_a_worker_claims_only_its_families_its_device_and_on_a_cpu_only_tiny_backbones(database: Database) -> None:
    with database.write() as session:
        big = build(session, tiny=False)
        add_train_run(session, big)
        cpu = add_worker(session, "cpu")
        gpu = add_worker(session, "gpu", device="gpu", gpu_uuid=add_gpu(session).uuid)
        other = add_worker(session, "other", families="sdar,dream")
        assert claim(session, cpu, 10) is None
        assert claim(session, gpu, 10) is None
        assert claim(session, other, 10) is None
        session.execute(text("UPDATE run SET device = 'gpu'"))
        assert claim(session, cpu, 10) is None
        assert claim(session, gpu, 10) is not None


def test_waiting_longer_beats_priority_in_the_end(database: Database) -> None:
    with database.write() as session:
        world = build(session)
        runs = [add_train_run(session, world) for _ in range(3)]
        old, urgent, plain = (run.id for run in runs)
        session.execute(text("UPDATE run SET priority = 1 WHERE id = :id"), {"id": urgent})
        session.execute(text("UPDATE run SET enqueued_at = enqueued_at - 3700 WHERE id = :id"), {"id": old})
        ordered = session.execute(select(Run.id).order_by(*queue_order())).scalars().all()
        assert ordered == [old, urgent, plain]
        worker = add_worker(session)
        claimed = [claim(session, worker, 10) for _ in range(3)]
        assert [held.run_id for held in claimed if held] == ordered


def test_many_claimers_at_once_never_share_a_run(settings: Settings, database: Database) -> None:
    with database.write() as session:
        world = build(session)
        entry = add_entry(session, world)
        for seed in range(24):
            add_train_run(session, world, entry, seed=seed)
        workers = [add_worker(session, f"w{number}") for number in range(4)]

    def take_all(worker: Worker) -> list[str]:
        taken = []
        with Database(settings.database_url) as mine:
            while True:
                with mine.write() as session:
                    held = claim(session, worker, 60)
                if held is None:
                    return taken
                taken.append(held.run_id)

    with ThreadPoolExecutor(4) as pool:
        taken = [run for part in pool.map(take_all, workers) for run in part]
    assert len(taken) == len(set(taken)) == 24


def test_a_heartbeat_extends_the_lease_and_brings_the_wish_to_cancel(database: Database) -> None:
    with database.write() as session:
        add_train_run(session, build(session))
        held = claim(session, add_worker(session), 1)
        assert held is not None
        assert heartbeat(session, held.run_id, held.token, 100) == "held"
        assert heartbeat(session, held.run_id, held.token - 1, 100) == "lost"
        expires = session.execute(select(Run.lease_expires_at)).scalar_one()
        assert expires is not None
        assert expires - now(session) > 90
        session.execute(text("UPDATE run SET cancel_requested_at = 1"))
        assert heartbeat(session, held.run_id, held.token, 100) == "cancel"


def test_an_expired_lease_returns_the_run_and_fences_its_holder(database: Database) -> None:
    with database.write() as session:
        add_train_run(session, build(session))
        held = claim(session, add_worker(session), -1)
        assert held is not None
    with database.write() as session:
        assert reap(session, 60) == [held.run_id]
        assert reap(session, 60) == []
    with database.write() as session:
        row = session.get(Run, held.run_id)
        assert row is not None
        assert (row.state, row.cause, row.lease_token) == ("queued", "lost_worker", held.token + 1)
        assert row.not_before > now(session)
        assert heartbeat(session, held.run_id, held.token, 10) == "lost"
        assert not move(session, held.run_id, "preparing", actor="t", token=held.token)
        assert session.execute(select(Attempt.outcome)).scalar_one() == "lost"


def test_two_reapers_at_once_take_a_run_back_once(settings: Settings, database: Database) -> None:
    with database.write() as session:
        world = build(session)
        entry = add_entry(session, world)
        for seed in range(10):
            add_train_run(session, world, entry, seed=seed)
        worker = add_worker(session)
        for _ in range(10):
            assert claim(session, worker, -1) is not None
    gate = threading.Barrier(3)

    def take_back(_: int) -> list[str]:
        with Database(settings.database_url) as mine:
            gate.wait()
            with mine.write() as session:
                return reap(session, 60)

    with ThreadPoolExecutor(3) as pool:
        taken = [run for part in pool.map(take_back, range(3)) for run in part]
    assert len(taken) == len(set(taken)) == 10
    with database.read() as session:
        assert len(session.execute(select(RunEvent).where(RunEvent.actor == "reaper")).all()) == 10


def test_a_run_lost_three_times_fails_with_what_to_do_and_takes_its_dependants_along(database: Database) -> None:
    with database.write() as session:
        world = build(session)
        train = add_train_run(session, world)
        evaluate = add_evaluate_run(session, world, train)
        worker = add_worker(session)
        for _ in range(3):
            session.execute(text("UPDATE run SET not_before = 0"))
            assert claim(session, worker, -1) is not None
            reap(session, 60)
    with database.read() as session:
        row = session.get(Run, train.id)
        assert row is not None
        assert (row.state, row.cause, row.charged, row.attempts) == ("failed", "lost_worker", False, 3)
        assert row.sentence == "The worker stopped answering while it held the run."
        assert row.next_step
        assert state_of(session, evaluate.id) == "failed"


def test_a_lost_run_that_was_to_be_cancelled_is_cancelled(database: Database) -> None:
    with database.write() as session:
        add_train_run(session, build(session))
        held = claim(session, add_worker(session), -1)
        assert held is not None
        session.execute(text("UPDATE run SET cancel_requested_at = 1"))
        reap(session, 60)
        assert state_of(session, held.run_id) == "cancelled"


def test_runs_nobody_claims_are_announced_again(database: Database) -> None:
    with database.write() as session:
        run = add_train_run(session, build(session))
        assert announce_again(session, 60) == []
        session.execute(text("UPDATE run SET announced_at = announced_at - 100"))
        assert announce_again(session, 60) == [run.id]
        assert announce_again(session, 60) == []
        assert len(session.execute(select(Outbox)).all()) == 2


def test_a_silent_worker_is_shown_as_lost(database: Database) -> None:
    with database.write() as session:
        add_worker(session, "silent")
        add_worker(session, "alive")
        session.execute(text("UPDATE worker SET last_seen_at = last_seen_at - 100 WHERE name = 'silent'"))
        reap(session, 10)
        states = {worker.name: worker.state for worker in session.execute(select(Worker.name, Worker.state))}
        assert states == {"silent": "lost", "alive": "idle"}


def test_a_heartbeat_thread_keeps_the_lease_beyond_its_length(sqlite: Database, sqlite_settings: Settings) -> None:
    settings = replace(sqlite_settings, lease_seconds=1.0)
    with sqlite.write() as session:
        add_train_run(session, build(session))
        held = claim(session, add_worker(session), settings.lease_seconds)
    assert held is not None
    with Heartbeat(settings, held.run_id, held.token) as beat:
        for _ in range(15):
            time.sleep(0.1)
            with sqlite.write() as session:
                assert reap(session, 60) == []
        assert beat.status == "held"


@pytest.mark.parametrize("away", ["locked", "reaped"])
def test_a_worker_that_cannot_renew_gives_up_before_its_lease_ends(
    sqlite: Database, sqlite_settings: Settings, away: str
) -> None:
    settings = replace(sqlite_settings, lease_seconds=1.0)
    with sqlite.write() as session:
        add_train_run(session, build(session))
        held = claim(session, add_worker(session), settings.lease_seconds if away == "locked" else -1)
    assert held is not None
    with Heartbeat(settings, held.run_id, held.token) as beat, sqlite.write() as session:
        if away == "reaped":
            reap(session, 60)
            session.commit()
        else:
            session.execute(text("UPDATE worker SET pid = 2"))  # holds the write lock
        started = time.monotonic()
        while beat.status == "held":
            assert time.monotonic() - started < 0.95
            time.sleep(0.01)
        assert beat.status == "lost"
