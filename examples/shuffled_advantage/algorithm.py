"""The control of the tiny track: d1 whose advantages are dealt out at random."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from dare.algorithms.d1 import D1
from dare.types import Credit, Rollout


@dataclass(frozen=True, kw_only=True)
class ShuffledAdvantage(D1):
    """d1 in everything but one thing: who gets which advantage is drawn at random, so the reward cannot be learned."""

    def credit(self, rollout: Rollout, generator: torch.Generator) -> Credit:
        credit = super().credit(rollout, generator)
        dealt = torch.randperm(len(credit.advantage), generator=generator)
        return replace(credit, advantage=credit.advantage[dealt])
