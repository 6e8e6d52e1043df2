"""Columns of published data sets: what each form means, what is set aside, and one sentence for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dare.data import load_data_set
from dare.data.columns import LAYOUTS, Example, JudgedItem
from dare.data.corpus import Preference
from dare.data.files import DataError
from dare.tasks import Demonstration, load_task

USER, SYSTEM = {"role": "user", "content": "2+2?"}, {"role": "system", "content": "Be short."}
FOUR, FIVE = {"role": "assistant", "content": "4"}, {"role": "assistant", "content": "5"}
VERL = {
    "data_source": "countdown",
    "prompt": [USER],
    "reward_model": {"style": "rule", "ground_truth": "22"},
    "extra_info": {"index": 0, "numbers": "[3, 5, 7]"},
}
GSM8K = {"data_source": "openai/gsm8k", "prompt": [USER], "reward_model": {"ground_truth": "4"}}
PROMPT = {"prompt": "C3 5 7=22", "task": "countdown", "gold": {"numbers": [3, 5, 7], "target": 22}}


def load(folder: Path, *rows: dict[str, Any], layout: str = "") -> Any:
    (folder / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_data_set(f"file:x.jsonl{layout}", folder)


@pytest.mark.parametrize(
    ("row", "example"),
    [
        ({"prompt": "q", "answer": "a"}, Demonstration("q", "a")),
        ({"prompt": "q", "completion": "a"}, Demonstration("q", "a")),
        ({"prompt": "q", "response": "a", "score": 3}, Demonstration("q", "a")),
        ({"question": "q", "answer": "a"}, Demonstration("q", "a")),
        ({"problem": "q", "solution": "a", "answer": "3"}, Demonstration("q", "a")),
        ({"instruction": "q", "output": "a"}, Demonstration("q", "a")),
        ({"instruction": "q", "input": "", "output": "a"}, Demonstration("q", "a")),
        ({"instruction": "q", "input": "x", "output": "a"}, Demonstration("q\n\nx", "a")),
        ({"messages": [USER, FOUR]}, Demonstration("2+2?", "4")),
        ({"messages": [SYSTEM, USER, FOUR]}, Demonstration((SYSTEM, USER), "4")),
        ({"messages": [USER, FIVE, USER, FOUR]}, Demonstration((USER, FIVE, USER), "4")),
        ({"prompt": [USER], "completion": [FOUR]}, Demonstration("2+2?", "4")),
        ({"prompt": "q", "chosen": "a", "rejected": "b"}, Preference("q", "a", "b")),
        ({"prompt": "q", "chosen": "a", "rejected": ""}, Preference("q", "a", "")),
        ({"prompt": "2+2?", "chosen": [USER, FOUR], "rejected": [USER, FIVE]}, Preference("2+2?", "4", "5")),
        ({"prompt": [USER, FIVE, USER], "chosen": "4", "rejected": [FIVE]}, Preference((USER, FIVE, USER), "4", "5")),
        ({"chosen": [SYSTEM, USER, FOUR], "rejected": [SYSTEM, USER, FIVE]}, Preference((SYSTEM, USER), "4", "5")),
    ],
)  # fmt: skip
def test_a_published_form_is_recognised_by_its_columns(row: dict[str, Any], example: Example, tmp_path: Path) -> None:
    assert load(tmp_path, row).examples == [example]


def test_a_row_in_verls_form_is_a_prompt_with_the_gold_of_its_task(tmp_path: Path) -> None:
    (one,) = load(tmp_path, VERL).examples
    assert isinstance(one, JudgedItem)
    assert (one.item.prompt, one.item.gold) == ("2+2?", {"numbers": [3, 5, 7], "target": 22})
    assert one.task is load_task("countdown")
    assert one.task.judge(one.item, "3*5+7").solved
    (more,) = load(tmp_path, {**VERL, "prompt": [SYSTEM, USER]}).examples
    assert more.item.prompt == (SYSTEM, USER)


@pytest.mark.shared
def test_the_published_test_sets_in_verls_form_ask_what_the_tasks_ask(shared: Path) -> None:
    for name in ("countdown", "sudoku"):
        data_set = load_data_set(f"file:{name}/dare_{name}_test.parquet", shared / "data")
        theirs = [one.item.gold for one in data_set.examples if isinstance(one, JudgedItem)]
        ours = load_task(f"{name}_published").items("test", shared / "data")
        assert theirs == [dict(item.gold) for item in ours]
        assert not data_set.set_aside


@pytest.mark.parametrize(
    ("row", "bad", "reason"),
    [
        ({"prompt": "q", "answer": "a"}, {"answer": None}, "'answer' is null"),
        ({"prompt": "q", "answer": "a"}, {"answer": " \n"}, "'answer' is empty"),
        ({"prompt": "q", "answer": "a"}, {"answer": float("nan")}, "'answer' is not a finite number: nan"),
        ({"messages": [USER, FOUR]}, {"messages": [USER, {**FOUR, "content": ""}]}, "'messages' is empty"),
        ({"prompt": "q", "chosen": "a", "rejected": "b"}, {"chosen": None}, "'chosen' is null"),
        ({"prompt": "q", "chosen": "a", "rejected": "b"}, {"chosen": ""}, "'chosen' is empty"),
        ({"prompt": "q", "chosen": "a", "rejected": "b"}, {"rejected": None}, "'rejected' is null"),
        ({"prompt": "q", "chosen": "a", "rejected": "b"}, {"rejected": "a"}, "are the same text"),
        (PROMPT, {"gold": None}, "'gold' is null"),
        (PROMPT, {"gold": {}}, "'gold' is empty"),
        (PROMPT, {"gold": {"numbers": [3, 5, 7], "target": float("inf")}}, "'gold' is not a finite number"),
        (PROMPT, {"gold": {"puzzle": "3"}}, "the judge of 'countdown' cannot use"),
        (VERL, {"reward_model": {"ground_truth": None}}, "'ground_truth' is null"),
        (VERL, {"reward_model": None}, "'ground_truth' is null"),
        (VERL, {"reward_model": {"ground_truth": "a lot"}}, "the gold of 'countdown' cannot be read from 'a lot'"),
        (GSM8K, {"reward_model": {"ground_truth": "many"}}, "the judge of 'gsm8k' cannot use {'answer': 'many'}"),
        (VERL, {"extra_info": {}}, "the gold of 'countdown' cannot be read"),
        (VERL, {"data_source": "sudoku", "extra_info": {"puzzle": "12"}}, "the gold of 'sudoku' cannot be read"),
    ],
)
def test_a_row_without_a_gold_of_use_is_set_aside_and_counted(
    row: dict[str, Any], bad: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    data_set = load(tmp_path, {**row, "id": "good"}, {**row, **bad, "id": "bad"}, {**row, "id": "too"})
    assert data_set.ids == ["good", "too"]
    (aside,) = data_set.set_aside
    assert (aside.id, aside.place) == ("bad", "x.jsonl line 2")
    assert reason in aside.reason
    manifest = data_set.manifest()
    assert (manifest.rows, manifest.kept, len(manifest.set_aside)) == (3, 2, 1)
    with pytest.raises(DataError, match=r"none of 1 rows can be trained on; x\.jsonl line 1: "):
        load(tmp_path, {**row, **bad})


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": None, "answer": "a"}, "line 1: 'prompt' is missing or null"),
        ({"prompt": 3, "answer": "a"}, "line 1: 'prompt' is 3; it must be a list of messages"),
        ({"prompt": " ", "answer": "a"}, "line 1: 'prompt' is empty"),
        ({"prompt": "\ud800", "answer": "a"}, "line 1: 'prompt' has half of a surrogate pair"),
        ({"prompt": "q", "answer": 4}, "line 1: 'answer' is 4; it must be a list of messages"),
        ({"prompt": [USER, FOUR], "answer": "a"}, "line 1: 'prompt' ends with an answer, '4'"),
        ({"prompt": [{"role": "robot", "content": "?"}], "answer": "a"}, "message 1 of 'prompt' is {'role': 'robot'"),
        ({"prompt": [{"role": "user"}], "answer": "a"}, r"'prompt\[1\].content' is None; it must be a text"),
        ({"messages": [USER, {**FOUR, "tool_calls": [1]}]}, "message 2 of 'messages' has tool calls"),
        ({"messages": [USER]}, "line 1: 'messages' ends with 'user'; it must end with an answer"),
        ({"messages": [FOUR]}, "line 1: 'messages' has an answer and no question"),
        ({"prompt": "other", "chosen": [USER, FOUR], "rejected": [USER, FIVE]}, "'chosen' begins with '2.2.', the"),
        ({"chosen": [USER, FOUR], "rejected": [SYSTEM, USER, FIVE]}, "'rejected' begins with "),
        ({"chosen": "a", "rejected": "b"}, "line 1: 'prompt' is missing or null"),
        ({**PROMPT, "task": "sums"}, "line 1: 'task' is 'sums'; known: "),
        ({**PROMPT, "gold": "22"}, "line 1: 'gold' is '22'; task 'countdown' keeps a mapping"),
        ({**VERL, "data_source": "aime"}, "'data_source' is 'aime'; no task here judges it; known: countdown"),
        ({**VERL, "reward_model": "rule"}, "'reward_model' is 'rule'; it must be a mapping"),
        ({"text": "q", "code": "a"}, "x.jsonl has the columns text, code; what is understood: prompt/task/gold"),
        ({"prompt": "q", "answer": "a", "completion": "b"}, "in 2 ways: add #prompt/answer or #prompt/completion to"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_file_row_column_and_value(row: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        load(tmp_path, row)


def test_of_two_readings_the_reference_names_one(tmp_path: Path) -> None:
    row = {"prompt": "q", "answer": "a", "completion": "b"}
    assert load(tmp_path, row, layout="#prompt/completion").examples == [Demonstration("q", "b")]
    with pytest.raises(DataError, match=r"unknown layout 'q/a' of x\.jsonl; known: prompt/task/gold, "):
        load(tmp_path, row, layout="#q/a")
    with pytest.raises(DataError, match=r"x\.jsonl has no column 'question', which question/answer needs"):
        load(tmp_path, row, layout="#question/answer")


def test_every_layout_is_named_by_columns_of_its_own() -> None:
    names = [layout.name for layout in LAYOUTS]
    assert len(set(names)) == len(names)
