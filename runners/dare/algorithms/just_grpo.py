"""JustGRPO: GRPO on the exact likelihood of a diffusion model that is decoded left to right (arXiv 2601.15165)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dare.algorithm import GRPO, completion_credit
from dare.forward_process import RowGenerators, views_of
from dare.objectives import group_advantages
from dare.types import Credit, NoisyViews, Rollout, RolloutSpec

STANDARD_DEVIATION_FLOOR = 1e-4
"""The authors' constant beside the standard deviation of a group; GRPO here has 1e-6."""


@dataclass(frozen=True, kw_only=True)
class JustGRPO(GRPO):
    """A token is scored where it was drawn: what stands before it is shown, the window from it on is hidden.

    Nothing is estimated, at the cost of one forward per token. In the first update, with the advantage `rloo`, the
    expected gradient is that of the decoder's expected reward, whatever the model; `grpo` divides by a group's spread.
    """

    def rollout(self) -> RolloutSpec:
        return RolloutSpec(sampler="left_to_right")

    def credit(self, rollout: Rollout, generator: torch.Generator) -> Credit:
        reward, group = rollout.reward, rollout.group
        credit = completion_credit(
            rollout, group_advantages(reward, group, self.advantage, floor=STANDARD_DEVIATION_FLOOR)
        )
        # One over the window, equal for all rows: each over its own length would weight short answers more.
        return replace(credit, weight=1 / rollout.window.sum(1).to(credit.weight.dtype))

    def forward_process(self, rollout: Rollout, credit: Credit, mask_id: int, generators: RowGenerators) -> NoisyViews:
        unit, place = rollout.completion[credit.row].nonzero(as_tuple=True)
        column = torch.arange(rollout.ids.shape[1])
        hidden = rollout.window[credit.row[unit]] & (column >= place[:, None])
        score = column == place[:, None]
        return views_of(rollout, credit, unit, hidden, score, score.to(credit.advantage.dtype), mask_id)

    def reduce(self, loss: Tensor, scored: Tensor, credit: Credit) -> tuple[Tensor, Tensor]:
        return loss.sum(1) * credit.weight, torch.ones_like(credit.weight)
