"""Workers carry runs to their end; killed, stopped or frozen ones leave no second result and no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import func, select
from world import add_entry, add_evaluate_run, add_train_run, add_worker, build, state_of

from dare_platform import endings, orders
from dare_platform.database import Database
from dare_platform.lease import claim, reap
from dare_platform.models import (
    Attempt,
    MetricPoint,
    Prediction,
    Result,
    Run,
    RunArtifact,
    RunEvent,
    ScoreItem,
    Usage,
)
from dare_platform.models import Worker as WorkerRow
from dare_platform.process_launcher import ProcessLauncher
from dare_platform.processes import marked
from dare_platform.settings import Settings
from dare_platform.states import move
from dare_platform.worker import Worker

HERE = Path(__file__).parent
TOY = HERE / "toy_runner.py"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endings, "FIRST_BACK_OFF_SECONDS", 0.1)
    monkeypatch.setattr(orders, "START_SECONDS", 0.0)


def worker_of(settings: Settings, mode: str) -> Worker:
    limits = replace(settings.limits, free_disk_bytes=1)
    settings = replace(settings, limits=limits)
    launcher = ProcessLauncher(settings, (sys.executable, str(TOY), mode))
    return Worker(settings, ["llada"], launcher=launcher)


def alive(run_ids: list[str]) -> list[str]:
    return [marker for _, marker in marked() if marker.rpartition("-")[0] in run_ids]


def add_pair(database: Database, **job: object) -> tuple[str, str]:
    """A train run and its evaluation."""
    with database.write() as session:
        world = build(session)
        train = add_train_run(session, world, **job)
        return train.id, add_evaluate_run(session, world, train).id


def check_the_end(database: Database, train: str, evaluate: str) -> None:
    """Exactly one result of each kind, whatever happened on the way."""
    with database.read() as session:
        assert state_of(session, train) == state_of(session, evaluate) == "succeeded"
        for table, expected in ((Result, 2), (Prediction, 8), (ScoreItem, 8), (RunArtifact, 1)):
            assert session.execute(select(func.count()).select_from(table)).scalar_one() == expected
        attempts = session.execute(select(Attempt)).scalars().all()
        for run in (train, evaluate):
            outcomes = [attempt.outcome for attempt in attempts if attempt.run_id == run]
            assert outcomes.count("succeeded") == 1
            assert None not in outcomes
            tokens = [attempt.token for attempt in attempts if attempt.run_id == run]
            winner = session.execute(select(Run.lease_token).where(Run.id == run)).scalar_one()
            assert winner == max(tokens)
        charged = session.execute(select(func.count()).where(Usage.charged)).scalar_one()
        assert charged == 2
    assert alive([train, evaluate]) == []


def test_a_worker_trains_evaluates_and_stops_when_nothing_waits(settings: Settings, database: Database) -> None:
    train, evaluate = add_pair(database)
    assert worker_of(settings, "good").run(until_idle=True) == 2
    check_the_end(database, train, evaluate)
    with database.read() as session:
        row = session.get(Run, train)
        assert row is not None
        assert (row.stage, row.step, row.of) == ("train", 2, 3)
        assert row.reward == pytest.approx(2 / 3)
        assert session.execute(select(func.count()).select_from(MetricPoint)).scalar_one() == 6
        attempt = session.execute(select(Attempt).where(Attempt.run_id == train)).scalar_one()
        assert attempt.log_tail == "step 0\nstep 1\nstep 2\n"
        assert attempt.isolation
        assert attempt.exit_code == 0
        assert session.execute(select(WorkerRow.state)).scalar_one() == "stopped"
        events = session.execute(
            select(RunEvent.to_state).where(RunEvent.run_id == evaluate).order_by(RunEvent.seq)
        ).scalars()
        assert list(events) == ["blocked", "queued", "leased", "preparing", "working", "finalizing", "succeeded"]
    assert not (settings.jobs / train / "1" / "checkpoint").exists()


@pytest.mark.parametrize(
    ("mode", "source", "cause", "words", "attempts"),
    [
        ("exit0", "entry", "user_error", "The entry ended the process before the run was finished", 1),
        ("half-result", "entry", "user_error", "The entry ended the process before the run was finished", 1),
        ("other-job", "entry", "user_error", "answers another job", 1),
        ("no-model", "entry", "user_error", "left no file under model/", 1),
        ("fails", "entry", "diverged", "The loss became NaN at step 3.", 1),
        ("flood", "entry", "limit", "printed more than", 1),
        ("sleep", "entry", "timeout", "after 1 s", 1),
        ("exit0", "builtin", "internal", "ended with exit code 0", 3),
        ("segfault", "builtin", "internal", "ended with signal 11", 3),
    ],
)
def test_every_bad_end_has_a_cause_a_sentence_and_its_retries(
    sqlite_settings: Settings, sqlite: Database, mode: str, source: str, cause: str, words: str, attempts: int
) -> None:
    train, evaluate = add_pair(sqlite, source=source, wall_seconds=1.0)
    assert worker_of(sqlite_settings, mode).run(until_idle=True) == attempts
    with sqlite.read() as session:
        row = session.get(Run, train)
        assert row is not None
        assert (row.state, row.cause, row.attempts) == ("failed", cause, attempts)
        assert words in str(row.sentence)
        assert row.next_step
        assert row.charged == (cause != "internal")
        assert state_of(session, evaluate) == "failed"
        assert session.execute(select(func.count()).select_from(Attempt)).scalar_one() == attempts
    assert alive([train]) == []


class Running:
    """A worker in a thread."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.thread = threading.Thread(target=worker.run)
        self.thread.start()

    def stop(self) -> None:
        self.worker.stop()
        self.thread.join(20)
        assert not self.thread.is_alive()


