"""What gentle d1 promises of its advantages. Run it with `pytest examples/submission`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dare.algorithm import Algorithm, load_algorithm
from dare.algorithms.d1 import D1
from dare.spec import AlgorithmSpec
from dare.types import Rollout

FILE = Path(__file__).parent / "algorithm.py"


def gentle(blame: float) -> Algorithm:
    return load_algorithm(AlgorithmSpec(name="gentle", source="entry", hyperparameters={"blame": blame}), FILE)


@pytest.fixture
def rollout() -> Rollout:
    """Two prompts, four answers each: one right answer, then three."""
    ids = torch.arange(8 * 5).reshape(8, 5)
    everywhere = torch.ones_like(ids, dtype=torch.bool)
    answer = torch.arange(5).expand_as(ids) > 1
    reward = torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 0])
    group = torch.arange(2).repeat_interleave(4)
    return Rollout(ids, everywhere, window=answer, completion=answer, group=group, reward=reward)


def advantages(algorithm: Algorithm, rollout: Rollout) -> torch.Tensor:
    return algorithm.credit(rollout, torch.Generator().manual_seed(0)).advantage


def test_at_one_it_is_d1(rollout: Rollout) -> None:
    assert torch.equal(advantages(gentle(1.0), rollout), advantages(D1(), rollout))


@pytest.mark.parametrize("blame", [0.0, 0.25, 0.5])
def test_praise_is_that_of_d1_and_blame_a_share_of_it(blame: float, rollout: Rollout) -> None:
    ours, theirs = advantages(gentle(blame), rollout), advantages(D1(), rollout)
    right = rollout.reward > 0
    assert torch.equal(ours[right], theirs[right])
    assert torch.allclose(ours[~right], blame * theirs[~right])


def test_at_zero_a_wrong_answer_is_left_alone(rollout: Rollout) -> None:
    assert bool((advantages(gentle(0.0), rollout)[rollout.reward == 0] == 0).all())


def test_equal_answers_have_no_advantage_however_gentle(rollout: Rollout) -> None:
    same = replace(rollout, reward=torch.ones(8))
    assert bool((advantages(gentle(0.25), same) == 0).all())


def test_the_order_of_answers_does_not_matter(rollout: Rollout) -> None:
    order = torch.randperm(8, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(advantages(gentle(0.5), rollout.rows(order)), advantages(gentle(0.5), rollout)[order])
