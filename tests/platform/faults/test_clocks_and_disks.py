"""Clocks that jump by an hour, and disks that are full: nobody is charged, nothing is doubled, nothing half-written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from needed import missing
from progress import step_of
from servers import PostgresServer
from sqlalchemy import make_url, select
from test_worker import TOY, Running, add_pair, check_the_end, state, wait_for, worker_of

from dare_platform.database import Database
from dare_platform.models import Attempt, Run, Usage
from dare_platform.process_launcher import ProcessLauncher
from dare_platform.settings import MIB, Settings
from dare_platform.worker import Worker

HERE = Path(__file__).parent
Seen = Callable[[str], None]
HOUR = 3600


def outcomes(database: Database) -> list[str]:
    with database.read() as session:
        return sorted(str(one) for one in session.execute(select(Attempt.outcome)).scalars())


def is_at(settings: Settings, database: Database, train: str, step: int) -> Callable[[], bool]:
    """Whether the newest attempt has come to a step."""

    def look() -> bool:
        with database.read() as session:
            run = session.get_one(Run, train)
            return run.state == "working" and step_of(settings, train, run.job_token) >= step

    return look


@pytest.mark.full
def test_a_worker_whose_clock_jumps_an_hour_and_back_does_its_run_once(
    sqlite_settings: Settings, sqlite: Database, processes: list[subprocess.Popen[bytes]], tmp_path: Path, seen: Seen
) -> None:
    train, evaluate = add_pair(sqlite)
    clock = tmp_path / "clock"
    clock.write_text("0")
    command = [sys.executable, str(HERE.parent / "work.py"), str(sqlite_settings.home), "good:30:0.1", "2.0"]
    environment = {**os.environ, "PYTHONPATH": str(HERE / "stepped"), "DARE_TEST_CLOCK": str(clock)}
    worker = subprocess.Popen(command, env=environment)
    processes.append(worker)
    for step, off in ((5, HOUR), (15, -HOUR)):
        wait_for(is_at(sqlite_settings, sqlite, train, step))
        clock.write_text(str(off))
    assert worker.wait(60) == 0
    check_the_end(sqlite, train, evaluate)
    assert outcomes(sqlite) == ["succeeded", "succeeded"]
    with sqlite.read() as session:
        assert all(0 <= cost < 60 for cost in session.execute(select(Usage.wall_seconds)).scalars())
    seen("one hour ahead, then one behind, in one run: one attempt, its cost in true seconds")


STEPPED = (
    "CREATE SCHEMA stepped",
    "CREATE TABLE stepped.clock (off interval)",
    "INSERT INTO stepped.clock VALUES ('0')",
    "CREATE FUNCTION stepped.clock_timestamp() RETURNS timestamptz VOLATILE LANGUAGE sql"
    " AS 'SELECT pg_catalog.clock_timestamp() + off FROM stepped.clock'",
)


@pytest.mark.full
def test_a_database_whose_clock_jumps_an_hour_and_back_keeps_one_result(
    postgres: PostgresServer,
    postgres_settings: Settings,
    processes: list[subprocess.Popen[bytes]],
    seen: Seen,
) -> None:
    url = postgres_settings.database_url
    name = str(make_url(url).database)
    for statement in STEPPED:
        postgres.administer(statement, name)
    postgres.administer(f"ALTER DATABASE {name} SET search_path = stepped, pg_catalog, public")
    with Database(url) as database:
        train, evaluate = add_pair(database)
        command = [sys.executable, str(HERE.parent / "work.py"), str(postgres_settings.home), "good:40:0.1", "2.0", url]
        processes += [subprocess.Popen(command) for _ in range(2)]
        for step, off in ((5, HOUR), (15, -HOUR)):
            wait_for(is_at(postgres_settings, database, train, step))
            postgres.administer(f"UPDATE stepped.clock SET off = '{off} seconds'", name)
        for worker in processes:
            assert worker.wait(60) == 0
        check_the_end(database, train, evaluate)
        told = outcomes(database)
        with database.read() as session:
            assert all(cost >= 0 for cost in session.execute(select(Usage.wall_seconds)).scalars())
    assert told.count("lost") <= 1
    seen(f"one hour ahead, then one behind, in one run: attempts {', '.join(told)}")


@pytest.fixture
def small_disk(sqlite_settings: Settings) -> Iterator[Path]:
    """A file system of 16 MiB below the job directories."""
    sqlite_settings.jobs.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(sqlite_settings.jobs)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        missing("the right to mount a small disk")
    yield sqlite_settings.jobs
    subprocess.run(["umount", "-l", str(sqlite_settings.jobs)], check=True)


def fill(disk: Path, leave: int) -> Path:
    """Take what is free, but for so many bytes."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free - leave)
    return ballast


def guarded(settings: Settings) -> Worker:
    """A worker that ends a run when less than 4 MiB are free."""
    settings = replace(settings, limits=replace(settings.limits, free_disk_bytes=4 * MIB))
    return Worker(settings, ["llada"], launcher=ProcessLauncher(settings, (sys.executable, str(TOY), "good:20:0.3")))


@pytest.mark.full
@pytest.mark.parametrize("when", ["before the run", "under the run"])
def test_a_full_disk_is_nobodys_mistake_and_the_run_is_done_when_there_is_room(
    sqlite_settings: Settings, sqlite: Database, small_disk: Path, when: str, seen: Seen
) -> None:
    train, evaluate = add_pair(sqlite)
    if when == "before the run":  # not one file of its directory can be written
        ballast, running = fill(small_disk, 0), Running(worker_of(sqlite_settings, "good:20:0.1"))
    else:
        running = Running(guarded(sqlite_settings))
        wait_for(is_at(sqlite_settings, sqlite, train, 3))
        ballast = fill(small_disk, 2 * MIB)
    try:
        wait_for(lambda: "failed" in outcomes(sqlite), seconds=30)
        with sqlite.read() as session:
            run = session.get_one(Run, train)
            first = session.execute(select(Attempt).where(Attempt.run_id == train, Attempt.number == 1)).scalar_one()
            charged = session.execute(select(Usage).where(Usage.charged)).scalars().all()
        assert (run.state, first.cause, charged) == ("queued", "disk", [])
        ballast.unlink()
        wait_for(lambda: state(sqlite, evaluate) == "succeeded", seconds=40)
    finally:
        running.stop()
    check_the_end(sqlite, train, evaluate)
    seen("cause disk, not charged; done when there was room")
