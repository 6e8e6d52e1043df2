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
from toys import MASK, SEQUENCES, L, Table, ToyBackbone, V, X, Y, credit_of, rollout_of, t1, t2, uniform, views_for

from dare.algorithm import Algorithm, load_algorithm
from dare.forward_process import hide_by_chance, hide_counts, hide_everything, replay_steps, stratified_counts
from dare.gradients import backward
from dare.objectives import k3
from dare.seeds import generator_for
from dare.spec import AlgorithmSpec
from dare.types import Credit, LossTerms, NoisyViews, Trace

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
    (
        "just_grpo",
        {},
        "JustGRPO",
        lambda a: credit_of([a], [3], [1 / 3]),
        [([0, 1, 2], [0], 1, 0), ([1, 2], [1], 1, 0), ([2], [2], 1, 0)],
    ),
    (
        "ebpo",
        {},
        "EBPO, blocks {0},{1,2}",
        lambda a: credit_of([a], [3]),
        # T1 has no block attention: each block is a view of its own, and four half views of double weight make two
        [([0, 1, 2], [0], 2, 0), ([1], [1], 4, 0), ([0, 1, 2], [0], 2, 0), ([1, 2], [1, 2], 2, 0)],
    ),
    (
        "coupled_grpo",
        {"clip_low": 0.2, "clip_high": 0.2, "kl_coef": 0.0},
        "coupled, t=0.3",
        lambda a: credit_of([a], [3]),
        [([0, 1, 2], [0, 1, 2], 0.5, 0), ([0, 2], [0, 2], 0.5 / 0.3, 0), ([1], [1], 0.5 / 0.7, 0)],
    ),
    (
        "espo",
        {"kl_coef": 0.0},
        "ESPO, S={0,2} and complement",
        lambda a: credit_of([a], [3]),
        [([0, 2], [0, 2], 1, 0), ([1], [1], 2, 0)],  # half of the weights whose mean over the two views is taken
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


@pytest.mark.parametrize("name", ["dpo", "vrpo"])
def test_the_loss_of_a_pair_equals_the_enumerated_one(name: str) -> None:
    golden = LOSSES["VRPO, beta 0.2, winner X, loser Y"]
    drawn = [([1], [1], 3.0), ([0, 2], [0, 2], 1.5)]
    sides = [views_for([(*view, unit) for view in drawn], sequence) for unit, sequence in enumerate((X, Y))]
    views, credit = NoisyViews.concatenate(sides), credit_of([1, -1], [3, 3])
    loss, gradient = loss_and_gradient(built_in(name, beta=0.2), credit, views, t1("new"), t1("old"))
    assert loss == pytest.approx(golden["loss"], abs=TOLERANCE)
    assert float(gradient.norm()) == pytest.approx(golden["gradient_norm"], abs=TOLERANCE)
    alone, replayed = loss_and_gradient(built_in(name, beta=0.2), credit, views, t1("new"), t1("old"), micro_batch=1)
    assert alone == pytest.approx(loss, abs=1e-12)
    torch.testing.assert_close(replayed, gradient, rtol=0, atol=1e-12)


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


# --------------------------------------------------------------------------------------------- EBPO

BLOCK_ELBO = ESTIMATORS["E-block, blocks {0},{1,2}"]


def block_estimates(algorithm: Algorithm, n: int, size: int, prompt: int = 0) -> Tensor:
    """Estimates of the block ELBO of X by the views of `algorithm`, one for each of n draws.

    T1 attends to everything, so each block of `size` of a view becomes an input of its own, as a doubled forward shows
    it: blocks before it clean, blocks behind it masked. Blocks count from the start of the prompt.
    """
    rollout = rollout_of([X] * n, [1.0, 0.0] * (n // 2))

    def widen(value: Tensor, fill: int) -> Tensor:
        return torch.nn.functional.pad(value, (prompt, 0), value=fill)

    rollout = replace(
        rollout,
        ids=widen(rollout.ids, 0),
        valid=widen(rollout.valid, True),
        window=widen(rollout.window, False),
        completion=widen(rollout.completion, False),
    )
    credit = algorithm.credit(rollout, torch.Generator())
    views = algorithm.forward_process(rollout, credit, MASK, [generator_for(6, row) for row in range(n)])
    block = torch.arange(prompt + L) // size
    total = torch.zeros(len(views), dtype=torch.float64)
    for b in block.unique():
        ids = torch.where(block == b, views.ids, torch.where(block < b, views.target, MASK))
        alone = replace(views, ids=ids, score=views.score & (block == b))
        cut = replace(alone, **{name: getattr(alone, name)[:, prompt:] for name in ("ids", "target", "score", "coef")})
        total += (ToyBackbone(t1()).logprobs(t1(), cut).detach() * cut.coef).sum(1)
    return total.view(n, -1).mean(1)


@pytest.mark.parametrize(
    ("length", "size", "prompt", "golden"),
    [
        (2, 2, 1, BLOCK_ELBO["expectation"]),
        (4, 2, 1, BLOCK_ELBO["global E-k masks scored in the block view"]),
        (3, 3, 0, BLOCK_ELBO["one_block_equals_elbo"]),
    ],
    ids=["the backbone's block", "a multiple of it", "one block"],
)
def test_the_views_of_ebpo_are_unbiased_for_the_block_elbo(length: int, size: int, prompt: int, golden: float) -> None:
    estimate = block_estimates(built_in("ebpo", mc_samples=2, block_length=length), 2000, size, prompt)
    assert estimate.std() > 0
    assert abs(float(estimate.mean()) - golden) < 4 * float(estimate.std()) / math.sqrt(len(estimate))


def test_with_blocks_of_one_token_every_draw_of_ebpo_is_the_left_to_right_likelihood() -> None:
    estimate = block_estimates(built_in("ebpo", mc_samples=2, block_length=1), n=4, size=1)
    golden = BLOCK_ELBO["block_of_1_equals_left_to_right"]
    torch.testing.assert_close(estimate, torch.full((4,), golden, dtype=torch.float64), rtol=0, atol=TOLERANCE)


def test_every_view_of_ebpo_hides_a_part_of_every_block() -> None:
    """Also of blocks that the prompt or the end of the answer cuts; levels are stratified within each block."""
    n, length, block, views_each = 3, 11, 4, 4
    answer = torch.tensor([[column in range(3, 3 + tokens) for column in range(length)] for tokens in (8, 2, 1)])
    rollout = replace(
        rollout_of([[0] * length] * n, [1.0, 0.0, 0.5]), completion=answer, window=torch.arange(length) >= 3
    )
    rollout = replace(rollout, window=rollout.window.expand(n, length))
    algorithm = built_in("ebpo", mc_samples=views_each, block_length=block)
    credit = algorithm.credit(rollout, torch.Generator())
    views = algorithm.forward_process(rollout, credit, MASK, [generator_for(7, row) for row in range(n)])
    assert torch.equal(views.ids == MASK, views.score)
    for row, first in itertools.product(range(n), range(0, length, block)):
        tokens = answer[row, first : first + block].sum()
        hidden = views.score[views.unit == row, first : first + block].sum(1)
        weight = views.coef[views.unit == row, first : first + block].sum(1)
        assert bool((hidden > 0).all()) == bool(tokens > 0)
        torch.testing.assert_close(weight, tokens.to(weight.dtype).expand(views_each))  # k weights of tokens / k
        if tokens == block == views_each:
            assert sorted(hidden.tolist()) == [1, 2, 3, 4]


def test_the_clip_of_ebpo_is_the_enumerated_one_and_finite_for_any_log_ratio() -> None:
    algorithm, zero = built_in("ebpo"), torch.zeros(1, 3, dtype=torch.float64)
    views = views_for([([0, 1, 2], [0, 1, 2], 1, 0)])
    for case in json.loads((GOLDENS / "surrogates.json").read_text())["ppo_clip_0.2"]:
        logp = torch.tensor([[case["log_ratio"], 0, 0]], dtype=torch.float64)
        loss = algorithm.loss(logp, zero, None, credit_of([case["advantage"]], [3]), views).num
        assert float(loss) == pytest.approx(case["loss_dual_clip_3"], abs=TOLERANCE)
        # summed over tokens, not averaged: the same drift on two tokens is twice the log-ratio
        split = torch.tensor([[case["log_ratio"] / 2, case["log_ratio"] / 2, 0]], dtype=torch.float64)
        assert float(
            algorithm.loss(split, zero, None, credit_of([case["advantage"]], [3]), views).num
        ) == pytest.approx(float(loss), abs=TOLERANCE)
    for drift, advantage in itertools.product((-1e3, 1e3), (-1.0, 1.0)):
        logp = torch.full((1, 3), drift, requires_grad=True)
        loss = algorithm.loss(logp, torch.zeros(1, 3), None, credit_of([advantage], [3]), views).num.sum()
        assert bool(torch.isfinite(torch.autograd.grad(loss, logp)[0]).all())
        assert math.isfinite(float(loss.detach()))


# --------------------------------------------------------------------------------------------- wd1

WEIGHTED = json.loads((GOLDENS / "surrogates.json").read_text())["wd1"]


def test_the_weights_and_the_loss_of_wd1_equal_the_enumerated_ones() -> None:
    """Rewards (1.5, 0, 0) are the advantages (1, -0.5, -0.5); a second group must not change the first."""
    algorithm = built_in("wd1", prompt_mask=0.0)
    one = rollout_of([X] * 3, [1.5, 0.0, 0.0])
    two = replace(
        rollout_of([X] * 5, [0.0, 7.0, 1.5, 0.0, 1.0]), group=torch.tensor([0, 1, 0, 0, 1])
    )  # rows 2, 0, 3 are the group of `one`
    weights = torch.tensor(WEIGHTED["positive_weights"]) - torch.tensor(WEIGHTED["negative_weights"])
    for rollout, rows in ((one, [0, 1, 2]), (two, [2, 0, 3])):
        credit = algorithm.credit(rollout, torch.Generator())
        torch.testing.assert_close(credit.advantage[rows].float(), weights)
    credit = algorithm.credit(one, torch.Generator())
    views = algorithm.forward_process(one, credit, MASK, [torch.Generator()] * 3)
    logp = torch.zeros(3, 3, dtype=torch.float64)
    logp[:, 0], logp[:, 1] = torch.tensor(WEIGHTED["log_probs"]) - 5, 5.0  # summed over tokens, not averaged
    logp.requires_grad_(True)
    terms = algorithm.loss(logp, None, None, credit, views)
    loss = terms.num.sum() / terms.den.sum()
    assert float(loss.detach()) == pytest.approx(WEIGHTED["loss"], abs=TOLERANCE)
    (gradient,) = torch.autograd.grad(loss, logp)
    torch.testing.assert_close(gradient, -credit.advantage[:, None].expand(3, 3))


def test_groups_of_equal_rewards_have_no_part_in_wd1_and_every_group_counts_once() -> None:
    algorithm = built_in("wd1", prompt_mask=0.0)
    rollout = replace(rollout_of([X, Y, X, Y, X], [1.5, 0.0, 0.0, 0.3, 0.3]), group=torch.tensor([4, 4, 4, 2, 2]))
    credit = algorithm.credit(rollout, torch.Generator())
    assert credit.advantage[3:].tolist() == [0.0, 0.0]
    assert float(credit.advantage[:3].sum()) == pytest.approx(0, abs=1e-12)
    views = algorithm.forward_process(rollout, credit, MASK, [torch.Generator()] * 5)
    logp = ToyBackbone(t1()).logprobs(t1(), views).detach()
    terms = algorithm.loss(logp, None, None, credit, views)
    score = logp.sum(1).tolist()
    up = [math.exp(a) for a in (1, -0.5, -0.5)]
    down = [math.exp(-a) for a in (1, -0.5, -0.5)]
    expected = sum((d / sum(down) - u / sum(up)) * s for u, d, s in zip(up, down, score[:3], strict=True))
    assert float(terms.num.sum() / terms.den.sum()) == pytest.approx(expected / 2, abs=TOLERANCE)


def test_for_small_rewards_wd1_is_twice_the_policy_gradient_of_the_mean_field_likelihood() -> None:
    """softmax(A) - softmax(-A) = 2 A / G up to third order: both halves push the same way."""
    algorithm = built_in("wd1", prompt_mask=0.0)
    reward = torch.tensor([0.0, 1.0, 0.3, 0.5], dtype=torch.float64) * 1e-3
    credit = algorithm.credit(rollout_of([X, Y, X, Y], reward.tolist()), torch.Generator())
    torch.testing.assert_close(credit.advantage, 2 * (reward - reward.mean()) / 4, rtol=1e-5, atol=0)


# --------------------------------------------------------------------------------------------- Coupled-GRPO, ESPO, SPG


def drawn_for(algorithm: Algorithm, n: int, seed: int) -> tuple[Credit, NoisyViews]:
    """Units and views of `algorithm` for n completions that are all X."""
    rollout = rollout_of([X] * n, [1.0, 0.0] * (n // 2))
    credit = algorithm.credit(rollout, torch.Generator())
    return credit, algorithm.forward_process(rollout, credit, MASK, [generator_for(seed, row) for row in range(n)])


def estimate_of(table: Table, views: NoisyViews, n: int) -> Tensor:
    """Weighted log-probabilities, summed over the views of each unit: [n, L]."""
    scored = (ToyBackbone(table).logprobs(table, views) * views.coef).detach()
    return torch.zeros(n, L, dtype=torch.float64).index_add(0, views.unit, scored)


def test_the_coupled_views_score_every_token_in_one_of_two_complements() -> None:
    n = 400
    _, views = drawn_for(built_in("coupled_grpo"), n, 8)
    assert torch.equal(views.ids == MASK, views.score)
    full, coupled = views.rows(slice(0, n)), views.rows(slice(n, None))
    assert bool(full.score.all())
    assert bool((full.coef == 0.5).all())
    assert bool(coupled.score.any(1).all())  # no forward for an empty side
    assert bool((torch.zeros(n, L).index_add(0, coupled.unit, coupled.score.float()) == 1).all())
    assert len({tuple(row.tolist()) for row in coupled.score}) == 7  # every set is drawn, none for ever
    level = 0.5 / coupled.coef[coupled.score]
    assert 0.2 <= float(level.min()) < 0.25
    assert 0.75 < float(level.max()) <= 0.8


def test_the_coupled_score_equals_the_enumerated_one_for_each_set_and_in_expectation() -> None:
    golden, t = ESTIMATORS["coupled, t=0.3"], 0.3
    n = 4000
    _, views = drawn_for(built_in("coupled_grpo", lowest_t=t, highest_t=t), n, 9)
    by_set: dict[tuple[int, ...], Tensor] = {}
    old, even = estimate_of(t1("old"), views, n), estimate_of(uniform(), views, n)
    new = estimate_of(t1("new"), views, n)
    weight_of = torch.zeros(n, L, dtype=torch.float64).index_add(0, views.unit, views.coef)
    first = (weight_of - 0.5 - 0.5 / t).abs() < 1e-9  # the others have 1 / (1 - t)
    for row in range(n):
        by_set[tuple(first[row].nonzero().flatten().tolist())] = torch.stack([old[row], even[row], new[row]])
    assert len(by_set) == 8
    weight = {chosen: t ** len(chosen) * (1 - t) ** (L - len(chosen)) for chosen in by_set}
    expected = torch.stack([weight[chosen] * values for chosen, values in by_set.items()]).sum(0)
    for got, key in (
        (by_set[0, 2][0], "S={0,2} old"),
        (by_set[0, 2][2], "S={0,2} new"),
        (expected[0], "expectation over S old"),
    ):
        torch.testing.assert_close(got, torch.tensor(golden[key], dtype=torch.float64), rtol=0, atol=TOLERANCE)
    assert expected[1].tolist() == pytest.approx([golden["uniform model expectation per token"]] * L, abs=TOLERANCE)
    error = 4 * old.std(0) / math.sqrt(n)
    assert bool(((old.mean(0) - expected[0]).abs() < error).all())


@pytest.mark.parametrize("pairs", [1, 3])
def test_the_views_of_espo_are_unbiased_for_the_elbo_and_of_the_enumerated_variance(pairs: int) -> None:
    n = 6000
    golden = ESTIMATORS["E-espo coupled (two forwards)"]
    _, views = drawn_for(built_in("espo", pairs=pairs), n, 10)
    estimate = estimate_of(t1(), views, n).sum(1)
    variance = golden["one_view_variance"] / pairs
    assert abs(float(estimate.mean()) - golden["expectation"]) < 4 * math.sqrt(variance / n)
    squared = (estimate - golden["expectation"]) ** 2
    assert abs(float(squared.mean()) - variance) < 4 * float(squared.std()) / math.sqrt(n)
    assert bool(views.score.any(1).all())  # an empty side counts without a forward
    assert bool((torch.zeros(n, L).index_add(0, views.unit, views.score.float()) == pairs).all())


def test_on_the_uniform_model_a_pair_of_espo_has_one_of_two_values() -> None:
    golden = ESTIMATORS["uniform model"]
    n = 200
    _, views = drawn_for(built_in("espo"), n, 11)
    estimate = estimate_of(uniform(), views, n).sum(1)
    alone = torch.bincount(views.unit, minlength=n) == 1
    for value, units in (("E-espo at 0<k<L", ~alone), ("E-espo at k=0 or k=L", alone)):
        assert bool(units.any())
        assert estimate[units].tolist() == pytest.approx([golden[value]] * int(units.sum()), abs=TOLERANCE)


def test_the_k2_penalty_of_espo_equals_the_enumerated_one_per_token() -> None:
    views = views_for([([0, 2], [0, 2], 1, 0), ([1], [1], 2, 0)])
    expected = LOSSES["ESPO, S={0,2} and complement"]["k2_over_L_new_ref"]
    plain, with_penalty = (
        loss_and_gradient(built_in("espo", kl_coef=k), credit_of([1], [3]), views, t1("new"), t1("old"))[0]
        for k in (0.0, 0.5)
    )
    assert with_penalty - plain == pytest.approx(0.5 * expected, abs=TOLERANCE)


SPG_VIEWS = [([0, 2], [0, 2], 1.5, 0), ([0, 1, 2], [0, 1, 2], 1.0, 0)]
EUBO = ESTIMATORS["EUBO (k-law weights)"]


def test_the_loss_of_spg_and_both_its_bounds_equal_the_enumerated_ones() -> None:
    golden = LOSSES["SPG mix, b=1.5, omega=0.5"]
    for sign, key in ((1, "A=+1"), (-1, "A=-1")):
        for micro_batch in (1, 100):
            loss, gradient = loss_and_gradient(
                built_in("spg"), credit_of([sign], [3]), views_for(SPG_VIEWS), t1("new"), t1("old"), micro_batch
            )
            assert loss == pytest.approx(golden[key]["loss"], abs=TOLERANCE)
            assert float(gradient.norm()) == pytest.approx(golden[key]["gradient_norm"], abs=TOLERANCE)
    for omega, key in ((0.0, "elbo"), (1.0, "eubo"), (0.5, "mix")):
        loss, _ = loss_and_gradient(
            built_in("spg", omega=omega), credit_of([-1], [3]), views_for(SPG_VIEWS), t1("new"), t1("old")
        )
        assert loss == pytest.approx(golden["scores"][key], abs=TOLERANCE)


def upper_bound(table: Table, sequence: tuple[int, ...], beta: float) -> float:
    """SPG's upper bound over all masks at once: each count is equally likely, and each set of its size."""
    sets = [s for k in range(1, L + 1) for s in itertools.combinations(range(L), k)]
    times = [3 // math.comb(L, len(s)) for s in sets]  # so that the nine views are equally likely
    views = views_for(
        [(list(s), list(s), L / len(s), 0) for s, n in zip(sets, times, strict=True) for _ in range(n)], sequence
    )
    assert len(views) == 9
    loss, _ = loss_and_gradient(built_in("spg", beta=beta, omega=1.0), credit_of([-1], [L]), views, table, table)
    return L * loss


def test_the_upper_bound_of_spg_equals_the_enumerated_one_and_is_never_below_the_elbo() -> None:
    for beta, golden in EUBO["old_at_X"].items():
        assert upper_bound(t1(), X, float(beta)) == pytest.approx(golden, abs=TOLERANCE)
    for x in SEQUENCES:
        bounds = [elbo(t1(), x), *(upper_bound(t1(), x, beta) for beta in (0.5, 1.0, 2.0))]
        assert bounds == sorted(bounds)


def test_the_bounds_of_spg_hold_log_p_between_them_where_the_conditionals_agree() -> None:
    gaps = []
    for x in SEQUENCES:
        log_p = elbo(t2(), x)  # any order gives the same likelihood here
        gaps.append(upper_bound(t2(), x, 1.5) - log_p)
        if x == X:
            assert gaps[-1] + log_p == pytest.approx(EUBO["T2 U_1.5 at X"], abs=TOLERANCE)
    assert min(gaps) == pytest.approx(EUBO["T2 smallest U_1.5 minus log J"], abs=TOLERANCE)


def test_where_they_disagree_the_upper_bound_of_spg_can_lie_below_log_p() -> None:
    below = 0
    for x in SEQUENCES:
        likelihood = 0.0
        for order in itertools.permutations(range(L)):
            views = views_for([(list(order[j:]), [order[j]], 1, 0) for j in range(L)], x)
            likelihood += math.exp(float(ToyBackbone(t1()).logprobs(t1(), views).sum().detach())) / math.factorial(L)
        below += upper_bound(t1(), x, 1.0) < math.log(likelihood)
    assert below == EUBO["sequences_where_U_1_is_below_random_order_likelihood"]


def test_of_one_view_the_two_bounds_of_spg_have_the_same_gradient() -> None:
    views = views_for([([0, 2], [0, 2], 1.5, 0)])
    lower, upper = (
        loss_and_gradient(built_in("spg", omega=omega), credit_of([-1], [3]), views, t1("new"), t1("old"))[1]
        for omega in (0.0, 1.0)
    )
    torch.testing.assert_close(upper, lower, rtol=0, atol=1e-12)
    assert float(lower.norm()) > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_bounds_of_spg_are_finite_for_any_log_probability(dtype: torch.dtype) -> None:
    views = views_for(SPG_VIEWS)
    for first, second, sign in itertools.product((-1e3, -1.0, 0.0), (-1e3, -1.0, 0.0), (1.0, -1.0)):
        logp = (views.score * torch.tensor([[first], [second]])).to(dtype).requires_grad_(True)
        loss = built_in("spg").loss(logp, None, None, credit_of([sign], [3]), views).num.sum()
        assert math.isfinite(float(loss.detach()))
        assert bool(torch.isfinite(torch.autograd.grad(loss, logp)[0]).all())


def test_spg_hides_one_block_in_part_all_behind_it_and_a_few_tokens_before_it() -> None:
    n, prompt, length, window, block = 600, 5, 10, 14, 4
    width = prompt + window + 3
    column = torch.arange(width).expand(n, width)
    rollout = replace(
        rollout_of([[0] * width] * n, [1.0, 0.0] * (n // 2)),
        valid=column < prompt + window,
        window=(column >= prompt) & (column < prompt + window),
        completion=(column >= prompt) & (column < prompt + length),
    )
    algorithm = built_in("spg", block_length=block, mc_samples=1)
    credit = algorithm.credit(rollout, torch.Generator())
    views = algorithm.forward_process(rollout, credit, MASK, [generator_for(12, row) for row in range(n)])
    hidden = views.ids == MASK
    assert torch.equal(views.score, hidden & rollout.completion)
    assert bool(hidden[:, prompt + length : prompt + window].all())  # behind the end of sequence
    assert not bool(hidden[:, prompt + window :].any())
    torch.testing.assert_close((views.coef * views.score).sum(1), torch.full((n,), float(length)).double())
    share = float(hidden[:, :prompt].double().mean())
    assert abs(share - 0.15) < 4 * math.sqrt(0.15 * 0.85 / (n * prompt))
    # without early hiding every view is its block's count: visible before, hidden behind
    algorithm = built_in("spg", block_length=block, mc_samples=1, visible_mask=0.0)
    views = algorithm.forward_process(rollout, credit, MASK, [generator_for(13, row) for row in range(n)])
    answer = views.score[:, prompt : prompt + length]
    seen = set()
    for row in answer:
        first = int(row.nonzero()[0]) // block
        assert bool(row[(first + 1) * block :].all())
        seen.add((first, int(row[first * block : (first + 1) * block].sum())))
    assert {(b, k) for b in range(3) for k in range(1, (4, 4, 2)[b] + 1)} == seen


def test_the_penalty_of_ebpo_is_k2_of_the_summed_score_per_token() -> None:
    key = "EBPO, blocks {0},{1,2}"
    views = views_for(next(case[4] for case in CASES if case[2] == key))
    ref = float((ToyBackbone(t1("ref")).logprobs(t1("ref"), views).detach() * views.coef).sum() / 4)
    plain, _ = loss_and_gradient(built_in("ebpo"), credit_of([1], [3]), views, t1("new"), t1("old"))
    with_penalty, _ = loss_and_gradient(built_in("ebpo", kl_coef=0.5), credit_of([1], [3]), views, t1("new"), t1("old"))
    expected = 0.5 * 0.5 * (LOSSES[key]["scores"]["new"] - ref) ** 2 / 3
    assert with_penalty - plain == pytest.approx(expected, abs=TOLERANCE)


# --------------------------------------------------------------------------------------------- GDPO


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_the_views_of_gdpo_have_the_expectation_of_the_quadrature_rule(nodes: int) -> None:
    """One node is biased, two are exact for three tokens: the rule must be the one whose masks were enumerated."""
    n = 6000
    algorithm = built_in("gdpo", nodes=nodes)
    rollout = rollout_of([X] * n, [1.0, 0.0] * (n // 2))
    credit = algorithm.credit(rollout, torch.Generator())
    views = algorithm.forward_process(rollout, credit, MASK, [generator_for(8, row) for row in range(n)])
    estimate = (ToyBackbone(t1()).logprobs(t1(), views).detach() * views.coef).sum(1).view(n, nodes).sum(1)
    golden = ESTIMATORS["E-quad, Gauss-Legendre nodes in t, masks enumerated"][f"n={nodes}"]
    assert abs(float(estimate.mean()) - golden) < 4 * float(estimate.std()) / math.sqrt(n)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("behaviour", ["old", "new"])
def test_the_loss_of_gdpo_is_the_clipped_ratio_of_sequences_per_token(sign: int, behaviour: str) -> None:
    """Two nodes, (1 -+ 1 / sqrt 3) / 2 with weight 1/2 each: {1} hidden at the lower, {0, 2} at the upper one."""
    low, high = (0.5 / ((1 + s / math.sqrt(3)) / 2) for s in (-1, 1))
    views = views_for([([1], [1], low, 0), ([0, 2], [0, 2], high, 0)])
    score = {}
    for which in ("old", "new"):
        policy = t1(which)
        logp = [ToyBackbone(policy).logprobs(policy, views.rows(slice(i, i + 1))).sum() for i in range(2)]
        score[which] = low * logp[0] + high * logp[1]
        if which == "new":
            score["new"].backward()
            slope = policy.logits.grad
    ratio = math.exp(float(score["new"].detach()) - float(score[behaviour].detach()))
    expected = -min(ratio * sign, min(max(ratio, 0.8), 1.2) * sign) / 3
    algorithm = built_in("gdpo", nodes=2)
    loss, gradient = loss_and_gradient(algorithm, credit_of([sign], [3]), views, t1("new"), t1(behaviour))
    assert loss == pytest.approx(expected, abs=TOLERANCE)
    assert slope is not None
    inside = ratio < 1.2 if sign > 0 else ratio > 0.8
    torch.testing.assert_close(gradient, -sign * ratio / 3 * slope * inside, rtol=0, atol=TOLERANCE)


def test_the_log_ratio_of_gdpo_may_be_any_number() -> None:
    algorithm, views = built_in("gdpo"), views_for([([0, 1, 2], [0, 1, 2], 1, 0)])
    for drift, advantage in itertools.product((-1e3, 1e3), (-1.0, 1.0)):
        logp = torch.full((1, 3), drift, requires_grad=True)
        loss = algorithm.loss(logp, torch.zeros(1, 3), None, credit_of([advantage], [3]), views).num.sum()
        assert bool(torch.isfinite(torch.autograd.grad(loss, logp)[0]).all())
        assert math.isfinite(float(loss.detach()))


# --------------------------------------------------------------------------------------------- UniGRPO, TraceRL


def token_losses(views: NoisyViews, sign: float, penalty: float, towards: str) -> tuple[Table, list[Tensor]]:
    """PPO clip of 0.2 in its min form, and k3 towards a policy, of every scored token of T1-new, view by view."""
    policy = t1("new")
    new = ToyBackbone(policy).logprobs(policy, views)[views.score]
    old, other = (ToyBackbone(t1(w)).logprobs(t1(w), views).detach()[views.score] for w in ("old", towards))
    rho = torch.exp(new - old)
    clipped = torch.minimum(rho * sign, rho.clamp(0.8, 1.2) * sign)
    return policy, list(penalty * (torch.exp(other - new) - 1 + new - other) - clipped)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_loss_of_tracerl_is_the_mean_over_a_completion_with_k3_towards_the_behaviour_policy(sign: int) -> None:
    """In CJ-GRPO the one token of the first step weighs as much as the two of the second; here all weigh the same."""
    views = views_for([([0, 1, 2], [1], 1, 0), ([0, 2], [0, 2], 1, 1)])
    policy, tokens = token_losses(views, sign, 0.01, "old")
    expected = torch.stack(tokens).mean()
    (slope,) = torch.autograd.grad(expected, policy.logits)
    credit = credit_of([sign, sign], [3, 3], [0.5, 0.5])
    for micro_batch in (1, 100):
        loss, gradient = loss_and_gradient(built_in("tracerl"), credit, views, t1("new"), t1("old"), micro_batch)
        assert loss == pytest.approx(float(expected.detach()), abs=TOLERANCE)
        torch.testing.assert_close(gradient, slope, rtol=0, atol=TOLERANCE)
    assert built_in("tracerl").requires == {"old"}


def test_every_completion_counts_once_in_tracerl_however_many_steps_and_tokens_it_has() -> None:
    rollout = rollout_of([X, X], [1.0, 0.0])
    rollout = replace(
        rollout,
        completion=torch.tensor([[True, True, True], [True, False, False]]),
        trace=Trace(step_map=torch.tensor([[3, 1, 2], [1, 2, 0]])),
    )
    algorithm = built_in("tracerl", kl_coef=0.0)
    credit = algorithm.credit(rollout, torch.Generator())
    assert credit.row.tolist() == [0, 0, 0, 1]
    views = algorithm.forward_process(rollout, credit, MASK, [torch.Generator()] * 4)
    logp = ToyBackbone(t1()).logprobs(t1(), views).detach()
    terms = algorithm.loss(logp, logp, None, credit, views)
    assert float(terms.den.sum()) == pytest.approx(2)
    per_row = torch.zeros(2, dtype=torch.float64).index_add(0, credit.row, terms.num)
    advantage = [float(credit.advantage[0]), float(credit.advantage[3])]
    assert per_row.tolist() == pytest.approx([-a for a in advantage], abs=TOLERANCE)


@pytest.mark.parametrize(
    ("shrink", "replayed"),
    [
        (1, [([0, 1, 2], [1]), ([0, 2], [2]), ([0], [0])]),
        (2, [([0, 1, 2], [1, 2]), ([0], [0])]),
        (3, [([0, 1, 2], [0, 1, 2])]),
        (9, [([0, 1, 2], [0, 1, 2])]),
    ],
)
def test_merged_steps_are_replayed_in_the_state_before_the_first(
    shrink: int, replayed: list[tuple[list[int], list[int]]]
) -> None:
    algorithm = built_in("tracerl", shrink=shrink)
    rollout = rollout_of([X, X], [1.0, 0.0], step_map=[3, 1, 2])
    credit = algorithm.credit(rollout, torch.Generator())
    views = algorithm.forward_process(rollout, credit, MASK, [torch.Generator()] * len(credit.row))
    expected = views_for([(hidden, scored, 1, row) for row in (0, 1) for hidden, scored in replayed])
    for name in ("ids", "target", "score", "coef"):
        assert torch.equal(getattr(views, name), getattr(expected, name))
    if shrink == 1:
        cj = built_in("cj_grpo")
        units = cj.credit(rollout, torch.Generator())
        assert torch.equal(cj.forward_process(rollout, units, MASK, []).ids, views.ids)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_loss_of_unigrpo_is_the_mean_over_hidden_tokens_with_k3_towards_the_reference(sign: int) -> None:
    views = views_for([([0, 2], [0, 2], 1, 0), ([1], [1], 1, 1)])
    policy, tokens = token_losses(views, sign, 0.01, "ref")
    expected = torch.stack(tokens).mean()
    (slope,) = torch.autograd.grad(expected, policy.logits)
    credit = credit_of([sign, sign], [3, 3])
    for micro_batch in (1, 100):
        loss, gradient = loss_and_gradient(built_in("unigrpo"), credit, views, t1("new"), t1("old"), micro_batch)
        assert loss == pytest.approx(float(expected.detach()), abs=TOLERANCE)
        torch.testing.assert_close(gradient, slope, rtol=0, atol=TOLERANCE)


def test_unigrpo_hides_every_number_of_tokens_equally_often_and_never_a_prompt() -> None:
    """The integral of the binomial law over a uniform ratio is 1 / (L + 1) for each count, given which all sets are."""
    n, prompt = 4000, 2
    rollout = rollout_of([[0] * prompt + list(X)] * n, [1.0, 0.0] * (n // 2))
    answer = (torch.arange(prompt + L) >= prompt).expand(n, -1)
    rollout = replace(rollout, window=answer, completion=answer)
    algorithm = built_in("unigrpo")
    credit = algorithm.credit(rollout, torch.Generator())
    views = algorithm.forward_process(rollout, credit, MASK, [generator_for(14, row) for row in range(n)])
    assert not bool((views.ids == MASK)[:, :prompt].any())
    assert torch.equal(views.ids == MASK, views.score)
    assert torch.equal(views.coef, views.score.to(views.coef.dtype))
    sets = torch.bincount((views.score[:, prompt:] * torch.tensor([1, 2, 4])).sum(1), minlength=8)
    chance = torch.tensor([1 / 4 / math.comb(L, bin(s).count("1")) for s in range(8)])
    assert float(((sets - n * chance) ** 2 / (n * chance)).sum()) < 24.4  # 99.9 % quantile, 7 degrees of freedom
