"""CJ-GRPO: GRPO along the decoding trajectory, each step scored in the state it was taken in (arXiv 2509.23924)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dare.algorithm import GRPO
from dare.forward_process import RowGenerators, replay_steps, step_map_of, steps_of
from dare.objectives import group_advantages
from dare.types import Credit, NoisyViews, Rollout


@dataclass(frozen=True, kw_only=True)
class CJGRPO(GRPO):
    """Token mean within a step, mean over the steps of a completion, mean over completions.

    A unit is a (completion, step) in which at least one completion token was decided. Approximate caches and token
    edits would make the replayed states differ from those that were sampled; the sampler records no step map then.
    """

    published_for: ClassVar[frozenset[str]] = frozenset({"masked", "block"})
    record: ClassVar[frozenset[str]] = frozenset({"step_map"})

    def credit(self, rollout: Rollout, generator: torch.Generator) -> Credit:
        advantage = group_advantages(rollout.reward, rollout.group, self.advantage)
        row, step = steps_of(rollout)
        decided = rollout.completion[row] & (step_map_of(rollout)[row] == step[:, None])
        steps_per_row = torch.bincount(row, minlength=len(advantage)).to(advantage.dtype)
        return Credit(
            row=row,
            advantage=advantage[row],
            length=decided.sum(1).to(advantage.dtype),
            weight=1 / (steps_per_row[row] * len(advantage)),
            part=step,
        )

    def forward_process(self, rollout: Rollout, credit: Credit, mask_id: int, generators: RowGenerators) -> NoisyViews:
        return replay_steps(rollout, credit, mask_id)

    def reduce(self, loss: Tensor, scored: Tensor, credit: Credit) -> tuple[Tensor, Tensor]:
        return loss.sum(1) / scored.sum(1).clamp(min=1) * credit.weight, credit.weight
