"""Composed rewards, functions of one's own, and that no weight moves the solved rate."""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import train_job, write_job
from typer.testing import CliRunner

from dare.__main__ import app
from dare.data import PromptData, load_data
from dare.rewards.format import PARTS
from dare.rewards.own import UNJUDGED, OwnReward, RewardError, keep, load_own, own_part
from dare.rewards.sudoku import solutions
from dare.rewards.weighted import (
    TASK_REWARD,
    Judged,
    Part,
    WeightedReward,
    declared,
    load_reward,
    part_names,
    reward_metrics,
)
from dare.run import run
from dare.spec import Event, JobSpec, RewardPart, RewardSpec, TrainSpec
from dare.tasks import Item, Task, Verdict, load_task

SUDOKU = load_task("sudoku")
ITEM, SOLUTION = SUDOKU.example
TAGGED = f"<reasoning>\nby rows\n</reasoning>\n<answer>\n{SOLUTION}\n</answer>\n"
HALF = SOLUTION.replace("4", "0", 1)


def composed(normalised: bool = True, **weights: float) -> WeightedReward:
    return WeightedReward(tuple(Part(name, weight) for name, weight in weights.items()), normalised)


def own(function: Any, name: str = "mine.py:short") -> WeightedReward:
    return WeightedReward((Part(name, 1.0, OwnReward(name, function)),))


# --- composition ----------------------------------------------------------------------------------------------------


def test_a_run_that_declares_nothing_trains_on_the_reward_of_the_task() -> None:
    for text in ("", HALF, SOLUTION):
        verdict = SUDOKU.judge(ITEM, text)
        assert TASK_REWARD.judge(SUDOKU, ITEM, text) == Judged(verdict.reward, verdict.solved, verdict.status)


@pytest.mark.parametrize(
    ("text", "total"),
    [(TAGGED, 2.5), (SOLUTION, 2.0), (TAGGED.replace(SOLUTION, HALF), 0.5), (HALF, 0.0), ("", 0.0)],
)
def test_a_composed_reward_is_the_weighted_sum_of_its_parts_or_their_mean(text: str, total: float) -> None:
    plain = composed(normalised=False, correct=2.0, format=0.5).judge(SUDOKU, ITEM, text)
    mean = composed(correct=2.0, format=0.5).judge(SUDOKU, ITEM, text)
    assert plain.reward == total
    assert mean.reward == pytest.approx(total / 2.5)
    assert plain.parts == mean.parts == {"correct": float(plain.solved or 0), "format": PARTS["format"](text)}


@given(
    st.dictionaries(st.sampled_from(["correct", "task", *PARTS]), st.floats(1e-6, 1e6), min_size=1),
    st.sampled_from(["", HALF, SOLUTION, TAGGED, "<answer>1</answer>", "4" * 16]),
)
def test_no_weights_move_solved_nor_a_normalised_reward_out_of_its_range(weights: dict[str, float], text: str) -> None:
    judged = WeightedReward(tuple(Part(*pair) for pair in weights.items())).judge(SUDOKU, ITEM, text)
    assert judged.solved == SUDOKU.judge(ITEM, text).solved
    assert 0 <= judged.reward <= 1
    assert judged.parts.keys() == weights.keys()
    by_hand = sum(weights[name] * judged.parts[name] for name in weights) / sum(weights.values())
    assert judged.reward == pytest.approx(by_hand)


def test_a_reward_is_written_as_names_with_weights() -> None:
    spec = declared(["correct=2", "format=0.5", "tags"], normalised=False)
    assert spec == RewardSpec(
        parts=(
            RewardPart(name="correct", weight=2.0),
            RewardPart(name="format", weight=0.5),
            RewardPart(name="tags", weight=1.0),
        ),
        normalised=False,
    )
    assert declared([]) is None
    assert load_reward(None, Path()) is TASK_REWARD
    assert load_reward(spec, Path()) == composed(normalised=False, correct=2.0, format=0.5, tags=1.0)


