"""Properties of every method, whatever it differs in: a new file is enrolled by existing.

Rollouts are sampled from both kinds of tiny backbone. They are scored by a small log-linear model in float64, because
what is asked here is asked of the hooks and holds for any model. The whole list of properties, and where each is
checked: docs/algorithms/proof.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import NamedTuple

import pytest
import torch
from tiny import FAMILIES, SMALL, tiny
from torch import Tensor
from toys import MASK, L, ToyBackbone, X, rollout_of, t1, uniform

from dare.algorithm import Algorithm, algorithm_names, load_algorithm
from dare.check import _batch
from dare.gradients import backward
from dare.seeds import generator_for
from dare.spec import AlgorithmSpec, Hyperparameters
from dare.types import Credit, LossTerms, NoisyViews, Rollout, Trace, Tree


def built_in(name: str, **settings: int | float) -> Algorithm:
    return load_algorithm(AlgorithmSpec(name=name, hyperparameters={**SMALL.get(name, {}), **settings}))


def without_penalty(name: str, **settings: int | float) -> Algorithm:
    """The method as its policy gradient alone."""
    algorithm = built_in(name, **settings)
    if any(f.name == "kl_coef" for f in fields(algorithm)):
        algorithm = replace(algorithm, kl_coef=0.0)
    assert "ref" not in algorithm.requires
    return algorithm


NAMES = algorithm_names()
SAMPLED = [name for name in NAMES if built_in(name).trains_on == "prompts"]
RATIO = [name for name in NAMES if "old" in built_in(name).needs]

_MASK_ID = tiny(FAMILIES[0]).mask_id  # of every tiny backbone
_sampled: dict[object, Rollout] = {}


def rollout_for(algorithm: Algorithm, family: str) -> Rollout:
    """Four prompts and their completions, rewards that differ within every group, all in float64."""
    key = (family, algorithm.trains_on, algorithm.rollout())
    if key not in _sampled:
        rollout = _batch(algorithm, tiny(family), 0)
        if algorithm.trains_on == "demonstrations":  # which all fill their window; here every row ends elsewhere
            kept = rollout.completion.cumsum(1) <= 20 - 3 * torch.arange(len(rollout.ids))[:, None]
            rollout = replace(rollout, completion=rollout.completion & kept)
        if rollout.trace.confidence is not None:
            rollout = replace(rollout, trace=replace(rollout.trace, confidence=rollout.trace.confidence.double()))
        _sampled[key] = with_reward(rollout, lambda reward: reward.double())
    return _sampled[key]


def with_reward(rollout: Rollout, change: Callable[[Tensor], Tensor]) -> Rollout:
    """All that judges a rollout, changed the same way: completions, predictions and nodes."""
    trace = rollout.trace
    return replace(
        rollout,
        reward=change(rollout.reward),
        trace=replace(
            trace,
            x0_reward=None if trace.x0_reward is None else change(trace.x0_reward),
            tree=None if trace.tree is None else replace(trace.tree, value=change(trace.tree.value)),
        ),
    )


def rows_of(rollout: Rollout, index: Tensor) -> Rollout:
    """Some rows in the given order, and the trees above them with their nodes in another order."""
    tree = rollout.trace.tree
    rows = rollout.rows(index)
    if tree is None:
        return rows
    place = torch.full((len(rollout.ids),), -1).index_copy(0, index, torch.arange(len(index)))
    depth = torch.zeros_like(tree.parent)
    for node, parent in enumerate(tree.parent.tolist()):
        depth[node] = depth[parent] + 1 if parent >= 0 else 0
    shuffled = torch.randperm(len(depth), generator=generator_for(0, "nodes"))
    order = shuffled[depth[shuffled].argsort(stable=True)]  # parents first
    order = order[place[tree.row[order]] >= 0]
    number = torch.full((len(depth) + 1,), -1).index_copy(0, order, torch.arange(len(order)))  # the last is of no node
    cut = Tree(tree.state[order], number[tree.parent[order]], tree.value[order], place[tree.row[order]])
    return replace(rows, trace=replace(rows.trace, tree=cut))


def at_work(
    algorithm: Algorithm, rollout: Rollout, epoch: int = 0, row_names: Tensor | None = None, mask_id: int = _MASK_ID
) -> tuple[Credit, NoisyViews]:
    """Units and views; each unit's generator is keyed by the name of its row."""
    credit = algorithm.credit(rollout, generator_for(0, "credit"))
    names = torch.arange(len(rollout.ids)) if row_names is None else row_names
    keys = zip(names[credit.row].tolist(), credit.part.tolist(), strict=True)
    generators = [generator_for(epoch, "views", row, part) for row, part in keys]
    return credit, algorithm.forward_process(rollout, credit, mask_id, generators)


