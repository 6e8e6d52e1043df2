"""Advantages, clipped surrogates, KL estimators and the reductions of views to units: each once.

Formulas and their numeric oracles: docs/architecture and the tests. All functions are pure and differentiable.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dare.types import NoisyViews

AdvantageKind = Literal["centred", "rloo", "grpo"]
STANDARD_DEVIATION_FLOOR = 1e-6
LARGEST_LOG_RATIO = 20.0
"""Where `ratio` leaves the exponential: its square, its sums and their weights are still far from float32's limit."""


class GroupOfOneError(ValueError):
    """A group has fewer than two members, so there is nothing to compare a reward with."""


def group_advantages(
    reward: Float[Tensor, " N"],
    group: Int[Tensor, " N"],
    kind: AdvantageKind,
    floor: float = STANDARD_DEVIATION_FLOOR,
) -> Float[Tensor, " N"]:
    """Advantage of each completion within its group; groups are formed by id, never by position.

    centred: r - mean. rloo: r - mean of the others. grpo: (r - mean) / (std with ddof 1 + floor).
    A group of equal rewards gets exactly 0. Raises GroupOfOneError for a group with one member.
    """
    _, member = torch.unique(group, return_inverse=True)
    groups = int(member.max()) + 1 if len(member) else 0
    size = torch.zeros(groups, dtype=reward.dtype).index_add(0, member, torch.ones_like(reward))
    if bool((size < 2).any()):
        raise GroupOfOneError(
            f"{int((size < 2).sum())} of {groups} groups have one completion; an advantage needs two or more per prompt"
        )
    mean = torch.zeros(groups, dtype=reward.dtype).index_add(0, member, reward) / size
    centred = reward - mean[member]
    low = torch.full((groups,), math.inf, dtype=reward.dtype).scatter_reduce(0, member, reward, "amin")
    high = torch.full((groups,), -math.inf, dtype=reward.dtype).scatter_reduce(0, member, reward, "amax")
    centred = torch.where((low == high)[member], torch.zeros_like(centred), centred)
    if kind == "rloo":
        return centred * (size / (size - 1))[member]
    if kind == "grpo":
        variance = torch.zeros(groups, dtype=reward.dtype).index_add(0, member, centred**2) / (size - 1)
        return centred / (variance.sqrt() + floor)[member]
    return centred


def zero_advantage_groups(advantage: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> float:
    """Share of groups in which no completion has an advantage: prompts without a learning signal."""
    _, member = torch.unique(group, return_inverse=True)
    largest = torch.zeros(int(member.max()) + 1, dtype=advantage.dtype).scatter_reduce(
        0, member, advantage.abs(), "amax"
    )
    return float((largest == 0).double().mean())


def ratio(log_ratio: Tensor) -> Tensor:
    """exp(log_ratio), continued by its tangent from LARGEST_LOG_RATIO on: finite in value and gradient, still convex.

    A cap would have no gradient, so that a token that ran away under a negative advantage would never be pulled back.
    """
    beyond = torch.relu(log_ratio - LARGEST_LOG_RATIO)
    return torch.exp(log_ratio.clamp(max=LARGEST_LOG_RATIO)) * (1 + beyond)


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, low: float, high: float) -> Tensor:
    """-min(rho A, clip(rho, 1 - low, 1 + high) A) elementwise, in the log domain; rho is `ratio`, finite everywhere."""
    bounded = torch.where(advantage >= 0, log_ratio.clamp(max=math.log1p(high)), log_ratio.clamp(min=math.log1p(-low)))
    return -advantage * ratio(bounded)


def clip_fraction(log_ratio: Tensor, advantage: Tensor, low: float, high: float) -> tuple[float, float]:
    """Shares of elements whose ratio the clip holds back: below (A < 0) and above (A > 0)."""
    below = (advantage < 0) & (log_ratio < math.log1p(-low))
    above = (advantage > 0) & (log_ratio > math.log1p(high))
    total = max(log_ratio.numel(), 1)
    return float(below.sum()) / total, float(above.sum()) / total


def k1(log_ratio: Tensor) -> Tensor:
    """log pi - log ref: unbiased for KL(pi || ref); its gradient with samples held fixed has expectation 0."""
    return log_ratio


def k2(log_ratio: Tensor) -> Tensor:
    """Half the squared log-ratio: the gradient's expectation is that of KL(pi || ref)."""
    return 0.5 * log_ratio**2


def k3(log_ratio: Tensor) -> Tensor:
    """exp(-d) - 1 + d, non-negative, with `ratio` as exp; the gradient's expectation is that of KL(ref || pi)."""
    return ratio(-log_ratio) - 1 + log_ratio


def per_unit(values: Float[Tensor, "n S"], views: NoisyViews, units: int) -> Float[Tensor, " U"]:
    """Sum of `values` over the positions and views of each unit."""
    return torch.zeros(units, dtype=values.dtype).index_add(0, views.unit, values.sum(1))


def per_token(values: Float[Tensor, "n S"], views: NoisyViews, units: int) -> Float[Tensor, "U S"]:
    """Sum of `values` over the views of each unit, position by position."""
    return torch.zeros(units, values.shape[1], dtype=values.dtype).index_add(0, views.unit, values)


def views_per_unit(views: NoisyViews, units: int, dtype: torch.dtype) -> Float[Tensor, " U"]:
    """How many views each unit has."""
    return torch.zeros(units, dtype=dtype).index_add(0, views.unit, torch.ones(len(views), dtype=dtype))
