"""VRPO: DPO with its estimation budget spent on noise levels, one mask each (LLaDA 1.5, arXiv 2505.19223)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dare.algorithm import PairedPreference
from dare.forward_process import RowGenerators, hide_counts
from dare.types import Credit, NoisyViews, Rollout


@dataclass(frozen=True, kw_only=True)
class VRPO(PairedPreference):
    """An exact number of hidden tokens per view, stratified, and the same masks for policy and reference.

    The bias of a noisy margin inside the log-sigmoid falls with its variance. For a fixed budget the variance is
    smallest with one mask per noise level, and shared masks remove what policy and reference have in common.
    """

    published_for: ClassVar[frozenset[str]] = frozenset({"masked"})

    beta: float = 0.2
    """Inverse temperature of the preference, per nat of the margin."""
    mc_samples: int = 8
    """Views per answer: the budget of noise levels."""

    def forward_process(self, rollout: Rollout, credit: Credit, mask_id: int, generators: RowGenerators) -> NoisyViews:
        return hide_counts(rollout, credit, self.mc_samples, mask_id, generators)
