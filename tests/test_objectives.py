"""Advantages, surrogates and KL estimators against enumerated numbers and their defining properties."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dare.objectives import GroupOfOneError, clipped_surrogate, group_advantages, k1, k2, k3, zero_advantage_groups

GOLDENS = Path(__file__).parent / "goldens" / "algorithms"
GROUPS = json.loads((GOLDENS / "advantages.json").read_text())["groups"]
rewards = st.lists(st.floats(-5, 5), min_size=2, max_size=8)


@pytest.mark.parametrize("case", GROUPS, ids=lambda case: str(case["rewards"]))
def test_advantages_equal_the_enumerated_ones(case: dict[str, list[float]]) -> None:
    reward = torch.tensor(case["rewards"], dtype=torch.float64)
    group = torch.zeros(len(reward), dtype=torch.long)
    for kind, key in (("centred", "centred"), ("rloo", "rloo"), ("grpo", "grpo_eps_1e-6")):
        expected = torch.tensor(case[key], dtype=torch.float64)
        torch.testing.assert_close(group_advantages(reward, group, kind), expected, rtol=0, atol=1e-9)  # type: ignore[arg-type]


@given(rewards, st.sampled_from(["centred", "rloo", "grpo"]))
def test_advantages_sum_to_zero_within_a_group(reward: list[float], kind: str) -> None:
    group = torch.zeros(len(reward), dtype=torch.long)
    total = group_advantages(torch.tensor(reward, dtype=torch.float64), group, kind).sum()  # type: ignore[arg-type]
    assert abs(float(total)) < 1e-6


@given(st.floats(-5, 5), st.integers(2, 8), st.sampled_from(["centred", "rloo", "grpo"]))
def test_equal_rewards_give_exactly_zero(reward: float, size: int, kind: str) -> None:
    group = torch.zeros(size, dtype=torch.long)
    advantage = group_advantages(torch.full((size,), reward), group, kind)  # type: ignore[arg-type]
    assert advantage.tolist() == [0.0] * size
    assert zero_advantage_groups(advantage, group) == 1.0


@given(rewards)
def test_rloo_is_centred_times_g_over_g_minus_one(reward: list[float]) -> None:
    r, group = torch.tensor(reward, dtype=torch.float64), torch.zeros(len(reward), dtype=torch.long)
    g = len(reward)
    torch.testing.assert_close(group_advantages(r, group, "rloo"), group_advantages(r, group, "centred") * g / (g - 1))


def test_groups_are_formed_by_id_and_not_by_position() -> None:
    reward = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 0.0])
    group = torch.tensor([0, 1, 0, 1, 0, 1])
    order = torch.randperm(6, generator=torch.Generator().manual_seed(1))
    shuffled = group_advantages(reward[order], group[order], "grpo")
    torch.testing.assert_close(shuffled, group_advantages(reward, group, "grpo")[order])


def test_a_group_of_one_is_an_error_that_counts_them() -> None:
    with pytest.raises(GroupOfOneError, match="2 of 2 groups have one completion"):
        group_advantages(torch.tensor([1.0, 0.0]), torch.tensor([0, 1]), "centred")


def test_the_log_domain_clip_equals_the_min_form_on_a_grid() -> None:
    log_ratio = torch.linspace(-3, 3, 121, dtype=torch.float64)
    for advantage in (-2.0, -1.0, 0.0, 0.5, 1.0):
        a, ratio = torch.full_like(log_ratio, advantage), log_ratio.exp()
        plain = -torch.minimum(ratio * a, ratio.clamp(0.8, 1.3) * a)
        torch.testing.assert_close(clipped_surrogate(log_ratio, a, 0.2, 0.3), plain, rtol=0, atol=1e-12)


def test_a_clipped_ratio_carries_no_gradient() -> None:
    log_ratio = torch.tensor([0.5, -0.5], requires_grad=True)
    clipped_surrogate(log_ratio, torch.tensor([1.0, -1.0]), 0.2, 0.2).sum().backward()
    assert log_ratio.grad is not None
    assert log_ratio.grad.tolist() == [0.0, 0.0]


def test_kl_estimators_vanish_at_equality_and_k3_is_never_negative() -> None:
    zero = torch.zeros(3)
    assert all(float(k(zero).abs().sum()) == 0 for k in (k1, k2, k3))
    assert float(k3(torch.linspace(-15, 15, 301)).min()) >= 0


@pytest.mark.parametrize("difference", [5.0, 50.0, 100.0, -100.0])
def test_k3_and_its_gradient_stay_finite(difference: float) -> None:
    d = torch.tensor([difference], requires_grad=True)
    k3(d).sum().backward()
    assert d.grad is not None
    assert math.isfinite(float(k3(d).detach()))
    assert math.isfinite(float(d.grad))


def test_expected_kl_gradients_are_those_of_the_stated_divergences() -> None:
    """Samples held fixed: E[grad k1] = 0, E[grad k2] = grad KL(pi||ref), E[grad k3] = grad KL(ref||pi)."""
    logits = torch.tensor([0.2, -0.5, 1.0], dtype=torch.float64, requires_grad=True)
    ref = torch.log_softmax(torch.tensor([0.0, 0.3, 0.4], dtype=torch.float64), 0)
    logp = torch.log_softmax(logits, 0)
    p = logp.exp().detach()

    def expected(k: object) -> torch.Tensor:
        return torch.autograd.grad((p * k(logp - ref)).sum(), logits, retain_graph=True)[0]  # type: ignore[operator]

    forward = torch.autograd.grad((logp.exp() * (logp - ref)).sum(), logits, retain_graph=True)[0]
    reverse = torch.autograd.grad((ref.exp() * (ref - logp)).sum(), logits, retain_graph=True)[0]
    torch.testing.assert_close(expected(k1), torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(expected(k2), forward, rtol=0, atol=1e-12)
    torch.testing.assert_close(expected(k3), reverse, rtol=0, atol=1e-12)
