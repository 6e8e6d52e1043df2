"""SPG: a policy gradient on a lower bound where A > 0 and on one mixed with an upper where not (arXiv 2510.09541)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dare.algorithm import Algorithm, completion_credit
from dare.forward_process import RowGenerators, views_of
from dare.objectives import AdvantageKind, group_advantages, per_token, per_unit
from dare.types import Credit, LossTerms, NoisyViews, Rollout


@dataclass(frozen=True, kw_only=True)
class SPG(Algorithm):
    """No ratio, no clip and no penalty: -A times the bound, completions weighted by their length.

    Lower: the mean log-probability of the hidden tokens. Upper: (1 / beta) log of the mean of p^beta over the views,
    token by token. The upper one bounds log p only if the conditionals agree with one joint distribution, which those
    of a trained model need not; it never lies below the ELBO.
    """

    needs: ClassVar[frozenset[str]] = frozenset()

    advantage: AdvantageKind = "centred"
    """How a reward becomes an advantage within its group."""
    mc_samples: int = 2
    """Views per completion. With one the two bounds have the same gradient, and the mixture means nothing."""
    beta: float = 1.5
    """Power of the probabilities in the upper bound, which rises with it."""
    omega: float = 0.5
    """Share of the upper bound where the advantage is negative; 1 is the upper bound alone."""
    block_length: int = 32
    """Length of the blocks that are hidden as a decoder block by block would see them."""
    visible_mask: float = 0.15
    """Probability of hiding a prompt token, or a completion token of an earlier block."""

    def credit(self, rollout: Rollout, generator: torch.Generator) -> Credit:
        return completion_credit(rollout, group_advantages(rollout.reward, rollout.group, self.advantage))

    def forward_process(self, rollout: Rollout, credit: Credit, mask_id: int, generators: RowGenerators) -> NoisyViews:
        """In a random block a random number of tokens is hidden, behind it everything, before it a few."""
        unit = torch.arange(len(credit.row)).repeat_interleave(self.mc_samples)
        row = credit.row[unit]
        hidden = rollout.window[row]  # copies; also behind the end of sequence
        for view, (u, r) in enumerate(zip(unit.tolist(), row.tolist(), strict=True)):
            hidden[view, rollout.valid[r]] = self._hidden(rollout, r, generators[u])
        score = hidden & rollout.completion[row]
        coef = credit.length[unit] / score.sum(1)  # one over the share of the completion that is hidden
        return views_of(rollout, credit, unit, hidden, score, coef[:, None].expand(score.shape), mask_id)

    def _hidden(self, rollout: Rollout, row: int, generator: torch.Generator) -> Tensor:
        """What one view hides of the prompt and window of a row."""
        window = rollout.window[row, rollout.valid[row]]
        length = int(rollout.completion[row].sum())
        place = torch.where(window, window.cumsum(0) - 1, -1)  # within the window
        block = int(torch.randint(0, math.ceil(length / self.block_length), (), generator=generator))
        start, end = block * self.block_length, min((block + 1) * self.block_length, length)
        count = int(torch.randint(1, end - start + 1, (), generator=generator))
        inside = start + torch.randperm(end - start, generator=generator)[:count]
        early = torch.rand(len(place), generator=generator) < self.visible_mask
        return torch.where(place < start, early, torch.isin(place, inside) | (place >= end))

    def loss(
        self, logp: Tensor, old: Tensor | None, ref: Tensor | None, credit: Credit, views: NoisyViews
    ) -> LossTerms:
        units = len(credit.advantage)
        lower = per_unit(logp, views, units) / per_unit(views.score.to(logp.dtype), views, units)
        upper = self._upper(logp, views, units)
        bound = torch.where(credit.advantage > 0, lower, self.omega * upper + (1 - self.omega) * lower)
        gap = float((upper - lower).detach().mean())
        return LossTerms(-credit.advantage * bound * credit.length, credit.length, {"bound_gap": gap})

    def _upper(self, logp: Tensor, views: NoisyViews, units: int) -> Tensor:
        """(1 / beta) times the mean over the tokens hidden at least once of log mean_views(coef p^beta), [U]."""
        term = self.beta * logp + views.coef.to(logp.dtype).log()  # -inf where a view shows the token
        owner = views.unit[:, None].expand_as(term)
        top = torch.full((units, term.shape[1]), -math.inf, dtype=term.dtype)
        top = top.scatter_reduce(0, owner, term.detach(), "amax")
        seen = top > -math.inf
        top = torch.where(seen, top, 0)  # taken out of the exponential, so that no difference is too large
        total = per_token(torch.exp(term - top[views.unit]), views, units)
        views_each = torch.bincount(views.unit, minlength=units).to(term.dtype)
        mean = torch.where(seen, total, 1).log() + top - views_each.log()[:, None]
        return (mean * seen).sum(1) / seen.sum(1) / self.beta