@pytest.mark.parametrize(
    ("references", "sentence"),
    [
        (
            ["right"],
            "unknown reward part 'right'; known: correct, task, format, strict_format, tags, number, and func",
        ),
        (["correct=0"], "the weight of 'correct=0' must be a number above 0"),
        (["correct=-1"], "the weight of 'correct=-1' must be a number above 0"),
        (["correct=nan"], "the weight of 'correct=nan' must be a number above 0"),
        (["correct=much"], "the weight of 'correct=much' must be a number above 0"),
        (["correct", "correct=2"], "the reward parts 'correct' and 'correct' have one name"),
    ],
)
def test_a_reward_that_makes_no_sense_is_refused_in_a_sentence(references: list[str], sentence: str) -> None:
    with pytest.raises(RewardError) as error:
        declared(references)
    assert sentence in str(error.value)


def test_a_job_without_a_reward_keeps_the_digest_that_it_had_before_there_were_any() -> None:
    job = train_job("llada")
    assert job.train is not None
    assert "reward" not in job.model_dump(mode="json")["train"]
    with_one = job.train.model_copy(update={"reward": declared(["correct"])})
    assert with_one.digest() != job.train.digest()
    assert TrainSpec.model_validate_json(with_one.model_dump_json()) == with_one


def test_the_parts_of_a_step_are_logged_as_means_and_what_nobody_measured_is_absent() -> None:
    rows = [
        Judged(0.5, True, "ok", {"correct": 1.0, "format": 0.0}),
        Judged(0.0, False, "no_answer", {"correct": 0.0, "format": 0.5}),
    ]
    assert reward_metrics(rows) == {"solved": 0.5, "no_answer": 0.5, "reward/correct": 0.5, "reward/format": 0.25}
    assert reward_metrics([Judged(1.0, None, "ok", {"short": 1.0})]) == {"no_answer": 0.0, "reward/short": 1.0}


def test_answers_that_the_scorer_failed_on_are_told_and_stop_a_run_above_one_in_ten() -> None:
    right, failed = Judged(1.0, True, "ok"), Judged(0.0, False, "error")
    assert reward_metrics([right] * 19 + [failed])["scorer_errors"] == 0.05
    assert "scorer_errors" not in reward_metrics([right])
    with pytest.raises(RewardError, match="the scorer failed on 2 of 19 answers of a step"):
        reward_metrics([right] * 17 + [failed] * 2)


# --- functions of one's own -----------------------------------------------------------------------------------------


def test_a_function_gets_item_and_text_and_the_task_still_says_what_is_solved() -> None:
    def quarter(item: Item, text: str) -> float:
        assert (item, text) == (ITEM, SOLUTION)
        return 0.25

    assert own(quarter).judge(SUDOKU, ITEM, SOLUTION) == Judged(0.25, True, "ok", {"short": 0.25})
    lying = own(lambda item, text: Verdict(solved=True, reward=1.0, status="ok", answer=text))
    assert lying.judge(SUDOKU, ITEM, HALF).solved is False


def test_without_a_task_only_a_verdict_of_ones_own_says_what_is_solved() -> None:
    assert own(lambda item, text: 1).judge(UNJUDGED, ITEM, "x") == Judged(1.0, None, "ok", {"short": 1.0})
    verdict = Verdict(solved=True, reward=0.5, status="ok", answer="x")
    assert own(lambda item, text: verdict).judge(UNJUDGED, ITEM, "x") == Judged(0.5, True, "ok", {"short": 0.5})


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (math.nan, "returned nan for item 'example'; it must be a finite number"),
        (math.inf, "returned inf for item 'example'; it must be a finite number"),
        (10**400, "returned a huge integer for item 'example'; it must be a finite number"),
        ("0.5", "returned '0.5' for item 'example'; it must return a number or a Verdict"),
        (None, "returned None for item 'example'; it must return a number or a Verdict"),
        ([1.0], "returned [1.0] for item 'example'; it must return a number or a Verdict"),
        (1.5, "returned 1.5 for item 'example'; in a normalised reward every part is from 0 to 1"),
        (-1, "returned -1 for item 'example'; in a normalised reward every part is from 0 to 1"),
        (Verdict(True, math.nan, "ok", None), "returned nan for item 'example'; it must be a finite number"),
    ],
)
def test_a_value_that_is_no_reward_is_named_with_function_and_item(answer: object, sentence: str) -> None:
    with pytest.raises(RewardError) as error:
        own(lambda item, text: answer).judge(SUDOKU, ITEM, "x")
    assert f"reward function mine.py:short {sentence}" in str(error.value)


