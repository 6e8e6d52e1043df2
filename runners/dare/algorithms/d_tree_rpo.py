"""d-TreeRPO: partly decoded answers as nodes of a tree, each compared with its siblings (arXiv 2512.09675)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dare.algorithm import GRPO
from dare.forward_process import RowGenerators, added_tokens, recorded_tree, replay_edges
from dare.objectives import AdvantageKind, group_advantages
from dare.types import Credit, LossTerms, NoisyViews, Rollout, RolloutSpec, TreeShape

COLDEST = 0.05
"""The distillation temperature ends here instead of at 0, where softmax is not defined."""


@dataclass(frozen=True, kw_only=True)
class DTreeRPO(GRPO):
    """Mean over the edges of a tree of the mean over the tokens that a child adds to its parent, scored in the parent.

    And the parent is drawn to what its better children became, ever more as training goes on: lambda KL(q || p), q
    weighing the siblings with a positive advantage by softmax(A / tau), mean over positions, then over parents.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"old", "full"})
    record: ClassVar[frozenset[str]] = frozenset({"tree"})

    advantage: AdvantageKind = "rloo"
    """How the value of a node becomes an advantage among its siblings."""
    clip_low: float = 0.4
    clip_high: float = 0.4
    kl_coef: float = 0.01
    root_children: int = 4
    """Beginnings of a prompt."""
    children: int = 4
    """Of every node below the root."""
    depth: int = 2
    """Edges from the root to a completion."""
    distillation: float = 3e-3
    """Weight of the distillation when the budget is spent; 0 leaves it out."""
    distillation_growth: float = 2.0
    """How late its weight rises; 0 is evenly."""
    tau: float = 2.0
    """Temperature of the siblings' weights in the beginning."""
    tau_decay: float = 0.7
    """It falls as (1 - progress) to this power."""

    def rollout(self) -> RolloutSpec:
        shape = TreeShape(self.root_children, self.children, self.depth)
        return RolloutSpec(sampler="tree", record=frozenset({"tree"}), tree=shape)

    def credit(self, rollout: Rollout, generator: torch.Generator) -> Credit:
        tree = recorded_tree(rollout)
        child = (tree.parent >= 0).nonzero().flatten()
        advantage = group_advantages(tree.value[child], tree.parent[child], self.advantage)
        length = added_tokens(rollout)[child].sum(1).to(advantage.dtype)
        return Credit(tree.row[child], advantage, length, torch.full_like(advantage, 1 / len(child)), child)

    def forward_process(self, rollout: Rollout, credit: Credit, mask_id: int, generators: RowGenerators) -> NoisyViews:
        return replay_edges(rollout, credit)

    def reduce(self, loss: Tensor, scored: Tensor, credit: Credit) -> tuple[Tensor, Tensor]:
        return loss.sum(1) / scored.sum(1).clamp(min=1), scored.any(1).to(loss.dtype)

    def aux_loss(self, logp_full: Tensor, credit: Credit, views: NoisyViews, progress: float) -> LossTerms:
        _, parent = torch.unique(views.ids, dim=0, return_inverse=True)
        advantage = credit.advantage[views.unit].double()
        view, column = views.score.nonzero(as_tuple=True)
        better = (advantage[view] > 0).nonzero().flatten()
        view, column = view[better], column[better]
        if not len(view):
            return LossTerms(logp_full.new_zeros(0), logp_full.new_zeros(0))
        best = torch.zeros_like(advantage).scatter_reduce(0, parent, advantage, "amax")[parent]
        weight = torch.exp((advantage - best) / self.distillation_tau(progress))[view]
        owner, token = parent[view], views.target[view, column]
        places, place = torch.unique(torch.stack((owner, column)), dim=1, return_inverse=True)
        _, outcome = torch.unique(torch.stack((place, token)), dim=1, return_inverse=True)
        share = weight / torch.zeros_like(weight).index_add(0, place, weight)[place]
        q = torch.zeros_like(share).index_add(0, outcome, share)[outcome]
        logp = logp_full[better].gather(1, token[:, None]).squeeze(1)
        gap = (share * (q.log() - logp)).to(logp_full.dtype)
        parents, owner = torch.unique(owner, return_inverse=True)
        divergence = torch.zeros(len(parents), dtype=gap.dtype).index_add(0, owner, gap)
        divergence = divergence / torch.bincount(places[0])[parents]
        return LossTerms(self.distillation_weight(progress) * divergence, torch.ones_like(divergence))

    def distillation_weight(self, progress: float) -> float:
        """Rises from 0 to `distillation`."""
        growth = self.distillation_growth
        return self.distillation * (math.expm1(growth * progress) / math.expm1(growth) if growth else progress)

    def distillation_tau(self, progress: float) -> float:
        """Falls from `tau` to nearly 0."""
        return max(self.tau * math.pow(1 - progress, self.tau_decay), COLDEST)

    @property
    def requires(self) -> frozenset[str]:
        return super().requires - (frozenset() if self.distillation else {"full"})
