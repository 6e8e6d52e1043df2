"""Doing a run again says equal, within noise or different, and where the two part."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from evaluated import answer, evaluated, judged, right, track
from sqlalchemy import select, update
from toy_runner import PROVENANCE, work, write_result
from world import add_evaluate_run, add_train_run, add_worker, build

from dare.rewards.sudoku import solutions
from dare.spec import JobSpec
from dare.tasks import Item
from dare_platform import reproduction
from dare_platform.database import Database
from dare_platform.errors import JobDirectoryError
from dare_platform.ingest import ingest
from dare_platform.job_directory import write_job_directory
from dare_platform.lease import claim
from dare_platform.models import Run
from dare_platform.outputs import EventReader, read_outputs, read_result
from dare_platform.reproduction import Reproduction
from dare_platform.results import ProcessReport, finish, store_artifacts
from dare_platform.settings import Settings
from dare_platform.states import move

Answers = Callable[[Item, int], str]


def evaluation(
    database: Database, settings: Settings, tmp_path: Path, answers: Answers, limit: int = 4
) -> Reproduction:
    """The outcome of an evaluation that was answered by `right`, and by `answers` when it was done again."""
    rules = track("sudoku")
    rules = rules.model_copy(update={"tasks": (rules.tasks[0].model_copy(update={"limit": limit}),)})
    run = evaluated(database, settings, rules)
    with database.read() as session:
        reproduction.prepare(session, settings, run, tmp_path / "again")
        job = JobSpec.model_validate_json(session.get_one(Run, run).job_json)
        answer(tmp_path / "again", job, answers)
        judged(tmp_path / "again", job)
        return reproduction.compare(session, run, tmp_path / "again")


def test_the_same_answers_are_equal(sqlite: Database, sqlite_settings: Settings, tmp_path: Path) -> None:
    found = evaluation(sqlite, sqlite_settings, tmp_path, right)
    assert (found.verdict, found.machine) == ("equal", ())
    assert [(part.what, part.sentence) for part in found.parts] == [
        ("Answers to sudoku", "all 12 are the same to the letter."),
        ("Verdicts of dare-1 on sudoku, greedy", "4 verdicts are the recorded ones."),
        ("Verdicts of dare-1 on sudoku, sampled", "8 verdicts are the recorded ones."),
    ]


def test_other_letters_with_the_same_verdicts_are_noise_and_are_named(
    sqlite: Database, sqlite_settings: Settings, tmp_path: Path
) -> None:
    def answers(item: Item, sample: int) -> str:
        return "another line" if item.id.endswith("1") else right(item, sample)

    found = evaluation(sqlite, sqlite_settings, tmp_path, answers)
    assert found.verdict == "within noise"
    assert "3 of 12 are other texts: test-0001, test-0001 (sample 1), test-0001 (sample 2);" in found.sentence


@pytest.mark.parametrize(
    ("wrong", "verdict", "sentence"),
    [
        ({2}, "within noise", "1 of 20 verdicts differ: test-0002; solved by \u22125.00 points."),
        (set(range(20)), "different", "and 7 more; solved by \u221250.00 points."),
    ],
)
def test_one_item_of_many_is_noise_and_ten_of_twenty_are_not(
    sqlite: Database, sqlite_settings: Settings, tmp_path: Path, wrong: set[int], verdict: str, sentence: str
) -> None:
    def worse(item: Item, sample: int) -> str:
        return "none" if int(item.id[-4:]) in wrong else right(item, sample)

    found = evaluation(sqlite, sqlite_settings, tmp_path, worse, limit=20)
    assert found.verdict == verdict
    assert found.parts[1].sentence.endswith(sentence)


def test_swapped_verdicts_are_no_shift(sqlite: Database, sqlite_settings: Settings, tmp_path: Path) -> None:
    """As many right ones as before, on other items: what noise does."""

    def answers(item: Item, sample: int) -> str:
        turned = {0: "none", 1: solutions(item.gold["puzzle"])[0]}
        return turned.get(int(item.id[-4:]), right(item, sample))

    found = evaluation(sqlite, sqlite_settings, tmp_path, answers, limit=20)
    assert found.verdict == "within noise"
    assert found.parts[1].sentence == "2 of 20 verdicts differ: test-0000, test-0001; solved by +0.00 points."


def test_another_question_is_another_experiment(sqlite: Database, sqlite_settings: Settings, tmp_path: Path) -> None:
    rules = track("sudoku")
    run = evaluated(sqlite, sqlite_settings, rules)
    with sqlite.read() as session:
        reproduction.prepare(session, sqlite_settings, run, tmp_path / "again")
        job = JobSpec.model_validate_json(session.get_one(Run, run).job_json)
        answer(tmp_path / "again", job, right)
        judged(tmp_path / "again", job)
        path = tmp_path / "again" / "predictions" / "sudoku.jsonl"
        first, *rest = path.read_text().rstrip("\n").split("\n")
        path.write_text("\n".join([json.dumps(json.loads(first) | {"prompt_sha256": "0" * 64}), *rest]) + "\n")
        judged(tmp_path / "again", job)
        found = reproduction.compare(session, run, tmp_path / "again")
    assert found.verdict == "different"
    assert found.sentence == "Answers to sudoku: test-0000 was asked in other words than recorded."


# --- trainings ------------------------------------------------------------------------------------------------------


@pytest.fixture
def trained(sqlite: Database, sqlite_settings: Settings) -> str:
    """A training of three steps that has succeeded, with its curve."""
    with sqlite.write() as session:
        world = build(session)
        run = add_train_run(session, world)
        add_evaluate_run(session, world, run)
        held = claim(session, add_worker(session), 60)
        assert held is not None
        for state in ("preparing", "working"):
            assert move(session, run.id, state, actor="t", token=held.token)
    directory = write_job_directory(sqlite_settings, held, ())
    work(directory)
    outputs = read_outputs(directory, held.job, read_result(directory, held.job), {})
    store_artifacts(sqlite_settings, directory, outputs.artifacts)
    with sqlite.write() as session:
        assert ingest(session, run.id, held.token, EventReader(directory).read(), "", actor="t")
        assert move(session, run.id, "finalizing", actor="t", token=held.token)
        assert finish(session, run.id, held.token, outputs, ProcessReport(exit_code=0), actor="t") == "succeeded"
    return held.run_id


def again(database: Database, settings: Settings, run: str, directory: Path) -> Path:
    with database.read() as session:
        reproduction.prepare(session, settings, run, directory)
    work(directory)
    return directory


def compared(database: Database, run: str, directory: Path) -> Reproduction:
    with database.read() as session:
        return reproduction.compare(session, run, directory)


def test_a_training_with_the_same_weights_and_curve_is_equal(
    sqlite: Database, sqlite_settings: Settings, trained: str, tmp_path: Path
) -> None:
    found = compared(sqlite, trained, again(sqlite, sqlite_settings, trained, tmp_path / "again"))
    assert found.verdict == "equal"
    assert found.sentence == (
        "Curves: 6 numbers of 3 steps are the same. Weights: the file of weights has the recorded hash."
    )


def test_a_training_that_parts_says_at_which_step(
    sqlite: Database, sqlite_settings: Settings, trained: str, tmp_path: Path
) -> None:
    directory = again(sqlite, sqlite_settings, trained, tmp_path / "again")
    events = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    for event in events:
        if event.get("step") == 2:
            event["metrics"]["reward"] = 0.9
    (directory / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    found = compared(sqlite, trained, directory)
    assert found.verdict == "different"
    assert found.sentence == "Curves: the runs part at step 2: reward 0.666667 recorded, 0.9 now."


def test_other_weights_are_different_and_the_machine_says_why_they_may_be(
    sqlite: Database, sqlite_settings: Settings, trained: str, tmp_path: Path
) -> None:
    directory = again(sqlite, sqlite_settings, trained, tmp_path / "again")
    weights = directory / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    artifact = {
        "path": "model/model.safetensors",
        "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "bytes": weights.stat().st_size,
    }
    write_result(directory, artifacts=[artifact], provenance=PROVENANCE | {"torch": "another"})
    found = compared(sqlite, trained, directory)
    assert (found.verdict, found.machine) == ("different", (("torch", "toy", "another"),))
    assert found.sentence == "Weights: model/model.safetensors is another file than recorded."


def test_a_repetition_that_failed_says_how(
    sqlite: Database, sqlite_settings: Settings, trained: str, tmp_path: Path
) -> None:
    directory = again(sqlite, sqlite_settings, trained, tmp_path / "again")
    write_result(directory, outcome="failed", cause="disk", message="The disk is full.")
    found = compared(sqlite, trained, directory)
    assert (found.verdict, found.sentence) == ("different", "It failed this time: The disk is full.")


def test_an_evaluation_may_take_the_policy_that_was_trained_again(
    sqlite: Database, sqlite_settings: Settings, trained: str, tmp_path: Path
) -> None:
    directory = again(sqlite, sqlite_settings, trained, tmp_path / "again")
    with sqlite.write() as session:
        run = session.execute(select(Run).where(Run.depends_on == trained)).scalar_one()
        session.execute(update(Run).where(Run.id == run.id).values(state="succeeded", finished_at=1.0))
        session.refresh(run)
        reproduction.prepare(session, sqlite_settings, run.id, tmp_path / "evaluated", trained_in=directory)
        taken = tmp_path / "evaluated" / "weights" / "model.safetensors"
        assert taken.read_bytes() == (directory / "model" / "model.safetensors").read_bytes()
        with pytest.raises(JobDirectoryError, match="holds no trained policy: there is no folder `model` in it"):
            reproduction.prepare(session, sqlite_settings, run.id, tmp_path / "other", trained_in=tmp_path)
