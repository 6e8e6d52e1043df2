"""MATH-500: the 500 test problems of MATH that PRM800K held out, asked and judged as `math` is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from dare.tasks import DataFile, Item, Task, UnknownSplitError, read_data
from dare.tasks.math import CONTAMINATION, POLICIES, RIGHTS, bare, d1, item_of_row, judge, judge_all, judge_under

FILE = "math/test_prm800k_500.json"
SHA256 = "e6000d9b62653740cd75365126418a7e8b23d0604b70ba9185117568d36baa7c"
ADDRESS = "https://raw.githubusercontent.com/opendatalab/REST/12c6bf31f243854d23c544e6916b86e425b2a78a/data/" + FILE


def items(split: str, data: Path | None = None) -> Sequence[Item]:
    """The rows of the published file in its order, with the answers as published."""
    if split != "test":
        raise UnknownSplitError(f"task 'math_500' has no split {split!r}; it has: test")
    return list(_items(data))


@cache
def _items(data: Path | None) -> tuple[Item, ...]:
    return tuple(_item(row) for row in json.loads(read_data("math_500", data, FILE, SHA256)).values())


def _item(row: Mapping[str, Any]) -> Item:
    id = row["unique_id"].removeprefix("test/").removesuffix(".json")
    return item_of_row(id, row["problem"], row["answer"], row)


TASK = Task(
    name="math_500",
    title="MATH-500",
    version="1",
    licence="MIT",
    source=f"opendatalab/REST at 12c6bf3, the split of openai/prm800k, problems of hendrycks/math, SHA-256 {SHA256}",
    chance_floor=19 / 500,
    chance_procedure="the answer 3 for every problem, the most frequent one; exact: right for 19 of 500",
    example=(
        _item(
            {
                "problem": "What is the sum of the roots of $x^2-7x+10$?",
                "solution": "By Vieta's formulas it is $\\boxed{7}$.",
                "answer": "7",
                "subject": "Algebra",
                "level": 2,
                "unique_id": "example",
            }
        ),
        "7",
    ),
    items=items,
    judge=judge,
    judge_under=judge_under,
    judge_all=judge_all,
    policies=POLICIES,
    needs_data=True,
    count=500,
    files=(DataFile(FILE, SHA256, ADDRESS, rows=500),),
    contamination=CONTAMINATION,
    asked={"d1": d1, "bare": bare},
    notes=(
        RIGHTS,
        "Of 500 published generations of LLaDA-8B-Instruct with d1's prompt 35.6 % are solved at 256 tokens (14 have "
        "no answer) and 39.8 % at 512 (17).",
        "A fraction need not be reduced nor a product worked out: the problem's wish for a form is not judged.",
        "The shown example is made by hand.",
    ),
)
