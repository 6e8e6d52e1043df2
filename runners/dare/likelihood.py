"""How probable a policy finds a continuation: a lower bound of its log-likelihood, exact in form or by Monte Carlo.

A masked diffusion model has no likelihood that one forward gives. Averaged over all orders in which L tokens can be
revealed, the log-probability of revealing them is log p(tokens | context) or less (Jensen): the random-order ELBO. A
block model is bounded in the same way inside each block, given the blocks before it. For one token it is exactly the
model's log-probability. With few tokens all 2^L - 1 ways to hide some of them are scored, and nothing is random; with
more, `mc_samples` of them stand for all, stratified in their number, and the estimate is unbiased for the bound.

The cost of a continuation is a forward over context and continuation per way; a block family shares one clean copy.
Nothing follows the continuation: neither an end of turn, unless it is part of it, nor masks up to the end of a block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations

import torch

from dare.family import Backbone
from dare.forward_process import hide_counts, views_of
from dare.seeds import generator_for
from dare.types import Credit, NoisyViews, Rollout


@dataclass(frozen=True)
class Likelihood:
    """The bound for one continuation, in nats."""

    logp: float
    standard_error: float
    """Of the Monte Carlo; 0 where all ways were scored. Strata make the estimate better than this says."""
    tokens: int
    forwards: int


def log_likelihoods(
    backbone: Backbone,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    mc_samples: int,
    seed: int,
    batch: int,
) -> list[Likelihood]:
    """One bound for each (context, continuation). Continuations of equal length are hidden alike under one seed.

    That makes differences between the choices of a question less random than the bounds themselves.
    """
    found: dict[int, Likelihood] = {}
    for group in alike(pairs):
        parts = [_views(backbone, *pairs[index], mc_samples, seed) for index in group]
        views = NoisyViews.concatenate([replace(part, unit=part.unit + own) for own, part in enumerate(parts)])
        weighted = torch.cat([_scored(backbone, views, first, batch) for first in range(0, len(views), batch)])
        for index, own in zip(group, torch.split(weighted, [len(part) for part in parts]), strict=True):
            found[index] = _bound(own, len(pairs[index][1]), mc_samples)
    return [found[index] for index in range(len(pairs))]


def alike(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[int]]:
    """Indices of pairs that are as long together, which share forward passes: the letters of a question are one."""
    groups: dict[int, list[int]] = {}
    for index, (context, continuation) in enumerate(pairs):
        groups.setdefault(len(context) + len(continuation), []).append(index)
    return list(groups.values())


def _bound(weighted: torch.Tensor, tokens: int, mc_samples: int) -> Likelihood:
    views = len(weighted)
    if _enumerable(tokens, mc_samples):
        return Likelihood(float(weighted.sum()), 0.0, tokens, views)
    deviation = float(weighted.std()) / math.sqrt(views) if views > 1 else 0.0
    return Likelihood(float(weighted.mean()), deviation, tokens, views)


def _enumerable(tokens: int, mc_samples: int) -> bool:
    return tokens <= (mc_samples + 1).bit_length() - 1  # 2^tokens - 1 <= mc_samples, without the large number


def _views(
    backbone: Backbone, context: Sequence[int], continuation: Sequence[int], mc_samples: int, seed: int
) -> NoisyViews:
    length = len(continuation)
    ids = torch.tensor([[*context, *continuation]])
    everywhere = torch.ones_like(ids, dtype=torch.bool)
    window = everywhere.clone()
    window[:, : len(context)] = False
    zero, one = torch.zeros(1, dtype=torch.long), torch.ones(1, dtype=torch.float64)
    rollout = Rollout(ids, everywhere, window, window, group=zero, reward=one)
    credit = Credit(row=zero, advantage=one, length=one * length, weight=one, part=zero)
    if not _enumerable(length, mc_samples):
        return hide_counts(rollout, credit, mc_samples, backbone.mask_id, [generator_for(seed, "likelihood")])
    ways = [way for count in range(1, length + 1) for way in combinations(range(length), count)]
    hidden = torch.zeros(len(ways), ids.shape[1], dtype=torch.bool)
    for row, way in enumerate(ways):
        hidden[row, [len(context) + place for place in way]] = True
    weight = torch.tensor([1 / (len(way) * math.comb(length, len(way))) for way in ways], dtype=torch.float64)
    unit = torch.zeros(len(ways), dtype=torch.long)
    return views_of(rollout, credit, unit, hidden, hidden, weight[:, None].expand(hidden.shape), backbone.mask_id)


def _scored(backbone: Backbone, views: NoisyViews, first: int, batch: int) -> torch.Tensor:
    """Weighted log-probability of each of the views [first, first + batch)."""
    chunk = views.rows(slice(first, first + batch))
    device = next(backbone.model.parameters()).device
    there = NoisyViews(**{f.name: getattr(chunk, f.name).to(device) for f in fields(chunk)})
    with torch.no_grad():
        logp = backbone.logprobs(backbone.model, there)
    return (logp.double() * there.coef).sum(1).cpu()
