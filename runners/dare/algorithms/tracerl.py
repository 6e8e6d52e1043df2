"""TraceRL: PPO along the decoding trajectory, tokens of equal share, neighbouring steps merged (arXiv 2509.06949)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from dare.algorithm import GRPO
from dare.forward_process import RowGenerators, replay_steps, step_map_of, steps_of
from dare.objectives import group_advantages
from dare.types import Credit, LossTerms, NoisyViews, Rollout


@dataclass(frozen=True, kw_only=True)
class TraceRL(GRPO):
    """Token losses are summed over a completion, divided by its length and averaged over completions.

    The advantage is GRPO's: the diffusion value model that the authors offer as an option is not here. A unit is a
    (completion, step) as in the replay, a step being `shrink` of the sampler's.
    """

    published_for: ClassVar[frozenset[str]] = frozenset({"block"})
    record: ClassVar[frozenset[str]] = frozenset({"step_map"})

    kl_coef: float = 0.01
    """Weight of the k3 penalty towards the behaviour policy; there is no reference."""
    shrink: int = 1
    """Neighbouring steps replayed as one, in the state before the first: fewer forwards, no longer exact above 1."""

    def credit(self, rollout: Rollout, generator: torch.Generator) -> Credit:
        advantage = group_advantages(rollout.reward, rollout.group, self.advantage)
        row, step = steps_of(self._merged(rollout))
        steps_per_row = torch.bincount(row, minlength=len(advantage)).to(advantage.dtype)
        return Credit(
            row=row,
            advantage=advantage[row],
            # of the whole completion: public code has the padded window here, by which short answers count less
            length=rollout.completion.sum(1).to(advantage.dtype)[row],
            weight=1 / steps_per_row[row],
            part=step,
        )

    def forward_process(self, rollout: Rollout, credit: Credit, mask_id: int, generators: RowGenerators) -> NoisyViews:
        return replay_steps(self._merged(rollout), credit, mask_id)

    def loss(
        self, logp: Tensor, old: Tensor | None, ref: Tensor | None, credit: Credit, views: NoisyViews
    ) -> LossTerms:
        return super().loss(logp, old, old, credit, views)

    def reduce(self, loss: Tensor, scored: Tensor, credit: Credit) -> tuple[Tensor, Tensor]:
        return loss.sum(1) / credit.length, credit.weight

    @property
    def requires(self) -> frozenset[str]:
        return self.needs

    def _merged(self, rollout: Rollout) -> Rollout:
        """Step n of the sampler is step ceil(n / shrink) here; the last of a block may join the first of the next."""
        step_map = (step_map_of(rollout) + self.shrink - 1) // self.shrink
        return replace(rollout, trace=replace(rollout.trace, step_map=step_map))
