"""Workers, runners, containers and the launcher service killed at every point of a run that is really carried out."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from containers import SOCKET
from detached import in_containers
from launching import free_address, left_of, start_launcher, toy_image
from progress import step_of
from sqlalchemy import select
from test_worker import POINTS, Running, add_pair, alive, check_the_end, state, wait_for, worker_of

from dare_platform import endings
from dare_platform.database import Database
from dare_platform.models import Attempt, Run
from dare_platform.processes import marked
from dare_platform.remote_launcher import RemoteLauncher
from dare_platform.settings import Containers, Settings
from dare_platform.worker import Worker

pytestmark = pytest.mark.full

PLATFORM = Path(__file__).resolve().parents[1]
Seen = Callable[[str], None]


def attempts_of(database: Database, run: str) -> list[Attempt]:
    with database.read() as session:
        return list(session.execute(select(Attempt).where(Attempt.run_id == run).order_by(Attempt.number)).scalars())


@pytest.fixture
def installation() -> Iterator[str]:
    """Of containers that are ours; none may be left."""
    name = f"kills-{secrets.token_hex(4)}"
    left_of(name)  # says when there is no engine
    yield name
    left = left_of(name)
    for container in left:
        container.remove(force=True, v=True)
    assert left == []


def in_container(train: str, installation: str) -> bool:
    return any(one.status == "running" and train in one.name for one in left_of(installation))


def start_worker(settings: Settings, mode: str, lease: float, installation: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(PLATFORM / "detached.py"), str(settings.home), mode, str(lease)]
    return subprocess.Popen([*command, settings.database_url, installation])


CONTAINER_POINTS = [point for point in POINTS if point not in ("the worker is registered", "a curve has begun")]


@pytest.mark.parametrize("point", CONTAINER_POINTS)
def test_a_worker_killed_at_any_point_of_a_container_leaves_one_result(
    sqlite_settings: Settings,
    sqlite: Database,
    processes: list[subprocess.Popen[bytes]],
    installation: str,
    point: str,
    seen: Seen,
) -> None:
    train, evaluate = add_pair(sqlite)
    victim = start_worker(sqlite_settings, "good:12:0.05", 2.0, installation)
    processes.append(victim)
    if point == "the process lives":
        wait_for(lambda: in_container(train, installation))
    else:
        wait_for(lambda: POINTS[point](sqlite_settings, sqlite, train, evaluate))
    victim.kill()
    victim.wait()
    heir = start_worker(sqlite_settings, "good:12:0.05", 2.0, installation)
    processes.append(heir)
    assert heir.wait(60) == 0
    check_the_end(sqlite, train, evaluate)
    folders = {one.name for one in (sqlite_settings.jobs / train).iterdir() if one.is_dir()}
    seen("gone on with" if folders == {"1"} and len(attempts_of(sqlite, train)) == 2 else "one result")


def kill_twice(settings: Settings, database: Database, train: str, kill: Callable[[int], object]) -> int:
    """The step at which the third attempt began; `kill` is called with the token of the job of each before."""
    for number in (1, 2):
        wait_for(lambda n=number: len(attempts_of(database, train)) == n)  # type: ignore[misc]
        token = attempts_of(database, train)[-1].token
        wait_for(lambda t=token, n=number: step_of(settings, train, t) >= 3 * n)  # type: ignore[misc]
        wait_for(lambda: state(database, train) == "working")
        kill(token)
    wait_for(lambda: state(database, train) == "succeeded", seconds=40)
    attempts = attempts_of(database, train)
    assert [(one.outcome, one.cause) for one in attempts] == [("failed", "internal")] * 2 + [("succeeded", None)]
    first = (settings.jobs / train / str(attempts[-1].token) / "events.jsonl").read_text().splitlines()[0]
    return int(first.split("from step ")[1].split('"')[0])


def test_a_container_killed_twice_is_tried_a_third_time_from_its_checkpoint(
    sqlite_settings: Settings, sqlite: Database, installation: str, seen: Seen
) -> None:
    train, evaluate = add_pair(sqlite, source="builtin")
    limits = replace(sqlite_settings.limits, free_disk_bytes=1)
    launcher = in_containers(replace(sqlite_settings, limits=limits), "good:30:0.1", installation)
    running = Running(Worker(sqlite_settings, ["llada"], launcher=launcher))

    def kill(token: int) -> None:
        (container,) = [one for one in left_of(installation) if one.name.endswith(f"{train}-{token}")]
        container.kill()

    try:
        assert kill_twice(sqlite_settings, sqlite, train, kill) >= 6
        wait_for(lambda: state(sqlite, evaluate) == "succeeded")
    finally:
        running.stop()
    check_the_end(sqlite, train, evaluate)
    seen("two attempts failed (internal, not charged), the third went on from the checkpoint")


def test_a_runner_killed_twice_is_tried_a_third_time_from_its_checkpoint(
    sqlite_settings: Settings, sqlite: Database, seen: Seen
) -> None:
    train, evaluate = add_pair(sqlite, source="builtin")
    running = Running(worker_of(sqlite_settings, "good:30:0.05"))

    def kill(token: int) -> None:
        for process, marker in marked():
            if marker == f"{train}-{token}":
                process.kill()

    try:
        assert kill_twice(sqlite_settings, sqlite, train, kill) >= 6
        wait_for(lambda: state(sqlite, evaluate) == "succeeded")
    finally:
        running.stop()
    check_the_end(sqlite, train, evaluate)
    seen("two attempts failed (internal, not charged), the third went on from the checkpoint")


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    """The toy: 25 steps of a tenth of a second."""
    with toy_image(25, 0.1) as tag:
        yield tag


LAUNCHER_POINTS = ("the run is leased", "the run works", "a checkpoint is there", "the result is written")


def test_a_launcher_killed_at_every_point_of_one_run_costs_no_attempt(
    sqlite_settings: Settings, sqlite: Database, installation: str, image: str, seen: Seen
) -> None:
    settings = replace(
        sqlite_settings,
        limits=replace(sqlite_settings.limits, free_disk_bytes=1, wall_seconds=60.0),
        lease_seconds=8.0,
        launcher=free_address(),
        launcher_secret=secrets.token_hex(16),
        containers=Containers(installation=installation, images={"llada": image}, socket=SOCKET),
    )
    with ExitStack() as stack:
        launcher = start_launcher(settings)
        train, evaluate = add_pair(sqlite, wall_seconds=60.0)
        remote = RemoteLauncher(settings)
        stack.callback(remote.close)
        worker = Worker(settings, ["llada"], launcher=remote)
        working = threading.Thread(target=worker.run, kwargs={"until_idle": True})
        working.start()
        stack.callback(worker.stop)
        for point in LAUNCHER_POINTS:
            wait_for(lambda p=point: POINTS[p](settings, sqlite, train, evaluate))  # type: ignore[misc]
            os.kill(launcher.pid, signal.SIGKILL)
            launcher.wait()
            launcher = start_launcher(settings)
        stack.callback(lambda: (launcher.terminate(), launcher.wait(20)))
        working.join(90)
        assert not working.is_alive()
        check_the_end(sqlite, train, evaluate)
        assert remote.list_own() == []
    assert [one.outcome for one in attempts_of(sqlite, train)] == ["succeeded"]
    seen(f"killed {len(LAUNCHER_POINTS)} times in one run, one attempt")


def test_a_run_whose_worker_is_killed_while_it_is_cancelled_ends_as_cancelled(
    sqlite_settings: Settings, sqlite: Database, processes: list[subprocess.Popen[bytes]], installation: str, seen: Seen
) -> None:
    train, evaluate = add_pair(sqlite)
    victim = start_worker(sqlite_settings, "deaf", 30.0, installation)
    processes.append(victim)
    wait_for(lambda: state(sqlite, train) == "working")
    with sqlite.write() as session:
        assert endings.cancel(session, train, "account local") == "asked"
    victim.kill()
    heir = start_worker(sqlite_settings, "deaf", 30.0, installation)
    processes.append(heir)
    assert heir.wait(40) == 0
    assert state(sqlite, train) == state(sqlite, evaluate) == "cancelled"
    assert alive([train]) == []
    with sqlite.read() as session:
        assert session.get_one(Run, train).lease_owner is None
    seen("cancelled by the next worker, well before the lease's end")