def wait_for(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.005)


def state(database: Database, run: str) -> str:
    with database.read() as session:
        return state_of(session, run)


def test_a_cancelled_run_ends_soon_and_leaves_no_process(sqlite_settings: Settings, sqlite: Database) -> None:
    train, evaluate = add_pair(sqlite)
    running = Running(worker_of(sqlite_settings, "deaf"))
    try:
        wait_for(lambda: state(sqlite, train) == "working")
        with sqlite.write() as session:
            assert endings.cancel(session, train, "account local") == "asked"
        wait_for(lambda: state(sqlite, train) == "cancelled", seconds=8)
        assert state(sqlite, evaluate) == "cancelled"
        assert alive([train]) == []
    finally:
        running.stop()


@pytest.mark.full
def test_a_wish_to_cancel_is_heard_long_before_the_next_beat(sqlite_settings: Settings, sqlite: Database) -> None:
    train, _ = add_pair(sqlite)
    running = Running(worker_of(replace(sqlite_settings, lease_seconds=3600), "sleep"))
    try:
        wait_for(lambda: state(sqlite, train) == "working")
        with sqlite.write() as session:
            endings.cancel(session, train, "account local")
        wait_for(lambda: state(sqlite, train) == "cancelled", seconds=5)
        assert alive([train]) == []
    finally:
        running.stop()


@pytest.mark.parametrize("at", ["blocked", "queued", "leased", "preparing", "working", "finalizing"])
def test_a_run_can_be_cancelled_in_every_state_and_then_ends_as_cancelled(sqlite: Database, at: str) -> None:
    train, evaluate = add_pair(sqlite)
    asked = evaluate if at == "blocked" else train
    with sqlite.write() as session:
        if at not in ("blocked", "queued"):
            assert claim(session, add_worker(session), -1) is not None
        for step in ("preparing", "working", "finalizing"):
            if at in ("preparing", "working", "finalizing") and state_of(session, train) != at:
                assert move(session, train, step, actor="t", token=1)
        assert state_of(session, asked) == at
        done = endings.cancel(session, asked, "account local")
        assert done == ("cancelled" if at in ("blocked", "queued") else "asked")
        reap(session, 60)  # its worker is gone
        assert state_of(session, asked) == "cancelled"
        assert endings.cancel(session, asked, "account local") == "already finished"


