"""Whole distributions: what a backbone says of every token, and a second objective on them in the backward pass."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_executor import executor
from tiny import rollout_sampling, tiny
from torch import Tensor
from toys import ToyBackbone, t1, views_for

from dare.algorithm import load_algorithm
from dare.diagnosis.toys import Table, code
from dare.gradients import Auxiliary, NonFiniteLossError, backward
from dare.seeds import generator_for
from dare.spec import AlgorithmSpec
from dare.types import LossTerms, NoisyViews

CASES = [  # three inputs: one of three views, one of two, one alone, in no order
    ([0, 1, 2], [0, 1], 1.0, 0),
    ([0, 2], [0, 2], 1.5, 1),
    ([0, 1, 2], [2], 3.0, 2),
    ([1], [1], 2.0, 3),
    ([0, 2], [2], 1.0, 4),
    ([0, 1, 2], [1, 2], 1.0, 5),
]


def distributions(policy: Table, views: NoisyViews) -> Tensor:
    return policy.logits.log_softmax(-1)[code(views.ids)][views.score]


def spread_of_inputs(full: Tensor, views: NoisyViews) -> LossTerms:
    """Not linear, and not a sum over views: the squared mean entropy of each input's scored positions."""
    _, owner = torch.unique(views.ids, dim=0, return_inverse=True)
    owner = owner[views.score.nonzero()[:, 0]]
    inputs = int(owner.max()) + 1
    entropy = -(full.exp() * full).sum(-1)
    mean = torch.zeros(inputs, dtype=full.dtype).index_add(0, owner, entropy) / torch.bincount(owner, minlength=inputs)
    return LossTerms(mean**2, torch.full_like(mean, 2.0))


def surrogate(logp: Tensor, old: Tensor, views: NoisyViews) -> LossTerms:
    change = ((logp - old) * views.coef).sum(1)
    return LossTerms(torch.exp(change) + 0.1 * logp.sum(1) ** 2, torch.ones(len(views), dtype=torch.float64))


