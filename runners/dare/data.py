"""Training data: prompts with a judge, demonstrations or preferences; batches that depend on seed and step alone.

`prompts:<task>` takes a task's training split, `corpus:<task>/<name>` its demonstrations, `preferences:<task>` pairs
made from them, `mix:<name>` a pretraining mix, `file:<path>` a JSONL file of the job directory: rows
{"prompt", "answer"}, {"prompt", "chosen", "rejected"} or {"prompt", "task", "gold"}.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from dare.corpus import MIXES, Preference, demonstrations, preferences
from dare.family import Backbone
from dare.seeds import generator_for
from dare.tasks import Demonstration, Item, Task, load_task
from dare.types import Rollout

CORPUS_ROWS = 4096
MIX_ROWS = 40_000


class DataError(ValueError):
    """The training data cannot be used. The message names the file and line, or the word that is wrong."""


@dataclass(frozen=True)
class PromptData:
    """Questions to sample answers for, each judged by its task."""

    kind: ClassVar = "prompts"
    """What an algorithm that trains on these says in `trains_on`."""
    items: Sequence[Item]
    tasks: Sequence[Task]
    """One per item."""


@dataclass(frozen=True)
class DemonstrationData:
    """Answers to imitate."""

    kind: ClassVar = "demonstrations"
    rows: Sequence[Demonstration]


@dataclass(frozen=True)
class PreferenceData:
    """Pairs of answers, of which one is better."""

    kind: ClassVar = "preferences"
    rows: Sequence[Preference]


TrainingData = PromptData | DemonstrationData | PreferenceData


def load_data(reference: str, directory: Path) -> TrainingData:
    """Training data by reference; DataError says what is wrong in a sentence."""
    kind, _, rest = reference.partition(":")
    if kind == "prompts":
        task = load_task(rest)
        items = task.items("train", None)
        return PromptData(items, [task] * len(items))
    if kind == "corpus":
        name, _, corpus = rest.partition("/")
        task = load_task(name)
        if task.demonstrations is None or corpus not in task.corpora:
            raise DataError(f"task {name!r} has no corpus {corpus!r}; it has: {', '.join(task.corpora) or 'none'}")
        return DemonstrationData(task.demonstrations(corpus, CORPUS_ROWS))
    if kind == "preferences":
        task = load_task(rest)
        if task.demonstrations is None or task.item_of is None:
            raise DataError(f"task {rest!r} has no demonstrations to make preferences from; pass a file:<path>")
        return PreferenceData(preferences(task, CORPUS_ROWS))
    if kind == "mix":
        if rest not in MIXES:
            raise DataError(f"unknown mix {rest!r}; known: {', '.join(MIXES)}")
        return DemonstrationData(demonstrations(rest, MIX_ROWS))
    if kind == "file":
        return _read_file(directory / rest)
    known = "prompts:<task>, corpus:<task>/<name>, preferences:<task>, mix:<name>, file:<path>"
    raise DataError(f"data {reference!r} is none of {known}")


def _read_file(path: Path) -> TrainingData:
    if not path.is_file():
        raise DataError(f"there is no data file {path}")
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            try:
                row = json.loads(line)
                rows.append((number, str(row["prompt"]), row))
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise DataError(f"{path.name} line {number} is no JSON object with a prompt: {error}") from error
    if not rows:
        raise DataError(f"{path.name} has no rows")
    if any("chosen" in row or "rejected" in row for _, _, row in rows):
        return PreferenceData([_preference(row, f"{path.name} line {number}") for number, _, row in rows])
    if all("answer" in row for _, _, row in rows):
        return DemonstrationData([Demonstration(prompt, str(row["answer"])) for _, prompt, row in rows])
    missing = next((number for number, _, row in rows if "task" not in row or "gold" not in row), None)
    if missing is not None:
        raise DataError(f"{path.name} line {missing} has neither an answer nor a task with its gold")
    items = [Item(id=str(row.get("id", number)), prompt=prompt, gold=row["gold"]) for number, prompt, row in rows]
    return PromptData(items, [load_task(row["task"]) for _, _, row in rows])


def _preference(row: dict[str, Any], where: str) -> Preference:
    for name in ("prompt", "chosen", "rejected"):
        if not isinstance(row.get(name), str):
            given = f"is {row[name]!r:.40}" if name in row else "is missing"
            raise DataError(f"{where}: {name!r} {given}; a preference is three texts: prompt, chosen, rejected")
    if row["chosen"] == row["rejected"]:
        raise DataError(f"{where}: chosen and rejected are the same text, so there is nothing to prefer")
    return Preference(row["prompt"], row["chosen"], row["rejected"])


def batch_indices(count: int, size: int, step: int, seed: int) -> list[int]:
    """Rows of a step: a fresh permutation per epoch, so that resuming needs no state."""
    first = step * size
    wanted = range(first, first + size)
    orders: dict[int, list[int]] = {}
    for epoch in {position // count for position in wanted}:
        orders[epoch] = torch.randperm(count, generator=generator_for(seed, "order", epoch)).tolist()
    return [orders[position // count][position % count] for position in wanted]


def demonstration_rollout(backbone: Backbone, rows: Sequence[Demonstration], gen_length: int) -> Rollout:
    """Demonstrations as offline completions.

    The answer and its end of turn are followed by end-of-sequence tokens to the end of the window (full attention) or
    of the block that holds the end (block diffusion): what the decoder meets there, hence what it is trained on.
    Raises DataError when an answer does not fit the window.
    """
    prompts = [backbone.tokenizer.prompt_ids(row.prompt) for row in rows]
    answers = [backbone.tokenizer.answer_ids(row.answer) for row in rows]
    for row, answer in zip(rows, answers, strict=True):
        if len(answer) > gen_length:
            raise DataError(
                f"the answer {row.answer[:40]!r} has {len(answer)} tokens with its end; the window holds {gen_length}"
            )
    ends = [_end(backbone, len(p), len(a), gen_length) for p, a in zip(prompts, answers, strict=True)]
    width = max(ends)
    ids = torch.full((len(rows), width), backbone.pad_id)
    valid = torch.zeros(len(rows), width, dtype=torch.bool)
    window = torch.zeros_like(valid)
    for i, (prompt, answer, end) in enumerate(zip(prompts, answers, ends, strict=True)):
        ids[i, : len(prompt)] = torch.tensor(prompt)
        ids[i, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
        ids[i, len(prompt) + len(answer) : end] = backbone.eos_ids[0]
        valid[i, :end] = True
        window[i, len(prompt) : end] = True
    return Rollout(
        ids=ids,
        valid=valid,
        window=window,
        completion=window.clone(),
        group=torch.arange(len(rows)),
        reward=torch.ones(len(rows)),
    )


def preference_rollout(backbone: Backbone, rows: Sequence[Preference], gen_length: int) -> Rollout:
    """Pairs as offline completions: two rows of one group, reward +1 for the chosen answer and -1 for the other.

    A completion is the answer with its end of turn, as if it had been sampled: the likelihood in nats is that of the
    answer, and does not grow with the window that is filled up behind it.
    """
    sides = [Demonstration(row.prompt, answer) for row in rows for answer in (row.chosen, row.rejected)]
    rollout = demonstration_rollout(backbone, sides, gen_length)
    length = torch.tensor([len(backbone.tokenizer.answer_ids(side.answer)) for side in sides])
    return replace(
        rollout,
        completion=rollout.window & (rollout.window.cumsum(1) <= length[:, None]),
        group=torch.arange(len(rows)).repeat_interleave(2),
        reward=torch.tensor([1.0, -1.0]).repeat(len(rows)),
    )


def _end(backbone: Backbone, prompt: int, answer: int, gen_length: int) -> int:
    if backbone.block_size is None:
        return prompt + gen_length
    blocks = -(-(prompt + answer) // backbone.block_size)
    return min(blocks * backbone.block_size, prompt + gen_length)


def prompt_rows(backbone: Backbone, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Prompt ids [N, P], right-padded, and their lengths [N]."""
    ids = [backbone.tokenizer.prompt_ids(prompt) for prompt in prompts]
    length = torch.tensor([len(row) for row in ids])
    padded = torch.full((len(ids), int(length.max())), backbone.pad_id)
    for i, row in enumerate(ids):
        padded[i, : len(row)] = torch.tensor(row)
    return padded, length
