"""GDPO: one clipped ratio per completion, of ELBOs integrated over the noise level by quadrature (arXiv 2510.08554)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dare.algorithm import GRPO, clipped_sequences
from dare.forward_process import RowGenerators, views_of
from dare.objectives import AdvantageKind, k2, per_unit
from dare.types import Credit, LossTerms, NoisyViews, Rollout


@dataclass(frozen=True, kw_only=True)
class GDPO(GRPO):
    """Noise levels are the nodes of a Gauss-Legendre rule, the same in every draw; only the masks are random.

    For masks drawn token by token the integrand is a polynomial of degree L - 1 in the level, so that n nodes are
    unbiased up to L = 2 n, and beyond as good as the integrand is smooth. The ratio is of whole sequences; the
    objective of a completion is divided by its length (eq. 6).
    """

    advantage: AdvantageKind = "centred"
    kl_coef: float = 0.0
    """Weight of the k2 penalty per token towards the frozen reference; 0 leaves the reference out."""
    largest_ratio: float = 3.0
    """Dual clip, our guard: a larger ratio counts as this one where A < 0 and the clip sets no bound."""
    nodes: int = 3
    """Noise levels, and so views, per completion."""

    def forward_process(self, rollout: Rollout, credit: Credit, mask_id: int, generators: RowGenerators) -> NoisyViews:
        level, weight = _gauss_legendre(self.nodes)
        completion = rollout.completion[credit.row]
        hidden = torch.zeros(len(completion), self.nodes, completion.shape[1], dtype=torch.bool)
        for u, generator in enumerate(generators):
            tokens = int(completion[u].sum())
            # by chance, as the ELBO says: the nearest whole number of tokens, as in public code, is biased
            hidden[u][:, completion[u]] = torch.rand(self.nodes, tokens, generator=generator) < level[:, None]
        unit = torch.arange(len(completion)).repeat_interleave(self.nodes)
        coef = (weight / level).to(credit.advantage.dtype).repeat(len(completion))
        hidden = hidden.flatten(0, 1)
        return views_of(rollout, credit, unit, hidden, hidden, coef[:, None].expand(hidden.shape), mask_id)

    def loss(
        self, logp: Tensor, old: Tensor | None, ref: Tensor | None, credit: Credit, views: NoisyViews
    ) -> LossTerms:
        assert old is not None
        units = len(credit.advantage)
        log_ratio = per_unit((logp - old) * views.coef, views, units)
        clip = (self.clip_low, self.clip_high, self.largest_ratio)
        loss, metrics = clipped_sequences(log_ratio, credit.advantage, *clip)
        if ref is not None and self.kl_coef:
            penalty = k2(per_unit((logp - ref) * views.coef, views, units))
            metrics["kl"] = float((penalty.detach() / credit.length).mean())
            loss = loss + self.kl_coef * penalty
        return LossTerms(loss / credit.length, torch.ones_like(loss), metrics)


def _gauss_legendre(points: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights on (0, 1): eigenvalues of the recurrence of Legendre polynomials (Golub and Welsch)."""
    k = torch.arange(1, points, dtype=torch.float64)
    beside = k / (4 * k**2 - 1).sqrt()
    node, vector = torch.linalg.eigh(beside.diag(1) + beside.diag(-1))
    return (1 + node) / 2, vector[0] ** 2