@pytest.mark.full
def test_a_worker_that_is_told_to_end_says_that_it_does_so(sqlite_settings: Settings, sqlite: Database) -> None:
    train, _ = add_pair(sqlite)
    running = Running(worker_of(sqlite_settings, "deaf"))
    wait_for(lambda: state(sqlite, train) == "working")
    running.worker.stop()

    def says(what: str) -> bool:
        with sqlite.read() as session:
            return session.execute(select(WorkerRow.state)).scalar_one() == what

    wait_for(lambda: says("draining"), seconds=5)
    running.stop()
    assert says("stopped")


def test_a_stopped_worker_gives_its_run_back_and_the_next_goes_on_from_the_checkpoint(
    sqlite_settings: Settings, sqlite: Database
) -> None:
    train, evaluate = add_pair(sqlite)
    running = Running(worker_of(sqlite_settings, "good:40:0.05"))
    step = sqlite_settings.jobs / train / "1" / "checkpoint" / "step"
    wait_for(lambda: step.exists() and int(step.read_text() or 0) >= 3)
    running.stop()
    with sqlite.read() as session:
        row = session.get(Run, train)
        assert row is not None
        assert (row.state, row.attempts, row.cause) == ("queued", 0, None)
        assert session.execute(select(Attempt.outcome)).scalar_one() == "returned"
    assert alive([train]) == []
    worker_of(sqlite_settings, "good:5:0").run(until_idle=True)
    check_the_end(sqlite, train, evaluate)
    first = (sqlite_settings.jobs / train / "3" / "events.jsonl").read_text().splitlines()[0]
    assert int(first.split("from step ")[1].split('"')[0]) >= 3


def test_a_database_locked_for_a_moment_only_delays(sqlite_settings: Settings, sqlite: Database) -> None:
    train, evaluate = add_pair(sqlite)
    running = Running(worker_of(sqlite_settings, "good:10:0.05"))
    try:
        wait_for(lambda: state(sqlite, train) == "working")
        with sqlite.write() as session:
            session.execute(select(WorkerRow))
            time.sleep(0.6)
        wait_for(lambda: state(sqlite, evaluate) == "succeeded")
    finally:
        running.stop()
    check_the_end(sqlite, train, evaluate)


def test_two_workers_share_the_work(settings: Settings, database: Database) -> None:
    with database.write() as session:
        world = build(session)
        entry = add_entry(session, world)
        runs = [add_evaluate_run(session, world, add_train_run(session, world, entry, seed=s)).id for s in range(3)]
    both = [Running(worker_of(settings, "good:3:0.1")) for _ in range(2)]
    try:
        wait_for(lambda: all(state(database, run) == "succeeded" for run in runs), seconds=60)
    finally:
        for running in both:
            running.stop()
    with database.read() as session:
        assert session.execute(select(func.count()).select_from(Attempt)).scalar_one() == 6
        assert session.execute(select(func.count()).select_from(Result)).scalar_one() == 6
        assert len(session.execute(select(Attempt.worker_id).distinct()).all()) == 2


# --- processes that are killed -----------------------------------------------------------------------------------


def start_worker(settings: Settings, mode: str, lease: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(HERE / "work.py"), str(settings.home), mode, str(lease), settings.database_url]
    return subprocess.Popen(command)


Point = Callable[[Settings, Database, str, str], object]


def count(database: Database, table: type) -> int:
    with database.read() as session:
        return session.execute(select(func.count()).select_from(table)).scalar_one()


