"""The broker is an alarm bell: with it runs start at once, without it at the next poll; it never decides anything."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sqlalchemy import func, select
from world import add_entry, add_evaluate_run, add_train_run, build, state_of

from dare_platform.broker import ASSERTED, CeleryPublisher, assert_settings, make_app
from dare_platform.database import Database
from dare_platform.errors import BrokerSettingsError
from dare_platform.models import Attempt, Outbox
from dare_platform.outbox import relay
from dare_platform.process_launcher import ProcessLauncher
from dare_platform.settings import Settings
from dare_platform.worker import Worker

HERE = Path(__file__).parent


def test_the_effective_settings_are_ours() -> None:
    assert_settings(make_app(None))


@pytest.mark.parametrize(
    "name", ["task_acks_late", "worker_concurrency", "task_create_missing_queues", "result_backend"]
)
def test_a_changed_setting_is_refused_by_name(name: str) -> None:
    app = make_app(None)
    app.conf[name] = 7 if ASSERTED[name] is None or name == "worker_concurrency" else not ASSERTED[name]
    with pytest.raises(BrokerSettingsError, match=f"Celery's {name} is .*; DARE needs "):
        assert_settings(app)


def test_the_platform_never_loads_torch() -> None:
    program = (
        "import sys, dare_platform.worker, dare_platform.broker, dare_platform.registry, dare_platform.results;"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_wake_up_call_wakes() -> None:
    rung: list[int] = []
    app = make_app(None, on_wake=lambda: rung.append(1))
    app.tasks["dare.wake"]("any run")
    assert rung == [1]


def test_a_dead_broker_keeps_messages_waiting(sqlite: Database) -> None:
    with sqlite.write() as session:
        add_train_run(session, build(session))
    started = time.monotonic()
    assert relay(sqlite, CeleryPublisher(make_app("redis://127.0.0.1:1/0"))).sent == 0
    assert time.monotonic() - started < 5
    with sqlite.read() as session:
        assert session.execute(select(func.count()).where(Outbox.published_at.is_(None))).scalar_one() == 1


def test_a_broker_that_drops_doubles_and_delays_only_delays(sqlite_settings: Settings, sqlite: Database) -> None:
    """A worker that is rung for the wrong run, twice or never still ends every run once."""
    with sqlite.write() as session:
        world = build(session)
        entry = add_entry(session, world)
        runs = [add_evaluate_run(session, world, add_train_run(session, world, entry, seed=s)).id for s in range(4)]
    chance = random.Random(3)
    late: list[str] = []

    def lossy(run_id: str, queue: str) -> None:
        if chance.random() < 0.3:
            return
        late.append(run_id)
        for _ in range(chance.choice((0, 1, 2))):
            late.pop(chance.randrange(len(late))) if late else None
            worker.wake()

    launcher = ProcessLauncher(sqlite_settings, (sys.executable, str(HERE / "toy_runner.py"), "good"))
    worker = Worker(sqlite_settings, ["llada"], launcher=launcher, publish=lossy)
    assert worker.run(until_idle=True) == 8
    with sqlite.read() as session:
        assert all(state_of(session, run) == "succeeded" for run in runs)
        assert session.execute(select(func.count()).select_from(Attempt)).scalar_one() == 8


def serve(settings: Settings, broker: str, poll: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(HERE / "serve.py"), str(settings.home), broker, str(poll)])


def wait_until_succeeded(database: Database, run: str, seconds: float = 40) -> None:
    deadline = time.monotonic() + seconds
    while True:
        with database.read() as session:
            if state_of(session, run) == "succeeded":
                return
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.full
def test_a_message_starts_a_run_long_before_the_next_poll(
    sqlite_settings: Settings, sqlite: Database, redis_url: str
) -> None:
    served = serve(sqlite_settings, redis_url, poll=600)
    try:
        with sqlite.write() as session:
            world = build(session)
        with sqlite.read() as session:
            registered = select(func.count()).select_from(Attempt)
            assert session.execute(registered).scalar_one() == 0
        time.sleep(4)  # it has polled once, found nothing, and sleeps for ten minutes
        with sqlite.write() as session:
            train = add_train_run(session, world)
            evaluate = add_evaluate_run(session, world, train)
        assert relay(sqlite, CeleryPublisher(make_app(redis_url))).sent == 1
        wait_until_succeeded(sqlite, evaluate.id)
    finally:
        served.send_signal(signal.SIGTERM)
        assert served.wait(30) == 0
    with sqlite.read() as session:
        assert session.execute(select(func.count()).where(Outbox.published_at.is_(None))).scalar_one() == 0


@pytest.mark.full
def test_without_its_broker_a_worker_polls(sqlite_settings: Settings, sqlite: Database) -> None:
    served = serve(sqlite_settings, "redis://127.0.0.1:1/0", poll=0.2)
    try:
        with sqlite.write() as session:
            world = build(session)
            train = add_train_run(session, world)
            evaluate = add_evaluate_run(session, world, train)
        wait_until_succeeded(sqlite, evaluate.id)
    finally:
        served.send_signal(signal.SIGTERM)
        try:
            served.wait(30)
        finally:
            served.kill()
