"""ESPO: one clipped ratio per sequence, exp of the ELBO's change per token, with a k2 penalty (arXiv 2512.03759)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dare.algorithm import GRPO, clipped_sequences
from dare.forward_process import RowGenerators, hide_set_and_rest
from dare.objectives import AdvantageKind, k2, per_unit
from dare.types import Credit, LossTerms, NoisyViews, Rollout


@dataclass(frozen=True, kw_only=True)
class ESPO(GRPO):
    """Views come in pairs: k ~ U{0..L} random tokens are hidden in one, the other L - k in its complement.

    The L of the ratio is the number of completion tokens, never the width of the window: padding would shrink every
    log-ratio. The ratio is taken of the estimate, after the mean over views, not of each view.
    """

    advantage: AdvantageKind = "rloo"
    kl_coef: float = 1e-3
    """Weight of the k2 penalty per token towards the frozen reference; 0 leaves the reference out."""
    pairs: int = 1
    """Pairs of complementary views per completion; the count k is drawn anew for each."""

    def forward_process(self, rollout: Rollout, credit: Credit, mask_id: int, generators: RowGenerators) -> NoisyViews:
        completion = rollout.completion[credit.row]
        chosen = torch.zeros_like(completion).repeat_interleave(self.pairs, 0)
        for u, generator in enumerate(generators):
            positions = completion[u].nonzero().flatten()
            for pair in range(self.pairs):
                # the authors spread k over the batch; drawn for each row alone, no view depends on other rows
                count = int(torch.randint(0, len(positions) + 1, (), generator=generator))
                order = torch.randperm(len(positions), generator=generator)
                chosen[u * self.pairs + pair, positions[order[:count]]] = True
        unit = torch.arange(len(credit.row)).repeat_interleave(self.pairs)
        length, hidden = credit.length[unit], chosen.sum(1)
        # weight (L + 1) / k, averaged over all halves: an empty one counts as 0 and needs no forward
        weight, rest = ((length + 1) / k.clamp(min=1) / (2 * self.pairs) for k in (hidden, length - hidden))
        return hide_set_and_rest(rollout, credit, unit, chosen, weight, rest, mask_id)

    def loss(
        self, logp: Tensor, old: Tensor | None, ref: Tensor | None, credit: Credit, views: NoisyViews
    ) -> LossTerms:
        assert old is not None
        units = len(credit.advantage)
        log_ratio = per_unit((logp - old) * views.coef, views, units) / credit.length
        loss, metrics = clipped_sequences(log_ratio, credit.advantage, self.clip_low, self.clip_high)
        if ref is not None and self.kl_coef:
            penalty = k2(per_unit((logp - ref) * views.coef, views, units)) / credit.length
            metrics["kl"] = float(penalty.detach().mean())
            loss = loss + self.kl_coef * penalty
        return LossTerms(loss, torch.ones_like(loss), metrics)
