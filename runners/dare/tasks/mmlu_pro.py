"""MMLU-Pro: up to ten options for each question, and more reasoning than MMLU. Declared, not fetched."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dare.tasks import DataFile, Item, Task, UnknownSplitError, read_data_bytes
from dare.tasks.mmlu import STEPS, judge, listed

FILES = {
    "validation": "mmlu_pro/data/validation-00000-of-00001.parquet",
    "test": "mmlu_pro/data/test-00000-of-00001.parquet",
}
ABSENT = "N/A"
"""How old revisions fill up options that a question does not have."""


def items(split: str, data: Path | None = None) -> Sequence[Item]:
    """The rows of the published file in its order; "validation" has the worked examples of each category."""
    if split not in FILES:
        raise UnknownSplitError(f"task 'mmlu_pro' has no split {split!r}; it has: {', '.join(FILES)}")
    content = read_data_bytes("mmlu_pro", data, FILES[split], None)
    from pyarrow import parquet

    return [_item(row) for row in parquet.read_table(io.BytesIO(content)).to_pylist()]


def _item(row: Mapping[str, Any]) -> Item:
    options = [option for option in row["options"] if option != ABSENT]
    return Item(
        f"question-{row['question_id']}",
        f"{row['question']}\n\n{listed(options)}\n\n{STEPS}",
        {"letter": row["answer"], "options": options},
        row["question"],
        {
            "subject": row["category"],
            "question": row["question"],
            "options": options,
            "answer": row["answer"],
            "worked": row["cot_content"],
        },
    )


TASK = Task(
    name="mmlu_pro",
    title="MMLU-Pro",
    version="1",
    licence="MIT",
    source="TIGER-Lab/MMLU-Pro on the hub, the test file; the folder is laid out as OpenCompass 0.5.4 reads it",
    chance_floor=0.1,
    chance_procedure="a letter drawn uniformly from A to J; exact whatever the number of options, since one is right",
    example=(
        _item(
            {
                "question_id": 0,
                "question": "A train travels 90 km in 45 minutes. What is its mean speed?",
                "options": ["60 km/h", "80 km/h", "100 km/h", "120 km/h", "135 km/h", "150 km/h"],
                "answer": "D",
                "category": "physics",
                "cot_content": "",
            }
        ),
        "D",
    ),
    items=items,
    judge=judge,
    needs_data=True,
    files=tuple(
        DataFile(path, address=f"hub:TIGER-Lab/MMLU-Pro/{path.removeprefix('mmlu_pro/')}") for path in FILES.values()
    ),
    contamination="Public since 2024; a good part of the questions are MMLU's with more options, which have been on "
    "the web since 2020.",
    notes=(
        "Declared: no file has been seen here. The loader and the judge are tested on rows made by hand.",
        "A letter drawn from the item's own options is right more often than that: some have fewer than ten.",
        "The shown example is made by hand.",
    ),
)
