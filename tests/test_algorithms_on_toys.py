"""Every built-in algorithm against models small enough to enumerate: golden losses, identities, unbiasedness."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from toys import MASK, SEQUENCES, L, Table, ToyBackbone, V, X, credit_of, rollout_of, t1, t2, uniform, views_for

from dare.algorithm import Algorithm, load_algorithm
from dare.forward_process import hide_by_chance, hide_counts, hide_everything, replay_steps, stratified_counts
from dare.gradients import backward
from dare.objectives import k3
from dare.seeds import generator_for
from dare.spec import AlgorithmSpec
from dare.types import Credit, LossTerms, NoisyViews

GOLDENS = Path(__file__).parent / "goldens" / "algorithms"
LOSSES = json.loads((GOLDENS / "losses.json").read_text())
ESTIMATORS = json.loads((GOLDENS / "estimators.json").read_text())
FACTS = json.loads((GOLDENS / "facts.json").read_text())
TOLERANCE = 1e-9

# (built-in, its settings, key of the golden, units of credit, views (masked, scored, coefficient, unit))
Case = tuple[
    str, dict[str, float | int | str], str, Callable[[float], Credit], list[tuple[list[int], list[int], float, int]]
]
CASES: list[Case] = [
    (
        "d1",
        {"clip_low": 0.2, "clip_high": 0.2, "kl_coef": 0.0},
        "d1, no prompt",
        lambda a: credit_of([a], [3]),
        [([0, 1, 2], [0, 1, 2], 1, 0)],
    ),
    (
        "bgpo",
        {},
        "BGPO",
        lambda a: credit_of([a], [3]),
        [([0], [0], 3, 0), ([0, 2], [0, 2], 1.5, 0), ([1, 2], [1, 2], 1.5, 0), ([0, 1, 2], [0, 1, 2], 1, 0)],
    ),
    (
        "cj_grpo",
        {},
        "CJ-GRPO, steps {1},{0,2}",
        lambda a: credit_of([a, a], [1, 2], [0.5, 0.5]),
        [([0, 1, 2], [1], 1, 0), ([0, 2], [0, 2], 1, 1)],
    ),
]
IDS = [case[0] for case in CASES]


def built_in(name: str, **settings: float | int | str) -> Algorithm:
    return load_algorithm(AlgorithmSpec(name=name, hyperparameters=settings))


def loss_and_gradient(
    algorithm: Algorithm, credit: Credit, views: NoisyViews, policy: Table, behaviour: Table, micro_batch: int = 100
) -> tuple[float, Tensor]:
    old = ToyBackbone(behaviour).logprobs(behaviour, views).detach() if "old" in algorithm.needs else None
    ref = ToyBackbone(t1("ref")).logprobs(t1("ref"), views).detach() if "ref" in algorithm.requires else None
    policy.logits.grad = None
    done = backward(
        lambda part: ToyBackbone(policy).logprobs(policy, part),
        lambda logp, _: algorithm.loss(logp, old, ref, credit, views),
        views,
        old,
        micro_batch,
    )
    assert policy.logits.grad is not None
    return done.loss, policy.logits.grad.clone()


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_loss_and_gradient_norm_equal_the_enumerated_ones(case: Case, sign: int) -> None:
    name, settings, key, credit, views = case
    golden = LOSSES[key][f"A={sign:+d}"]
    loss, gradient = loss_and_gradient(built_in(name, **settings), credit(sign), views_for(views), t1("new"), t1("old"))
    assert loss == pytest.approx(golden["loss"], abs=TOLERANCE)
    assert float(gradient.norm()) == pytest.approx(golden["gradient_norm"], abs=TOLERANCE)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_at_the_behaviour_policy_the_loss_is_minus_the_advantage(case: Case, sign: int) -> None:
    name, settings, key, credit, views = case
    golden = LOSSES["on-policy identity (policy = old): loss is -A, gradient is -A * grad(score)"][key][f"A={sign:+d}"]
    loss, gradient = loss_and_gradient(built_in(name, **settings), credit(sign), views_for(views), t1("old"), t1("old"))
    assert loss == pytest.approx(-sign, abs=TOLERANCE)
    assert float(gradient.norm()) == pytest.approx(golden["gradient_norm"], abs=TOLERANCE)


def test_sft_loss_equals_the_enumerated_one() -> None:
    golden = LOSSES["SFT, S={0,2}, t=0.5"]
    views = views_for([([0, 2], [0, 2], 2, 0)])
    loss, gradient = loss_and_gradient(built_in("sft"), credit_of([1], [3]), views, t1("new"), t1("old"))
    assert loss == pytest.approx(golden["loss"], abs=TOLERANCE)
    assert float(gradient.norm()) == pytest.approx(golden["gradient_norm"], abs=TOLERANCE)


def test_the_k3_penalty_of_d1_equals_the_enumerated_one() -> None:
    views = views_for([([0, 1, 2], [0, 1, 2], 1, 0)])
    new, ref = (ToyBackbone(t1(w)).logprobs(t1(w), views).detach() for w in ("new", "ref"))
    expected = LOSSES["d1, no prompt"]["k3_new_ref_mean"]
    assert float(k3(new - ref)[views.score].mean()) == pytest.approx(expected, abs=TOLERANCE)
    plain, _ = loss_and_gradient(
        built_in("d1", clip_low=0.2, clip_high=0.2, kl_coef=0.0), credit_of([1], [3]), views, t1("new"), t1("old")
    )
    with_penalty, _ = loss_and_gradient(
        built_in("d1", clip_low=0.2, clip_high=0.2, kl_coef=0.5), credit_of([1], [3]), views, t1("new"), t1("old")
    )
    assert with_penalty - plain == pytest.approx(0.5 * expected, abs=TOLERANCE)


@pytest.mark.parametrize("micro_batch", [1, 2, 3])
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_gradient_does_not_depend_on_the_micro_batch(case: Case, micro_batch: int) -> None:
    name, settings, _, credit, views = case
    algorithm = built_in(name, **settings)
    whole = loss_and_gradient(algorithm, credit(-1), views_for(views), t1("new"), t1("old"))
    parts = loss_and_gradient(algorithm, credit(-1), views_for(views), t1("new"), t1("old"), micro_batch)
    assert parts[0] == pytest.approx(whole[0], abs=1e-12)
    torch.testing.assert_close(parts[1], whole[1], rtol=0, atol=1e-12)


def test_applying_a_nonlinear_loss_view_by_view_would_be_wrong() -> None:
    """Why the backward pass differentiates the whole loss first: the naive accumulation is measurably different."""
    golden = LOSSES["replay example: sequence ratio with k2 KL 0.1, A=-0.8, masks {0},{0,2},{1,2},{0,1,2}"]
    views = views_for(
        [([0], [0], 3, 0), ([0, 2], [0, 2], 1.5, 0), ([1, 2], [1, 2], 1.5, 0), ([0, 1, 2], [0, 1, 2], 1, 0)]
    )
    old, ref = (ToyBackbone(t1(w)).logprobs(t1(w), views).detach() for w in ("old", "ref"))

    def sequence_ratio(logp: Tensor, _: Tensor) -> LossTerms:
        score = [((x * views.coef).sum() / 4) for x in (logp, old, ref)]
        loss = 0.8 * torch.exp((score[0] - score[1]) / 3).clamp(min=0.8) + 0.1 * 0.5 * (score[0] - score[2]) ** 2 / 3
        return LossTerms(loss[None], torch.ones(1, dtype=torch.float64))

    for micro_batch in (1, 100):
        policy = t1("new")
        done = backward(lambda p, m=policy: ToyBackbone(m).logprobs(m, p), sequence_ratio, views, old, micro_batch)  # type: ignore[misc]
        assert policy.logits.grad is not None
        assert done.loss == pytest.approx(golden["loss"], abs=TOLERANCE)
        assert float(policy.logits.grad.norm()) == pytest.approx(golden["gradient_norm"], abs=TOLERANCE)


def test_an_optimiser_step_of_mixed_lengths_is_the_sum_of_its_numerators() -> None:
    algorithm = built_in("sft")
    cases = [([0, 2], [0, 2], 2.0, 0), ([1], [1], 3.0, 1)]
    together, _ = loss_and_gradient(algorithm, credit_of([1, 1], [3, 1]), views_for(cases), t1("new"), t1("old"))
    alone = [
        loss_and_gradient(algorithm, credit_of([1], [n]), views_for([(m, s, c, 0)]), t1("new"), t1("old"))[0] * n
        for (m, s, c, _), n in zip(cases, (3, 1), strict=True)
    ]
    assert together == pytest.approx(sum(alone) / 4, abs=1e-12)


# --------------------------------------------------------------------------------------------- estimators


def elbo(table: Table, sequence: tuple[int, ...]) -> float:
    """Random-order ELBO by permutations, from its definition."""
    total = 0.0
    for order in itertools.permutations(range(L)):
        for j in range(L):
            hidden = list(order[j:])
            views = views_for([(hidden, [order[j]], 1, 0)], sequence)
            total += float(ToyBackbone(table).logprobs(table, views).sum().detach())
    return total / math.factorial(L)


def test_the_exact_count_estimator_is_unbiased_for_the_elbo() -> None:
    """Enumerated over counts and masks; the sampled estimator agrees within its own standard error."""
    by_count = [
        (L / k)
        * float(
            torch.stack(
                [
                    ToyBackbone(t1()).logprobs(t1(), views_for([(list(s), list(s), 1, 0)])).sum().detach()
                    for s in itertools.combinations(range(L), k)
                ]
            ).mean()
        )
        for k in range(1, L + 1)
    ]
    golden = ESTIMATORS["E-k, k ~ U{1..L}, weight L/k"]["expectation"]
    assert sum(by_count) / L == pytest.approx(golden, abs=TOLERANCE)
    assert golden == pytest.approx(elbo(t1(), X), abs=TOLERANCE)

    n, views_each = 2000, 2
    rollout = rollout_of([X] * n, [0.0] * n)
    credit = Credit(
        torch.arange(n), torch.zeros(n, dtype=torch.float64), torch.full((n,), 3.0), torch.ones(n), torch.zeros(n)
    )
    views = hide_counts(rollout, credit, views_each, MASK, [generator_for(0, row) for row in range(n)])
    estimate = (ToyBackbone(t1()).logprobs(t1(), views).detach() * views.coef).sum(1).view(n, views_each).mean(1)
    assert abs(float(estimate.mean()) - golden) < 4 * float(estimate.std()) / math.sqrt(n)


def test_the_chance_estimator_has_the_stated_small_bias() -> None:
    n = 20000
    rollout = rollout_of([X] * n, [0.0] * n)
    credit = Credit(
        torch.arange(n), torch.ones(n, dtype=torch.float64), torch.full((n,), 3.0), torch.ones(n), torch.zeros(n)
    )
    views = hide_by_chance(rollout, credit, 1e-3, MASK, [generator_for(1, row) for row in range(n)])
    estimate = (ToyBackbone(t1()).logprobs(t1(), views).detach() * views.coef).sum(1)
    golden = ESTIMATORS["E-bern, t ~ U(1e-3, 1), weight 1/t"]
    assert abs(float(estimate.mean()) - golden["expectation"]) < 4 * math.sqrt(golden["one_view_variance"] / n)


def test_on_the_uniform_model_every_draw_of_the_count_estimator_is_exact() -> None:
    rollout = rollout_of([X] * 8, [0.0] * 8)
    credit = Credit(
        torch.arange(8), torch.zeros(8, dtype=torch.float64), torch.full((8,), 3.0), torch.ones(8), torch.zeros(8)
    )
    views = hide_counts(rollout, credit, 4, MASK, [generator_for(2, row) for row in range(8)])
    estimate = (ToyBackbone(uniform()).logprobs(uniform(), views).detach() * views.coef).sum(1)
    torch.testing.assert_close(estimate, torch.full((32,), -L * math.log(V), dtype=torch.float64))


def test_on_the_uniform_model_the_expected_sft_loss_is_log_v() -> None:
    n = 20000
    algorithm = built_in("sft")
    rollout = rollout_of([X] * n, [0.0] * n)
    credit = algorithm.credit(rollout, torch.Generator())
    views = algorithm.forward_process(rollout, credit, MASK, [generator_for(3, row) for row in range(n)])
    terms = algorithm.loss(ToyBackbone(uniform()).logprobs(uniform(), views).detach(), None, None, credit, views)
    per_row = terms.num / terms.den
    assert abs(float(per_row.mean()) - math.log(V)) < 4 * float(per_row.std()) / math.sqrt(n)


def test_sums_over_all_sequences_are_those_of_probability() -> None:
    bounds = [elbo(t1(), x) for x in SEQUENCES]
    assert sum(math.exp(b) for b in bounds) == pytest.approx(FACTS["sum_over_sequences_exp_elbo_old"], abs=TOLERANCE)
    assert sum(math.exp(elbo(t2(), x)) for x in SEQUENCES) == pytest.approx(1, abs=TOLERANCE)
    scheduled = 0.0
    mean_field = 0.0
    for x in SEQUENCES:
        rollout = rollout_of([x], [0.0], step_map=[2, 1, 2])
        credit = credit_of([0, 0], [1, 2])
        credit = Credit(credit.row, credit.advantage, credit.length, credit.weight, torch.tensor([1, 2]))
        views = replay_steps(rollout, credit, MASK)
        scheduled += math.exp(float(ToyBackbone(t1()).logprobs(t1(), views).sum().detach()))
        everything = hide_everything(rollout, credit_of([0], [3]), MASK)
        mean_field += math.exp(float(ToyBackbone(t1()).logprobs(t1(), everything).sum().detach()))
    assert scheduled == pytest.approx(1, abs=TOLERANCE)
    assert mean_field == pytest.approx(1, abs=TOLERANCE)


def test_replaying_a_schedule_scores_each_token_once_in_the_state_it_was_decided_in() -> None:
    algorithm = built_in("cj_grpo")
    rollout = rollout_of([X, X], [1.0, 0.0], step_map=[2, 1, 2])
    credit = algorithm.credit(rollout, torch.Generator())
    views = algorithm.forward_process(rollout, credit, MASK, [torch.Generator()] * len(credit.row))
    assert credit.part.tolist() == [1, 2, 1, 2]
    assert float(credit.weight.sum()) == pytest.approx(1)
    logp = ToyBackbone(t1()).logprobs(t1(), views).detach()
    golden = ESTIMATORS["trajectory, step 1 = {1}, step 2 = {0,2}"]["log_probability_old_at_X"]
    assert float(logp[:2].sum()) == pytest.approx(golden, abs=TOLERANCE)
    assert (views.score[:2].sum(0) == 1).all()


def test_the_stratified_counts_follow_the_documented_rule() -> None:
    golden = ESTIMATORS["stratified counts"]

    seed = next(s for s in range(1000) if int(torch.randint(1, 9, (), generator=torch.Generator().manual_seed(s))) == 3)
    assert stratified_counts(8, 4, torch.Generator().manual_seed(seed)) == golden["counts"]


# --------------------------------------------------------------------------------------------- properties


def test_bgpo_is_never_below_the_exact_surrogate_and_always_finite() -> None:
    algorithm = built_in("bgpo", mc_samples=2)
    views = views_for([([0, 1, 2], [0, 1, 2], 1, 0), ([0], [0], 3, 0)])
    zero = torch.zeros(2, 3, dtype=torch.float64)
    for first, second in itertools.product((-10.0, -1.5, -1.0, 0.0, 0.3, 10.0), repeat=2):
        for advantage in (-1.0, -0.3, 0.4, 1.0):
            # d_j = sum(coef * logp) / 3: one scored token of weight 1 resp. 3 makes d_j the chosen number
            logp = zero.clone()
            logp[0, 0], logp[1, 0] = 3 * first, second
            logp.requires_grad_(True)
            loss = algorithm.loss(logp, zero, None, credit_of([advantage], [3]), views).num.sum()
            (gradient,) = torch.autograd.grad(loss, logp)
            value = float(loss.detach())
            assert math.isfinite(value)
            assert bool(torch.isfinite(gradient).all())
            assert value >= -advantage * math.exp((first + second) / 2) - 1e-9


def test_for_a_drift_below_minus_one_bgpo_uses_the_linear_bound() -> None:
    algorithm = built_in("bgpo", mc_samples=1)
    views = views_for([([0, 1, 2], [0, 1, 2], 1, 0)])
    logp = torch.tensor([[-1.5, -1.5, -1.5]], dtype=torch.float64)
    loss = algorithm.loss(logp, torch.zeros(1, 3, dtype=torch.float64), None, credit_of([1], [3]), views)
    assert float(loss.num) == pytest.approx(0.5)


def test_with_equal_scores_and_centred_advantages_the_uniform_model_has_no_policy_gradient() -> None:
    for name, settings in (("d1", {"kl_coef": 0.0}), ("bgpo", {"mc_samples": 2}), ("cj_grpo", {})):
        algorithm = built_in(name, **settings)  # type: ignore[arg-type]
        rollout = rollout_of([X, X], [1.0, 0.0], step_map=[2, 1, 2])
        credit = algorithm.credit(rollout, torch.Generator())
        # equal masks on both rows, so that the two scores are the same function
        generators = [generator_for(5, int(part)) for part in credit.part.tolist()]
        views = algorithm.forward_process(rollout, credit, MASK, generators)
        _, gradient = loss_and_gradient(algorithm, credit, views, uniform(), uniform())
        assert float(gradient.abs().max()) < 1e-12, name


@pytest.mark.parametrize(("length", "views"), [(3, 2), (5, 2), (7, 4), (20, 8), (4, 4), (3, 5)])
def test_every_stratified_count_is_equally_likely(length: int, views: int) -> None:
    """Whatever the first count, later ones are a shift of it: over all first counts each appears once per view."""
    seen: dict[int, list[int]] = {}
    for seed in range(2000):
        counts = stratified_counts(length, views, torch.Generator().manual_seed(seed))
        seen[counts[0]] = counts
        if len(seen) == length:
            break
    for view in range(views):
        assert sorted(counts[view] for counts in seen.values()) == list(range(1, length + 1))


def test_a_position_that_was_never_decoded_is_a_mask_in_every_replayed_state() -> None:
    """A row that stops early leaves the rest of its window undecoded: the sampler saw masks there, not padding."""
    rollout = rollout_of([X, X], [1.0, 0.0], step_map=[1, 2, 0])
    rollout = replace(rollout, completion=torch.tensor([[True, True, False]] * 2))
    algorithm = built_in("cj_grpo")
    credit = algorithm.credit(rollout, torch.Generator())
    views = algorithm.forward_process(rollout, credit, MASK, [torch.Generator()] * len(credit.row))
    assert views.ids[:2].tolist() == [[MASK, MASK, MASK], [X[0], MASK, MASK]]
    assert not views.score[:, 2].any()
