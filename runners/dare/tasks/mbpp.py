"""MBPP: write a small Python function from one sentence and three tests, which are shown and decide.

The test items are task ids 11 to 510, as in the paper; ids 1 to 10 are its pool of worked examples.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from dare.rewards import code
from dare.tasks import DataFile, Dialogue, Item, Task, UnknownSplitError, read_data_bytes, read_rows
from dare.tasks.humaneval import judge, judge_all, judge_under

FILE = "mbpp/mbpp.jsonl"
SHA256 = "ccf64ceae9c5403bf50a044cb6d505bfd2a2963ee58338ba268fd65beab92a9f"
TRAIN_FILE = "mbpp/train.jsonl"
"""The rows of the training split alone, as they stand in the published file: what a training job is given."""
TRAIN_SHA256 = "3ad0217c9f73d1bc3deb5cb76066ec01b469372647c5c213bc4f611fb6e2c604"
SPLITS = {"test": range(11, 511), "train": range(601, 975), "validation": range(511, 601)}
SHOTS = (2, 3, 4)
"""Task ids of the worked examples that the paper shows."""
_DEFINED = re.compile(r"^(?:def|class)[ \t]+(\w+)", re.MULTILINE)
_CALLED = re.compile(r"(\w+)[ \t]*\(")


def prompt(text: str, entry_point: str, tests: str) -> str:
    """The task in words, the name that the tests call, and the tests."""
    return (
        f"{text}\n\nThe function is called `{entry_point}`. It has to pass these tests:\n\n```python\n{tests}\n```\n\n"
        "Reply with the whole program, without the tests, in one Python code block."
    )


def items(split: str, data: Path | None = None) -> Sequence[Item]:
    """The rows of the published file with the ids of the split, in its order."""
    if split not in SPLITS:
        raise UnknownSplitError(f"task 'mbpp' has no split {split!r}; it has: {', '.join(SPLITS)}")
    if split == "train" and data is not None and (data / TRAIN_FILE).is_file():
        return [_item(row) for row in read_rows("mbpp", data, TRAIN_FILE, TRAIN_SHA256)]
    return [_item(row) for row in _rows(data).values() if row["task_id"] in SPLITS[split]]


def train_file(data: Path | None) -> bytes:
    """The content of `TRAIN_FILE`, cut out of the published file."""
    lines = read_data_bytes("mbpp", data, FILE, SHA256).splitlines(keepends=True)
    return b"".join(line for line in lines if json.loads(line)["task_id"] in SPLITS["train"])


@cache
def _rows(data: Path | None) -> dict[int, dict[str, Any]]:
    rows = read_rows("mbpp", data, FILE, SHA256)
    return {row["task_id"]: row for row in rows}


def _item(row: Mapping[str, Any]) -> Item:
    tests = "\n".join(part for part in (row["test_setup_code"], *row["test_list"]) if part).replace("\r\n", "\n")
    name = _entry_point(row)
    gold = {"prompt": "", "entry_point": name, "tests": tests + "\n"}
    number = row["task_id"]
    return Item(
        f"mbpp-{number}" if number else "example", prompt(row["text"], name, tests), gold, row["text"].lower(), row
    )


def _entry_point(row: Mapping[str, Any]) -> str:
    """What the published solution defines and the first test calls."""
    defined = set(_DEFINED.findall(row["code"]))
    called: list[str] = _CALLED.findall(row["test_list"][0])
    return next(name for name in called if name in defined)


def three_shot(item: Item, data: Path | None) -> Dialogue:
    """The prompt of the paper in a dialogue: three solved tasks in `[BEGIN]` and `[DONE]`, then the item."""
    messages = []
    for number in SHOTS:
        row = _rows(data)[number]
        messages.append({"role": "user", "content": _asked(row)})
        messages.append({"role": "assistant", "content": f"[BEGIN]\n{_lines(row['code'])}\n[DONE]"})
    return (*messages, {"role": "user", "content": _asked(item.row)})


def raw_three_shot(item: Item, data: Path | None) -> str:
    """The same as one text that ends after `[BEGIN]`: for backbones that continue a text; `[DONE]` is the stop."""
    shown = [f"{_asked(row)}\n[BEGIN]\n{_lines(row['code'])}\n[DONE]\n" for row in map(_rows(data).get, SHOTS) if row]
    return "\n".join([*shown, f"{_asked(item.row)}\n[BEGIN]\n"])


def _asked(row: Mapping[str, Any]) -> str:
    tests = "\n".join(row["test_list"]).replace("\r\n", "\n")
    return (
        f"You are an expert Python programmer, and here is your task: {row['text']} "
        f"Your code should pass these tests:\n\n{tests}"
    )


def _lines(program: str) -> str:
    return program.replace("\r\n", "\n").strip("\n")


TASK = Task(
    name="mbpp",
    title="MBPP",
    version="1",
    licence="CC-BY-4.0",
    source="google-research/google-research, mbpp/mbpp.jsonl, from the copy in OckBench/OckBench, SHA-256 "
    f"{SHA256}. Austin et al., Program Synthesis with Large Language Models",
    chance_floor=0.0,
    chance_procedure="a program drawn without looking at the question: it does not define the function that the tests "
    "call, whose names differ from item to item",
    example=(
        _item(
            {
                "task_id": 0,
                "text": "Write a function to double a number.",
                "code": "def double(x):\n    return 2 * x",
                "test_setup_code": "",
                "test_list": ["assert double(2) == 4", "assert double(-3) == -6", "assert double(0) == 0"],
            }
        ),
        "def double(x):\n    return 2 * x",
    ),
    items=items,
    judge=judge,
    needs_data=True,
    kind="code",
    count=500,
    files=(DataFile(FILE, SHA256, rows=974),),
    training_files={TRAIN_FILE: train_file},
    contamination="Public since 2021 with its solutions, in common pretraining crawls; its training split is in common "
    "instruction data. The three tests that decide are in the prompt.",
    asked={"three_shot": three_shot, "raw_three_shot": raw_three_shot},
    policies=code.POLICIES,
    judge_under=judge_under,
    judge_all=judge_all,
    notes=(
        "All 974 rows are one file: test is task ids 11 to 510, train 601 to 974, validation 511 to 600.",
        "Results are compared by `==` of plain values: 24.0 equals 24 and a Counter equals a dict, as in the first "
        "releases of OpenCompass; since July 2026 that compares types as well and refuses 14 of the published "
        "solutions.",
        "One item, 367, needs the published set-up code, which others leave out; it is in its prompt.",
        "Three tests are few, and some programs that pass them are wrong; `challenge_test_list` is not used.",
    ),
)