class LogLinear:
    """Logits that are linear in what a view shows: its mean, and the two neighbours of the position."""

    def __init__(self, tokens: int = 48, width: int = 6) -> None:
        generator = generator_for(0, "log-linear")
        self.shown = torch.randn(3, tokens, width, dtype=torch.float64, generator=generator)
        self.weight = torch.randn(width, tokens, dtype=torch.float64, generator=generator).requires_grad_(True)

    def distributions(self, views: NoisyViews, temperature: float = 1.0) -> Tensor:
        """[n, S, V]."""
        valid = views.valid[:, :, None].double()
        around, left, right = (table[views.ids] * valid for table in self.shown)
        mean = around.sum(1, keepdim=True) / valid.sum(1, keepdim=True)
        beside = torch.zeros_like(left)
        beside[:, 1:] += left[:, :-1]
        beside[:, :-1] += right[:, 1:]
        return torch.log_softmax((mean + beside) @ self.weight / temperature, -1)

    def logprobs(self, views: NoisyViews, temperature: float = 1.0) -> Tensor:
        """[n, S], 0 where nothing is scored."""
        logp = self.distributions(views, temperature).gather(-1, views.target[..., None]).squeeze(-1)
        return torch.where(views.score, logp, 0.0)


class Terms(NamedTuple):
    """Numerators and denominators per unit, what the second objective sums to, and what is logged."""

    num: Tensor
    den: Tensor
    second: Tensor
    metrics: dict[str, float]


def terms_of(algorithm: Algorithm, model: LogLinear, credit: Credit, views: NoisyViews) -> Terms:
    """Off the behaviour policy and off the reference: the same model at other temperatures."""
    needs = algorithm.requires
    with torch.no_grad():
        old = model.logprobs(views, 1.1) if "old" in needs else None
        ref = model.logprobs(views, 0.8) if "ref" in needs else None
    found = algorithm.loss(model.logprobs(views), old, ref, credit, views)
    second = torch.zeros(2, dtype=torch.float64)
    if "full" in needs:
        terms = algorithm.aux_loss(model.distributions(views)[views.score], credit, views, 0.5)
        second = torch.stack((terms.num.sum(), terms.den.sum()))
    return Terms(found.num, found.den, second, dict(found.metrics))


def gradient_of(value: Tensor, at: Tensor) -> Tensor:
    if not value.requires_grad:
        return torch.zeros_like(at)
    (found,) = torch.autograd.grad(value, at, retain_graph=True, allow_unused=True)
    return torch.zeros_like(at) if found is None else found


def same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


# --------------------------------------------------------------------------------------------- order and company


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_rows_changes_neither_loss_nor_gradient_nor_metrics(name: str, family: str) -> None:
    """Rows of all groups mixed, nodes of all trees too; the randomness of a row goes with it."""
    algorithm, model = built_in(name), LogLinear()
    rollout = rollout_for(algorithm, family)
    order = torch.randperm(len(rollout.ids), generator=generator_for(0, "order"))
    plain = terms_of(algorithm, model, *at_work(algorithm, rollout))
    mixed = terms_of(algorithm, model, *at_work(algorithm, rows_of(rollout, order), row_names=order))
    for ours, theirs in ((plain.num.sum(), mixed.num.sum()), (plain.second[0], mixed.second[0])):
        same(ours, theirs)
        same(gradient_of(ours, model.weight), gradient_of(theirs, model.weight))
    same(plain.den.sum(), mixed.den.sum())
    same(plain.second[1], mixed.second[1])
    assert plain.metrics == pytest.approx(mixed.metrics, rel=1e-9, abs=1e-10)
    assert float(gradient_of(plain.num.sum(), model.weight).norm()) > 1e-4


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", NAMES)
def test_groups_of_other_lengths_do_not_change_what_a_group_adds(name: str, family: str) -> None:
    """Numerator over denominator of a group within the batch, and their gradient, are those of the group alone."""
    # MDPO trains the steps with the largest advantages of the whole batch; here it has room for all of them
    algorithm, model = built_in(name, **({"train_steps": 1000} if name == "mdpo" else {})), LogLinear()
    rollout = rollout_for(algorithm, family)
    assert len(rollout.completion.sum(1).unique()) > 1
    credit, views = at_work(algorithm, rollout)
    whole = terms_of(algorithm, model, credit, views)
    owner = rollout.group[credit.row]
    second = torch.zeros_like(whole.second)
    for group in rollout.group.unique():
        rows = (rollout.group == group).nonzero().flatten()
        alone = terms_of(algorithm, model, *at_work(algorithm, rows_of(rollout, rows), row_names=rows))
        second = second + alone.second
        mine = owner == group
        inside = whole.num[mine].sum() / whole.den[mine].sum()
        outside = alone.num.sum() / alone.den.sum()
        same(inside, outside)
        same(gradient_of(inside, model.weight), gradient_of(outside, model.weight))
    same(whole.second, second)


