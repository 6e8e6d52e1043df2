"""Workers killed, frozen, stopped or cut off at any moment: one result each, the same weights bit for bit."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from scene import CHECKPOINT_AT, STEPS, TRACK, Scene
from small import ARTEFACTS, alive, built_in, home_with, leftovers, runs_of, submit

from dare_platform.database import open_database
from dare_platform.models import Attempt, Result, RunEvent

pytestmark = pytest.mark.full

AT_ONCE = 3
"""Scenes played at the same time: most of a scene is waiting for a lease to end."""


def predictions(scene: Scene) -> bool:
    files = scene.job(scene.evaluate).glob("predictions/*.jsonl")
    return any(file.stat().st_size for file in files)


POINTS: dict[str, Callable[[Scene], object]] = {
    "after the claim": lambda s: s.count(Attempt),
    "while preparing": lambda s: (s.job(s.train) / "job.json").exists(),
    "at the first stage": lambda s: s.run(s.train).stage,
    "after step 1": lambda s: s.run(s.train).step,
    "after a checkpoint": lambda s: (s.job(s.train) / "checkpoint").exists(),
    "near the end of training": lambda s: (s.run(s.train).step or 0) >= STEPS - 2,
    "while finalizing": lambda s: s.state(s.train) in ("finalizing", "succeeded"),  # a moment that may be missed
    "between train and evaluate": lambda s: s.state(s.train) == "succeeded",
    "during evaluation": lambda s: s.run(s.evaluate).stage == "evaluate",
    "after predictions exist": predictions,
}
HAS_CHECKPOINT = POINTS["after a checkpoint"]


def kill_the_worker(point: str) -> Callable[[Scene], None]:
    def play(scene: Scene) -> None:
        victim = scene.start()
        scene.wait_for(POINTS[point])
        victim.kill()
        victim.wait()
        scene.remember()
        scene.finish()

    return play


def disturb_nothing(scene: Scene) -> None:
    scene.finish()
    assert [a.outcome for a in scene.attempts(scene.train)] == ["succeeded"]


def kill_the_runner(scene: Scene) -> None:
    worker = scene.start()
    scene.wait_for(HAS_CHECKPOINT)
    os.kill(scene.runner(), signal.SIGKILL)
    scene.remember()
    assert worker.wait(120) == 0
    first, second = scene.attempts(scene.train)
    assert (first.outcome, first.cause, first.exit_code) == ("failed", "internal", -9)
    assert "signal 9" in str(first.sentence)
    assert second.outcome == "succeeded"
    assert scene.resumed_from() == [CHECKPOINT_AT]


def freeze_the_worker(scene: Scene) -> None:
    frozen = scene.start()
    scene.wait_for(HAS_CHECKPOINT)
    freeze_outside_a_transaction(frozen.pid, scene)
    scene.remember()
    scene.finish()
    events = scene.count(RunEvent)
    os.kill(frozen.pid, signal.SIGCONT)
    assert frozen.wait(30) == 0
    assert scene.count(RunEvent) == events
    outcomes = [attempt.outcome for attempt in scene.attempts(scene.train)]
    assert (outcomes[0], outcomes[-1]) == ("lost", "succeeded")


def freeze_outside_a_transaction(pid: int, scene: Scene) -> None:
    """Stop a process while it does not hold SQLite's one lock: who is frozen with it stops every other worker too."""
    deadline = time.monotonic() + 30
    while True:
        os.kill(pid, signal.SIGSTOP)
        try:
            with closing(sqlite3.connect(scene.settings.home / "dare.sqlite", timeout=0.5)) as database:
                database.execute("BEGIN IMMEDIATE")
                return
        except sqlite3.OperationalError:
            assert time.monotonic() < deadline, "the worker never leaves its transaction"
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.05)


def press_ctrl_c(scene: Scene) -> None:
    stopped = scene.start()
    scene.wait_for(HAS_CHECKPOINT)
    stopped.send_signal(signal.SIGINT)
    assert stopped.wait(20) == 0
    scene.remember()
    run = scene.run(scene.train)
    assert (run.state, run.attempts, run.cause, run.not_before) == ("queued", 0, None, 0.0)
    assert alive([scene.train]) == []
    scene.finish()
    outcomes = [attempt.outcome for attempt in scene.attempts(scene.train)]
    assert (outcomes[0], outcomes[-1]) == ("returned", "succeeded")
    assert scene.resumed_from() == [CHECKPOINT_AT]


