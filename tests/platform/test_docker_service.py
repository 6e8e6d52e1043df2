"""A stack in small: a worker without a way to the engine, `dare launcher` with one, and runs as containers.

The launcher is killed and started again while the worker trains, evaluates and scores; nobody notices.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import httpx
import pytest
from needed import missing
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

SOCKET = "unix:///var/run/docker.sock"
BASE = "python:3.11-slim-bookworm"
TOY = Path(__file__).with_name("toy_runner.py")
MAIN = "import pathlib\nimport toy_runner\ntoy_runner.work(pathlib.Path('/job'), 30, 0.1)\n"
DOCKERFILE = f"FROM {BASE}\nCOPY toy /opt/toy\nENV PYTHONPATH=/opt/toy\n"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endings, "FIRST_BACK_OFF_SECONDS", 0.1)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image in which `python -m dare run` is the toy: 30 steps of a tenth of a second."""
    try:
        client = docker.DockerClient(base_url=SOCKET, version="auto")
        client.images.get(BASE)
    except docker.errors.DockerException:
        missing("a Docker engine with python:3.11-slim-bookworm")
    context = tmp_path_factory.mktemp("image")
    package = context / "toy" / "dare"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(MAIN)
    shutil.copy(TOY, context / "toy")
    (context / "Dockerfile").write_text(DOCKERFILE)
    tag = f"dare-test-toy:{secrets.token_hex(4)}"
    client.images.build(path=str(context), tag=tag, rm=True)
    yield tag
    client.images.remove(tag, force=True)
    client.close()


@pytest.fixture
def settings(sqlite_settings: Settings, image: str) -> Iterator[Settings]:
    """Of the worker: it knows the launcher's address and secret, and no socket."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    installation = f"t{secrets.token_hex(4)}"
    yield replace(
        sqlite_settings,
        limits=replace(sqlite_settings.limits, free_disk_bytes=1, wall_seconds=60.0),
        lease_seconds=8.0,
        launcher=f"http://127.0.0.1:{port}",
        launcher_secret=secrets.token_hex(16),
        containers=Containers(installation=installation, images={"llada": image}, socket="unix:///nowhere"),
    )
    client = docker.DockerClient(base_url=SOCKET, version="auto")
    for left in client.containers.list(all=True, filters={"label": f"dare.installation={installation}"}):
        left.remove(force=True, v=True)
    client.close()


def start_launcher(settings: Settings) -> subprocess.Popen[bytes]:
    """`dare launcher`, listening."""
    secret = settings.home / "launcher-secret"
    secret.write_text(f"{settings.launcher_secret}\n")
    images = ",".join(f"{family}={image}" for family, image in settings.containers.images.items())
    environment = {
        "PATH": os.environ["PATH"],
        "DARE_HOME": str(settings.home),
        "DARE_DATABASE_URL": settings.database_url,
        "DARE_INSTALLATION": settings.containers.installation,
        "DARE_IMAGES": images,
        "DARE_LAUNCHER_SECRET_FILE": str(secret),
        "DARE_LIMIT_FREE_DISK_MIB": "1",
        "DARE_LIMIT_MEMORY_MIB": "512",
        "DARE_LIMIT_GRACE_SECONDS": "1",
        "DARE_DOCKER_SOCKET": SOCKET,
    }
    port = settings.launcher.rpartition(":")[2]
    command = [sys.executable, "-m", "dare_platform", "launcher", "--port", port]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while True:
        try:
            if httpx.get(f"{settings.launcher}/health", trust_env=False, timeout=5).status_code == 200:
                return process
        except httpx.TransportError:
            assert process.poll() is None, "the launcher has ended"
        assert time.monotonic() < deadline
        time.sleep(0.1)


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
