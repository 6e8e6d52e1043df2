"""The 500 published 4x4 Sudokus of the d1 test set, asked and judged as `sudoku` is: does its skill transfer?"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from dare.rewards import sudoku as rules
from dare.tasks import DataFile, Dialogue, Item, Task, UnknownSplitError, read_data
from dare.tasks.sudoku import POLICIES, judge, judge_under, prompt

FILE = "sudoku/4x4_test_sudoku.csv"
SHA256 = "ef86c7c28ebef88484d85fda59b3909a7b621241aa1abf36343437dbc4a3ffb6"


RULES = """Please solve the following 4x4 Sudoku puzzle. The puzzle is provided as a 16-character string reading \
left-to-right, top-to-bottom, where '0' represents empty cells.

Rules:
- Fill empty cells with digits 1-4
- Each row must contain digits 1-4 exactly once
- Each column must contain digits 1-4 exactly once
- Each 2x2 box must contain digits 1-4 exactly once

Important: Your solution must be a COMPLETE 16-character string with only the digits 1-4, representing your final \
solved grid.

Respond in this exact format:
<reasoning>
Your step-by-step solving process
</reasoning>
<answer>
[16-character solution string with no spaces or separators]
</answer>
"""
"""The instruction of d1 and of DARE, as published."""


def d1(item: Item, data: Path | None) -> Dialogue:
    """d1's evaluation prompt, one user turn; protocol `d1` begins the answer with `<reasoning>`, as its code does."""
    return f"\n{dare(item, data)}"


def dare(item: Item, _data: Path | None) -> Dialogue:
    """The prompt that DARE trains and tests with: d1's without its first line break."""
    return f"{RULES}\n\nSolve the following Sudoku puzzle: {item.gold['puzzle']}\n"


def items(split: str, data: Path | None = None) -> Sequence[Item]:
    """The rows of the published file in its order."""
    if split != "test":
        raise UnknownSplitError(f"task 'sudoku_published' has no split {split!r}; it has: test")
    rows = csv.DictReader(read_data("sudoku_published", data, FILE, SHA256).splitlines())
    return [
        Item(
            f"row-{number:03}",
            prompt(row["Puzzle"]),
            {"puzzle": row["Puzzle"]},
            f"grid-{rules.grids().index(row['Solution']):03}",
        )
        for number, row in enumerate(rows)
    ]


TASK = Task(
    name="sudoku_published",
    title="4x4 Sudoku, published test set",
    version="1",
    licence="Apache-2.0",
    source=f"dllm-reasoning/d1 at 837888f, {FILE.split('/')[-1]}, SHA-256 {SHA256}",
    chance_floor=634 / (500 * 4**8),
    chance_procedure="givens copied, an independent uniform digit from 1 to 4 in every hole; exact: mean of "
    "(solutions of the puzzle) x 4^-holes",
    example=(Item("row-000", "S3102200002100320", {"puzzle": "3102200002100320"}, "grid-161"), "3142243142131324"),
    items=items,
    judge=judge,
    needs_data=True,
    count=500,
    files=(
        DataFile(
            FILE,
            SHA256,
            "https://raw.githubusercontent.com/dllm-reasoning/d1/837888f22c21a5da91a0af2b0d7b19e81d9b47ec/dataset/4x4_test_sudoku.csv",
            rows=500,
        ),
    ),
    contamination="Public since 2025. All 288 grids occur as solutions of the training set that DARE published, "
    "so every test solution does; its puzzles have 9 holes, these 8.",
    asked={"d1": d1, "dare": dare},
    policies=POLICIES,
    judge_under=judge_under,
    notes=(
        "All items have 8 holes; 124 of 500 have several solutions, each of which is right.",
        "The published solutions are 229 of the 288 grids; for 406 items (192 grids) that grid is one of the "
        "training grids of task 'sudoku', for 382 items all solutions are. No puzzle is a training item of it.",
        "The pretraining mix lazy-sudoku+countdown of the tiny backbones contains one of them, item row-088.",
        "The reward, the share of holes right, has a chance floor of 0.268 under the same procedure: with several "
        "solutions the one that agrees best counts.",
    ),
)