# --------------------------------------------------------------------------------------------- at the behaviour policy


def value_and_slope(
    algorithm: Algorithm, logp: Tensor, credit: Credit, views: NoisyViews, advantage: Tensor
) -> tuple[Tensor, Tensor]:
    at = logp.clone().requires_grad_(True)
    terms = algorithm.loss(at, logp, None, replace(credit, advantage=advantage), views)
    loss = terms.num.sum() / terms.den.sum()
    return loss.detach(), gradient_of(loss, at)


def any_logp(views: NoisyViews) -> Tensor:
    drawn = torch.rand(views.score.shape, dtype=torch.float64, generator=generator_for(0, "logp"))
    return -5 * drawn * views.score


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", RATIO)
def test_at_the_behaviour_policy_the_loss_of_a_ratio_is_linear_in_the_advantage(name: str, family: str) -> None:
    """So that neither a clip nor a bound is felt before the first update, whatever the signs."""
    algorithm = without_penalty(name)
    credit, views = at_work(algorithm, rollout_for(algorithm, family))
    logp = any_logp(views)
    first, second = torch.randn(2, len(credit.row), dtype=torch.float64, generator=generator_for(0, "advantage"))
    (a, slope_a), (b, slope_b), (both, slope_both), (against, slope_against) = (
        value_and_slope(algorithm, logp, credit, views, advantage)
        for advantage in (first, second, first + second, -first)
    )
    same(both, a + b)
    same(slope_both, slope_a + slope_b)
    same(against, -a)
    same(slope_against, -slope_a)
    assert float(slope_a.norm()) > 1e-4


Normaliser = Callable[[Rollout, Credit, NoisyViews], Tensor]
NORMALISERS: dict[str, Normaliser] = {
    # eq. 6 divides the objective of a sequence by its length
    "gdpo": lambda rollout, credit, views: (1 / credit.length).mean(),
    # tokens are summed and divided by the window, which is the same for all rows
    "just_grpo": lambda rollout, credit, views: (credit.length / rollout.window.sum(1)).mean(),
    # a prediction weighs confidence times window / masked, and a completion is the sum of its steps
    "mdpo": lambda rollout, credit, views: views.coef.sum() / len(credit.row.unique()),
}
"""What a unit advantage is worth where it is not 1, and why."""


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", RATIO)
def test_at_the_behaviour_policy_an_advantage_of_one_costs_minus_one(name: str, family: str) -> None:
    """Or minus the normaliser that the method declares above: a loss that does not average says by what it divides."""
    algorithm = without_penalty(name)
    rollout = rollout_for(algorithm, family)
    credit, views = at_work(algorithm, rollout)
    ones = torch.ones_like(credit.advantage)
    loss, _ = value_and_slope(algorithm, any_logp(views), credit, views, ones)
    expected = NORMALISERS[name](rollout, credit, views) if name in NORMALISERS else ones[0]
    same(loss, -expected)
    assert (abs(float(expected) - 1) > 1e-6) == (name in NORMALISERS)


# SPG mixes an upper bound in where A < 0, so that its gradient is not linear in A; with a share of 0 it is.
LINEAR: dict[str, Hyperparameters] = {"spg": {"omega": 0.0}}


