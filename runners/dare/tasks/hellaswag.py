"""HellaSwag: which of four endings goes on with a scene, answered by a letter. Declared, not fetched.

The published measure is the likelihood of the endings; asked for a letter it is another task, and this is that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dare.rewards.choice import LETTERS
from dare.tasks import DataFile, Item, Task, UnknownSplitError, read_rows
from dare.tasks.mmlu import DIRECT, judge, listed

FILE = "hellaswag/hellaswag.jsonl"


def items(split: str, data: Path | None = None) -> Sequence[Item]:
    """The rows of OpenCompass's file in its order: the published validation set, whose golds are public."""
    if split != "test":
        raise UnknownSplitError(f"task 'hellaswag' has no split {split!r}; it has: test")
    rows = read_rows("hellaswag", data, FILE, None)
    return [_item(f"row-{number:05}", row) for number, row in enumerate(rows)]


def _item(id: str, row: dict[str, Any]) -> Item:
    """Scenes of one activity begin with its name and a colon; the activity is no cluster, the scene is one."""
    scene, endings, letter = row["query"], list(row["choices"]), LETTERS[int(row["gold"])]
    return Item(
        id,
        f"Which ending goes on with this text?\n\n{scene}\n\n{listed(endings)}\n\n{DIRECT}",
        {"letter": letter, "options": endings},
        scene,
        {"question": scene, "options": endings, "answer": letter},
    )


TASK = Task(
    name="hellaswag",
    title="HellaSwag, letter",
    version="1",
    licence="MIT",
    source="rowanz/hellaswag, validation set, in the form (query, choices, gold) that OpenCompass 0.5.4 distributes",
    chance_floor=0.25,
    chance_procedure="a letter drawn uniformly from A to D; exact: every item has four endings and one right one",
    example=(
        _item(
            "example",
            {
                "query": "Making tea: A woman fills a kettle with water and puts it on the stove. She",
                "choices": [
                    "paints the stove with a thick brush.",
                    "waits until the water boils.",
                    "throws the kettle over the fence.",
                    "reads the water to her children.",
                ],
                "gold": 1,
            },
        ),
        "B",
    ),
    items=items,
    judge=judge,
    needs_data=True,
    files=(
        DataFile(FILE, address=f"https://opencompass.oss-cn-shanghai.aliyuncs.com/datasets/data/hellaswag.zip!{FILE}"),
    ),
    contamination="Public since 2019 with its golds; the scenes come from ActivityNet captions and WikiHow, which are "
    "in common pretraining crawls.",
    notes=(
        "Declared: no file has been seen here. The loader and the judge are tested on rows made by hand.",
        "A letter asked for, not the likelihood of the endings: numbers of the two are not comparable.",
        "The shown example is made by hand.",
    ),
)
