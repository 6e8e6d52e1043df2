"""d-TreeRPO against a second derivation of its toy answers: edges of a tree, and distillation from better siblings."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from plain_t1 import Slope, clipped, logp
from test_executor import executor
from toys import MASK, ToyBackbone, credit_of, rollout_of, t1, views_for

from dare.algorithm import load_algorithm
from dare.algorithms.d_tree_rpo import DTreeRPO
from dare.diagnosis.toys import Table, code
from dare.executor import AlgorithmFaultError, MismatchError, check_views
from dare.gradients import Auxiliary, backward
from dare.spec import AlgorithmSpec, Hyperparameters
from dare.types import Credit, NoisyViews, Rollout, Trace, Tree

GOLDENS = Path(__file__).parent / "goldens" / "algorithms"
DISTILLATION = json.loads((GOLDENS / "losses.json").read_text())["d-TreeRPO"]
M = MASK
# (parent's state, its children's states, their values): leaf rewards (1, 0, 0) and (1, 1, 0)
NODES = [
    ((M, M, M), [(2, M, M), (M, 0, M)], [1 / 3, 2 / 3]),
    ((2, M, M), [(2, 0, 1), (2, 1, 1), (2, 2, 0)], [1.0, 0.0, 0.0]),
    ((M, 0, M), [(0, 0, 1), (1, 0, 2), (2, 0, 2)], [1.0, 1.0, 0.0]),
]
LOSS, NORM = 0.0685643094, 0.1663990939
"""At progress 0.5, with a distillation of 0.5, so that it is no small part of the gradient."""


def toy_rollout() -> Rollout:
    inner = NODES[0][1]
    leaves = [*NODES[1][1], *NODES[2][1]]
    tree = Tree(
        state=torch.tensor([NODES[0][0], *inner, *leaves]),
        parent=torch.tensor([-1, 0, 0, 1, 1, 1, 2, 2, 2]),
        value=torch.tensor([0.5, *NODES[0][2], *NODES[1][2], *NODES[2][2]], dtype=torch.float64),
        row=torch.tensor([0, 0, 3, 0, 1, 2, 3, 4, 5]),
    )
    return replace(rollout_of(leaves, tree.value[3:].tolist()), trace=Trace(tree=tree))


def derived(beta: float, clip: float, distillation: float, progress: float) -> tuple[float, Slope]:
    """Loss and gradient from the formulas, in loops over parents, children, positions and tokens."""
    loss, slope = 0.0, Slope()
    weight = distillation * (math.exp(2 * progress) - 1) / (math.exp(2) - 1)
    tau = 2 * (1 - progress) ** 0.7
    for parent, children, values in NODES:
        advantages = [v - (sum(values) - v) / (len(values) - 1) for v in values]
        for child, advantage in zip(children, advantages, strict=True):
            changed = [i for i in range(3) if parent[i] != child[i]]
            for i in changed:
                new, old, ref = (logp(which, parent, i, child[i]) for which in ("new", "old", "ref"))
                term, by_logp = clipped(math.exp(new - old), advantage, clip, clip)
                share = 1 / len(changed) / 8  # edges
                loss += share * (term + beta * (math.exp(ref - new) - 1 + new - ref))
                slope.add(share * (by_logp + beta * (1 - math.exp(ref - new))), parent, i, child[i])
        better = [(child, math.exp(a / tau)) for child, a in zip(children, advantages, strict=True) if a > 0]
        places = {i for child, _ in better for i in range(3) if parent[i] != child[i]}
        for i in places:
            here = [(child[i], w) for child, w in better if parent[i] != child[i]]
            for token in {t for t, _ in here}:
                q = sum(w for t, w in here if t == token) / sum(w for _, w in here)
                share = weight * q / len(places) / 3  # parents
                loss += share * (math.log(q) - logp("new", parent, i, token))
                slope.add(-share, parent, i, token)
    return loss, slope


def distributions(policy: Table, views: NoisyViews) -> torch.Tensor:
    return policy.logits.log_softmax(-1)[code(views.ids)][views.score]


@pytest.mark.parametrize("micro_batch", [1, 3, 100])
@pytest.mark.parametrize(
    ("beta", "clip", "distillation", "progress"),
    [(0.01, 0.4, 0.5, 0.5), (0.0, 0.4, 0.0, 0.5), (0.3, 0.2, 0.5, 0.9), (0.01, 0.4, 3e-3, 0.25)],
)
def test_loss_and_every_entry_of_the_gradient_are_those_of_the_formula(
    beta: float, clip: float, distillation: float, progress: float, micro_batch: int
) -> None:
    loss, slope = derived(beta, clip, distillation, progress)
    algorithm = DTreeRPO(kl_coef=beta, clip_low=clip, clip_high=clip, distillation=distillation)
    rollout = toy_rollout()
    credit = algorithm.credit(rollout, torch.Generator())
    views = algorithm.forward_process(rollout, credit, MASK, [])
    check_views(views, rollout, credit, MASK)
    policy = t1("new")
    old, ref = (ToyBackbone(t1(w)).logprobs(t1(w), views).detach() for w in ("old", "ref"))
    done = backward(
        lambda part: ToyBackbone(policy).logprobs(policy, part),
        lambda logp, _: algorithm.loss(logp, old, ref, credit, views),
        views,
        old,
        micro_batch,
        auxiliary=Auxiliary(
            lambda part: distributions(policy, part),
            lambda full, part: algorithm.aux_loss(full, credit, part, progress),
        ),
    )
    gradient = policy.logits.grad
    assert gradient is not None
    assert done.loss == pytest.approx(loss, abs=1e-12)
    assert float(gradient.norm()) == pytest.approx(slope.norm, abs=1e-12)
    for (state, position, token), entry in slope.entries.items():
        assert float(gradient[state, position, token]) == pytest.approx(entry, abs=1e-12)


def test_the_derived_numbers_are_those_that_are_written_down() -> None:
    loss, slope = derived(0.01, 0.4, 0.5, 0.5)
    assert (loss, slope.norm) == (pytest.approx(LOSS, abs=1e-9), pytest.approx(NORM, abs=1e-9))


def test_edges_get_the_enumerated_advantages_and_siblings_sum_to_nothing() -> None:
    golden = json.loads((GOLDENS / "advantages.json").read_text())["tree_leave_one_out"]
    rollout = toy_rollout()
    credit = DTreeRPO().credit(rollout, torch.Generator())
    expected = [*golden["root_edge_advantages"], *golden["leaf_edge_advantages"][0], *golden["leaf_edge_advantages"][1]]
    torch.testing.assert_close(credit.advantage, torch.tensor(expected, dtype=torch.float64))
    tree = rollout.trace.tree
    assert tree is not None
    by_parent = torch.zeros(9, dtype=torch.float64).index_add(0, tree.parent[credit.part], credit.advantage)
    torch.testing.assert_close(by_parent, torch.zeros(9, dtype=torch.float64), rtol=0, atol=1e-15)


def test_siblings_of_equal_value_have_exactly_no_advantage() -> None:
    rollout = toy_rollout()
    tree = rollout.trace.tree
    assert tree is not None
    for value in (0.1, 0.3, 1 / 3):
        equal = replace(tree, value=torch.full((9,), value, dtype=torch.float32))
        credit = DTreeRPO().credit(replace(rollout, trace=Trace(tree=equal)), torch.Generator())
        assert not bool(credit.advantage.any())


def test_weight_and_temperature_of_the_distillation_follow_their_schedules() -> None:
    algorithm, at = DTreeRPO(), (0, 0.25, 0.5, 1)
    expected = DISTILLATION["lambda(p) at 0, .25, .5, 1"]
    assert [algorithm.distillation_weight(p) for p in at] == [pytest.approx(x, abs=1e-15) for x in expected]
    taus = DISTILLATION["tau(p) at 0, .25, .5, 1"]
    assert [algorithm.distillation_tau(p) for p in at[:3]] == [pytest.approx(x, abs=1e-12) for x in taus[:3]]
    assert DTreeRPO(distillation_growth=0.0).distillation_weight(0.25) == pytest.approx(3e-3 / 4)
    assert algorithm.distillation_tau(1) > 0  # published: 0, where a softmax is not defined


def test_a_parent_is_drawn_to_its_better_children_by_the_enumerated_divergence() -> None:
    golden = DISTILLATION["siblings"]
    views = NoisyViews.concatenate(
        [views_for([([0, 1, 2], [0], 1, unit)], (token, 0, 0)) for unit, token in enumerate((2, 1, 0))]
    )
    credit = credit_of(golden["advantages"], [1, 1, 1])
    algorithm = DTreeRPO(distillation=1.0, tau_decay=0.0)  # tau stays 2
    terms = algorithm.aux_loss(distributions(t1("new"), views), credit, views, 1.0)
    assert float(terms.num.detach()) == pytest.approx(golden["KL"], abs=1e-9)
    weights = [math.exp(a / 2) for a in golden["advantages"][:2]]
    assert [w / sum(weights) for w in weights] == [pytest.approx(w, abs=1e-9) for w in golden["weights_of_positive"]]


def test_without_a_better_sibling_there_is_nothing_to_distil() -> None:
    views = views_for([([0, 1, 2], [0], 1, 0), ([0, 1, 2], [1], 1, 1)])
    terms = DTreeRPO().aux_loss(distributions(t1(), views), credit_of([0.0, 0.0], [1, 1]), views, 0.5)
    assert not len(terms.num)


def test_tokens_behind_the_end_of_every_completion_below_are_not_scored() -> None:
    rollout = toy_rollout()
    completion = torch.ones(6, 3, dtype=torch.bool)
    completion[0, 2] = False
    completion[3:, 1:] = False  # all three below the second child of the root end at their first token
    ended = replace(rollout, completion=completion)
    algorithm = DTreeRPO()
    credit = algorithm.credit(ended, torch.Generator())
    assert credit.length.tolist() == [1, 0, 1, 2, 2, 1, 1, 1]
    views = algorithm.forward_process(ended, credit, MASK, [])
    check_views(views, ended, credit, MASK)
    assert views.unit.tolist() == [0, 2, 3, 4, 5, 6, 7]
    terms = algorithm.loss(torch.zeros(7, 3), torch.zeros(7, 3), None, credit, views)
    assert terms.den.tolist() == [1, 0, 1, 1, 1, 1, 1, 1]


def d_tree(**settings: float) -> DTreeRPO:
    given: Hyperparameters = {"root_children": 2, "children": 2, **settings}
    algorithm = load_algorithm(AlgorithmSpec(name="d_tree_rpo", hyperparameters=given))
    assert isinstance(algorithm, DTreeRPO)
    return algorithm


@pytest.mark.parametrize("family", ["llada", "sdar"])
def test_the_distillation_is_at_work_on_sampled_trees_and_grows_with_the_budget_that_is_spent(family: str) -> None:
    run = executor(family, d_tree(distillation=1.0), steps=4, inner_epochs=1, prompts_per_step=5)
    reports = [run.step().metrics for _ in range(3)]
    assert reports[0]["auxiliary_loss"] == 0  # lambda is 0 in the beginning
    assert reports[1]["auxiliary_loss"] > 0
    assert reports[2]["auxiliary_loss"] > reports[1]["auxiliary_loss"]


@pytest.mark.parametrize("family", ["llada", "sdar"])
def test_minibatches_and_micro_batches_never_part_siblings(family: str) -> None:
    sets: list[tuple[int, ...]] = []

    class Watching(DTreeRPO):
        def aux_loss(self, logp_full: torch.Tensor, credit: Credit, views: NoisyViews, progress: float):  # type: ignore[no-untyped-def]
            _, parent = torch.unique(views.ids, dim=0, return_inverse=True)
            sets.extend(tuple(sorted(credit.part[views.unit[parent == p]].tolist())) for p in parent.unique())
            return super().aux_loss(logp_full, credit, views, progress)

    algorithm = Watching(root_children=2, children=2)
    run = executor(family, algorithm, inner_epochs=1, minibatches=3, micro_batch=1)
    rollout, _, _ = run._rollout(0, list(range(3)))
    tree = rollout.trace.tree
    assert tree is not None
    run.step()
    assert sets
    # a set holds all children that add something, of one parent or of several with equal states
    for nodes in set(sets):
        parents = set(tree.parent[list(nodes)].tolist())
        states = tree.state[list(parents)]
        assert bool((states == states[0]).all())


def test_a_step_has_the_completions_of_the_track_whatever_the_shape_of_its_trees() -> None:
    for shape, prompts in ({"root_children": 2, "children": 2}, 3), ({"root_children": 3, "children": 2}, 2):
        run = executor("llada", DTreeRPO(**shape), inner_epochs=1)  # 3 prompts of 4 completions
        rollout, _, _ = run._batch(0)
        assert len(rollout.ids) == 12
        assert torch.bincount(rollout.group).tolist() == [12 // prompts] * prompts
    with pytest.raises(MismatchError, match=r"16 leaves, and a step has 3 x 4 = 12 completions"):
        executor("llada", DTreeRPO())


def test_half_a_tree_is_refused() -> None:
    class Shapeless(DTreeRPO):
        def rollout(self):  # type: ignore[no-untyped-def]
            return replace(super().rollout(), tree=None)

    with pytest.raises(AlgorithmFaultError, match="half a tree"):
        executor("llada", Shapeless())


def test_an_algorithm_that_asks_for_distributions_and_does_not_read_them_is_told() -> None:
    class Idle(DTreeRPO):
        aux_loss = load_algorithm(AlgorithmSpec(name="d1")).__class__.aux_loss

    with pytest.raises(AlgorithmFaultError, match="has no aux_loss"):
        executor("llada", Idle(root_children=2, children=2)).step()