def twins() -> Rollout:
    """The same completion twice, with all that a sampler may record of it, rewarded once."""
    tree = Tree(
        state=torch.tensor([[MASK] * L, X, X]),
        parent=torch.tensor([-1, 0, 0]),
        value=torch.tensor([0.5, 1.0, 0.0], dtype=torch.float64),
        row=torch.tensor([0, 0, 1]),
    )
    trace = Trace(
        step_map=torch.tensor([[2, 1, 2]] * 2),
        x0=torch.tensor(X).expand(2, 2, L),
        confidence=torch.full((2, 2, L), 1 / 3, dtype=torch.float64),
        x0_reward=torch.tensor([[1.0, 1.0], [0.0, 0.0]], dtype=torch.float64),
        tree=tree,
    )
    return replace(rollout_of([X, X], [1.0, 0.0]), trace=trace)


def pulls(algorithm: Algorithm, change: Callable[[Tensor], Tensor]) -> list[float]:
    """The largest entry of the gradient on the uniform model, in several draws that hide the same of both twins."""
    rollout, model, found = twins(), uniform(), []
    credit = algorithm.credit(rollout, torch.Generator())
    for draw in range(8):
        parts = [0] * len(credit.part) if algorithm.record == {"tree"} else credit.part.tolist()
        views = algorithm.forward_process(rollout, credit, MASK, [generator_for(draw, part) for part in parts])
        logp = ToyBackbone(model).logprobs(model, views)
        changed = replace(credit, advantage=change(credit.advantage))
        terms = algorithm.loss(logp, logp.detach(), None, changed, views)
        found.append(float(gradient_of(terms.num.sum() / terms.den.sum(), model.logits).abs().max()))
    return found


@pytest.mark.parametrize("name", SAMPLED)
def test_on_the_uniform_model_equal_completions_pull_nowhere_whichever_of_them_is_rewarded(name: str) -> None:
    """Of any method whose gradient is linear in the advantage. One that is not says above how it becomes so."""
    algorithm = without_penalty(name, **LINEAR.get(name, {}))
    assert max(pulls(algorithm, lambda advantage: advantage)) < 1e-12
    assert max(pulls(algorithm, torch.abs)) > 1e-3  # a draw may hide nothing
    if name in LINEAR:
        assert max(pulls(without_penalty(name), lambda advantage: advantage)) > 1e-3


# --------------------------------------------------------------------------------------------- views


def equal(a: NoisyViews, b: NoisyViews) -> bool:
    return all(torch.equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(NoisyViews))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", NAMES)
def test_a_method_that_draws_its_views_draws_others_in_the_next_epoch_and_the_same_from_the_same_keys(
    name: str, family: str
) -> None:
    """One that does not touch its generators must give the same views in every epoch."""
    algorithm = built_in(name)
    rollout = rollout_for(algorithm, family)
    credit = algorithm.credit(rollout, generator_for(0, "credit"))
    generators = [generator_for(0, "views", unit) for unit in range(len(credit.row))]
    before = [generator.get_state() for generator in generators]
    algorithm.forward_process(rollout, credit, _MASK_ID, generators)
    draws = any(not torch.equal(a, g.get_state()) for a, g in zip(before, generators, strict=True))
    _, first = at_work(algorithm, rollout, epoch=1)
    _, again = at_work(algorithm, rollout, epoch=1)
    _, other = at_work(algorithm, rollout, epoch=2)
    assert equal(first, again)
    assert equal(first, other) != draws


def replays(algorithm: Algorithm) -> bool:
    """Whether what is scored is what was decoded, step by step. Judged predictions are none of the completion's."""
    spec = algorithm.rollout()
    return spec is not None and not spec.judge_predictions and bool(spec.record or spec.sampler != "parallel")


REPLAYS = [name for name in NAMES if replays(built_in(name))]