def test_a_function_that_raises_is_named_with_its_item_and_its_error() -> None:
    with pytest.raises(
        RewardError, match=r"function mine.py:short raised KeyError for item 'example': 'answer'"
    ) as error:
        own(lambda item, text: item.gold["answer"]).judge(SUDOKU, ITEM, "x")
    assert isinstance(error.value.__cause__, KeyError)


def test_a_sum_that_is_not_normalised_takes_any_finite_number() -> None:
    assert replace(own(lambda item, text: -3), normalised=False).judge(SUDOKU, ITEM, "x").reward == -3


SHORT = "def short(item, text):\n    return 1 / (1 + len(text))\n"


def test_a_file_is_copied_into_the_job_and_its_source_is_part_of_the_job(tmp_path: Path) -> None:
    file, job = tmp_path / "mine.py", tmp_path / "job"
    file.write_text(SHORT)
    part = own_part(f"{file}:short", 0.5)
    assert (part.name, part.weight) == ("mine.py:short", 0.5)
    keep(f"{file}:short", job)
    keep(f"{file}:short", job)
    assert load_own(part, job)(ITEM, "123") == 0.25
    (job / "rewards" / "mine.py").write_text(SHORT.replace("1 +", "2 +"))
    with pytest.raises(RewardError, match=r"the source of the reward function mine\.py:short has changed since"):
        load_own(part, job)
    with pytest.raises(RewardError, match="is another file than"):
        keep(f"{file}:short", job)


