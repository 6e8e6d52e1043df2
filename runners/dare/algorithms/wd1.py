"""wd1: no ratio, but a log-likelihood weighted by softmax(A) minus softmax(-A) over the group (arXiv 2507.08838)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from dare.algorithm import Algorithm, completion_credit
from dare.forward_process import RowGenerators, hide_everything, hide_prompt_too
from dare.objectives import AdvantageKind, group_advantages, per_unit
from dare.types import Credit, LossTerms, NoisyViews, Rollout


@dataclass(frozen=True, kw_only=True)
class WD1(Algorithm):
    """The likelihood is d1's mean-field one, summed over tokens; only the current policy is scored.

    The weights sum to 0 in every group, and are exactly 0 where all rewards are equal. The half that unlearns is not
    bounded from below: nothing but the learning rate and the number of inner epochs restrains it.
    """

    needs: ClassVar[frozenset[str]] = frozenset()

    advantage: AdvantageKind = "centred"
    """How a reward becomes an advantage within its group."""
    sharpness: float = 1.0
    """Factor of A in both softmaxes: a large one leaves the best and the worst completion alone with all the weight."""
    prompt_mask: float = 0.15
    """Probability of hiding a prompt token, drawn anew for each inner epoch."""

    def credit(self, rollout: Rollout, generator: torch.Generator) -> Credit:
        scaled = self.sharpness * group_advantages(rollout.reward, rollout.group, self.advantage)
        # The softmax runs over a prompt's completions. Public code takes it over whatever shares a device.
        together = rollout.group[:, None] == rollout.group  # (N, N)
        learn, unlearn = (torch.where(together, sign * scaled, -torch.inf).softmax(1).diagonal() for sign in (1, -1))
        credit = completion_credit(rollout, learn - unlearn)
        return replace(credit, weight=1 / together.sum(1).to(scaled.dtype))  # every group counts once

    def forward_process(self, rollout: Rollout, credit: Credit, mask_id: int, generators: RowGenerators) -> NoisyViews:
        views = hide_everything(rollout, credit, mask_id)
        return hide_prompt_too(views, rollout, credit, self.prompt_mask, mask_id, generators)

    def loss(
        self, logp: Tensor, old: Tensor | None, ref: Tensor | None, credit: Credit, views: NoisyViews
    ) -> LossTerms:
        likelihood = per_unit(logp * views.coef, views, len(credit.advantage))
        return LossTerms(-credit.advantage * likelihood, credit.weight)
