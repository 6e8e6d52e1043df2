"""ARC-Challenge by likelihood: which option is the most probable answer to the question? Declared, not fetched.

The published measure of base models: the text of each option is scored behind the question, and no option is listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dare.tasks import Item, Task, arc_c
from dare.tasks.mmlu_ppl import ABOUT_NORMALISING, POLICIES, example_record, judge, judge_under, likelihood_item


def items(split: str, data: Path | None = None) -> Sequence[Item]:
    """Those of `arc_c` in its order."""
    return [_item(item) for item in arc_c.items(split, data)]


def _item(item: Item) -> Item:
    context = f"Question: {item.row['question']}\nAnswer:"
    return likelihood_item(item, context, [f" {option}" for option in item.row["options"]])


TASK = Task(
    name="arc_c_ppl",
    title="ARC-Challenge, likelihood",
    version="1",
    licence=arc_c.TASK.licence,
    source=arc_c.TASK.source,
    chance_floor=0.25,
    chance_procedure="one of four options drawn uniformly; a few published items have three or five",
    example=(_item(arc_c.TASK.example[0]), example_record(2, 4)),
    items=items,
    judge=judge,
    needs_data=True,
    kind="likelihood",
    count=arc_c.TASK.count,
    files=arc_c.TASK.files,
    contamination=arc_c.TASK.contamination,
    policies=POLICIES,
    judge_under=judge_under,
    notes=(
        "Declared: no file has been seen here. The loader and the judge are tested on rows made by hand.",
        ABOUT_NORMALISING + " Published tables give both, as acc and as acc_norm.",
        "The shown example is made by hand.",
    ),
)
