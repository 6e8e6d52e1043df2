"""Items of ours as a dataset that OpenCompass finds by import path: for prompts that the task writes itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from datasets import Dataset
from opencompass.datasets.base import BaseDataset

from dare.scoring import write_lines
from dare.tasks import Item, text_of


class ItemsDataset(BaseDataset):  # type: ignore[misc]  # untyped package
    """Rows with `prompt`, to be shown, and `reference`, everything that a judge needs, as JSON."""

    @staticmethod
    def load(path: str) -> Dataset:
        """The rows of a file that `write_dataset` wrote."""
        return Dataset.from_list(
            [json.loads(line) for line in Path(path).read_text(encoding="utf-8").split("\n") if line]
        )


def write_dataset(path: Path, items: list[Item]) -> None:
    """The items in their order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_lines(path, [json.dumps(_row(item), ensure_ascii=False) for item in items])


def _row(item: Item) -> dict[str, Any]:
    needed = {"id": item.id, "gold": dict(item.gold), "row": dict(item.row), "choices": list(item.choices)}
    return {"prompt": text_of(item.prompt), "reference": json.dumps(needed, ensure_ascii=False)}
