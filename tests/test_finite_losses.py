"""However far the policy has moved, every loss and its gradient are numbers; methods are enrolled by existing."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tiny import tiny
from torch import Tensor

from dare.algorithm import algorithm_names, load_algorithm
from dare.check import _batch, _Case
from dare.objectives import LARGEST_LOG_RATIO, clipped_surrogate, k3, ratio
from dare.spec import AlgorithmSpec

DRIFTS = (-1e3, -50.0, 0.0, 50.0, 1e3)


@pytest.mark.parametrize("name", algorithm_names())
def test_loss_and_gradient_are_finite_for_any_log_ratio(name: str) -> None:
    """All tokens, every other token, or the first view alone moved by up to a thousand nats, either way."""
    algorithm = load_algorithm(AlgorithmSpec(name=name))
    backbone = tiny("llada")
    case = _Case(algorithm, backbone, _batch(algorithm, backbone, 0), 0)
    credit = case.credit()
    views = case.views(case.rollout, credit)
    with torch.no_grad():
        scored = backbone.logprobs(backbone.model, views)
    old = scored if "old" in algorithm.requires else None
    ref = scored if "ref" in algorithm.requires else None
    width = torch.arange(scored.shape[1])
    first = torch.zeros_like(scored)
    first[0] = 1
    for drift in DRIFTS:
        for pattern in (torch.ones_like(scored), 1 - 2 * (width % 2).expand_as(scored), first):
            logp = (scored + drift * pattern * views.score).requires_grad_(True)
            terms = algorithm.loss(logp, old, ref, credit, views)
            assert math.isfinite(float(terms.num.detach().sum()))
            assert all(math.isfinite(value) for value in terms.metrics.values())
            (gradient,) = torch.autograd.grad(terms.num.sum(), logp)
            assert bool(torch.isfinite(gradient).all())
            assert math.isfinite(float(gradient.norm()))


def slope(function: Any, at: Tensor) -> tuple[Tensor, Tensor]:
    at = at.clone().requires_grad_(True)
    value = function(at)
    return value.detach(), torch.autograd.grad(value.sum(), at)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_ratio_is_the_exponential_and_then_its_tangent(dtype: torch.dtype) -> None:
    grid = torch.linspace(-1000, 1000, 4001, dtype=dtype)
    value, gradient = slope(ratio, grid)
    inside = grid <= LARGEST_LOG_RATIO
    assert torch.equal(value[inside], grid[inside].exp())
    assert torch.equal(gradient[inside], grid[inside].exp())
    assert bool((gradient[~inside] == torch.tensor(LARGEST_LOG_RATIO, dtype=dtype).exp()).all())
    assert bool((value.diff() >= 0).all())
    assert bool((gradient.diff() >= 0).all())  # convex
    assert bool((value >= 1 + grid - 1e-4).all())  # above its tangent at 0, on which the bounds of BGPO and k3 rest


def test_a_token_that_ran_away_is_still_pulled_back() -> None:
    away = torch.tensor([-1e3, -50.0, 50.0, 1e3])
    _, gradient = slope(lambda d: clipped_surrogate(d, torch.full_like(d, -1.0), 0.2, 0.2), away)
    assert gradient.tolist() == [0, 0, pytest.approx(math.exp(20)), pytest.approx(math.exp(20))]
    _, gradient = slope(lambda d: clipped_surrogate(d, torch.full_like(d, 1.0), 0.2, 0.2), away)
    assert gradient.tolist() == [0, pytest.approx(-math.exp(-50), abs=1e-20), 0, 0]
    value, gradient = slope(k3, away)
    assert bool((value > 0).all())
    assert bool((gradient * away > 0).all())  # towards equality from both sides
