"""An entry to copy: d1 that believes praise more than blame."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from dare.algorithms.d1 import D1
from dare.types import Credit, Rollout


@dataclass(frozen=True, kw_only=True)
class GentleD1(D1):
    """d1, with negative advantages multiplied by `blame`: wrong answers push less than right ones pull."""

    blame: float = 0.5
    """Factor on negative advantages; 1 is d1."""

    def credit(self, rollout: Rollout, generator: torch.Generator) -> Credit:
        credit = super().credit(rollout, generator)
        softened = torch.where(credit.advantage < 0, self.blame * credit.advantage, credit.advantage)
        return replace(credit, advantage=softened)
