"""PostgreSQL that restarts, Redis that is away or loses messages: runs wait for the one and never need the other."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from servers import PostgresServer, RedisServer
from sqlalchemy import func, select, text
from sqlalchemy.exc import OperationalError
from test_worker import POINTS, add_pair, check_the_end, start_worker, state, wait_for, worker_of
from world import add_entry, add_evaluate_run, add_train_run, build, state_of

from dare_platform.database import Database, migrate
from dare_platform.models import Attempt, Outbox
from dare_platform.settings import Settings

pytestmark = pytest.mark.full

HERE = Path(__file__).parent
MOMENTS = (
    "the run is leased",
    "the run works",
    "a checkpoint is there",
    "the result is written",
    "training is committed",
)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One that may be restarted: nobody else uses it."""
    made = PostgresServer(durable=True)
    yield made
    made.remove()


@pytest.fixture
def restarting(server: PostgresServer, tmp_path: Path) -> Settings:
    name = f"dare_{abs(hash(tmp_path))}"
    server.administer(f"CREATE DATABASE {name}")
    made = Settings(home=tmp_path / "home", database_url=server.database(name), lease_seconds=4.0, poll_seconds=0.1)
    migrate(made)
    return made


def is_blocked(database: Database) -> bool:
    """Somebody waits for a lock."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with database.read() as session:
        return bool(session.execute(text(waiting)).scalar_one())


def cut(server: PostgresServer) -> None:
    server.administer("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname LIKE 'dare_%'")


@pytest.mark.parametrize("disturb", [PostgresServer.restart, cut], ids=["restart", "cut"])
def test_postgresql_restarted_at_five_moments_of_one_job_costs_no_attempt(
    restarting: Settings,
    server: PostgresServer,
    processes: list[subprocess.Popen[bytes]],
    disturb: Callable[[PostgresServer], None],
    seen: Callable[[str], None],
) -> None:
    with Database(restarting.database_url) as database:
        train, evaluate = add_pair(database)
        worker = start_worker(restarting, "good:40:0.1", lease=6.0)  # so long that a loaded machine misses no moment
        processes.append(worker)
        for moment in MOMENTS:
            wait_for(lambda m=moment: POINTS[m](restarting, database, train, evaluate), seconds=60)  # type: ignore[misc]
            disturb(server)
        assert worker.wait(60) == 0
        check_the_end(database, train, evaluate)
        with database.read() as session:
            outcomes = list(session.execute(select(Attempt.outcome)).scalars())
    assert outcomes == ["succeeded", "succeeded"]
    seen(f"disturbed {len(MOMENTS)} times in one job, one attempt each")


@pytest.mark.parametrize("table", ["run_artifact", "task_item"])
def test_postgresql_restarted_under_a_question_of_the_worker_costs_no_attempt(
    restarting: Settings,
    server: PostgresServer,
    processes: list[subprocess.Popen[bytes]],
    table: str,
    seen: Callable[[str], None],
) -> None:
    """What an evaluation needs is asked when it is prepared, and what its answers must be when it has ended."""
    with Database(restarting.database_url) as database:
        with database.write() as session:
            world = build(session)
            train = add_train_run(session, world)
        worker_of(restarting, "good").run(until_idle=True)
        with database.write() as session:
            evaluate = add_evaluate_run(session, world, train)
        with suppress(OperationalError), database.write() as session:  # it is cut off as well
            session.execute(text(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"))
            processes.append(start_worker(restarting, "good", lease=6.0))
            wait_for(lambda: is_blocked(database))
            server.restart()
        assert processes[0].wait(60) == 0
        check_the_end(database, train.id, evaluate.id)
        with database.read() as session:
            outcomes = list(session.execute(select(Attempt.outcome)).scalars())
    assert outcomes == ["succeeded", "succeeded"]
    seen("asked again; one attempt")


def serve(settings: Settings, program: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(HERE / program), str(settings.home), *arguments])


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    made = RedisServer()
    yield made
    made.remove()


def test_redis_that_is_killed_under_a_job_is_missed_by_nobody_and_rings_again(
    sqlite_settings: Settings,
    sqlite: Database,
    redis: RedisServer,
    processes: list[subprocess.Popen[bytes]],
    seen: Callable[[str], None],
) -> None:
    settings = replace(sqlite_settings, broker_url=redis.url)
    train, evaluate = add_pair(sqlite)
    worker = serve(settings, "../serve.py", redis.url, "0.5")
    processes.append(worker)
    wait_for(lambda: state(sqlite, train) in ("leased", "preparing", "working"))
    redis.kill()
    wait_for(lambda: state(sqlite, evaluate) == "succeeded", seconds=60)
    check_the_end(sqlite, train, evaluate)
    redis.start()

    def waits() -> int:
        with sqlite.read() as session:
            return session.execute(select(func.count()).where(Outbox.published_at.is_(None))).scalar_one()

    assert waits()
    wait_for(lambda: not waits(), seconds=40)  # the next beat of a lease of 60 s asks the broker again
    seen("the job ended by polling; what waited was sent when Redis was back")


def test_a_broker_that_drops_doubles_and_reorders_a_tenth_of_the_messages_changes_no_result(
    sqlite_settings: Settings,
    sqlite: Database,
    redis: RedisServer,
    processes: list[subprocess.Popen[bytes]],
    seen: Callable[[str], None],
) -> None:
    with sqlite.write() as session:
        world = build(session)
        entry = add_entry(session, world)
        runs = [add_evaluate_run(session, world, add_train_run(session, world, entry, seed=s)).id for s in range(12)]
    said = sqlite_settings.home / "lossy.log"
    processes += [serve(sqlite_settings, "lossy_worker.py", redis.url, str(said)) for _ in range(2)]

    def all_ended() -> bool:
        with sqlite.read() as session:
            return all(state_of(session, run) == "succeeded" for run in runs)

    wait_for(all_ended, seconds=90)
    with sqlite.read() as session:
        assert session.execute(select(func.count()).select_from(Attempt)).scalar_one() == 24
    done = said.read_text().split()
    assert {"dropped", "doubled", "late"} <= set(done)
    seen(
        ", ".join(f"{done.count(what)} {what}" for what in ("dropped", "doubled", "late", "sent")) + ": one result each"
    )