def on_the_way(rollout: Rollout, credit: Credit) -> Tensor:
    """[N, U]: whether a unit is a step of a row; in a tree, whether its edge leads to the row's leaf."""
    rows = torch.arange(len(rollout.ids))
    tree = rollout.trace.tree
    if tree is None:
        return credit.row == rows[:, None]
    way = torch.zeros(len(rows), len(credit.row), dtype=torch.bool)
    inner = set(tree.parent.tolist())
    for leaf in (node for node in range(len(tree.parent)) if node not in inner):
        node = leaf
        while node >= 0:
            way[tree.row[leaf]] |= credit.part == node
            node = int(tree.parent[node])
    return way


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", REPLAYS)
def test_along_a_trajectory_every_completion_token_is_scored_exactly_once(name: str, family: str) -> None:
    algorithm = built_in(name)
    rollout = rollout_for(algorithm, family)
    credit, views = at_work(algorithm, rollout)
    scored = torch.zeros(len(credit.row), views.score.shape[1]).index_add(0, views.unit, views.score.float())
    times = on_the_way(rollout, credit).float() @ scored
    assert bool((times[rollout.completion] == 1).all())
    if rollout.trace.tree is None:  # an edge also scores what lies behind the end of this row and not of a sibling's
        assert not bool(times[~rollout.completion].any())


def test_some_methods_replay_steps_some_tokens_and_some_trees() -> None:
    assert {frozenset(built_in(name).record) for name in REPLAYS} >= {
        frozenset({"step_map"}),
        frozenset(),
        frozenset({"tree"}),
    }


# --------------------------------------------------------------------------------------------- rewards and metrics


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", SAMPLED)
def test_equal_rewards_give_exactly_no_advantage_and_no_gradient(name: str, family: str) -> None:
    algorithm = without_penalty(name)
    rollout = with_reward(rollout_for(algorithm, family), lambda reward: torch.full_like(reward, 0.3))
    credit, views = at_work(algorithm, rollout)
    assert bool((credit.advantage == 0).all())
    logp = any_logp(views).requires_grad_(True)
    terms = algorithm.loss(logp, logp.detach(), None, credit, views)
    assert float(terms.den.sum()) > 0
    assert not bool(gradient_of(terms.num.sum(), logp).any())


@pytest.mark.parametrize("name", NAMES)
def test_metrics_are_finite_and_have_the_same_names_at_every_step(name: str) -> None:
    """At the behaviour policy, away from it in every direction, and where no completion is better than another."""
    algorithm = built_in(name)
    rollout = rollout_for(algorithm, FAMILIES[0])
    rollouts = [rollout]
    if algorithm.trains_on == "prompts":
        rollouts.append(with_reward(rollout, lambda reward: torch.zeros_like(reward)))
    logged = []
    for epoch, of in enumerate(rollouts):
        credit, views = at_work(algorithm, of, epoch)
        logp = any_logp(views)
        for step in (0.0, 0.1, -3.0, 3.0):
            given = (logp if need in algorithm.requires else None for need in ("old", "ref"))
            terms = algorithm.loss(logp + step * views.score, *given, credit, views)
            assert all(math.isfinite(value) for value in terms.metrics.values())
            logged.append(list(terms.metrics))
    assert all(names == logged[0] for names in logged)


def one_token_step(algorithm: Algorithm, draw: int) -> tuple[list[float], Tensor]:
    """Loss and metrics of a step on completions of one token, and its gradient."""
    rollout = replace(twins(), completion=(torch.arange(L) < 1).expand(2, L))
    if algorithm.trains_on == "preferences":
        rollout = replace(rollout, reward=torch.tensor([1.0, -1.0], dtype=torch.float64))
    credit, views = at_work(algorithm, rollout, draw, mask_id=MASK)
    model = t1("new")
    old, ref = (ToyBackbone(t1(which)).logprobs(t1(which), views).detach() for which in ("old", "ref"))
    given = [logp if need in algorithm.requires else None for need, logp in (("old", old), ("ref", ref))]
    logged: list[float] = []

    def loss(logp: Tensor, _: Tensor) -> LossTerms:
        terms = algorithm.loss(logp, *given, credit, views)
        logged.extend(terms.metrics.values())
        return terms

    done = backward(lambda part: ToyBackbone(model).logprobs(model, part), loss, views, old, 100)
    gradient = torch.zeros(1) if model.logits.grad is None else model.logits.grad
    return [done.loss, *logged], gradient


@pytest.mark.parametrize("name", NAMES)
def test_completions_of_one_token_have_a_finite_loss_gradient_and_metrics_whatever_is_drawn(name: str) -> None:
    """What a policy that has collapsed to its end of sequence gives; some draws then hide nothing at all."""
    for draw in range(12):
        numbers, gradient = one_token_step(built_in(name), draw)
        assert all(math.isfinite(number) for number in numbers)
        assert bool(torch.isfinite(gradient).all())
