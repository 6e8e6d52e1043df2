"""Training data: prompts with a judge, or demonstrations; batches that depend on seed and step alone.

`prompts:<task>` takes a task's training split, `corpus:<task>/<name>` its demonstrations, `mix:<name>` a pretraining
mix, `file:<path>` a JSONL file of the job directory: rows {"prompt", "answer"} or {"prompt", "task", "gold"}.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dare.corpus import MIXES, demonstrations
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

    items: Sequence[Item]
    tasks: Sequence[Task]
    """One per item."""


@dataclass(frozen=True)
class DemonstrationData:
    """Answers to imitate."""

    rows: Sequence[Demonstration]


def load_data(reference: str, directory: Path) -> PromptData | DemonstrationData:
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
    if kind == "mix":
        if rest not in MIXES:
            raise DataError(f"unknown mix {rest!r}; known: {', '.join(MIXES)}")
        return DemonstrationData(demonstrations(rest, MIX_ROWS))
    if kind == "file":
        return _read_file(directory / rest)
    raise DataError(f"data {reference!r} is none of prompts:<task>, corpus:<task>/<name>, mix:<name>, file:<path>")


def _read_file(path: Path) -> PromptData | DemonstrationData:
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
    if all("answer" in row for _, _, row in rows):
        return DemonstrationData([Demonstration(prompt, str(row["answer"])) for _, prompt, row in rows])
    missing = next((number for number, _, row in rows if "task" not in row or "gold" not in row), None)
    if missing is not None:
        raise DataError(f"{path.name} line {missing} has neither an answer nor a task with its gold")
    items = [Item(id=str(row.get("id", number)), prompt=prompt, gold=row["gold"]) for number, prompt, row in rows]
    return PromptData(items, [load_task(row["task"]) for _, _, row in rows])


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
