"""Many runs over a few workers while somebody kills, freezes and cuts off whatever there is."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import docker
from launching import launcher_command, left_of
from servers import PostgresServer, RedisServer
from sqlalchemy import func, make_url, select
from world import add_entry, add_evaluate_run, add_train_run, build

from dare_platform.database import Database
from dare_platform.models import FINISHED, Run
from dare_platform.processes import marked
from dare_platform.settings import Settings

WORKER = Path(__file__).with_name("chaos_worker.py")
LEASE_SECONDS = 4.0
FROZEN_SECONDS = 1.5 * LEASE_SECONDS


@dataclass
class Part:
    """A process of the platform, started again whenever it has ended."""

    command: Sequence[str]
    environment: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def keep_alive(self) -> None:
        if self.process is None or self.process.poll() is not None:
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(self.command, env=self.environment, stdout=log, stderr=log)

    def signal(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def end(self) -> None:
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        if self.process is not None:
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@dataclass
class Ground:
    """An installation with everything that can be disturbed."""

    settings: Settings
    postgres: PostgresServer
    redis: RedisServer
    workers: list[Part]
    control: Part
    launcher: Part | None
    runs: list[str] = field(default_factory=list)

    @property
    def parts(self) -> list[Part]:
        return [*self.workers, self.control, *([self.launcher] if self.launcher else [])]


def lay_out(
    settings: Settings, postgres: PostgresServer, redis: RedisServer, runs: int, workers: int, mode: str
) -> Ground:
    """`runs` queued, one half trainings, the other their evaluations; nobody works yet."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("DARE_")},
        "DARE_HOME": str(settings.home),
        "DARE_DATABASE_URL": settings.database_url,
        "DARE_BROKER_URL": redis.url,
        "DARE_LEASE_SECONDS": str(LEASE_SECONDS),
        "DARE_POLL_SECONDS": "0.5",
        "DARE_LAUNCHER": settings.launcher,
    }
    if settings.launcher_secret:
        environment["DARE_LAUNCHER_SECRET"] = settings.launcher_secret
    settings.home.mkdir(parents=True, exist_ok=True)

    def part(name: str, *command: str) -> Part:
        return Part((sys.executable, *command), environment, settings.home / f"{name}.log")

    launcher = None
    if settings.launcher != "process":
        command, own = launcher_command(settings)
        launcher = Part(command, own, settings.home / "launcher.log")
    ground = Ground(
        settings,
        postgres,
        redis,
        [part(f"worker-{number}", str(WORKER), mode) for number in range(workers)],
        part("control", "-m", "dare_platform", "control"),
        launcher,
    )
    with Database(settings.database_url) as database, database.write() as session:
        world = build(session)
        entry = add_entry(session, world)
        for seed in range(runs // 2):
            train = add_train_run(session, world, entry, seed=seed)
            ground.runs += [train.id, add_evaluate_run(session, world, train).id]
    return ground


Fault = Callable[[Ground, random.Random], bool]
"""Disturbs something; False where there was nothing to disturb."""


def kill_a_worker(ground: Ground, chance: random.Random) -> bool:
    chance.choice(ground.workers).signal(signal.SIGKILL)
    return True


def freeze_a_worker(ground: Ground, chance: random.Random) -> bool:
    victim = chance.choice(ground.workers)
    victim.signal(signal.SIGSTOP)
    threading.Timer(FROZEN_SECONDS, victim.signal, [signal.SIGCONT]).start()
    return True


def kill_a_runner(ground: Ground, chance: random.Random) -> bool:
    if ground.launcher is not None:
        return False  # a container's processes are killed with it
    found = [process for process, marker in marked() if marker.rpartition("-")[0] in ground.runs]
    if found:
        chance.choice(found).kill()
    return bool(found)


def kill_a_container(ground: Ground, chance: random.Random) -> bool:
    found = [one for one in left_of(ground.settings.containers.installation) if one.status == "running"]
    if not found:
        return False
    try:
        chance.choice(found).kill()
    except docker.errors.APIError:  # it has just ended
        return False
    return True


def kill_the_launcher(ground: Ground, _: random.Random) -> bool:
    if ground.launcher is not None:
        ground.launcher.signal(signal.SIGKILL)
    return ground.launcher is not None


def kill_the_control_process(ground: Ground, _: random.Random) -> bool:
    ground.control.signal(signal.SIGKILL)
    return True


def cut_connections(ground: Ground, _: random.Random) -> bool:
    name = make_url(ground.settings.database_url).database
    ground.postgres.administer(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
    return True


def restart_postgres(ground: Ground, _: random.Random) -> bool:
    ground.postgres.restart()
    return True


def restart_redis(ground: Ground, _: random.Random) -> bool:
    ground.redis.kill()
    time.sleep(0.5)
    ground.redis.start()
    return True


FAULTS: dict[Fault, int] = {
    kill_a_worker: 6,
    freeze_a_worker: 3,
    kill_a_runner: 3,
    kill_a_container: 3,
    kill_the_launcher: 2,
    kill_the_control_process: 1,
    cut_connections: 2,
    restart_postgres: 1,
    restart_redis: 1,
}
"""How often, relative to each other."""


@dataclass(frozen=True)
class Played:
    """What was done, and how long everything took."""

    seconds: float
    disturbed: Counter[str]
    unfinished: int


def play(ground: Ground, seed: int, pause_seconds: float, longest_seconds: float) -> Played:
    """Disturb until every run has ended, then let the parts end in good order."""
    chance = random.Random(seed)
    disturbed: Counter[str] = Counter()
    began = time.monotonic()
    unfinished = len(ground.runs)
    try:
        while unfinished and time.monotonic() - began < longest_seconds:
            for part in ground.parts:
                part.keep_alive()
            time.sleep(chance.uniform(0.5, 1.5) * pause_seconds)
            (fault,) = chance.choices(list(FAULTS), list(FAULTS.values()))
            if fault(ground, chance):
                disturbed[fault.__name__.replace("_", " ")] += 1
            unfinished = count_unfinished(ground)
        seconds = time.monotonic() - began
        time.sleep(FROZEN_SECONDS)  # the last one thaws
        for part in ground.parts:  # what a killed one left is swept by one that lives
            part.keep_alive()
        until = time.monotonic() + 30
        while left_behind(ground) and time.monotonic() < until:
            time.sleep(0.5)
    finally:
        for part in ground.parts:
            part.end()
    return Played(seconds, disturbed, unfinished)


def count_unfinished(ground: Ground) -> int:
    with Database(ground.settings.database_url) as database, database.read() as session:
        waiting = select(func.count()).where(Run.id.in_(ground.runs), Run.state.not_in(FINISHED))
        return int(session.execute(waiting).scalar_one())


def left_behind(ground: Ground) -> list[str]:
    """Processes and containers of these runs."""
    found = [marker for _, marker in marked() if marker.rpartition("-")[0] in ground.runs]
    if ground.launcher is not None:
        found += [one.name for one in left_of(ground.settings.containers.installation)]
    return found
