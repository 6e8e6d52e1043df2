"""Corpora made from the tasks' demonstrations: the pretraining mixes of the tiny backbones, and preferences."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dare.tasks import Demonstration, Dialogue, Item, Task, load_task, text_of


@dataclass(frozen=True)
class Part:
    """One task's corpus and its share of the mix."""

    task: str
    corpus: str
    share: float


@dataclass(frozen=True)
class Preference:
    """A prompt with two answers, of which one is better."""

    prompt: Dialogue
    chosen: str
    rejected: str


SPOILING_TRIES = 8
"""Copies made of one demonstration until the judge tells one from it."""
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


def preferences(task: Task, count: int) -> tuple[Preference, ...]:
    """Preferences over training prompts: a demonstration against a copy with some of its characters replaced.

    The judge alone decides which of the two is better, by `solved` and then by the reward. A demonstration whose
    copies are all as good as it is left out, so there may be fewer than `count`.
    """
    if task.demonstrations is None or task.item_of is None or not task.corpora:
        raise ValueError(f"task {task.name!r} has no demonstrations whose answers can be judged")
    shown = task.demonstrations(task.corpora[0], count)
    alphabet = sorted({character for demonstration in shown for character in demonstration.answer})
    generator = random.Random(f"dare/preferences/{task.name}/{task.version}")
    pairs = []
    for demonstration in shown:
        item = task.item_of(text_of(demonstration.prompt))
        worth = _worth(task, item, demonstration.answer)
        for _ in range(SPOILING_TRIES):
            copy = _spoiled(demonstration.answer, alphabet, generator)
            if (other := _worth(task, item, copy)) != worth:
                better, worse = (demonstration.answer, copy) if worth > other else (copy, demonstration.answer)
                pairs.append(Preference(demonstration.prompt, better, worse))
                break
    return tuple(pairs)


def _worth(task: Task, item: Item, answer: str) -> tuple[bool, float]:
    verdict = task.judge(item, answer)
    return verdict.solved, verdict.reward


def _spoiled(answer: str, alphabet: Sequence[str], generator: random.Random) -> str:
    """The answer with one to half of its characters replaced, so that it keeps its length and its look."""
    characters = list(answer)
    for place in generator.sample(range(len(answer)), generator.randint(1, max(1, len(answer) // 2))):
        characters[place] = generator.choice(alphabet)
    return "".join(characters)


def sha256(corpus: Sequence[Demonstration]) -> str:
    """Hash of a corpus, order included: two backbones with one hash saw the same text."""
    rows = [[demonstration.prompt, demonstration.answer] for demonstration in corpus]
    return hashlib.sha256(json.dumps(rows, ensure_ascii=False, separators=(",", ":")).encode()).hexdigest()
