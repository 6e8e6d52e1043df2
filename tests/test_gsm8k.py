"""GSM8K: the published files are the ones meant, their golds are read exactly, and the stated figures are true."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest

from dare.data import PromptData, load_data_set
from dare.rewards import number
from dare.rewards.format import PARTS
from dare.tasks import Item, items_sha256, load_task
from dare.tasks.gsm8k import FORMAT, TASK, worked


def solutions(shared: Path, split: str) -> list[str]:
    lines = (shared / f"data/gsm8k/{split}.jsonl").read_text().splitlines()
    return [json.loads(line)["answer"] for line in lines]


@pytest.mark.shared
@pytest.mark.parametrize(("split", "count", "commas", "negative"), [("train", 7473, 79, 3), ("test", 1319, 14, 2)])
def test_every_published_solution_solves_its_own_item_with_and_without_commas(
    shared: Path, split: str, count: int, commas: int, negative: int
) -> None:
    items = TASK.items(split, shared / "data")
    texts = solutions(shared, split)
    golds = [text.rpartition("#### ")[2] for text in texts]
    assert len(items) == len(texts) == count
    assert sum("," in gold for gold in golds) == commas
    assert sum(gold.startswith("-") for gold in golds) == negative
    for item, text, gold in zip(items, texts, golds, strict=True):
        written = (gold.replace(",", ""), f"<answer>\n${gold}\n</answer>", f"The answer is {gold}.")
        for answer in (text, gold, *(written if split == "test" or "," in gold or "-" in gold else ())):
            assert TASK.judge(item, answer).solved, (item.id, answer)
        assert number.exact(item.gold["answer"]) == Fraction(gold.replace(",", ""))
        assert not TASK.judge(item, f"#### 1{gold.removeprefix('-')}").solved


@pytest.mark.shared
def test_items_of_version_1_never_change(shared: Path) -> None:
    """Recorded from the task itself: whoever changes an item must change the task's version and these numbers."""
    assert TASK.version == "1"
    assert {split: items_sha256(TASK.items(split, shared / "data"))[:16] for split in ("train", "test")} == {
        "train": "725638912bada2d9",
        "test": "843e60978cdecded",
    }


@pytest.mark.shared
def test_a_random_training_answer_solves_the_stated_share_of_the_test_split(shared: Path) -> None:
    """By its definition, from the files: the share of pairs of a training and a test answer that are equal."""
    train, test = (
        [text.rpartition("#### ")[2].replace(",", "") for text in solutions(shared, split)]
        for split in ("train", "test")
    )
    shown = Counter(train)
    assert sum(shown[gold] for gold in test) / (len(train) * len(test)) == TASK.chance_floor
    items = TASK.items("test", shared / "data")
    solved = [sum(TASK.judge(item, answer).solved for item in items) for answer in ("5", "12", "no idea")]
    assert solved == [test.count("5"), test.count("12"), 0]


@pytest.mark.shared
def test_no_two_test_questions_differ_in_their_numbers_alone_and_none_does_from_a_training_question(
    shared: Path,
) -> None:
    clusters = {split: Counter(i.cluster for i in TASK.items(split, shared / "data")) for split in ("train", "test")}
    assert max(clusters["test"].values()) == 1
    assert [count for count in clusters["train"].values() if count > 1] == [2]
    assert not clusters["train"].keys() & clusters["test"].keys()


@pytest.mark.shared
def test_worked_solutions_keep_the_form_that_the_prompt_asks_for_and_are_solved(shared: Path) -> None:
    items = TASK.items("train", shared / "data")
    shown = worked(shared / "data")
    assert [one.prompt for one in shown] == [item.prompt for item in items]
    for item, one in zip(items, shown, strict=True):
        assert TASK.judge(item, one.answer).solved
        assert all(part(one.answer) == 1 for part in PARTS.values())
        assert "<<" not in one.answer


def test_the_prompt_asks_for_the_form_that_is_rewarded() -> None:
    item, _ = TASK.example
    assert isinstance(item.prompt, str)
    assert item.prompt.endswith(FORMAT)
    assert PARTS["strict_format"](FORMAT) == 1
    assert item.gold["answer"] not in FORMAT


def test_the_form_as_the_prompt_shows_it_is_no_number() -> None:
    verdict = load_task("gsm8k").judge(TASK.example[0], FORMAT)
    assert (verdict.solved, verdict.status) == (False, "no_answer")


def test_rows_of_ones_own_file_keep_the_task_and_a_gold_that_is_no_number_is_set_aside(tmp_path: Path) -> None:
    rows = [
        {"prompt": "how many?", "task": "gsm8k", "gold": {"answer": gold}} for gold in ("1,000", "many", "-3", "", None)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = load_data_set("file:rows.jsonl", tmp_path)
    assert isinstance(data.data, PromptData)
    assert [TASK.judge(item, "#### 1000").solved for item in data.data.items] == [True, False]
    assert [row.place for row in data.set_aside] == [f"rows.jsonl line {number}" for number in (2, 4, 5)]


def test_a_row_in_the_form_of_verl_is_judged_as_gsm8k(tmp_path: Path) -> None:
    row = {"data_source": "openai/gsm8k", "prompt": "how many?", "reward_model": {"ground_truth": "1,000"}}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    data = load_data_set("file:rows.jsonl", tmp_path).data
    assert isinstance(data, PromptData)
    assert data.tasks[0] is TASK
    assert TASK.judge(data.items[0], "1000").solved


def test_a_gold_that_is_no_number_is_refused_with_its_value() -> None:
    with pytest.raises(ValueError, match=r"the gold of item 'x' is 'many', no number"):
        TASK.judge(Item("x", "how many?", {"answer": "many"}), "5")
