"""d1 (diffu-GRPO): GRPO on one fully masked view of the answer, part of the prompt hidden too (arXiv 2504.12216)."""

from __future__ import annotations

from dataclasses import dataclass

from dare.algorithm import GRPO
from dare.forward_process import RowGenerators, hide_everything, hide_prompt_too
from dare.objectives import AdvantageKind
from dare.types import Credit, NoisyViews, Rollout


@dataclass(frozen=True, kw_only=True)
class D1(GRPO):
    """The mean-field likelihood under random prompt corruption: one gradient-carrying forward per completion."""

    advantage: AdvantageKind = "centred"
    clip_low: float = 0.5
    clip_high: float = 0.5
    kl_coef: float = 0.04
    prompt_mask: float = 0.15
    """Probability of hiding a prompt token, drawn anew for each inner epoch."""

    def forward_process(self, rollout: Rollout, credit: Credit, mask_id: int, generators: RowGenerators) -> NoisyViews:
        views = hide_everything(rollout, credit, mask_id)
        return hide_prompt_too(views, rollout, credit, self.prompt_mask, mask_id, generators)
