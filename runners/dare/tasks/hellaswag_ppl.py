"""HellaSwag by likelihood: which of four endings is the most probable after the scene? Declared, not fetched.

The published measure. Endings differ in length, and published tables divide each log-likelihood by it: policy
`normalise: bytes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dare.tasks import Item, Task, hellaswag
from dare.tasks.mmlu_ppl import ABOUT_NORMALISING, POLICIES, example_record, judge, judge_under, likelihood_item


def items(split: str, data: Path | None = None) -> Sequence[Item]:
    """Those of `hellaswag` in its order."""
    return [_item(item) for item in hellaswag.items(split, data)]


def _item(item: Item) -> Item:
    return likelihood_item(item, item.row["question"], [f" {ending}" for ending in item.row["options"]])


TASK = Task(
    name="hellaswag_ppl",
    title="HellaSwag, likelihood",
    version="1",
    licence=hellaswag.TASK.licence,
    source=hellaswag.TASK.source,
    chance_floor=0.25,
    chance_procedure="one of the four endings drawn uniformly; exact: every item has four endings and one right one",
    example=(_item(hellaswag.TASK.example[0]), example_record(1, 4)),
    items=items,
    judge=judge,
    needs_data=True,
    kind="likelihood",
    count=hellaswag.TASK.count,
    files=hellaswag.TASK.files,
    contamination=hellaswag.TASK.contamination,
    policies=POLICIES,
    judge_under=judge_under,
    notes=(
        "Declared: no file has been seen here. The loader and the judge are tested on rows made by hand.",
        ABOUT_NORMALISING + " Published accuracies are mostly acc_norm, which is `bytes` here for plain ASCII.",
        "The shown example is made by hand.",
    ),
)
