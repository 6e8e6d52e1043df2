"""AIME 2024: the 30 problems of the American Invitational Mathematics Examination of that year. Declared, not fetched.

The answer is an integer from 0 to 999. Asked and judged as `math` is; the row format is the one that OpenCompass reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dare.tasks import DataFile, Item, Task, UnknownSplitError, read_rows
from dare.tasks.math import POLICIES, bare, d1, item_of_row, judge, judge_all, judge_under

FILE = "aime.jsonl"
RIGHTS = "The problems belong to the MAA, without a clear permissive grant: the file is not part of this package."
NOTES = (
    "Declared: its file is not among our data. The loader and the judge are tested on rows made by hand.",
    RIGHTS,
    "30 items are few: the standard error at 10 % is 5.5 points. Ask each several times and say so.",
    "The shown example is made by hand.",
)


def items(split: str, data: Path | None = None) -> Sequence[Item]:
    """The rows of the file in its order."""
    if split != "test":
        raise UnknownSplitError(f"task 'aime24' has no split {split!r}; it has: test")
    rows = read_rows("aime24", data, FILE, None)
    return [_item(f"row-{number:02}", row) for number, row in enumerate(rows)]


def _item(id: str, row: Mapping[str, Any]) -> Item:
    problem, answer = row["origin_prompt"].strip(), str(row["gold_answer"])
    return item_of_row(id, problem, answer, {**row, "problem": problem})


TASK = Task(
    name="aime24",
    title="AIME 2024",
    version="1",
    licence="problems: MAA, all rights reserved; the collection: Apache-2.0",
    source="AIME I and II of 2024, as OpenCompass 0.5.4 distributes them",
    chance_floor=1 / 1000,
    chance_procedure="an integer drawn uniformly from 0 to 999; exact: every answer is one of them",
    example=(
        _item("example", {"origin_prompt": "Find the number of positive divisors of $720$.", "gold_answer": "30"}),
        "30",
    ),
    items=items,
    judge=judge,
    judge_under=judge_under,
    judge_all=judge_all,
    policies=POLICIES,
    needs_data=True,
    files=(DataFile(FILE, address=f"https://opencompass.oss-cn-shanghai.aliyuncs.com/datasets/data/aime.zip!{FILE}"),),
    contamination="Public since February 2024, with many worked solutions on the web; a backbone trained later may "
    "have seen them.",
    asked={"d1": d1, "bare": bare},
    notes=NOTES,
)
