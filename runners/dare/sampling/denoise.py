"""One denoising step of one block per row: draw, rank, select, commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from dare.sampling.draw import draw, logits_at, probability, truncated
from dare.sampling.plan import early_rejection
from dare.sampling.rank import certainty, priority, ranks
from dare.sampling.select import select
from dare.sampling_config import SamplingConfig


class Block(NamedTuple):
    """What a step of one block per row starts from."""

    masked: Bool[Tensor, "n K"]
    share: Int[Tensor, " n"]
    """Tokens that the schedule commits in this step; for the selector `budget` with what earlier steps left."""
    reveals: Bool[Tensor, "n K"] | None
    """What this step reveals, where `remasking` is `origin`."""
    step: Int[Tensor, " n"]
    """Steps that the row has done in the whole decode."""


class Denoised(NamedTuple):
    """A token for every position that can change, and what becomes of it; zeros elsewhere."""

    token: Int[Tensor, "n K"]
    confidence: Float[Tensor, "n K"]
    committed: Bool[Tensor, "n K"]
    probability: Float[Tensor, "n K"]
    """Of the token under the model, without temperature, filters and rules; the mask and forbidden tokens have none."""


class Guess(NamedTuple):
    """The most probable tokens of positions that nothing is drawn for."""

    columns: Int[Tensor, "n K"]
    token: Int[Tensor, "n K"]
    probability: Float[Tensor, "n K"]


@dataclass(frozen=True)
class Denoiser:
    """The rules of one decode."""

    config: SamplingConfig
    mask_id: int
    pad_id: int
    """The end-of-text token."""
    ends: Int[Tensor, " E"]

    def __call__(self, block: Block, logits: Float[Tensor, "n K V"], generators: Sequence[torch.Generator]) -> Denoised:
        """Every row consumes the same number of random numbers per step whatever it has masked."""
        config = self.config
        where = block.masked if config.edit_threshold is None else torch.ones_like(block.masked)
        model = logits_at(logits, where, self._forbidden)  # (M, V)
        drawn_from = truncated(model, config.temperature, config.top_k, config.top_p)
        token = draw(drawn_from, where, config.temperature, generators)  # (M)
        believed = probability(model, token)
        law, confidence = model, believed
        if config.confidence == "draw":
            law = drawn_from / config.temperature
            confidence = probability(law, token)
        confidence = self._after_eos_policy(confidence, token, model, where, block.step)
        certain = certainty(config, law)
        sure = spread(confidence, where)
        order = sure if certain is None else spread(certain, where)
        rank = ranks(block.masked, priority(config, order, generators))
        committed = block.reveals
        if committed is None:
            committed = select(config, block.masked, rank, sure, order, block.share)
        return Denoised(spread(token, where), sure, committed, spread(believed, where))

    def edits(self, done: Denoised, before: Int[Tensor, "n K"]) -> Bool[Tensor, "n K"]:
        """Where another token is sure enough to replace one that is there already."""
        if self.config.edit_threshold is None:
            return torch.zeros_like(done.committed)
        return (done.confidence > self.config.edit_threshold) & (done.token != before)

    def guess(self, columns: Int[Tensor, "n K"], logits: Float[Tensor, "n K V"]) -> Guess:
        """What the model finds most probable."""
        everywhere = torch.ones_like(columns, dtype=torch.bool)
        model = logits_at(logits, everywhere, self._forbidden)
        token = model.argmax(-1)
        return Guess(columns, spread(token, everywhere), spread(probability(model, token), everywhere))

    def _after_eos_policy(
        self, confidence: Tensor, token: Tensor, model: Tensor, where: Bool[Tensor, "n K"], step: Int[Tensor, " n"]
    ) -> Tensor:
        """The confidence that orders the positions; -1 is below that of every other masked position."""
        policy, end = self.config.eos_policy, torch.isin(token, self.ends)
        if policy == "confidence_last":
            return confidence.masked_fill(end, -1.0)
        if policy == "eos_zero":
            return confidence.masked_fill(end, 0.0)
        if policy == "eoser":
            factor = self._rejection[step].to(confidence.dtype)[where.nonzero()[:, 0]]
            return torch.where(end, confidence * factor, confidence)
        if policy == "legacy_eot":
            turn_ends = torch.tensor(self._turn_ends, dtype=torch.long, device=model.device)
            return probability(model.index_fill(-1, turn_ends, -torch.inf), token)
        return confidence

    @cached_property
    def _forbidden(self) -> list[int]:
        return [self.mask_id, *([self.pad_id] if self.config.eos_policy == "logits_inf" else [])]

    @cached_property
    def _turn_ends(self) -> list[int]:
        return [token for token in self.ends.tolist() if token != self.pad_id]

    @cached_property
    def _rejection(self) -> Float[Tensor, " steps"]:
        return torch.tensor(early_rejection(self.config), device=self.ends.device)


def spread(values: Shaped[Tensor, " M"], where: Bool[Tensor, "n K"]) -> Shaped[Tensor, "n K"]:
    """Numbers in row-major order of the positions `where`, zero elsewhere."""
    return torch.zeros(where.shape, dtype=values.dtype, device=values.device).masked_scatter_(where, values)
