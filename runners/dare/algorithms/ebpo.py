"""EBPO: one clipped ratio per completion, of block ELBOs that doubled forwards estimate (arXiv 2602.08676)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dare.algorithm import GRPO, clipped_sequences
from dare.forward_process import RowGenerators, stratified_counts, views_of
from dare.objectives import k2, per_unit, views_per_unit
from dare.types import Credit, LossTerms, NoisyViews, Rollout


@dataclass(frozen=True, kw_only=True)
class EBPO(GRPO):
    """Every view hides a part of every block, so that one doubled forward scores all blocks at once.

    The log-ratio is a sum over tokens, as published, not a mean: a small drift saturates the clip on long answers, and
    the logged clip fractions show when. With full attention the same views are a pseudo-likelihood: a block then sees
    what later ones leave visible.
    """

    published_for: ClassVar[frozenset[str]] = frozenset({"block"})

    kl_coef: float = 0.0
    """Weight of the k2 penalty per token towards the frozen reference; 0 leaves the reference out."""
    largest_ratio: float = 3.0
    """Dual clip: a larger ratio counts as this one where the advantage is negative and the clip sets no bound."""
    mc_samples: int = 16
    """Views per completion, stratified over the number of hidden tokens of a block."""
    block_length: int = 32
    """Tokens of a block, counted from the start of the prompt: the backbone's, or a multiple (unbiased, noisier)."""

    def forward_process(self, rollout: Rollout, credit: Credit, mask_id: int, generators: RowGenerators) -> NoisyViews:
        completion = rollout.completion[credit.row]
        unit = torch.arange(len(completion)).repeat_interleave(self.mc_samples)
        hidden = torch.zeros(len(unit), completion.shape[1], dtype=torch.bool)
        coef = torch.zeros(hidden.shape, dtype=credit.advantage.dtype)
        for u, generator in enumerate(generators):
            positions = completion[u].nonzero().flatten()
            _, lengths = torch.unique(positions // self.block_length, return_counts=True)
            for block in torch.split(positions, lengths.tolist()):
                counts = stratified_counts(len(block), self.mc_samples, generator)
                for view, count in enumerate(counts, start=u * self.mc_samples):
                    chosen = block[torch.randperm(len(block), generator=generator)[:count]]
                    hidden[view, chosen] = True
                    coef[view, chosen] = len(block) / count
        return views_of(rollout, credit, unit, hidden, hidden, coef, mask_id)

    def loss(
        self, logp: Tensor, old: Tensor | None, ref: Tensor | None, credit: Credit, views: NoisyViews
    ) -> LossTerms:
        assert old is not None
        units = len(credit.advantage)
        share = views.coef / views_per_unit(views, units, logp.dtype)[views.unit, None]
        log_ratio = per_unit((logp - old) * share, views, units)
        clip = (self.clip_low, self.clip_high, self.largest_ratio)
        loss, metrics = clipped_sequences(log_ratio, credit.advantage, *clip)
        if ref is not None and self.kl_coef:
            penalty = k2(per_unit((logp - ref) * share, views, units)) / credit.length
            metrics["kl"] = float(penalty.detach().mean())
            loss = loss + self.kl_coef * penalty
        return LossTerms(loss, torch.ones_like(loss), metrics)
