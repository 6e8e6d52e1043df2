"""Entries that are after the board, run by the real worker in the real container: the board has what was measured."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from end_to_end.small import home_with, run_of, runs_of, small_track, submit, unread
from ground import Record, runner_image
from programs import entries
from sqlalchemy import func, select

from dare_platform.container_profile import ISOLATION
from dare_platform.database import Database, open_database
from dare_platform.docker_launcher import DockerLauncher
from dare_platform.models import Attempt, MetricPoint, Prediction, Result, Run, RunArtifact, ScoreItem
from dare_platform.settings import MIB, Containers, Limits, Settings
from dare_platform.worker import Worker

pytestmark = pytest.mark.full

TRACK = small_track(steps=entries.STEPS)
CANARY = "canary-of-the-launcher"
STRIKES = {
    "honest": entries.HONEST,
    "spy": entries.SPY,
    "scores": entries.SCORES,
    "pickle": entries.PICKLE,
    "no-policy": entries.NO_POLICY,
}
ITS_OWN = {
    "dare/__init__.py",
    "home/.local/lib/python3.11/site-packages/x.pth",
    "items/sudoku.jsonl",
    "job.json",
    "policy/tokenizer.json",
    "predictions/sudoku.jsonl",
    "sitecustomize.py",
    "torch.py",
    "weights/model.safetensors",
}
"""What a training may write: names in its own directory, which no other run is given."""
LIMITS = Limits(
    memory_bytes=1500 * MIB, processes=32, directory_bytes=256 * MIB, log_bytes=MIB, free_disk_bytes=1, grace_seconds=1
)


@dataclass
class Board:
    """The installation after all of them have run."""

    settings: Settings
    database: Database
    entries: dict[str, str]

    def run(self, name: str, kind: str) -> Run:
        return run_of(self.database, self.entries[name], kind)

    def rows(self, table: Any, name: str) -> int:
        ids = [run.id for run in runs_of(self.database, self.entries[name])]
        with self.database.read() as session:
            return session.execute(select(func.count()).select_from(table).where(table.run_id.in_(ids))).scalar_one()

    def scores(self, name: str) -> list[tuple[str, str, str, float]]:
        with self.database.read() as session:
            rows = session.execute(select(Result).where(Result.run_id == self.run(name, "evaluate").id)).scalars()
            return sorted((row.task_version_id, row.metric, row.decoding, row.value) for row in rows)

    def attempt(self, run: Run) -> Attempt:
        with self.database.read() as session:
            return session.execute(select(Attempt).where(Attempt.run_id == run.id)).scalar_one()


@pytest.fixture(scope="module")
def board(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    image = runner_image()
    home = home_with(tmp_path_factory.mktemp("board") / "home", TRACK)
    containers = Containers(installation=f"entries-{os.getpid()}", images={"sdar": image}, socket=engine)
    settings = replace(home, limits=LIMITS, containers=containers, launcher="docker", launcher_secret=CANARY)
    with open_database(settings) as database, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DARE_LAUNCHER_SECRET", CANARY)
        made = {
            name: submit(database, unread(TRACK, name, entries.source_of(strike))).entry_id
            for name, strike in STRIKES.items()
        }
        launcher = DockerLauncher(settings)
        try:
            with ThreadPoolExecutor(2) as pool:
                workers = [Worker(settings, ["sdar"], launcher=launcher) for _ in range(2)]
                for done in [pool.submit(worker.run, True) for worker in workers]:
                    done.result()
            yield Board(settings, database, made)
            assert launcher.list_own() == []
        finally:
            for owned in launcher.list_own():
                launcher.remove(owned.name)
            launcher.close()


def test_they_ran_in_containers(board: Board) -> None:
    for entry in board.entries.values():
        for run in runs_of(board.database, entry):
            if run.state in ("succeeded", "failed") and run.cause != "dependency":
                attempt = board.attempt(run)
                assert attempt.isolation == ISOLATION


def test_a_spy_finds_nothing_and_changes_nothing(board: Board, record: Record) -> None:
    train = board.run("spy", "train")
    assert train.state == "succeeded", train.sentence
    line = next(line for line in board.attempt(train).log_tail.splitlines() if line.startswith("SPIED "))
    said = json.loads(line.removeprefix("SPIED "))
    assert said.pop("found") == []
    assert said.pop("secrets") == []
    inside = {name for name, outcome in said.items() if outcome == "written"}
    assert inside <= ITS_OWN
    refused = {outcome for name, outcome in said.items() if name not in inside}
    assert refused <= {"Read-only file system", "Permission denied", "not loaded"}
    record("entry", "patches libraries, source, data and whatever an evaluation might read", ", ".join(sorted(refused)))


def test_an_evaluation_is_the_same_whatever_the_training_planted(board: Board, record: Record) -> None:
    assert board.run("spy", "evaluate").state == board.run("honest", "evaluate").state == "succeeded"
    assert board.scores("spy") == board.scores("honest") != []
    evaluation = board.run("spy", "evaluate")
    directory = board.settings.jobs / evaluation.id / "1"
    planted = {"sitecustomize.py", "torch.py", "dare", "entry", "home/.local"}
    assert not any((directory / name).exists() for name in planted)
    record("entry", "is evaluated after it planted files", "scores equal to those of an honest twin, row by row")


def test_rewards_that_an_entry_writes_stay_in_its_own_curve(board: Board, record: Record) -> None:
    with board.database.read() as session:
        query = select(MetricPoint.value).where(
            MetricPoint.run_id == board.run("spy", "train").id, MetricPoint.name == "reward"
        )
        curve = session.execute(query).scalars().all()
    assert 0.999 in curve  # it is told as what the run says of itself
    record("entry", "forges its curve", "kept as self-reported; no score depends on it")


@pytest.mark.parametrize(
    ("name", "words"),
    [("scores", "under a protocol or scorer that was not asked"), ("pickle", "'model/pytorch_model.bin' is not taken")],
)
def test_a_forged_result_is_refused_and_leaves_no_number(board: Board, record: Record, name: str, words: str) -> None:
    train = board.run(name, "train")
    assert (train.state, train.cause, train.charged) == ("failed", "user_error", True), train.sentence
    assert words in str(train.sentence)
    evaluation = board.run(name, "evaluate")
    assert (evaluation.state, evaluation.cause) == ("failed", "dependency")
    for table in (Result, ScoreItem, Prediction, RunArtifact):
        assert board.rows(table, name) == 0
    record("entry", f"forges its result: {name}", str(train.sentence))


def test_tensors_that_are_no_policy_cost_their_author_and_are_evaluated_once(board: Board, record: Record) -> None:
    evaluation = board.run("no-policy", "evaluate")
    assert (evaluation.state, evaluation.cause, evaluation.charged) == ("failed", "user_error", True)
    assert "do not fit the configuration" in str(evaluation.sentence)
    assert board.attempt(evaluation).number == 1  # there is one
    assert board.rows(Result, "no-policy") == 0
    record("entry", "leaves tensors of another model", str(evaluation.sentence)[:200])


def test_nothing_of_the_launchers_comes_out(board: Board, record: Record) -> None:
    for folder, _, files in os.walk(board.settings.home):
        for path in (Path(folder, name) for name in files):
            if path.is_file() and not path.is_symlink():
                assert CANARY.encode() not in path.read_bytes(), path
    record("entry", "carries the launcher's secret out", "it is in no file, log or database row")