POINTS: dict[str, Point] = {
    "the worker is registered": lambda s, d, t, e: count(d, WorkerRow),
    "the run is leased": lambda s, d, t, e: count(d, Attempt),
    "the job directory is there": lambda s, d, t, e: (s.jobs / t / "1").exists(),
    "the order is written": lambda s, d, t, e: (s.jobs / t / "1" / "job.json").exists(),
    "the process lives": lambda s, d, t, e: alive([t]),
    "the run works": lambda s, d, t, e: state(d, t) == "working",
    "a checkpoint is there": lambda s, d, t, e: (s.jobs / t / "1" / "checkpoint" / "step").exists(),
    "a curve has begun": lambda s, d, t, e: count(d, MetricPoint),
    "the result is written": lambda s, d, t, e: (s.jobs / t / "1" / "result.json").exists(),
    "an artifact is stored": lambda s, d, t, e: s.artifacts.exists(),
    "training is committed": lambda s, d, t, e: state(d, t) == "succeeded",
    "the evaluation's result is written": lambda s, d, t, e: (s.jobs / e / "1" / "result.json").exists(),
}


def check_kill(settings: Settings, database: Database, processes: list[subprocess.Popen[bytes]], point: str) -> None:
    train, evaluate = add_pair(database)
    victim = start_worker(settings, "good:12:0.05", lease=1.0)
    processes.append(victim)
    deadline = time.monotonic() + 30
    while not POINTS[point](settings, database, train, evaluate):
        assert time.monotonic() < deadline
        assert victim.poll() is None, "the worker ended before the point was seen"
    victim.kill()
    victim.wait()
    heir = start_worker(settings, "good:12:0.01", lease=1.0)
    processes.append(heir)
    assert heir.wait(60) == 0
    check_the_end(database, train, evaluate)


def test_a_worker_killed_in_the_middle_leaves_one_result(
    sqlite_settings: Settings, sqlite: Database, processes: list[subprocess.Popen[bytes]]
) -> None:
    check_kill(sqlite_settings, sqlite, processes, "a checkpoint is there")


@pytest.mark.full
@pytest.mark.parametrize("point", POINTS)
def test_a_worker_killed_at_any_point_leaves_one_result_and_no_process(
    sqlite_settings: Settings, sqlite: Database, processes: list[subprocess.Popen[bytes]], point: str
) -> None:
    check_kill(sqlite_settings, sqlite, processes, point)


@pytest.mark.full
@pytest.mark.parametrize("point", ["the run is leased", "the run works", "the result is written"])
def test_a_worker_killed_on_postgresql_leaves_one_result_and_no_process(
    postgres_settings: Settings, processes: list[subprocess.Popen[bytes]], point: str
) -> None:
    with Database(postgres_settings.database_url) as database:
        check_kill(postgres_settings, database, processes, point)


@pytest.mark.full
def test_a_worker_frozen_longer_than_its_lease_writes_nothing_when_it_wakes(
    sqlite_settings: Settings, sqlite: Database, processes: list[subprocess.Popen[bytes]]
) -> None:
    train, evaluate = add_pair(sqlite)
    frozen = start_worker(sqlite_settings, "good:400:0.05", lease=1.0)
    processes.append(frozen)
    wait_for(lambda: (sqlite_settings.jobs / train / "1" / "checkpoint" / "step").exists())
    os.kill(frozen.pid, signal.SIGSTOP)
    heir = start_worker(sqlite_settings, "good:12:0.01", lease=1.0)
    processes.append(heir)
    assert heir.wait(60) == 0
    check_the_end(sqlite, train, evaluate)
    with sqlite.read() as session:
        before = session.execute(select(func.count()).select_from(RunEvent)).scalar_one()
    os.kill(frozen.pid, signal.SIGCONT)
    assert frozen.wait(60) == 0
    check_the_end(sqlite, train, evaluate)
    with sqlite.read() as session:
        assert session.execute(select(func.count()).select_from(RunEvent)).scalar_one() == before


@pytest.mark.full
def test_a_worker_told_to_end_gives_its_run_back(
    sqlite_settings: Settings, sqlite: Database, processes: list[subprocess.Popen[bytes]]
) -> None:
    train, _ = add_pair(sqlite)
    worker = start_worker(sqlite_settings, "good:400:0.05", lease=2.0)
    processes.append(worker)
    wait_for(lambda: state(sqlite, train) == "working")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0
    assert state(sqlite, train) == "queued"
    assert alive([train]) == []
