"""ARC-Challenge: science questions of grade school that word statistics did not answer in 2018. Declared, not fetched.

The file is the authors' own, which OpenCompass reads too; its stock configuration scores the development file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dare.rewards.choice import LETTERS
from dare.tasks import DataFile, Item, Task, UnknownSplitError, read_rows
from dare.tasks.mmlu import DIRECT, judge, listed

FILE = "ARC/ARC-c/ARC-Challenge-Test.jsonl"


def items(split: str, data: Path | None = None) -> Sequence[Item]:
    """The rows of the published file in its order, with three to five options as published."""
    if split != "test":
        raise UnknownSplitError(f"task 'arc_c' has no split {split!r}; it has: test")
    return [_item(row) for row in read_rows("arc_c", data, FILE, None)]


def _item(row: dict[str, Any]) -> Item:
    """Some published options are numbered; here they all have letters."""
    question, choices = row["question"]["stem"], row["question"]["choices"]
    options = [choice["text"] for choice in choices]
    letter = LETTERS[[choice["label"] for choice in choices].index(row["answerKey"])]
    return Item(
        row["id"],
        f"{question}\n\n{listed(options)}\n\n{DIRECT}",
        {"letter": letter, "options": options},
        row["id"],
        {"question": question, "options": options, "answer": letter},
    )


TASK = Task(
    name="arc_c",
    title="ARC-Challenge",
    version="1",
    licence="CC BY-SA 4.0",
    source="allenai, ARC-Challenge-Test.jsonl of ARC-V1-Feb2018-2, as OpenCompass 0.5.4 distributes it",
    chance_floor=0.25,
    chance_procedure="a letter drawn uniformly from A to D; exact where the right letter is one of them",
    example=(
        _item(
            {
                "id": "example",
                "question": {
                    "stem": "Which of these is a source of light?",
                    "choices": [
                        {"text": "a mirror", "label": "1"},
                        {"text": "the Moon", "label": "2"},
                        {"text": "a burning candle", "label": "3"},
                        {"text": "a window", "label": "4"},
                    ],
                },
                "answerKey": "3",
            }
        ),
        "C",
    ),
    items=items,
    judge=judge,
    needs_data=True,
    files=(DataFile(FILE, address=f"https://opencompass.oss-cn-shanghai.aliyuncs.com/datasets/data/ARC.zip!{FILE}"),),
    contamination="Public since 2018, and part of common instruction mixtures through its training split; overlap with "
    "the training data of the backbones here is not known.",
    notes=(
        "Declared: no file has been seen here. The loader and the judge are tested on rows made by hand.",
        "Every item counts, also those with three or five options, which OpenCompass drops.",
        "The shown example is made by hand.",
    ),
)
