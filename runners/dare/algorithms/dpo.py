"""DPO: the log-likelihoods of a pair replaced by one-view ELBO estimates (LLaDA2.0, arXiv 2512.15745)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dare.algorithm import PairedPreference
from dare.forward_process import RowGenerators, hide_by_chance
from dare.types import Credit, NoisyViews, Rollout


@dataclass(frozen=True, kw_only=True)
class DPO(PairedPreference):
    """One view per answer, each token hidden with a probability drawn once and weighted by its inverse."""

    published_for: ClassVar[frozenset[str]] = frozenset({"block"})

    def forward_process(self, rollout: Rollout, credit: Credit, mask_id: int, generators: RowGenerators) -> NoisyViews:
        return hide_by_chance(rollout, credit, 1e-3, mask_id, generators)
