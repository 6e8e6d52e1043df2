"""A stack in small: a worker without a way to the engine, `dare launcher` with one, and runs as containers.

The launcher is killed and started again while the worker trains, evaluates and scores; nobody notices.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from launching import free_address, left_of, start_launcher, toy_image
from sqlalchemy import select, update
from test_worker import add_pair, check_the_end
from world import state_of

from dare_platform import endings, orders
from dare_platform.container_profile import ISOLATION
from dare_platform.database import Database
from dare_platform.models import Attempt, LogChunk, Run
from dare_platform.remote_launcher import RemoteLauncher
from dare_platform.settings import Containers, Settings
from dare_platform.worker import Worker

pytestmark = pytest.mark.full


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endings, "FIRST_BACK_OFF_SECONDS", 0.1)


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    """The toy: 30 steps of a tenth of a second."""
    with toy_image(30, 0.1) as tag:
        yield tag


@pytest.fixture
def settings(sqlite_settings: Settings, image: str) -> Iterator[Settings]:
    """Of the worker: it knows the launcher's address and secret, and no socket."""
    installation = f"t{secrets.token_hex(4)}"
    yield replace(
        sqlite_settings,
        limits=replace(sqlite_settings.limits, free_disk_bytes=1, wall_seconds=60.0),
        lease_seconds=8.0,
        launcher=free_address(),
        launcher_secret=secrets.token_hex(16),
        containers=Containers(installation=installation, images={"llada": image}, socket="unix:///nowhere"),
    )
    for left in left_of(installation):
        left.remove(force=True, v=True)


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(20)


def wait_for(database: Database, run: str, state: str, seconds: float = 40) -> None:
    deadline = time.monotonic() + seconds
    while True:
        with database.read() as session:
            found = state_of(session, run)
        if found == state:
            return
        assert time.monotonic() < deadline, f"{run} is {found}"
        time.sleep(0.05)


def test_a_killed_launcher_costs_nothing(settings: Settings, sqlite: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "START_SECONDS", 30.0)
    with ExitStack() as stack:
        first = start_launcher(settings)
        stack.callback(first.kill)
        train, evaluate = add_pair(sqlite)
        remote = RemoteLauncher(settings)
        stack.callback(remote.close)
        worker = Worker(settings, ["llada"], launcher=remote)
        working = threading.Thread(target=worker.run, kwargs={"until_idle": True})
        working.start()
        stack.callback(worker.stop)
        wait_for(sqlite, train, "working")
        time.sleep(1.0)
        first.kill()
        first.wait()
        time.sleep(1.0)
        again = start_launcher(settings)
        stack.callback(end, again)
        working.join(90)
        assert not working.is_alive()
        check_the_end(sqlite, train, evaluate)
        assert remote.list_own() == []
    with sqlite.read() as session:
        attempts = session.execute(select(Attempt).order_by(Attempt.run_id)).scalars().all()
        assert [attempt.outcome for attempt in attempts] == ["succeeded", "succeeded"]
        assert {attempt.isolation for attempt in attempts} == {ISOLATION}
        assert {str(attempt.image_id)[:7] for attempt in attempts} == {"sha256:"}
        pieces = select(LogChunk).where(LogChunk.run_id == train).order_by(LogChunk.offset)
        printed = b"".join(piece.content for piece in session.execute(pieces).scalars())
        assert printed.decode() == "".join(f"step {step}\n" for step in range(30))


def test_a_cancelled_run_is_gone_in_time(settings: Settings, sqlite: Database) -> None:
    with ExitStack() as stack:
        stack.callback(end, start_launcher(settings))
        train, _ = add_pair(sqlite)
        remote = RemoteLauncher(settings)
        stack.callback(remote.close)
        worker = Worker(settings, ["llada"], launcher=remote)
        working = threading.Thread(target=worker.run, kwargs={"until_idle": True})
        working.start()
        stack.callback(worker.stop)
        wait_for(sqlite, train, "working")
        with sqlite.write() as session:
            session.execute(update(Run).where(Run.id == train).values(cancel_requested_at=time.time()))
        began = time.monotonic()
        wait_for(sqlite, train, "cancelled")
        assert time.monotonic() - began < settings.limits.grace_seconds + 10
        working.join(30)
        assert remote.list_own() == []


def test_an_open_launcher_is_refused_in_one_sentence(settings: Settings) -> None:
    environment: dict[str, Any] = {"PATH": os.environ["PATH"], "DARE_HOME": str(settings.home)}
    command = [sys.executable, "-m", "dare_platform", "launcher", "--host", "0.0.0.0"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("dare: DARE_LAUNCHER_SECRET is not set, and 0.0.0.0 can be reached from elsewhere")
    assert len(ended.stderr.splitlines()) == 1