def test_a_package_is_imported_as_python_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "my_package_of_rewards"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "rewards.py").write_text(SHORT)
    monkeypatch.syspath_prepend(tmp_path)
    spec = declared(["my_package_of_rewards.rewards:short=3", "correct"])
    assert spec is not None
    assert spec.parts[0].source_sha256
    judged = load_reward(spec, tmp_path).judge(SUDOKU, ITEM, SOLUTION)
    assert judged.parts == {"short": 1 / 17, "correct": 1.0}
    assert judged.reward == pytest.approx((3 / 17 + 1) / 4)
    for name in [name for name in sys.modules if name.startswith("my_package_of_rewards")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("source", "reference", "sentence"),
    [
        (SHORT, "{tmp}/none.py:short", "there is no file"),
        (SHORT, "{tmp}/mine.py:long", "mine.py has no 'long'; its functions: short"),
        ("short = 3", "{tmp}/mine.py:short", "mine.py:short is 3, no function that returns a number"),
        ("async def short(item, text): return 1", "{tmp}/mine.py:short", "no function that returns a number"),
        ("def short(text): return 1", "{tmp}/mine.py:short", "must take (item, text): too many positional arguments"),
        (
            "def short(a, b, c): return 1",
            "{tmp}/mine.py:short",
            "must take (item, text): missing a required argument: 'c'",
        ),
        ("1/0", "{tmp}/mine.py:short", "loading it raised ZeroDivisionError: division by zero"),
        ("def short(:", "{tmp}/mine.py:short", "loading it raised SyntaxError"),
        (
            SHORT,
            "no_such_package_here.rewards:short",
            "importing 'no_such_package_here.rewards' raised ModuleNotFoundError",
        ),
    ],
)
def test_a_function_that_cannot_be_used_is_refused_before_anything_is_written(
    source: str, reference: str, sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(source)
    with pytest.raises(RewardError) as error:
        declared([reference.format(tmp=tmp_path)])
    assert sentence in str(error.value)


# --- runs -----------------------------------------------------------------------------------------------------------


def rewarded(job: JobSpec, *references: str, data: str = "prompts:sudoku", normalised: bool = True) -> JobSpec:
    assert job.train is not None
    update = {"reward": declared(references, normalised), "data": data}
    return job.model_copy(update={"train": job.train.model_copy(update=update)})


def steps_of(directory: Path) -> list[dict[str, float | None]]:
    events = map(Event.model_validate_json, (directory / "events.jsonl").read_text().splitlines())
    return [event.metrics for event in events if event.kind == "step"]


@pytest.mark.parametrize("algorithm", ["d1", "mdpo"])
def test_a_run_on_a_composed_reward_logs_reward_solved_and_every_part(algorithm: str, tmp_path: Path) -> None:
    result = run(write_job(tmp_path, rewarded(train_job("llada", algorithm, steps=1), "task=3", "tags=1")))
    assert result.outcome == "succeeded", result.message
    for metrics in steps_of(tmp_path):
        assert metrics["reward"] == pytest.approx(
            (3 * (metrics["reward/task"] or 0) + (metrics["reward/tags"] or 0)) / 4
        )
        assert metrics["solved"] == 0


def test_a_run_on_private_rows_and_a_function_of_ones_own_needs_no_task(tmp_path: Path) -> None:
    source = tmp_path / "mine.py"
    source.write_text("def threes(item, text):\n    return text.count(item.gold['gold']) / max(len(text), 1)\n")
    job = tmp_path / "job"
    keep(f"{source}:threes", job)
    rows = [{"prompt": f"S{number:016}", "gold": "3"} for number in range(4)]
    (job / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = load_data("file:rows.jsonl", job)
    assert isinstance(data, PromptData)
    assert set(map(id, data.tasks)) == {id(UNJUDGED)}
    spec = rewarded(train_job("llada", steps=2), f"{source}:threes", data="file:rows.jsonl")
    result = run(write_job(job, spec))
    assert result.outcome == "succeeded", result.message
    for metrics in steps_of(job):
        assert metrics["reward"] == pytest.approx(metrics["reward/threes"])
        assert "solved" not in metrics


@pytest.mark.parametrize("references", [(), ("correct",), ("task", "format")])
def test_rows_without_a_task_are_refused_where_a_part_asks_it(references: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "S1", "gold": "3"}))
    result = run(write_job(tmp_path, rewarded(train_job("llada"), *references, data="file:rows.jsonl")))
    assert (result.outcome, result.cause) == ("failed", "user_error")
    assert "there are rows without one: give them a task, or reward them with a function" in result.message


def test_a_function_that_fails_in_a_run_ends_it_with_its_sentence(tmp_path: Path) -> None:
    source = tmp_path / "mine.py"
    source.write_text("def short(item, text):\n    return float('nan')\n")
    keep(f"{source}:short", tmp_path)
    result = run(write_job(tmp_path, rewarded(train_job("llada"), f"{source}:short")))
    assert (result.outcome, result.cause) == ("failed", "user_error")
    assert "The reward failed: reward function mine.py:short returned nan for item 'train-" in result.message


def test_a_reward_for_answers_that_nobody_samples_is_refused(tmp_path: Path) -> None:
    result = run(write_job(tmp_path, rewarded(train_job("llada", "sft"), "correct", data="corpus:sudoku/clean")))
    assert result.outcome == "failed"
    assert "a reward is declared, but demonstrations bring answers that nobody samples" in result.message


