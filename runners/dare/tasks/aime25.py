"""AIME 2025: the 30 problems of the American Invitational Mathematics Examination of that year. Declared, not fetched.

As `aime24`; OpenCompass's own configurations of it ask another model for the verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dare.tasks import DataFile, Item, Task, UnknownSplitError, read_rows
from dare.tasks.aime24 import NOTES
from dare.tasks.math import POLICIES, bare, d1, item_of_row, judge, judge_all, judge_under

FILE = "aime2025/aime2025.jsonl"


def items(split: str, data: Path | None = None) -> Sequence[Item]:
    """The rows of the file in its order."""
    if split != "test":
        raise UnknownSplitError(f"task 'aime25' has no split {split!r}; it has: test")
    rows = read_rows("aime25", data, FILE, None)
    return [_item(f"row-{number:02}", row) for number, row in enumerate(rows)]


def _item(id: str, row: Mapping[str, Any]) -> Item:
    problem = row["question"].strip()
    return item_of_row(id, problem, str(row["answer"]), {**row, "problem": problem})


TASK = Task(
    name="aime25",
    title="AIME 2025",
    version="1",
    licence="problems: MAA, all rights reserved; the collection: Apache-2.0",
    source="AIME I and II of 2025, as OpenCompass 0.5.4 distributes them",
    chance_floor=1 / 1000,
    chance_procedure="an integer drawn uniformly from 0 to 999; exact: every answer is one of them",
    example=(
        _item("example", {"question": "Find the remainder when $2^{100}$ is divided by $7$.", "answer": "2"}),
        "2",
    ),
    items=items,
    judge=judge,
    judge_under=judge_under,
    judge_all=judge_all,
    policies=POLICIES,
    needs_data=True,
    files=(
        DataFile(FILE, address=f"https://opencompass.oss-cn-shanghai.aliyuncs.com/datasets/data/aime2025.zip!{FILE}"),
    ),
    contamination="Public since February 2025; a backbone trained later may have seen the problems.",
    asked={"d1": d1, "bare": bare},
    notes=NOTES,
)
