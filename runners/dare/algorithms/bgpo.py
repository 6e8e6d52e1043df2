"""BGPO: a lower bound of the ELBO objective that is linear in the Monte Carlo samples (arXiv 2510.11683)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dare.algorithm import Algorithm, completion_credit, drift
from dare.forward_process import RowGenerators, hide_counts
from dare.objectives import AdvantageKind, group_advantages, ratio, views_per_unit
from dare.types import Credit, LossTerms, NoisyViews, Rollout


@dataclass(frozen=True, kw_only=True)
class BGPO(Algorithm):
    """The sequence ratio exp(mean of d_j) is replaced by mean(1 + d_j) where A >= 0 and by mean(exp d_j) where A < 0.

    d_j is the change of the j-th one-view ELBO estimate per completion token. Both replacements bound the objective
    from below (1 + x <= e^x, Jensen) and are tight in value and gradient at the behaviour policy.
    """

    published_for: ClassVar[frozenset[str]] = frozenset({"masked", "block"})

    advantage: AdvantageKind = "grpo"
    """How a reward becomes an advantage within its group."""
    mc_samples: int = 16
    """Views per completion, stratified over the number of hidden tokens."""

    def credit(self, rollout: Rollout, generator: torch.Generator) -> Credit:
        return completion_credit(rollout, group_advantages(rollout.reward, rollout.group, self.advantage))

    def forward_process(self, rollout: Rollout, credit: Credit, mask_id: int, generators: RowGenerators) -> NoisyViews:
        return hide_counts(rollout, credit, self.mc_samples, mask_id, generators)

    def loss(
        self, logp: Tensor, old: Tensor | None, ref: Tensor | None, credit: Credit, views: NoisyViews
    ) -> LossTerms:
        assert old is not None
        change = ((logp - old) * views.coef).sum(1) / credit.length[views.unit]  # d_j, (n,)
        advantage = credit.advantage[views.unit]
        bound = torch.where(advantage >= 0, 1 + change, ratio(change))
        units = len(credit.advantage)
        total = torch.zeros(units, dtype=logp.dtype).index_add(0, views.unit, -advantage * bound)
        return LossTerms(total / views_per_unit(views, units, logp.dtype), torch.ones_like(total), drift(change))
