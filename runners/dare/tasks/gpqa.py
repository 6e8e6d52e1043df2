"""GPQA Diamond: questions of graduate physics, chemistry and biology with four options. Declared, not fetched.

Its authors ask that items not be shown in plain text: the example here is made by hand, an item keeps no published
row, and prompts and answers of this task belong in no public report.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path

from dare.rewards.choice import LETTERS
from dare.tasks import DataFile, Item, Task, UnknownSplitError, read_data
from dare.tasks.mmlu import STEPS, judge, listed

VERSION = "1"
FILE = "gpqa/gpqa_diamond.csv"
COLUMNS = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


def items(split: str, data: Path | None = None) -> Sequence[Item]:
    """The rows of the published file in its order. The right option comes first there; here the options are shuffled,
    for each item by a seed of its own."""
    if split != "test":
        raise UnknownSplitError(f"task 'gpqa' has no split {split!r}; it has: test")
    rows = csv.DictReader(StringIO(read_data("gpqa", data, FILE, None), newline=""))
    return [_item(f"row-{number:03}", row) for number, row in enumerate(rows)]


def _item(id: str, row: Mapping[str, str]) -> Item:
    question, right = row["Question"].strip(), row[COLUMNS[0]].strip()
    options = [row[column].strip() for column in COLUMNS]
    random.Random(f"dare/gpqa/{VERSION}/{question}").shuffle(options)
    return Item(
        id,
        f"{question}\n\n{listed(options)}\n\n{STEPS}",
        {"letter": LETTERS[options.index(right)], "options": options},
        id,
    )


TASK = Task(
    name="gpqa",
    title="GPQA Diamond",
    version=VERSION,
    licence="CC BY 4.0",
    source="idavidrein/gpqa, gpqa_diamond.csv, as OpenCompass 0.5.4 distributes it",
    chance_floor=0.25,
    chance_procedure="a letter drawn uniformly from A to D; exact: every item has four options and one right letter",
    example=(
        _item(
            "example",
            {
                "Question": "Two resistors of 6 ohms each are connected in parallel. What do they amount to?",
                "Correct Answer": "3 ohms",
                "Incorrect Answer 1": "6 ohms",
                "Incorrect Answer 2": "12 ohms",
                "Incorrect Answer 3": "36 ohms",
            },
        ),
        "C",
    ),
    items=items,
    judge=judge,
    needs_data=True,
    files=(DataFile(FILE, address=f"https://opencompass.oss-cn-shanghai.aliyuncs.com/datasets/data/gpqa.zip!{FILE}"),),
    contamination="Published in an archive with a password and a canary string against crawling; copies in plain text "
    "exist. Overlap with the training data of the backbones here is not known.",
    notes=(
        "Declared: no file has been seen here. The loader and the judge are tested on a row made by hand.",
        "Options are shuffled by a seed of each question; OpenCompass rotates them by row number, so letters differ "
        "and its scores join ours by item, not by letter.",
        "198 items are few: the standard error at 40 % is 3.5 points.",
        "The shown example is made by hand.",
    ),
)
