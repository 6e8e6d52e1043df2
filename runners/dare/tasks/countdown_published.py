"""The 256 published Countdowns of the d1 test set, asked and judged as `countdown` is: does its skill transfer?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from dare.tasks import Item, Task, UnknownSplitError, read_data
from dare.tasks.countdown import Question, judge

FILE = "countdown/countdown_cd3_test.jsonl"
SHA256 = "9916f614621e26fb2b035ed4ea641e35e4fff0d533bb9b9c7bcaaa61017d88c6"


def items(split: str, data: Path | None = None) -> Sequence[Item]:
    """The rows of the published file in its order."""
    if split != "test":
        raise UnknownSplitError(f"task 'countdown_published' has no split {split!r}; it has: test")
    rows = map(json.loads, read_data("countdown_published", data, FILE, SHA256).splitlines())
    return [_question(row).item(f"row-{number:03}") for number, row in enumerate(rows)]


def _question(row: dict[str, str]) -> Question:
    a, b, c = map(int, row["input"].split(","))
    return Question((a, b, c), int(row["output"]))


TASK = Task(
    name="countdown_published",
    title="Countdown, published test set",
    version="1",
    licence="Apache-2.0",
    source=f"dllm-reasoning/d1 at 837888f, {FILE.split('/')[-1]}, SHA-256 {SHA256}",
    chance_floor=2022 / (256 * 192),
    chance_procedure="the item's numbers in a uniform order, two uniform operators and a uniform grouping; exact: "
    "mean share of the 192 forms that reach the target",
    example=(Question((30, 100, 93), 23).item("row-000"), "30-(100-93)"),
    items=items,
    judge=judge,
    needs_data=True,
    notes=(
        "Training questions of task 'countdown' have numbers up to 10 and targets up to 60. No item has only such "
        "numbers: 65 have at least one, 172 have such a target. About 0 is to be expected after training on them.",
    ),
)
