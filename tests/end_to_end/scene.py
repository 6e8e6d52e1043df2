"""A training run with its evaluation, real worker processes at work on them, and what must be true at the end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from small import alive, built_in, leftovers, run_of, small_track, submit, worker_environment
from sqlalchemy import func, select

from dare_platform.database import Database, open_database
from dare_platform.models import Artifact, Attempt, Prediction, Result, Run, RunArtifact, ScoreItem
from dare_platform.settings import Settings

STEPS, ITEMS = 14, 96
TRACK = small_track(STEPS, ITEMS)
CHECKPOINT_AT = 10
"""Steps after which a training run saves its state."""
PATIENCE = 120.0


class NeverHappensError(AssertionError):
    """What a scene waits for does not happen."""


@dataclass
class Scene:
    """One home with one pair of runs."""

    settings: Settings
    database: Database
    train: str
    evaluate: str
    lease_seconds: float = 3.0
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    seconds: float = 0.0
    seen: str = ""
    """States of both runs when the disturbance fell."""

    @classmethod
    def set(cls, template: Path, home: Path) -> Scene:
        """A copy of a home that knows the track, with d1 submitted."""
        shutil.copytree(template, home)
        settings = Settings.from_environment({"DARE_HOME": str(home)})
        database = open_database(settings)
        entry = submit(database, built_in(TRACK, "d1")).entry_id
        return cls(settings, database, run_of(database, entry, "train").id, run_of(database, entry, "evaluate").id)

    def start(self, *options: str, **environment: str) -> subprocess.Popen[bytes]:
        """A worker, as an operator starts one; it ends when nothing waits unless other options are given."""
        command = [sys.executable, "-m", "dare_platform", "worker", *(options or ("--until-idle",))]
        lease = {"DARE_LEASE_SECONDS": str(self.lease_seconds)}
        with (self.settings.home / f"worker-{len(self.workers)}.log").open("wb") as log:
            worker = subprocess.Popen(
                command, env=worker_environment(self.settings, **lease, **environment), stdout=log, stderr=log
            )
        self.workers.append(worker)
        return worker

    def finish(self) -> None:
        """A worker that does all that is left."""
        assert self.start().wait(PATIENCE) == 0

    def close(self) -> None:
        """Nothing goes on after a test."""
        for worker in self.workers:
            if worker.poll() is None:
                os.kill(worker.pid, signal.SIGCONT)
                worker.kill()
                worker.wait()
        for pid in alive([self.train, self.evaluate]):
            psutil.Process(pid).kill()
        self.database.close()

    # --- looking ----------------------------------------------------------------------------------------------------

    def run(self, id: str) -> Run:
        with self.database.read() as session:
            return session.get_one(Run, id)

    def state(self, id: str) -> str:
        return str(self.run(id).state)

    def job(self, id: str, token: int = 1) -> Path:
        return self.settings.jobs / id / str(token)

    def attempts(self, id: str) -> list[Attempt]:
        with self.database.read() as session:
            query = select(Attempt).where(Attempt.run_id == id).order_by(Attempt.number)
            return list(session.execute(query).scalars())

    def count(self, table: Any) -> int:
        with self.database.read() as session:
            return session.execute(select(func.count()).select_from(table)).scalar_one()

    def wait_for(self, happens: Callable[[Scene], object]) -> None:
        """Look every few milliseconds, and remember what was there when it happened."""
        deadline = time.monotonic() + PATIENCE
        while not happens(self):
            if time.monotonic() > deadline or all(worker.poll() is not None for worker in self.workers):
                raise NeverHappensError(self.logs())
            time.sleep(0.002)

    def remember(self) -> None:
        train, evaluate = self.run(self.train), self.run(self.evaluate)
        self.seen = train.state + (f" step {train.step}" if train.step is not None else "")
        if train.state == "succeeded":
            self.seen = f"trained, {evaluate.state}" + (f" {evaluate.step}" if evaluate.step is not None else "")

    def runner(self) -> int:
        """The process that trains or evaluates."""
        return alive([self.train, self.evaluate])[0]

    def logs(self) -> str:
        return "\n".join(file.read_text() for file in sorted(self.settings.home.glob("worker-*.log")))

    # --- the end ----------------------------------------------------------------------------------------------------

    def weights(self) -> str:
        """SHA-256 of the trained policy."""
        with self.database.read() as session:
            query = select(Artifact.sha256).join(RunArtifact, RunArtifact.artifact_id == Artifact.id)
            return session.execute(query.where(RunArtifact.role == "model/model.safetensors")).scalar_one()

    def scores(self) -> list[tuple[str, str, str, float]]:
        with self.database.read() as session:
            rows = session.execute(select(Result)).scalars()
            return sorted((row.protocol, row.metric, row.decoding, row.value) for row in rows)

    def resumed_from(self) -> list[int]:
        """Steps from which training attempts went on."""
        found = []
        for events in sorted((self.settings.jobs / self.train).glob("*/events.jsonl")):
            for line in filter(str.strip, events.read_text().splitlines()):
                detail = str(json.loads(line).get("detail"))
                found += [int(detail.split()[-1])] if detail.startswith("resuming from step") else []
        return found

    def check_the_end(self, weights: str | None = None, scores: list[Any] | None = None) -> None:
        """Both runs succeeded once, their rows are there once, and nothing of them is alive or left behind."""
        assert (self.state(self.train), self.state(self.evaluate)) == ("succeeded", "succeeded")
        for id in (self.train, self.evaluate):
            outcomes = [attempt.outcome for attempt in self.attempts(id)]
            assert outcomes.count("succeeded") == 1
            assert set(outcomes) <= {"succeeded", "lost", "returned", "failed"}
        rows = {table.__name__: self.count(table) for table in (Result, Prediction, ScoreItem)}
        assert rows == {"Result": 6, "Prediction": 3 * ITEMS, "ScoreItem": 3 * ITEMS}
        assert len({row[:3] for row in self.scores()}) == 6
        assert weights is None or self.weights() == weights
        assert scores is None or self.scores() == scores
        assert alive([self.train, self.evaluate]) == []
        assert leftovers(self.settings, self.database) == []
