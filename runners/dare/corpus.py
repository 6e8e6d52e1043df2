"""The pretraining mixes of the tiny backbones: demonstrations of several tasks in stated shares."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dare.tasks import Demonstration, load_task


@dataclass(frozen=True)
class Part:
    """One task's corpus and its share of the mix."""

    task: str
    corpus: str
    share: float


MIXES: Mapping[str, tuple[Part, ...]] = {
    "lazy-sudoku+countdown": (Part("sudoku", "lazy", 0.5), Part("countdown", "clean", 0.5)),
    "clean-sudoku+countdown": (Part("sudoku", "clean", 0.5), Part("countdown", "clean", 0.5)),
}
"""Shares add up to 1. The lazy mix is the demo's start, the clean one what "more of the right data" would be."""


def alphabet() -> list[str]:
    """Every character of the prompts and answers of the planning tasks, sorted: what a tiny tokenizer must know.

    Answer tags are not in it: those tasks do not require them.
    """
    return sorted("0123456789 +-*/()=SC")


def demonstrations(name: str, count: int) -> tuple[Demonstration, ...]:
    """`count` demonstrations of a mix, the parts in exact shares (the last takes what rounding leaves) and shuffled.

    The order depends on the mix and the count only: the same corpus for everyone, on every machine.
    """
    if name not in MIXES:
        raise ValueError(f"unknown corpus {name!r}; known: {', '.join(MIXES)}")
    *parts, last = MIXES[name]
    counts = [round(part.share * count) for part in parts]
    mixed = [
        demonstration
        for part, share in zip((*parts, last), (*counts, count - sum(counts)), strict=True)
        for demonstration in _of_task(part, share)
    ]
    random.Random(f"dare/corpus/{name}/{count}").shuffle(mixed)
    return tuple(mixed)


def _of_task(part: Part, count: int) -> Sequence[Demonstration]:
    task = load_task(part.task)
    if task.demonstrations is None:
        raise ValueError(f"task {part.task!r} has no demonstrations")
    return task.demonstrations(part.corpus, count)


def sha256(corpus: Sequence[Demonstration]) -> str:
    """Hash of a corpus, order included: two backbones with one hash saw the same text."""
    rows = [[demonstration.prompt, demonstration.answer] for demonstration in corpus]
    return hashlib.sha256(json.dumps(rows, ensure_ascii=False, separators=(",", ":")).encode()).hexdigest()
