"""A run outlives its worker: the next one on the host goes on with the process, or takes back what has none at once."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import docker
import pytest
from detached import IMAGE, DetachedLauncher
from sqlalchemy import func, select, text
from test_worker import Running, add_pair, alive, check_the_end, state, wait_for
from world import add_gpu, add_train_run, add_worker, build, state_of

from dare.spec import Event
from dare_platform import endings, host, orders
from dare_platform.adoption import LeftBehind, adopt, left_behind, take_back
from dare_platform.database import Database
from dare_platform.errors import LaunchError
from dare_platform.ingest import ingest
from dare_platform.launcher import Observed, Owned
from dare_platform.lease import POISON_WORKERS, claim, reap
from dare_platform.models import Attempt, GpuLease, LogChunk, MetricPoint, Run, RunEvent, Worker
from dare_platform.settings import Settings
from dare_platform.states import move
from dare_platform.views.rows import alarms, events
from dare_platform.worker import Worker as Working

HERE = Path(__file__).parent
DEAD = 2**22 + 1  # no process id is larger than 2**22


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endings, "FIRST_BACK_OFF_SECONDS", 0.1)
    monkeypatch.setattr(orders, "START_SECONDS", 0.0)


def start_worker(settings: Settings, mode: str, lease: float, *installation: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(HERE / "detached.py"), str(settings.home), mode, str(lease), settings.database_url]
    return subprocess.Popen([*command, *installation])


def worker_of(settings: Settings, mode: str, lease: float = 30.0) -> Working:
    settings = replace(settings, lease_seconds=lease, limits=replace(settings.limits, free_disk_bytes=1))
    return Working(settings, ["llada"], launcher=DetachedLauncher(settings, mode))


def check_the_process_went_on(settings: Settings, database: Database, train: str, steps: int) -> None:
    """One process did it all, two attempts watched it, and nothing of what it told is missing or told twice."""
    assert [folder.name for folder in (settings.jobs / train).iterdir() if folder.is_dir()] == ["1"]
    with database.read() as session:
        run = session.get_one(Run, train)
        assert (run.attempts, run.job_token, run.lease_token) == (1, 1, 2)
        attempts = session.execute(select(Attempt).where(Attempt.run_id == train).order_by(Attempt.number)).scalars()
        told = [(one.token, one.job_token, one.outcome) for one in attempts]
        assert told == [(1, 1, "lost"), (2, 1, "succeeded")]
        curve = select(func.count()).where(MetricPoint.run_id == train, MetricPoint.token == 2)
        assert session.execute(curve.where(MetricPoint.name == "reward")).scalar_one() == steps
        pieces = select(LogChunk).where(LogChunk.run_id == train, LogChunk.token == 2).order_by(LogChunk.offset)
        printed = b"".join(chunk.content for chunk in session.execute(pieces).scalars())
        assert printed.decode() == "".join(f"step {step}\n" for step in range(steps))
        history = [event for event in events(session, [train]) if event.kind == "adopted"]
        assert len(history) == 1
        assert "went on with the running process" in history[0].sentence


def test_a_killed_workers_process_is_gone_on_with_to_its_end(
    settings: Settings, database: Database, processes: list[subprocess.Popen[bytes]]
) -> None:
    train, evaluate = add_pair(database)
    victim = start_worker(settings, "good:16:0.05", lease=30.0)
    processes.append(victim)
    wait_for(lambda: (settings.jobs / train / "1" / "checkpoint" / "step").exists())
    victim.kill()
    began = time.monotonic()
    worker_of(settings, "good:16:0.05").run(until_idle=True)
    assert time.monotonic() - began < 15  # half a lease
    check_the_end(database, train, evaluate)
    check_the_process_went_on(settings, database, train, steps=16)


@pytest.mark.full
def test_a_process_that_ended_while_no_worker_watched_is_taken_in(
    sqlite_settings: Settings, sqlite: Database, processes: list[subprocess.Popen[bytes]]
) -> None:
    train, evaluate = add_pair(sqlite)
    victim = start_worker(sqlite_settings, "good:4:0.2", lease=30.0)
    processes.append(victim)
    wait_for(lambda: state(sqlite, train) == "working")
    victim.kill()
    wait_for(lambda: (sqlite_settings.jobs / train / "1.exit").exists())
    worker_of(sqlite_settings, "good:4:0.2").run(until_idle=True)
    check_the_end(sqlite, train, evaluate)
    check_the_process_went_on(sqlite_settings, sqlite, train, steps=4)


@pytest.mark.full
def test_a_frozen_worker_that_wakes_leaves_the_process_to_its_new_holder(
    sqlite_settings: Settings, sqlite: Database, processes: list[subprocess.Popen[bytes]]
) -> None:
    train, evaluate = add_pair(sqlite)
    frozen = start_worker(sqlite_settings, "good:100:0.05", lease=2.0)
    processes.append(frozen)
    wait_for(lambda: (sqlite_settings.jobs / train / "1" / "checkpoint" / "step").exists())
    os.kill(frozen.pid, signal.SIGSTOP)
    with sqlite.write() as session:  # as if it were in another container of the same name
        session.execute(text("UPDATE worker SET boot_id = 'another'"))
    running = Running(worker_of(sqlite_settings, "good:100:0.05", lease=2.0))
    try:
        wait_for(lambda: len(attempts_of(sqlite, train)) == 2)
        os.kill(frozen.pid, signal.SIGCONT)
        wait_for(lambda: state(sqlite, evaluate) == "succeeded", seconds=60)
    finally:
        running.stop()
    frozen.send_signal(signal.SIGTERM)
    assert frozen.wait(20) in (0, -signal.SIGTERM)  # it may be ending already
    check_the_end(sqlite, train, evaluate)
    check_the_process_went_on(sqlite_settings, sqlite, train, steps=100)


def attempts_of(database: Database, run: str) -> list[int]:
    with database.read() as session:
        return list(session.execute(select(Attempt.token).where(Attempt.run_id == run)).scalars())


@pytest.mark.full
def test_a_cancelled_run_whose_worker_died_is_cancelled_by_the_next(
    sqlite_settings: Settings, sqlite: Database, processes: list[subprocess.Popen[bytes]]
) -> None:
    train, evaluate = add_pair(sqlite)
    victim = start_worker(sqlite_settings, "deaf", lease=30.0)
    processes.append(victim)
    wait_for(lambda: state(sqlite, train) == "working")
    victim.kill()
    with sqlite.write() as session:
        assert endings.cancel(session, train, "account local") == "asked"
    worker_of(sqlite_settings, "deaf").run(until_idle=True)
    assert state(sqlite, train) == state(sqlite, evaluate) == "cancelled"
    assert alive([train]) == []


@pytest.fixture
def installation() -> Iterator[str]:
    """An installation of its own on a real engine; whatever it leaves is removed."""
    name = f"adopts-{secrets.token_hex(4)}"
    try:
        client = docker.from_env(version="auto")
        client.images.get(IMAGE)
    except docker.errors.DockerException:
        if os.environ.get("CI"):
            pytest.fail("CI has no Docker engine with its base image")
        pytest.skip(f"no Docker engine with {IMAGE}")
    yield name
    left = client.containers.list(all=True, filters={"label": f"dare.installation={name}"})
    for container in left:
        container.remove(force=True, v=True)
    client.close()
    assert left == []


@pytest.mark.full
def test_a_killed_workers_container_is_gone_on_with_to_its_end(
    sqlite_settings: Settings, sqlite: Database, processes: list[subprocess.Popen[bytes]], installation: str
) -> None:
    train, evaluate = add_pair(sqlite)
    victim = start_worker(sqlite_settings, "good:60:0.05", 30.0, installation)
    processes.append(victim)
    wait_for(lambda: (sqlite_settings.jobs / train / "1" / "checkpoint" / "step").exists())
    victim.kill()
    victim.wait()
    heir = start_worker(sqlite_settings, "good:60:0.05", 30.0, installation)
    processes.append(heir)
    assert heir.wait(60) == 0
    check_the_end(sqlite, train, evaluate)
    check_the_process_went_on(sqlite_settings, sqlite, train, steps=60)
    with sqlite.read() as session:
        images = session.execute(select(Attempt.image_id)).scalars().all()
        assert all(str(image).startswith("sha256:") for image in images)


# --- who is dead ---------------------------------------------------------------------------------------------------


def test_only_a_dead_worker_of_the_same_host_device_and_families_leaves_runs_behind(sqlite: Database) -> None:
    with sqlite.write() as session:
        run = add_train_run(session, build(session))
        holder, heir = add_worker(session, "holder"), add_worker(session, "heir")
        held = claim(session, holder, 60)
        assert held is not None
        holder.boot_id = heir.boot_id = host.boot_id()
        holder.pid = DEAD

        def found(**changes: object) -> list[str]:
            for name, value in changes.items():
                setattr(heir, name, value)
            session.flush()
            return [one.run_id for one in left_behind(session, heir, 60)]

        assert found() == [run.id]
        assert found(host="elsewhere") == []
        assert found(host="test", device="gpu") == []
        assert found(device="cpu", families="sdar") == []
        assert found(families="llada,sdar", gpu_uuid=add_gpu(session).uuid) == []
        assert found(gpu_uuid=None) == [run.id]
        holder.pid = os.getppid()
        assert found() == []
        holder.pid = os.getpid()  # of a container that was started again: it cannot be us
        assert found() == [run.id]
        assert left_behind(session, heir, 60, ours=frozenset({holder.id})) == []


def test_a_holder_out_of_sight_is_dead_when_it_has_missed_more_than_one_beat(sqlite: Database) -> None:
    with sqlite.write() as session:
        add_train_run(session, build(session))
        holder, heir = add_worker(session, "holder"), add_worker(session, "heir")
        assert claim(session, holder, 60) is not None
        heir.boot_id = "another container"
        assert left_behind(session, heir, 60) == []
        session.execute(text("UPDATE run SET lease_expires_at = lease_expires_at - 23"))
        session.execute(text("UPDATE worker SET last_seen_at = last_seen_at - 20 WHERE name = 'holder'"))
        session.expire_all()
        assert left_behind(session, heir, 60) == []
        session.execute(text("UPDATE worker SET last_seen_at = last_seen_at - 3 WHERE name = 'holder'"))
        session.expire_all()
        assert len(left_behind(session, heir, 60)) == 1


def test_two_heirs_never_adopt_one_run(database: Database) -> None:
    with database.write() as session:
        run = add_train_run(session, build(session))
        assert claim(session, add_worker(session, "holder"), 60) is not None
        for state_ in ("preparing", "working"):
            assert move(session, run.id, state_, actor="t", token=1)
        one, other = add_worker(session, "one"), add_worker(session, "other")
        found = LeftBehind(run.id, lease_token=1, job_token=1)
        adopted = adopt(session, one, found, 60)
        assert adopted is not None
        assert (adopted.token, adopted.job_token, adopted.state, adopted.attempt) == (2, 1, "working", 2)
        assert adopt(session, other, found, 60) is None
        assert take_back(session, other, found) is None
        session.refresh(run)
        assert (run.state, run.lease_owner, run.attempts) == ("working", one.id, 1)
        states = {row.name: row.state for row in session.execute(select(Worker.name, Worker.state))}
        assert states == {"holder": "lost", "one": "idle", "other": "idle"}


def test_what_a_process_has_told_is_not_told_again_when_it_is_adopted(database: Database) -> None:
    first = Event(at=1.0, kind="alarm", stage="kl", detail="far away", step=3)
    then = Event(at=2.0, kind="alarm", stage="kl", detail="far away", step=4)
    with database.write() as session:
        run = add_train_run(session, build(session))
        assert claim(session, add_worker(session, "holder"), 60) is not None
        assert ingest(session, run.id, 1, [first], "", actor="t")
        assert adopt(session, add_worker(session, "heir"), LeftBehind(run.id, 1, 1), 60) is not None
        assert not ingest(session, run.id, 1, [then], "", actor="t")  # from the holder, should it live
        assert ingest(session, run.id, 2, [first, then], "", actor="t")
        assert [alarm.step for alarm in alarms(session, run.id)] == [3, 4]


def test_what_was_never_started_is_taken_back_without_waiting_for_its_lease(
    sqlite_settings: Settings, sqlite: Database
) -> None:
    train, evaluate = add_pair(sqlite)
    with sqlite.write() as session:
        dead = add_worker(session, "dead")
        dead.host, dead.boot_id, dead.pid = host.hostname(), host.boot_id(), DEAD
        assert claim(session, dead, 3600) is not None
    assert worker_of(sqlite_settings, "good").run(until_idle=True) == 2
    check_the_end(sqlite, train, evaluate)
    with sqlite.read() as session:
        first = session.execute(select(Attempt).where(Attempt.run_id == train, Attempt.number == 1)).scalar_one()
        assert (first.outcome, first.cause) == ("lost", "lost_worker")
        assert "left nothing that could be gone on with" in str(first.sentence)


def test_a_run_that_three_workers_died_of_is_given_to_no_fourth(database: Database) -> None:
    with database.write() as session:
        run = add_train_run(session, build(session))
        run.max_attempts = 9
        session.flush()
        assert claim(session, add_worker(session, "first"), -1) is not None
        assert reap(session, 60) == [run.id]
        session.execute(text("UPDATE run SET not_before = 0"))
        second = claim(session, add_worker(session, "second"), -1)
        assert second is not None
        found = LeftBehind(run.id, second.token, second.job_token)
        assert adopt(session, add_worker(session, "third"), found, -1) is not None  # that is no way round
        assert reap(session, 60) == [run.id]
        session.refresh(run)
        assert (run.state, run.cause, run.charged) == ("failed", "lost_worker", False)
        assert "3 workers stopped answering" in str(run.sentence)
        assert "on test" in str(run.sentence)
        assert run.attempts == 2
        kinds = session.execute(select(RunEvent.kind).where(RunEvent.run_id == run.id)).scalars().all()
        assert kinds.count("adopted") == 1


def test_a_worker_that_dies_again_and_again_is_one_worker(database: Database) -> None:
    with database.write() as session:
        run = add_train_run(session, build(session))
        run.max_attempts = 9
        session.flush()
        worker = add_worker(session)
        for _ in range(POISON_WORKERS + 1):
            session.execute(text("UPDATE run SET not_before = 0"))
            assert claim(session, worker, -1) is not None
            assert reap(session, 60) == [run.id]
            assert state_of(session, run.id) == "queued"


def test_an_adopted_run_takes_its_device_with_it(database: Database) -> None:
    with database.write() as session:
        run = add_train_run(session, build(session))
        run.device = "gpu"
        uuid = add_gpu(session).uuid
        holder, heir = (add_worker(session, name, device="gpu", gpu_uuid=uuid) for name in ("holder", "heir"))
        assert claim(session, holder, 60) is not None
        assert adopt(session, heir, LeftBehind(run.id, 1, 1), 60) is not None
        leases = session.execute(select(GpuLease).order_by(GpuLease.token)).scalars().all()
        assert [(one.token, one.released_at is None) for one in leases] == [(1, False), (2, True)]
        assert session.execute(select(Worker.gpu_uuid).where(Worker.id == heir.id)).scalar_one() == uuid


# --- a launcher that is away ---------------------------------------------------------------------------------------


class SometimesAway(DetachedLauncher):
    """As a launcher in another process that does not answer for a while."""

    away = False

    def _ask(self) -> None:
        if self.away:
            raise LaunchError("the launcher has not answered for 90 s")

    def state(self, name: str) -> Observed:
        self._ask()
        return super().state(name)

    def remove(self, name: str) -> None:
        self._ask()
        super().remove(name)

    def list_own(self) -> list[Owned]:
        self._ask()
        return super().list_own()


@pytest.mark.full
def test_a_launcher_that_is_away_is_nobodys_mistake_and_its_runs_are_tried_again(
    sqlite_settings: Settings, sqlite: Database
) -> None:
    train, evaluate = add_pair(sqlite)
    settings = replace(sqlite_settings, limits=replace(sqlite_settings.limits, free_disk_bytes=1))
    launcher = SometimesAway(settings, "good:30:0.05")
    running = Running(Working(settings, ["llada"], launcher=launcher))
    try:
        wait_for(lambda: (settings.jobs / train / "1" / "checkpoint" / "step").exists())
        launcher.away = True
        wait_for(lambda: state(sqlite, train) == "queued")
        with sqlite.read() as session:
            run = session.get_one(Run, train)
            assert (run.cause, run.sentence) == ("internal", "the launcher has not answered for 90 s")
        launcher.away = False
        wait_for(lambda: state(sqlite, evaluate) == "succeeded", seconds=30)
    finally:
        running.stop()
    check_the_end(sqlite, train, evaluate)