def test_the_command_line_takes_parts_and_a_file(tmp_path: Path) -> None:
    source = tmp_path / "mine.py"
    source.write_text(SHORT)
    common = ["train", "--algorithm", "d1", "--backbone", "sdar-tiny", "--steps", "1", "--out", str(tmp_path / "out")]
    refused = CliRunner().invoke(app, [*common, "--reward", "right"])
    assert refused.exit_code == 2
    assert "unknown reward part 'right'" in refused.output
    assert not (tmp_path / "out").exists()
    (tmp_path / "small.yaml").write_text("settings: {prompts_per_step: 2, group_size: 2, inner_epochs: 1}")
    words = ["--reward", "correct=2", "--reward", f"{source}:short=0.5", "--settings", str(tmp_path / "small.yaml")]
    done = CliRunner().invoke(app, [*common, *words])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out" / "rewards" / "mine.py").read_text() == SHORT
    (metrics,) = steps_of(tmp_path / "out")
    assert metrics.keys() >= {"reward", "solved", "reward/correct", "reward/short"}


# --- public vectors of the planning tasks ---------------------------------------------------------------------------

DIFFERENT = {
    "countdown_23": "a tag around a wrong value earns nothing; 0.1 for it shows a policy that solves nothing as 10 %",
    "countdown_24": "as countdown_23, with a number left out",
    "countdown_25": "as countdown_23; an equation is refused, as it is there",
    "countdown_26": "035 is 35 to us; their interpreter refuses it and gives 0.1 for the tag",
    "countdown_27": "as countdown_23; `3 5` is no number",
    "countdown_28": "an empty tag is no answer; they give 0.1",
    "countdown_30": "tags are optional in our task; they need them",
    "countdown_31": "as countdown_23; the last tag counts in both",
    "countdown_limit": "`**` is refused at once; their evaluation never returns",
    "sudoku_35": "18 digits are no grid; they cut it to 16",
    "sudoku_36": "two digits are no grid; they fill it up with zeros",
    "sudoku_43": "tags are optional in our task; they need them",
}
"""Where our reward is not the public one on purpose, and why. Everywhere else the two are equal."""


def vectors() -> list[dict[str, Any]]:
    file = Path(__file__).parent / "goldens/algorithms/reward_vectors.json"
    return [row for row in json.loads(file.read_text())["items"] if row["task"] in ("countdown", "sudoku")]


@pytest.mark.parametrize("row", vectors(), ids=lambda row: row["id"])
def test_a_public_reward_vector_is_ours_too_or_differs_for_the_stated_reason(row: dict[str, Any]) -> None:
    task: Task = load_task(row["task"])
    verdict = task.judge(Item(row["id"], "", row["gold"]), row["input"])
    same = row["legacy_score"] is not None and verdict.reward == pytest.approx(row["legacy_score"])
    assert same == (row["id"] not in DIFFERENT), (verdict, DIFFERENT.get(row["id"]))


def test_a_grid_that_is_another_solution_is_solved_where_the_public_reward_wants_the_stored_one() -> None:
    """124 of the 500 published puzzles have several."""
    puzzle = "0000003004002100"
    several = solutions(puzzle)
    assert len(several) > 1
    assert all(
        SUDOKU.judge(Item("x", "", {"puzzle": puzzle}), grid) == Verdict(True, 1.0, "ok", grid) for grid in several
    )


def test_the_function_in_the_document_is_a_reward(tmp_path: Path) -> None:
    text = (Path(__file__).parent.parent / "docs" / "rewards.md").read_text()
    block = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert block is not None
    (tmp_path / "my_reward.py").write_text(block.group(1))
    spec = declared([f"{tmp_path}/my_reward.py:short_and_right"])
    keep(f"{tmp_path}/my_reward.py:short_and_right", tmp_path)
    reward, item = load_reward(spec, tmp_path), Item("1", "2+2", {"gold": "4"})
    assert reward.judge(UNJUDGED, item, "5").reward == 0
    assert reward.judge(UNJUDGED, item, "4").reward > reward.judge(UNJUDGED, item, "it is 4, I think").reward > 0.5


def test_the_parts_in_the_document_are_all_there_are() -> None:
    text = (Path(__file__).parent.parent / "docs" / "rewards.md").read_text()
    table = text.partition("| part |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == part_names()
