"""SFT: the masked diffusion loss on demonstrations, normalised by answer length (LLaDA, arXiv 2502.09992, eq. 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dare.algorithm import Algorithm, completion_credit
from dare.forward_process import RowGenerators, hide_by_chance
from dare.objectives import per_unit
from dare.types import Credit, LossTerms, NoisyViews, Rollout


@dataclass(frozen=True, kw_only=True)
class SFT(Algorithm):
    """Each answer token is hidden with probability t ~ U(1e-3, 1) and weighted by 1 / t.

    The denominator is the number of answer tokens, never the number of masked ones: dividing by those leaves a 1 / t
    weight in the loss. For block families the same draw gives the block ELBO, in the doubled view.
    """

    published_for: ClassVar[frozenset[str]] = frozenset({"masked", "block"})
    trains_on: ClassVar = "demonstrations"
    needs: ClassVar[frozenset[str]] = frozenset()

    smallest_t: float = 1e-3
    """Lower end of the noise level: bounds the weight of one token."""

    def credit(self, rollout: Rollout, generator: torch.Generator) -> Credit:
        return completion_credit(rollout, torch.ones(len(rollout.ids)))

    def forward_process(self, rollout: Rollout, credit: Credit, mask_id: int, generators: RowGenerators) -> NoisyViews:
        return hide_by_chance(rollout, credit, self.smallest_t, mask_id, generators)

    def loss(
        self, logp: Tensor, old: Tensor | None, ref: Tensor | None, credit: Credit, views: NoisyViews
    ) -> LossTerms:
        return LossTerms(-per_unit(logp * views.coef, views, len(credit.length)), credit.length)