HOLD = "import sqlite3, sys, time; c = sqlite3.connect(sys.argv[1]); c.execute('BEGIN IMMEDIATE'); time.sleep(3)"


def lock_the_database(scene: Scene) -> None:
    scene.lease_seconds = 12.0
    worker = scene.start()
    scene.wait_for(POINTS["after step 1"])
    scene.remember()
    subprocess.run([sys.executable, "-c", HOLD, scene.settings.home / "dare.sqlite"], check=True)
    assert worker.wait(120) == 0
    assert [a.outcome for a in scene.attempts(scene.train)] == ["succeeded"]


def take_the_broker_away(scene: Scene) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"redis://127.0.0.1:{free.getsockname()[1]}/0"
    worker = scene.start("--family", "sdar", DARE_BROKER_URL=address)
    scene.wait_for(lambda s: s.state(s.evaluate) == "succeeded")
    scene.remember()
    worker.send_signal(signal.SIGINT)
    assert worker.wait(30) == 0, scene.logs()


DISTURBANCES: dict[str, Callable[[Scene], None]] = {
    "nothing": disturb_nothing,
    **{f"worker killed {point}": kill_the_worker(point) for point in POINTS},
    "runner killed": kill_the_runner,
    "worker frozen longer than its lease": freeze_the_worker,
    "Ctrl-C": press_ctrl_c,
    "database locked for three seconds": lock_the_database,
    "broker away": take_the_broker_away,
}


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Scene]]]:
    """All of them, a few at a time; a test asks for the one that it is about."""
    folder = tmp_path_factory.mktemp("scenes")
    home_with(folder / "template", TRACK)
    played: list[Scene] = []
    one_by_one = threading.Lock()  # Alembic reads its folder for one thread at a time

    def play(number: int, disturb: Callable[[Scene], None]) -> Scene:
        began = time.monotonic()
        with one_by_one:
            scene = Scene.set(folder / "template", folder / str(number))
            played.append(scene)
        disturb(scene)
        scene.seconds = time.monotonic() - began
        return scene

    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {name: pool.submit(play, number, how) for number, (name, how) in enumerate(DISTURBANCES.items())}
        pool.shutdown(cancel_futures=True)
    for scene in played:
        scene.close()


ROWS: list[dict[str, object]] = []


@pytest.mark.parametrize("name", DISTURBANCES)
def test_whatever_happens_every_run_ends_once_with_the_same_weights(
    scenes: dict[str, Future[Scene]], name: str
) -> None:
    undisturbed, scene = scenes["nothing"].result(), scenes[name].result()
    row: dict[str, object] = {
        "what": name,
        "seen": scene.seen,
        "train": [attempt.outcome for attempt in scene.attempts(scene.train)],
        "evaluate": [attempt.outcome for attempt in scene.attempts(scene.evaluate)],
        "resumed_from": scene.resumed_from(),
        "same_weights": scene.weights() == undisturbed.weights(),
        "seconds": round(scene.seconds, 1),
    }
    print(" | ".join(map(str, row.values())))  # noqa: T201
    ROWS.append(row)
    ARTEFACTS.mkdir(exist_ok=True)
    (ARTEFACTS / "kills.json").write_text(json.dumps(ROWS, indent=1))
    scene.check_the_end(undisturbed.weights(), undisturbed.scores())


def test_two_workers_at_once_do_every_run_once(tmp_path: Path) -> None:
    home_with(tmp_path / "template", TRACK)
    scene = Scene.set(tmp_path / "template", tmp_path / "home")
    try:
        for name in ("untouched", "bgpo"):
            submit(scene.database, built_in(TRACK, name))
        for worker in [scene.start(), scene.start()]:
            assert worker.wait(120) == 0
        runs = runs_of(scene.database)
        assert [run.state for run in runs] == ["succeeded"] * 5
        assert [len(scene.attempts(run.id)) for run in runs] == [1] * 5
        assert len({attempt.worker_id for run in runs for attempt in scene.attempts(run.id)}) == 2
        assert scene.count(Result) == 3 * 6
        assert alive([run.id for run in runs]) == []
        with open_database(scene.settings) as database:
            assert leftovers(scene.settings, database) == []
    finally:
        scene.close()
