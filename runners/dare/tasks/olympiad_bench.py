r"""OlympiadBench: open-ended problems of mathematical olympiads in English, without pictures. Declared, not fetched.

Of the benchmark's many parts this is `OE_TO_maths_en_COMP`. Asked and judged as `math` is, with two additions: a
problem with several answers says so in its prompt, and a row may publish a tolerance within which a number is right.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dare.rewards import mathverify
from dare.rewards.equivalence import within
from dare.tasks import DataFile, Dialogue, Item, Judge, Task, UnknownSplitError, Verdict, read_data
from dare.tasks import math as mathematics

FILE = "OlympiadBench/OE_TO_maths_en_COMP.json"
SEVERAL = "The problem has several answers: write all of them into one box, with commas between them."


def judge(item: Item, text: str) -> Verdict:
    """As `math` judges, or within the tolerance that the row publishes."""
    return _tolerant(item, mathematics.judge(item, text))


def judge_under(policies: Mapping[str, str]) -> Judge:
    """The judge under the rules of a protocol."""
    strict = mathematics.judge_under(policies)
    return lambda item, text: _tolerant(item, strict(item, text))


def judge_all(answers: Sequence[tuple[Item, str]], policies: Mapping[str, str]) -> Sequence[Verdict]:
    """Many at once, as `math` does."""
    one = judge_under(policies)
    with ThreadPoolExecutor(mathverify.PROCESSES) as threads:
        return list(threads.map(lambda pair: one(*pair), answers))


def _tolerant(item: Item, verdict: Verdict) -> Verdict:
    tolerance = item.gold["tolerance"]
    if verdict.solved or verdict.answer is None or not tolerance:
        return verdict
    close = within(verdict.answer, item.gold["answer"], tolerance)
    return Verdict(close, float(close), "ok", verdict.answer) if close else verdict


def items(split: str, data: Path | None = None) -> Sequence[Item]:
    """The rows of the published file in its order."""
    if split != "test":
        raise UnknownSplitError(f"task 'olympiad_bench' has no split {split!r}; it has: test")
    return [_item(f"olympiad-{row['id']}", row) for row in json.loads(read_data("olympiad_bench", data, FILE, None))]


def _item(id: str, row: Mapping[str, Any]) -> Item:
    problem, answers = row["question"].strip(), row["final_answer"]
    gold = answers[0] if len(answers) == 1 else ", ".join(answers)
    stated = f"{problem}\n\n{SEVERAL}" if row.get("is_multiple_answer") else problem
    asked = mathematics.item_of_row(id, stated, gold, {**row, "problem": problem})
    return Item(id, asked.prompt, {"answer": gold, "tolerance": row.get("error") or ""}, asked.cluster, asked.row)


def bare(item: Item, _data: Path | None = None) -> Dialogue:
    """The problem alone: nothing says that the scorer needs a box."""
    return str(item.row["problem"])


TASK = Task(
    name="olympiad_bench",
    title="OlympiadBench, mathematics in English",
    version="1",
    licence="Apache-2.0",
    source="OpenBMB/OlympiadBench, OE_TO_maths_en_COMP, as OpenCompass 0.5.4 distributes it",
    chance_floor=1 / 1000,
    chance_procedure="an integer drawn uniformly from 0 to 999; a lower bound, as small integers are frequent answers: "
    "the most frequent answer can be counted once the file is here",
    example=(
        _item(
            "example",
            {
                "id": 0,
                "question": "Find all real $x$ with $x^4-5x^2+4=0$ and $x<0$.",
                "final_answer": ["$-2,-1$"],
                "is_multiple_answer": True,
                "answer_type": "Numerical",
                "unit": None,
                "error": None,
            },
        ),
        "-1, -2",
    ),
    items=items,
    judge=judge,
    judge_under=judge_under,
    judge_all=judge_all,
    policies=mathematics.POLICIES,
    needs_data=True,
    files=(
        DataFile(
            FILE, address=f"https://opencompass.oss-cn-shanghai.aliyuncs.com/datasets/data/OlympiadBench.zip!{FILE}"
        ),
    ),
    contamination="The contests are public, with official solutions; overlap with the training data of the backbones "
    "here is not known.",
    asked={"bare": bare},
    notes=(
        "Declared: no file has been seen here. The loader and the judge are tested on rows made by hand.",
        "One part of the benchmark: neither the Chinese problems nor physics, proofs or pictures.",
        "The shown example is made by hand.",
    ),
)
