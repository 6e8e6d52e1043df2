"""Many who submit the same at once, and results that meet a wish to cancel: one entry, one end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from played import built_in, register
from sqlalchemy import func, select, update
from test_worker import Running, alive, count, state, wait_for, worker_of
from world import add_evaluate_run, add_train_run, build

from dare_platform import endings, entries
from dare_platform.accounts import signed_in
from dare_platform.database import Database
from dare_platform.lease import reap
from dare_platform.models import Account, Attempt, Entry, Result, Run, RunArtifact
from dare_platform.settings import Settings
from dare_platform.viewer import LOCAL

Seen = Callable[[str], None]
AT_ONCE = 8


@pytest.mark.parametrize("same_key", [True, False], ids=["same key", "same content"])
def test_the_same_submitted_by_eight_at_once_is_one_entry(
    settings: Settings, database: Database, same_key: bool, seen: Seen
) -> None:
    with database.write() as session:
        register(session)
    submission, all_ready = built_in("bgpo"), threading.Barrier(AT_ONCE)

    def submit(number: int) -> entries.Submitted:
        with Database(settings.database_url) as mine:
            with mine.read() as session:  # connected
                session.execute(select(func.count()).select_from(Entry))
            all_ready.wait()
            with mine.write() as session:
                return entries.submit(session, LOCAL, submission, "key" if same_key else f"key-{number}")

    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(submit, range(AT_ONCE)))
    assert len({one.entry_id for one in answers}) == 1
    assert sum(one.created for one in answers) == 1
    assert (count(database, Entry), count(database, Run)) == (1, 6)
    seen(f"{AT_ONCE} at once: one entry, {AT_ONCE - 1} were led to it")


def test_a_result_that_is_there_when_somebody_cancels_ends_one_way_or_the_other(
    sqlite_settings: Settings, sqlite: Database, seen: Seen
) -> None:
    ends = []
    with sqlite.write() as session:
        world = build(session)
    for seed in range(3):
        with sqlite.write() as session:
            run = add_train_run(session, world, seed=seed)
            train, evaluate = run.id, add_evaluate_run(session, world, run).id
        running = Running(worker_of(sqlite_settings, "good:3:0.05"))
        try:
            wait_for((sqlite_settings.jobs / train / "1" / "result.json").exists)
            with sqlite.write() as session:
                asked = endings.cancel(session, train, "account local")
            wait_for(lambda t=train: state(sqlite, t) in ("cancelled", "succeeded"), seconds=10)  # type: ignore[misc]
            wait_for(lambda e=evaluate: state(sqlite, e) in ("cancelled", "succeeded"), seconds=10)  # type: ignore[misc]
        finally:
            running.stop()
        ended = state(sqlite, train)
        assert ended == ("succeeded" if asked == "already finished" else "cancelled")
        with sqlite.read() as session:
            kept = select(func.count()).where(RunArtifact.run_id == train)
            assert session.execute(kept).scalar_one() == (ended == "succeeded")
            of_its_evaluation = select(func.count()).where(Result.run_id == evaluate)
            assert bool(session.execute(of_its_evaluation).scalar_one()) == (ended == "succeeded")
            (outcome,) = session.execute(select(Attempt.outcome).where(Attempt.run_id == train)).scalars()
        assert outcome == ended
        assert alive([train, evaluate]) == []
        ends.append(ended)
    seen("; ".join(sorted(set(ends))) + ", with no row of a discarded result")


@pytest.mark.full
def test_the_first_look_of_one_person_in_eight_windows_makes_one_account(
    postgres_settings: Settings, seen: Seen
) -> None:
    all_ready = threading.Barrier(AT_ONCE)

    def sign_in(_: int) -> str:
        with Database(postgres_settings.database_url) as mine:
            with mine.read() as session:  # connected
                session.execute(select(func.count()).select_from(Account))
            all_ready.wait()
            with mine.write() as session:
                return signed_in(session, "https://provider", "subject", "somebody", None).id

    with ThreadPoolExecutor(AT_ONCE) as pool:
        assert len(set(pool.map(sign_in, range(AT_ONCE)))) == 1
    seen(f"{AT_ONCE} at once: one account")


def test_a_worker_that_sweeps_while_its_own_run_was_taken_back_lives_on(
    sqlite_settings: Settings, sqlite: Database
) -> None:
    with sqlite.write() as session:
        world = build(session)
        train = add_train_run(session, world)
    running = Running(worker_of(sqlite_settings, "good:10:0.1"))
    try:
        wait_for(lambda: state(sqlite, train.id) == "working")
        with sqlite.write() as session:
            session.execute(update(Run).values(lease_expires_at=0.0))
            assert reap(session, 60) == [train.id]
        running.worker._kill_orphans(sqlite)  # as its next beat does, unless it hears first that the run is lost
        wait_for(lambda: state(sqlite, train.id) == "succeeded")
    finally:
        running.stop()
