"""Models small enough to know the answer, their logits formulas of what is visible, and the decoders on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dare.sampling.block import sample_block
from dare.sampling.masked import sample_masked
from dare.sampling_config import SamplingConfig
from dare.seeds import generator_for
from dare.types import Samples

EOS, MASK, VOCABULARY = 0, 1, 12
PROMPTS = [[3, 4, 5], [6], [7, 8, 9, 10, 11, 2, 3], [4, 4]]
Rule = Callable[[Tensor, Tensor], Tensor]
"""From ids (n, S) and what each position may see (n, S, S), logits (n, S, V)."""


def hashed(ids: Tensor, sees: Tensor) -> Tensor:
    """Logits that depend on the position and on every visible token and its position, so that any leak shows."""
    place = torch.arange(ids.shape[1])
    mixed = ((ids + 1) * (place * 7 + 3)) % 101
    context = (sees * mixed[:, None, :]).sum(-1)  # (n, S)
    token = torch.arange(VOCABULARY)
    phase = context[..., None] * 0.37 + place[:, None] * 1.7 + token * 2.9
    return 2.5 * torch.sin(phase) + torch.cos(phase * 1.3)


def never_ending(rule: Rule = hashed) -> Rule:
    return lambda ids, sees: rule(ids, sees).index_fill(-1, torch.tensor([EOS]), -30.0)


class MaskedToy:
    """Full attention over valid positions; remembers the batch sizes it was asked for."""

    def __init__(self, rule: Rule = hashed) -> None:
        self.rule, self.rows = rule, list[int]()

    def __call__(self, ids: Tensor, valid: Tensor, columns: Tensor) -> Tensor:
        self.rows.append(len(ids))
        logits = self.rule(ids, valid[:, None, :].expand(-1, ids.shape[1], -1))
        return logits.gather(1, columns[..., None].expand(-1, -1, VOCABULARY))


class CachedToy:
    """Full attention with the ids of every row kept in the place of keys and values: of one layer, so it is exact."""

    def __init__(self, kind: str, rule: Rule = hashed) -> None:
        self.kind, self.rule, self.refilled, self.reused = kind, rule, 0, 0

    def start(self, rows: int, width: int) -> None:
        self.ids = torch.full((rows, width), -1)

    def refill(self, rows: Tensor, ids: Tensor, valid: Tensor, columns: Tensor) -> Tensor:
        self.refilled += len(rows)
        self.ids[rows] = -1
        return self._look(rows, ids, valid, columns, valid)

    def reuse(self, rows: Tensor, ids: Tensor, valid: Tensor, columns: Tensor) -> Tensor:
        self.reused += len(rows)
        place = torch.arange(ids.shape[1])
        renewed = (place >= columns[:, :1]) & valid
        if self.kind == "dual":
            renewed &= place <= columns[:, -1:]
        return self._look(rows, ids, valid, columns, renewed)

    def keep(self, rows: Tensor) -> None:
        self.ids = self.ids[rows]

    def _look(self, rows: Tensor, ids: Tensor, valid: Tensor, columns: Tensor, renewed: Tensor) -> Tensor:
        width = ids.shape[1]
        known = torch.where(renewed, ids, self.ids[rows, :width])
        self.ids[rows, :width] = known
        logits = self.rule(known, valid[:, None, :].expand(-1, width, -1))
        return logits.gather(1, columns[..., None].expand(-1, -1, VOCABULARY))


class BlockToy:
    """A block-causal toy that keeps the ids of its context instead of keys and values."""

    def __init__(self, block_size: int, rule: Rule = hashed) -> None:
        self.block_size, self.rule, self.rows = block_size, rule, list[int]()

    def prefill(self, ids: Tensor, length: Tensor, width: int) -> None:
        self.ids = torch.full((len(ids), width), -1)
        self.ids[:, : ids.shape[1]] = ids.masked_fill(torch.arange(ids.shape[1]) >= length[:, None], -1)
        self.length = length.clone()

    def logits(self, ids: Tensor, columns: Tensor, real: Tensor) -> Tensor:
        self.rows.append(len(ids))
        assert (columns[:, 0] == self.length).all()  # exactly the next block
        row = torch.arange(len(ids))[:, None]
        self.ids[row, columns] = ids.masked_fill(~real, -1)
        visible = torch.arange(self.ids.shape[1]) < self.length[:, None] + self.block_size
        sees = (visible & (self.ids >= 0))[:, None, :].expand(-1, self.ids.shape[1], -1)
        return self.rule(self.ids, sees)[row, columns]

    def extend(self, rows: Tensor) -> None:
        self.length = self.length + rows * self.block_size

    def keep(self, rows: Tensor) -> None:
        self.ids, self.length = self.ids[rows], self.length[rows]


def settings(**changes: object) -> SamplingConfig:
    return SamplingConfig.model_validate({"gen_length": 8, "block_length": 4, "steps_per_block": 2} | changes)


def decode(
    kind: str,
    config: SamplingConfig,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    rule: Rule = hashed,
    eos_ids: Sequence[int] = (EOS,),
    first: int = 0,
    **options: Any,
) -> Samples:
    """The prompts through a toy; `first` is the place of the first one among all rows, for its random numbers."""
    generators = [generator_for(5, "row", first + row) for row in range(len(prompts))]
    options = {"mask_id": MASK, "pad_id": EOS, "eos_ids": eos_ids} | options
    if kind == "block":
        return sample_block(BlockToy(config.block_length, rule), prompts, config, generators, **options)
    model = MaskedToy(rule) if config.cache == "none" else CachedToy(config.cache, rule)
    return sample_masked(model, prompts, config, generators, **options)
