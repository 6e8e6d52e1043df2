"""Training data as tensors: which rows a step takes, by seed and step alone, and answers as offline completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dare.data.corpus import Preference
from dare.data.files import DataError
from dare.family import Backbone
from dare.seeds import generator_for
from dare.tasks import Demonstration, Dialogue
from dare.types import Rollout


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


def prompt_rows(backbone: Backbone, prompts: Sequence[Dialogue]) -> tuple[Tensor, Tensor]:
    """Prompt ids [N, P], right-padded, and their lengths [N]."""
    ids = [backbone.tokenizer.prompt_ids(prompt) for prompt in prompts]
    length = torch.tensor([len(row) for row in ids])
    padded = torch.full((len(ids), int(length.max())), backbone.pad_id)
    for i, row in enumerate(ids):
        padded[i, : len(row)] = torch.tensor(row)
    return padded, length
