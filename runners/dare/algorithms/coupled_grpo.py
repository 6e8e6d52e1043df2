"""Coupled-GRPO: d1's likelihood mixed with that of two complementary masks (DiffuCoder, arXiv 2506.20639)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from dare.algorithm import GRPO
from dare.forward_process import RowGenerators, hide_everything, hide_set_and_rest
from dare.objectives import AdvantageKind
from dare.types import Credit, NoisyViews, Rollout


@dataclass(frozen=True, kw_only=True)
class CoupledGRPO(GRPO):
    """A token's score is half the sum of its log-probability with everything hidden and of its weighted coupled one.

    Each token is hidden with probability t in one view and in the other exactly if the first shows it, so that it is
    scored in one of the two, by weight 1 / t or 1 / (1 - t). These weights have expectation 2 a token, and a score in
    all 1.5: published, and kept. It scales the gradient, and the log-ratio of a policy that has moved.
    """

    advantage: AdvantageKind = "rloo"
    clip_low: float = 0.5
    clip_high: float = 0.5
    kl_coef: float = 0.01
    lowest_t: float = 0.2
    """Lower end of the uniform noise level t, which bounds the weight of one token."""
    highest_t: float = 0.8
    """Upper end of the noise level; equal ends fix it."""

    def forward_process(self, rollout: Rollout, credit: Credit, mask_id: int, generators: RowGenerators) -> NoisyViews:
        # one public version reseeds at every call and so trains on one mask for ever; here every unit draws its own
        completion = rollout.completion[credit.row]
        chosen = torch.zeros_like(completion)
        level = torch.zeros(len(credit.row), dtype=torch.float64)
        for u, generator in enumerate(generators):
            share = torch.rand((), generator=generator, dtype=torch.float64)
            level[u] = self.lowest_t + (self.highest_t - self.lowest_t) * share
            drawn = torch.rand(int(completion[u].sum()), generator=generator, dtype=torch.float64)
            chosen[u, completion[u]] = drawn < level[u]
        unit = torch.arange(len(credit.row))
        coupled = hide_set_and_rest(rollout, credit, unit, chosen, 0.5 / level, 0.5 / (1 - level), mask_id)
        full = hide_everything(rollout, credit, mask_id)
        return NoisyViews.concatenate([replace(full, coef=full.coef / 2), coupled])
