"""Processes that outlive the command that started them: started once, found again, ended for certain."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import psutil

from dare_platform.keeper import Keeper, free_port

SLEEPER = [sys.executable, "-c", "import os, time; print(os.environ['MARK'], flush=True); time.sleep(600)"]
DEAF = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)",
]


def wait_for(file: Path, text: str) -> None:
    deadline = time.monotonic() + 20
    while text not in file.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert text in file.read_text()


def test_a_process_is_started_once_and_stopped(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path, {"MARK": "seen"})
    first = keeper.ensure("worker-1", SLEEPER)
    wait_for(keeper.log("worker-1"), "seen")
    assert Keeper(tmp_path).ensure("worker-1", SLEEPER) == first
    assert [kept.name for kept in keeper.kept()] == ["worker-1"]
    assert Keeper(tmp_path).stop_all() == ["worker-1"]
    assert not first.alive()
    assert keeper.kept() == []
    assert keeper.stop_all() == []


def test_one_that_will_not_listen_is_killed(tmp_path: Path, monkeypatch: object) -> None:
    import dare_platform.keeper as module

    keeper = Keeper(tmp_path)
    kept = keeper.ensure("site", DEAF, port=1)
    wait_for(keeper.log("site"), "deaf")
    patience, module.STOP_SECONDS = module.STOP_SECONDS, 0.3
    try:
        keeper.stop_all()
    finally:
        module.STOP_SECONDS = patience
    deadline = time.monotonic() + 5
    while kept.alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not kept.alive()


def test_a_later_process_with_the_same_number_is_not_taken_for_ours(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path)
    other = psutil.Process()
    (tmp_path / "processes.json").write_text(
        f'[{{"name": "site", "pid": {other.pid}, "created": {other.create_time() - 100}, "port": null}}]'
    )
    assert keeper.kept() == []
    assert keeper.stop_all() == []
    assert other.is_running()


def test_a_port_that_somebody_listens_on_is_passed_over() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port(port) > port