@pytest.mark.parametrize("micro_batch", [1, 2, 4, 100])
def test_both_gradients_together_are_those_of_direct_differentiation(micro_batch: int) -> None:
    views = views_for(CASES)
    old = ToyBackbone(t1("old")).logprobs(t1("old"), views).detach()
    direct = t1("new")
    terms = surrogate(ToyBackbone(direct).logprobs(direct, views), old, views)
    second = spread_of_inputs(distributions(direct, views), views)
    whole = terms.num.sum() / terms.den.sum() + second.num.sum() / second.den.sum()
    (expected,) = torch.autograd.grad(whole, direct.logits)

    policy = t1("new")
    done = backward(
        lambda part: ToyBackbone(policy).logprobs(policy, part),
        lambda logp, behaviour: surrogate(logp, behaviour, views),
        views,
        old,
        micro_batch,
        auxiliary=Auxiliary(lambda part: distributions(policy, part), spread_of_inputs),
    )
    assert policy.logits.grad is not None
    assert done.loss == pytest.approx(float(whole.detach()), abs=1e-12)
    assert done.auxiliary == pytest.approx(float((second.num.sum() / second.den.sum()).detach()), abs=1e-12)
    torch.testing.assert_close(policy.logits.grad, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(done.logp, ToyBackbone(t1("new")).logprobs(t1("new"), views).detach())


@pytest.mark.parametrize(("micro_batch", "calls_needed"), [(1, 3), (3, 2), (6, 1)])
def test_views_of_one_input_come_together_and_as_many_inputs_as_fit(micro_batch: int, calls_needed: int) -> None:
    views, policy, seen = views_for(CASES), t1("new"), []

    def watching(full: Tensor, part: NoisyViews) -> LossTerms:
        seen.append(sorted(part.unit.tolist()))
        assert len(full) == int(part.score.sum())
        return spread_of_inputs(full, part)

    backward(
        lambda part: ToyBackbone(policy).logprobs(policy, part),
        lambda logp, behaviour: surrogate(logp, behaviour, views),
        views,
        None,
        micro_batch,
        auxiliary=Auxiliary(lambda part: distributions(policy, part), watching),
    )
    calls = {tuple(units) for units in seen}
    assert sum(len(units) for units in calls) == len(views)
    same_input = ({0, 2, 5}, {1, 4}, {3})
    assert all(group <= set(units) or not group & set(units) for units in calls for group in same_input)
    assert all(len(units) <= micro_batch or set(units) in same_input for units in calls)
    assert len(calls) == calls_needed


def test_a_second_objective_that_is_not_finite_stops_before_any_gradient() -> None:
    views, policy = views_for(CASES), t1("new")
    with pytest.raises(NonFiniteLossError):
        backward(
            lambda part: ToyBackbone(policy).logprobs(policy, part),
            lambda logp, behaviour: surrogate(logp, behaviour, views),
            views,
            None,
            2,
            auxiliary=Auxiliary(
                lambda part: distributions(policy, part),
                lambda full, _: LossTerms(full.sum(1) * torch.inf, torch.ones(len(full))),
            ),
        )
    assert policy.logits.grad is None


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("family", ["llada", "dream", "sdar", "llada2"])
def test_a_distribution_holds_the_scores_and_nothing_for_the_mask(family: str, temperature: float) -> None:
    """In row-major order of the scored positions, also where rows are packed because they are of unequal lengths."""
    backbone = tiny(family)
    block = backbone.block_size or 20
    config = rollout_sampling("llada").model_copy(update={"block_length": block, "steps_per_block": min(4, block)})
    texts = ("S0321003004002100", "C1 2=3", "C4 5 6=26")
    prompts = [backbone.tokenizer.prompt_ids(text) for text in texts]
    samples = backbone.sample(prompts, config, [generator_for(1, row) for row in range(3)])
    score = samples.window & (torch.rand(samples.window.shape, generator=generator_for(2)) < 0.5)
    unequal = NoisyViews(
        ids=torch.where(score, backbone.mask_id, samples.ids),
        target=samples.ids,
        score=score & (samples.ids != backbone.mask_id),
        coef=score.float(),
        unit=torch.arange(3),
        valid=samples.valid,
        window=samples.window,
    )
    for views in (unequal, unequal.rows(slice(0, 1))):
        logp = backbone.logprobs(backbone.model, views, temperature)
        full = backbone.distributions(backbone.model, views, temperature)
        assert full.shape == (int(views.score.sum()), full.shape[1])
        picked = full.gather(1, views.target[views.score][:, None]).squeeze(1)
        torch.testing.assert_close(picked, logp[views.score], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(full.exp().sum(1), torch.ones(len(full)), rtol=1e-5, atol=1e-5)
        assert bool((full[:, backbone.mask_id] == -torch.inf).all())
    nothing = replace(unequal, score=torch.zeros_like(unequal.score))
    assert len(backbone.distributions(backbone.model, nothing.rows(slice(0, 1)))) == 0


def test_what_the_second_objective_adds_is_logged_and_counted_in_the_loss() -> None:
    settings = {"root_children": 2, "children": 2, "distillation": 1.0, "kl_coef": 0.0}
    run = executor("llada", load_algorithm(AlgorithmSpec(name="d_tree_rpo", hyperparameters=settings)), inner_epochs=1)  # type: ignore[arg-type]
    run.used.steps = 4  # half of the budget
    report = run.step().metrics
    assert report["auxiliary_loss"] > 0
    plain = executor(
        "llada",
        load_algorithm(AlgorithmSpec(name="d_tree_rpo", hyperparameters={**settings, "distillation": 0.0})),  # type: ignore[arg-type]
        inner_epochs=1,
    )
    plain.used.steps = 4
    without = plain.step().metrics
    assert "auxiliary_loss" not in without
    assert report["loss"] - report["auxiliary_loss"] == pytest.approx(without["loss"], abs=1e-5)
