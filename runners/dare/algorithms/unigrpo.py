"""UniGRPO: GRPO on the tokens that a uniformly random mask ratio hides, the prompt always shown (arXiv 2505.15809)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dare.algorithm import GRPO
from dare.forward_process import RowGenerators, hide_by_chance
from dare.types import Credit, NoisyViews, Rollout


@dataclass(frozen=True, kw_only=True)
class UniGRPO(GRPO):
    """One view per completion and inner epoch, each hidden token scored by its plain log-probability.

    Tokens are not weighted by the inverse of the mask ratio, so that no ratio is inflated, and the loss is the mean
    over all hidden tokens: a view that hides more counts more.
    """

    kl_coef: float = 0.01
    """Weight of the k3 penalty towards the frozen reference. The paper has the term and no number; this one is ours."""

    def forward_process(self, rollout: Rollout, credit: Credit, mask_id: int, generators: RowGenerators) -> NoisyViews:
        # The paper's text draws every inner epoch's ratio uniformly, its algorithm 1 spaces them evenly between a
        # random start and 1. Epochs here are drawn apart from each other, so it is the text that is followed.
        views = hide_by_chance(rollout, credit, 0.0, mask_id, generators)
        return replace(views, coef=views.score.to(views.coef.dtype))
