"""Enumerated numbers of the toys that belong to no single method, and that no golden is left which nobody checks."""

from __future__ import annotations

import ast
import itertools
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from test_algorithms_on_toys import ESTIMATORS, FACTS, LOSSES, built_in
from torch import Tensor
from toys import (
    MASK,
    SEQUENCES,
    L,
    Table,
    ToyBackbone,
    V,
    X,
    Y,
    code,
    credit_of,
    rollout_of,
    t1,
    t2,
    uniform,
    views_for,
)

from dare.algorithm import GRPO, clipped_sequences
from dare.algorithms.gdpo import _gauss_legendre
from dare.diagnosis.decoders import SEQUENCE_OF_PATH, elbo, law, trajectory
from dare.families.doubled import doubled_input
from dare.forward_process import hide_everything
from dare.objectives import k1, k2, k3
from dare.sampling.plan import ascending_blocks
from dare.seeds import generator_for
from dare.types import NoisyViews

GOLDENS = Path(__file__).parent / "goldens" / "algorithms"
SURROGATES, TOYS, REWARD_VECTORS = (
    json.loads((GOLDENS / name).read_text()) for name in ("surrogates.json", "toys.json", "reward_vectors.json")
)
MODELS: dict[str, Callable[[], Table]] = {"old": t1, "new": lambda: t1("new"), "ref": lambda: t1("ref")}


def close(value: float | list[float]) -> Any:
    return pytest.approx(value, rel=0, abs=1e-9)


def scored(table: Table, views: NoisyViews) -> Tensor:
    return ToyBackbone(table).logprobs(table, views).detach()


def by_sequence(of_paths: Tensor) -> list[float]:
    """A sum over the paths of each sequence."""
    return torch.zeros(len(SEQUENCES), dtype=of_paths.dtype).index_add(0, SEQUENCE_OF_PATH, of_paths).tolist()


def elbos(table: Table) -> dict[tuple[int, ...], float]:
    of_paths = elbo(table.logits.detach()).tolist()
    return {SEQUENCES[s]: bound for s, bound in zip(SEQUENCE_OF_PATH.tolist(), of_paths, strict=True)}


# --------------------------------------------------------------------------------------------- the toys


def test_the_toys_are_those_of_the_goldens() -> None:
    golden = TOYS["T1"]
    assert (golden["vocabulary"], golden["mask"], golden["window"]) == ([0, 1, 2], MASK, L)
    assert (tuple(golden["X"]), tuple(golden["Y"])) == (X, Y)
    everything = int(code(torch.full((L,), MASK)))
    assert everything == golden["spot_values"]["code_of_all_masked"]
    for which, model in MODELS.items():
        expected = torch.tensor(golden["spot_values"][f"logits_{which}_at_all_masked"], dtype=torch.float64)
        torch.testing.assert_close(model().logits[everything].detach(), expected, rtol=0, atol=1e-12)
    expected = torch.tensor(TOYS["T2"]["logits_at_all_masked"], dtype=torch.float64)
    found = torch.log_softmax(t2().logits[everything].detach(), -1)
    torch.testing.assert_close(found, torch.log_softmax(expected, -1), rtol=0, atol=1e-12)
    assert TOYS["U"]["model"].endswith("-log(V)")
    assert torch.log_softmax(uniform().logits, -1).unique().tolist() == close([-math.log(V)])


def test_the_order_consistent_toy_has_the_likelihood_of_its_joint_in_every_order() -> None:
    joint = {tuple(x): logp for x, logp in FACTS["T2_log_joint_all_sequences"]}
    assert joint[X] == FACTS["T2_log_joint_at_X"]
    bounds = elbos(t2())
    for decoder in ("random-order", "left-to-right"):
        for x, p in zip(SEQUENCES, by_sequence(law(t2().logits.detach(), decoder)), strict=True):
            assert math.log(p) == close(joint[x])
            assert bounds[x] == close(joint[x])


# --------------------------------------------------------------------------------------------- likelihoods


def test_the_elbo_of_every_sequence_under_every_policy_is_the_enumerated_one() -> None:
    for key, model in zip(("elbo_old_at_X", "elbo_new_at_X", "elbo_ref_at_X"), MODELS.values(), strict=True):
        assert elbos(model())[X] == close(FACTS[key])
    assert [elbos(t1())[tuple(x)] for x, _ in FACTS["elbo_old_all_sequences"]] == close(
        [bound for _, bound in FACTS["elbo_old_all_sequences"]]
    )
    assert list(elbos(uniform()).values()) == close([FACTS["uniform_elbo"]] * len(SEQUENCES))
    assert ESTIMATORS["uniform model"]["E-k every draw"] == close(-L * math.log(V))


@pytest.mark.parametrize(
    ("decoder", "key", "total"),
    [
        (
            "random-order",
            "random_order_log_likelihood_old_at_X",
            "sum_over_sequences_random_order_likelihood_old",
        ),
        (
            "left-to-right",
            "left_to_right_log_likelihood_old_at_X",
            "sum_over_sequences_left_to_right_likelihood_old",
        ),
    ],
)
def test_a_decoder_gives_x_its_enumerated_likelihood(decoder: str, key: str, total: str) -> None:
    laws = by_sequence(law(t1().logits.detach(), decoder))
    assert math.log(laws[SEQUENCES.index(X)]) == close(FACTS[key])
    assert sum(laws) == close(FACTS[total])


@pytest.mark.parametrize(
    ("which", "key"),
    [("old", "left_to_right_per_token_old_at_X"), ("new", "left_to_right_per_token_new_at_X")],
)
def test_just_grpo_scores_every_token_as_it_was_enumerated(which: str, key: str) -> None:
    algorithm = built_in("just_grpo")
    rollout = rollout_of([X, Y], [1.0, 0.0])
    credit = algorithm.credit(rollout, torch.Generator())
    views = algorithm.forward_process(rollout, credit, MASK, [torch.Generator()] * 2)
    assert scored(MODELS[which](), views).sum(1)[:L].tolist() == close(FACTS[key])


def test_low_confidence_decoding_selects_as_it_was_enumerated() -> None:
    golden = FACTS["low_confidence_decoder"]
    logits = t1().logits.detach()
    paths = law(logits, "low-confidence")
    assert float(paths.sum()) == close(golden["sum_of_path_probabilities"])
    laws = by_sequence(paths)
    assert math.log(laws[SEQUENCES.index(X)]) == close(golden["log_probability_of_X"])
    bounds = elbos(t1())
    exceeded = sum(bounds[x] > math.log(p) for x, p in zip(SEQUENCES, laws, strict=True))
    assert exceeded == golden["sequences_where_elbo_exceeds_it"]
    factor = (paths / trajectory(logits).exp())[paths > 0]
    assert [float(factor.min()), float(factor.max())] == close(golden["selection_factor_range"])


@pytest.mark.parametrize("which", ["old", "new"])
def test_with_everything_hidden_tokens_have_the_enumerated_mean_field_scores(which: str) -> None:
    golden = ESTIMATORS["mean-field (all masked)"]
    views = hide_everything(rollout_of(SEQUENCES, [0.0] * len(SEQUENCES)), credit_for(len(SEQUENCES)), MASK)
    logp = scored(MODELS[which](), views)
    assert logp[SEQUENCES.index(X)].tolist() == close(golden[f"per_token_{which}_at_X"])
    assert float(logp.sum(1).exp().sum()) == close(golden["sum_over_sequences"])
    if which == "old":
        assert float(logp[SEQUENCES.index(X)].sum()) == close(golden["sum_old_at_X"])


def credit_for(n: int) -> Any:
    """A unit per row."""
    return replace(credit_of([0.0] * n, [L] * n), row=torch.arange(n))


def test_a_replayed_schedule_has_the_enumerated_terms() -> None:
    golden = ESTIMATORS["trajectory, step 1 = {1}, step 2 = {0,2}"]
    algorithm = built_in("cj_grpo")
    rollout = rollout_of([X, X], [1.0, 0.0], step_map=[2, 1, 2])
    credit = algorithm.credit(rollout, torch.Generator())
    views = algorithm.forward_process(rollout, credit, MASK, [torch.Generator()] * 4)
    logp = scored(t1(), views)
    assert [float(logp[0, 1]), float(logp[1, 0]), float(logp[1, 2])] == close(golden["terms_position_1_0_2"])


# --------------------------------------------------------------------------------------------- estimators


def test_each_half_of_a_pair_of_espo_is_unbiased_alone_and_of_the_enumerated_variance() -> None:
    """All sets that it draws, each with its probability 1 / (L + 1) / C(L, k), and the weights that it gives them."""
    n, algorithm = 400, built_in("espo")
    rollout = rollout_of([X] * n, [1.0, 0.0] * (n // 2))
    credit = algorithm.credit(rollout, torch.Generator())
    views = algorithm.forward_process(rollout, credit, MASK, [generator_for(10, row) for row in range(n)])
    chosen = int((views.unit.diff() < 0).nonzero()[0]) + 1  # first the drawn sets, then their complements
    estimate = 2 * (scored(t1(), views) * views.coef).sum(1)  # without the mean over the two
    halves = torch.zeros(2, n, dtype=torch.float64)
    halves[0, views.unit[:chosen]] = estimate[:chosen]
    halves[1, views.unit[chosen:]] = estimate[chosen:]
    drawn = torch.zeros(n, L, dtype=torch.bool)
    drawn[views.unit[:chosen]] = views.score[:chosen]
    by_set = {tuple(row.tolist()): halves[:, u] for u, row in enumerate(drawn)}
    assert len(by_set) == 8
    share = torch.tensor([1 / (L + 1) / math.comb(L, sum(s)) for s in by_set], dtype=torch.float64)
    values = torch.stack(list(by_set.values()), 1)
    for half, key in zip(
        (*values, values.mean(0)),
        (
            "E-espo forward half, k ~ U{0..L}, weight (L+1)/k",
            "E-espo complement half",
            "E-espo coupled (two forwards)",
        ),
        strict=True,
    ):
        mean = float((share * half).sum())
        assert mean == close(ESTIMATORS[key]["expectation"])
        assert float((share * (half - mean) ** 2).sum()) == close(ESTIMATORS[key]["one_view_variance"])
    weights = torch.zeros(n, dtype=torch.float64).index_add(0, views.unit, views.coef.sum(1))
    weight = torch.stack(list({tuple(row.tolist()): weights[u] for u, row in enumerate(drawn)}.values()))
    assert float((share * weight).sum()) * -math.log(V) == close(ESTIMATORS["uniform model"]["E-espo mean"])


def test_the_block_elbo_is_below_the_semi_autoregressive_likelihood() -> None:
    """Blocks {0} and {1, 2} of X: the second is decoded in a random order, given the first."""
    golden = ESTIMATORS["E-block, blocks {0},{1,2}"]

    def logp(hidden: tuple[int, ...], place: int) -> float:
        return float(scored(t1(), views_for([(hidden, [place], 1, 0)])).sum())

    orders = (logp((1, 2), 1) + logp((2,), 2), logp((1, 2), 2) + logp((1,), 1))
    exact = logp((0, 1, 2), 0) + math.log(sum(map(math.exp, orders)) / 2)
    assert exact == close(golden["exact_semi_autoregressive_log_likelihood"])
    assert golden["expectation"] < exact


def test_the_weights_of_a_coupled_token_are_worth_one_and_a_half_log_probabilities() -> None:
    golden = ESTIMATORS["coupled, t=0.3"]
    expected = -golden["total_weight_per_token"] * math.log(V)
    assert golden["uniform model expectation per token"] == close(expected)
    n = 4000
    algorithm = built_in("coupled_grpo")
    rollout = rollout_of([X] * n, [1.0, 0.0] * (n // 2))
    credit = algorithm.credit(rollout, torch.Generator())
    views = algorithm.forward_process(rollout, credit, MASK, [generator_for(9, row) for row in range(n)])
    weight = torch.zeros(n, dtype=torch.float64).index_add(0, views.unit, views.coef.sum(1)) / L
    assert abs(float(weight.mean()) - golden["total_weight_per_token"]) < 4 * float(weight.std()) / math.sqrt(n)


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_the_rule_of_gdpo_with_all_masks_enumerated_has_the_enumerated_expectation(nodes: int) -> None:
    golden = ESTIMATORS["E-quad, Gauss-Legendre nodes in t, masks enumerated"]
    by_size = torch.zeros(L + 1, dtype=torch.float64)
    for size in range(1, L + 1):
        for hidden in itertools.combinations(range(L), size):
            by_size[size] += scored(t1(), views_for([(hidden, hidden, 1, 0)])).sum()
    hidden_tokens = torch.arange(L + 1)
    total = 0.0
    for level, weight in zip(*_gauss_legendre(nodes), strict=True):
        chance = level**hidden_tokens * (1 - level) ** (L - hidden_tokens)
        total += float(weight / level * (chance * by_size).sum())
    assert total == close(golden[f"n={nodes}"])
    if nodes >= 2:  # exact up to L = 2 n
        assert total == close(FACTS["elbo_old_at_X"])


def test_of_two_tokens_the_upper_bound_of_spg_can_lie_below_the_likelihood() -> None:
    """Views with the k-law: each token alone, and twice both; probabilities that no joint distribution has."""
    golden = ESTIMATORS["EUBO (k-law weights)"]["hand_example"]
    first = [golden["p(x1|MM)"], golden["p(x1|M,x2)"]]
    second = [golden["p(x2|MM)"], golden["p(x2|x1,M)"]]
    shown = torch.tensor([[1, 0], [0, 1], [1, 1], [1, 1]], dtype=torch.bool)
    p = torch.tensor([[first[1], 1], [1, second[1]], *[[first[0], second[0]]] * 2], dtype=torch.float64)
    coef = golden["L"] / shown.sum(1, keepdim=True) * shown
    views = replace(views_for([([], [], 1, 0)] * 4), score=shown, coef=coef.double())
    terms = built_in("spg", beta=1.0, omega=1.0).loss(p.log(), None, None, credit_of([-1], [golden["L"]]), views)
    bound = float(terms.num.sum())  # the advantage is -1, and the length is in the numerator
    assert bound == close(golden["U_1"])
    likelihood = (first[0] * second[1] + second[0] * first[1]) / 2
    assert math.log(likelihood) == close(golden["log_p_random_order"])
    assert bound < math.log(likelihood)


def test_the_bound_of_trajectories_at_a_power_of_one_is_the_random_order_likelihood() -> None:
    golden = ESTIMATORS["EUBO (k-law weights)"]["trajectory_bound_old_at_X"]
    at_x = trajectory(t1().logits.detach())[SEQUENCE_OF_PATH.eq(SEQUENCES.index(X))]
    for power, bound in golden.items():
        mean = (float(power) * at_x).exp().mean()
        assert float(mean.log()) / float(power) == close(bound)
    assert golden["1"] == close(FACTS["random_order_log_likelihood_old_at_X"])


@pytest.mark.parametrize(
    ("tokens", "key"),
    [
        (4, "doubled sequence mask [noisy, clean], N=4, block 2 (query rows, key columns)"),
        (5, "doubled sequence mask [noisy, clean], N=5, block 2 (ragged last block)"),
    ],
)
def test_a_doubled_input_sees_what_the_golden_mask_lets_it_see(tokens: int, key: str) -> None:
    """Ours has the clean half first, without the last block of it, which nobody but that block itself may see."""
    golden = torch.tensor(ESTIMATORS[key], dtype=torch.bool)
    everywhere = torch.ones(1, tokens, dtype=torch.bool)
    target = torch.arange(tokens)[None]
    views = NoisyViews(
        ids=torch.full_like(target, 99),
        target=target,
        score=everywhere,
        coef=everywhere.double(),
        unit=torch.zeros(1, dtype=torch.long),
        valid=everywhere,
        window=everywhere,
    )
    doubled = doubled_input(views, 2)
    assert doubled is not None
    noisy, clean = doubled.score[0], (tokens - 1) // 2 * 2
    real = (noisy | (torch.arange(len(noisy)) < clean)).nonzero().flatten()  # a ragged block is filled up by nobody
    places = torch.where(noisy, doubled.position[0], tokens + doubled.position[0])[real]  # in the golden
    assert sorted(places.tolist()) == [*range(tokens), *range(tokens, tokens + clean)]
    seen = doubled.sight.matrix()[0, 0][real][:, real]
    assert torch.equal(seen, golden[places][:, places])
    left_out = [column for column in range(2 * tokens) if column not in places.tolist()]
    assert not bool(golden[places][:, left_out].any())


# --------------------------------------------------------------------------------------------- losses


def test_the_sft_loss_of_the_uniform_model_is_log_v_for_any_length_batch_and_padding() -> None:
    golden = LOSSES["SFT normaliser on the uniform model"]
    assert golden["correct"] == "log V for any length, batch and padding"
    # Dividing by the number of masked tokens leaves the mean of the weight 1 / t in the loss.
    left_over = golden["DEFECT_masked_count_factor_micro_batch_1_eps_1e-3"]
    assert left_over == close(math.log(1e3) / (1 - 1e-3))
    algorithm, n = built_in("sft"), 12_000
    length = 1 + torch.arange(n) % L
    answer = torch.arange(L + 2) < length[:, None]
    rollout = rollout_of([[*X, 7, 7]] * n, [0.0] * n)
    rollout = replace(rollout, valid=answer, window=answer, completion=answer)
    credit = algorithm.credit(rollout, torch.Generator())
    views = algorithm.forward_process(rollout, credit, MASK, [generator_for(3, row) for row in range(n)])
    terms = algorithm.loss(scored(uniform(), views), None, None, credit, views)
    for rows in (slice(None), *(length == tokens for tokens in range(1, L + 1))):
        num, den = terms.num[rows], terms.den[rows]
        loss = float(num.sum() / den.sum())
        error = float((num - loss * den).std() / den.mean()) / math.sqrt(len(num))
        assert abs(loss - math.log(V)) < 4 * error
        assert abs(loss - left_over * math.log(V)) > 20 * error


def test_the_expected_sft_loss_is_the_elbo_per_token() -> None:
    golden = LOSSES["SFT, S={0,2}, t=0.5"]
    assert golden["expected_loss_over_S_and_t"] == close(-elbos(t1("new"))[X] / golden["denominator"])
    n = 12_000
    algorithm = built_in("sft")
    rollout = rollout_of([X] * n, [0.0] * n)
    credit = algorithm.credit(rollout, torch.Generator())
    views = algorithm.forward_process(rollout, credit, MASK, [generator_for(4, row) for row in range(n)])
    terms = algorithm.loss(scored(t1("new"), views), None, None, credit, views)
    loss = terms.num / terms.den
    assert abs(float(loss.mean()) - golden["expected_loss_over_S_and_t"]) < 4 * float(loss.std()) / math.sqrt(n)


def test_what_the_goldens_call_a_defect_is_what_they_say_and_not_what_is_computed_here() -> None:
    golden = LOSSES["DPO scale: summed nats against division by 512"]
    margin = torch.tensor(golden["beta"] * golden["raw_margin_nats"], dtype=torch.float64)
    for scale, key in ((1, "loss_summed"), (512, "DEFECT_loss_divided_by_512")):
        assert float(-torch.nn.functional.logsigmoid(margin / scale)) == close(golden[key])

    golden = LOSSES["replay example: sequence ratio with k2 KL 0.1, A=-0.8, masks {0},{0,2},{1,2},{0,1,2}"]
    views = views_for(
        [([0], [0], 3, 0), ([0, 2], [0, 2], 1.5, 0), ([1, 2], [1, 2], 1.5, 0), ([0, 1, 2], [0, 1, 2], 1, 0)]
    )
    policy = t1("new")
    logp = ToyBackbone(policy).logprobs(policy, views)
    new, old, ref = ((of * views.coef).sum(1) for of in (logp, scored(t1(), views), scored(t1("ref"), views)))

    def loss(change: Tensor, from_ref: Tensor) -> Tensor:
        return 0.8 * torch.exp(change / L).clamp(min=0.8) + 0.1 * k2(from_ref) / L

    whole, naive = loss((new - old).mean(), (new - ref).mean()), loss(new - old, new - ref).mean()
    assert float(whole.detach()) == close(golden["loss"])
    defect = golden["DEFECT_nonlinear_loss_per_view_then_mean"]
    assert float(naive.detach()) == close(defect["loss"])
    right, wrong = (torch.autograd.grad(value, policy.logits, retain_graph=True)[0] for value in (whole, naive))
    assert float((right - wrong).abs().max()) == close(defect["max_gradient_difference"])


def test_the_ascending_schedule_has_the_enumerated_steps_and_blocks() -> None:
    golden = LOSSES["ASS schedule"]
    one = golden["G=2**L, one block"]
    (block,) = ascending_blocks(2 ** one["L"], 1)
    assert list(block.quotas) == one["tokens_per_step"]
    assert sum(block.quotas) - block.length == one["remainder"]
    blocks = ascending_blocks(2**7, 4)
    assert [block.length for block in blocks] == golden["L=7, K=4 blocks"]
    assert list(blocks[0].quotas) == golden["first_block_steps"]


def test_what_the_loss_goldens_say_beside_loss_and_gradient_is_ours_too() -> None:
    everything = views_for([([0, 1, 2], [0, 1, 2], 1, 0)])
    change = scored(t1("new"), everything) - scored(t1(), everything)
    assert change.exp()[0].tolist() == close(LOSSES["d1, no prompt"]["ratios"])

    golden = LOSSES["CJ-GRPO, steps {1},{0,2}"]
    steps = views_for([([0, 1, 2], [1], 1, 0), ([0, 2], [0, 2], 1, 1)])
    logp = scored(t1("new"), steps)
    assert [float(logp[0, 1]), float(logp[1, 0]), float(logp[1, 2])] == close(golden["per_token_new"])
    algorithm = built_in("cj_grpo")
    weights = {}
    for place in range(L):
        token = (torch.arange(L) == place) * steps.score.double()
        num, den = algorithm.reduce(token, steps.score, credit_of([1, 1], [1, 2]))
        weights[str(place)] = float(num.sum() / den.sum())
    assert weights == golden["token_weights"]

    golden = LOSSES["BGPO"]
    views = views_for([(v["mask"], v["score"], v["coef"][0], 0) for v in golden["views"]])
    change = ((scored(t1("new"), views) - scored(t1(), views)) * views.coef).sum(1) / L
    assert change.tolist() == close(golden["d"])
    assert math.exp(float(change.mean())) == close(golden["exp_mean_d"])

    golden = LOSSES["ESPO, S={0,2} and complement"]["scores"]
    pair = views_for([([0, 2], [0, 2], 1, 0), ([1], [1], 2, 0)])
    for which, model in MODELS.items():
        assert float((scored(model(), pair) * pair.coef).sum()) == close(golden[which])


# --------------------------------------------------------------------------------------------- surrogates


def test_the_dual_clip_bounds_the_loss_of_a_token_that_ran_away() -> None:
    for case in SURROGATES["dual_clip_c3"]:
        log_ratio, advantage = (
            torch.tensor([value], dtype=torch.float64) for value in (math.log(case["ratio"]), case["advantage"])
        )
        loss, _ = clipped_sequences(log_ratio, advantage, 0.2, 0.2, largest_ratio=3)
        assert float(loss) == close(case["loss"])


def test_one_view_of_bgpo_has_the_enumerated_bound_which_is_never_below_the_exact_surrogate() -> None:
    algorithm, views = built_in("bgpo", mc_samples=1), views_for([([0, 1, 2], [0, 1, 2], 1, 0)])
    zero = torch.zeros(1, L, dtype=torch.float64)
    for case in SURROGATES["bgpo_one_view"]["cases"]:
        d, advantage = case["d"], case["advantage"]
        terms = algorithm.loss(torch.full_like(zero, d), zero, None, credit_of([advantage], [L]), views)
        assert float(terms.num / terms.den) == pytest.approx(case["loss"], rel=1e-12, abs=1e-9)
        assert case["exact_surrogate"] == pytest.approx(-advantage * math.exp(d), rel=1e-12)
        assert float(terms.num) >= case["exact_surrogate"] - 1e-9


def test_the_three_estimators_of_a_divergence_have_the_enumerated_values() -> None:
    golden = SURROGATES["kl_values"]
    d = torch.tensor([case["d"] for case in golden], dtype=torch.float64)
    for name, estimator in (("k1", k1), ("k2", k2), ("k3", k3)):
        assert estimator(d).tolist() == close([case[name] for case in golden])


def test_expectations_and_expected_gradients_of_the_estimators_are_the_enumerated_ones() -> None:
    golden = SURROGATES["kl_estimators"]
    logits = torch.tensor(golden["logits"], dtype=torch.float64, requires_grad=True)
    ref = torch.log_softmax(torch.tensor(golden["reference_logits"], dtype=torch.float64), 0)
    logp = torch.log_softmax(logits, 0)
    p, d = logp.exp(), logp - ref
    forward, reverse = (p * d).sum(), -(ref.exp() * d).sum()
    for value, key in ((forward, "KL(pi||ref)"), (reverse, "KL(ref||pi)")):
        assert float(value.detach()) == close(golden[key])
        (slope,) = torch.autograd.grad(value, logits, retain_graph=True)
        assert slope.tolist() == close(golden[f"gradient of {key}"])
    for name, estimator in (("k1", k1), ("k2", k2), ("k3", k3)):
        expected = (p.detach() * estimator(d)).sum()
        assert float(expected.detach()) == close(golden[f"E_pi[{name}]"])
        (slope,) = torch.autograd.grad(expected, logits, retain_graph=True)
        key = f"expected gradient of {name}" + (" (samples as data)" if name == "k1" else "")
        assert slope.tolist() == close(golden[key])


def test_every_way_to_average_token_losses_is_that_of_a_method() -> None:
    """Token losses (1, 1, 1, 1) of one completion and (4) of another, in a window of four."""
    golden = SURROGATES["loss_reduction"]
    token_losses = torch.tensor([[1.0, 1, 1, 1], [4, 0, 0, 0]], dtype=torch.float64)
    kept = torch.tensor([[True] * 4, [True, False, False, False]])
    assert [row[mine].tolist() for row, mine in zip(token_losses, kept, strict=True)] == golden["token_losses"]
    rollout = rollout_of([[0, 0, 0, 0]] * 2, [1.0, 0.0], step_map=[1, 1, 1, 1])
    rollout = replace(rollout, completion=kept)
    ways = {
        "token_mean": ("d1", "coupled_grpo", "unigrpo"),
        "sequence_mean": ("tracerl", "cj_grpo"),  # of one step each; CJ-GRPO averages within steps first
        "constant_length_4": ("just_grpo",),
    }
    for key, names in ways.items():
        for name in names:
            algorithm = built_in(name)
            assert isinstance(algorithm, GRPO)
            num, den = algorithm.reduce(token_losses, kept, algorithm.credit(rollout, torch.Generator()))
            assert float(num.sum() / den.sum()) == close(golden[key]), name
    # The others have no losses of tokens; likelihoods are summed over a sequence by wd1, over all tokens by SFT.
    everything = replace(views_for([([], [], 1, 0), ([], [], 1, 1)]), score=kept, coef=kept.double())
    for name, key in (("wd1", "mean_of_sequence_sums"), ("sft", "token_mean")):
        algorithm = built_in(name)
        credit = algorithm.credit(rollout, torch.Generator())
        even = replace(credit, advantage=torch.full((2,), 0.5, dtype=torch.float64))  # wd1's weights sum to 1
        terms = algorithm.loss(-token_losses, None, None, even, everything)
        assert float(terms.num.sum() / terms.den.sum()) == close(golden[key]), name


# --------------------------------------------------------------------------------------------- nothing is left out


def test_the_reward_vectors_say_what_their_columns_mean() -> None:
    assert set(REWARD_VECTORS["meaning"]) == {"legacy_score", "verdict"}
    assert all(set(REWARD_VECTORS["meaning"]) <= set(item) for item in REWARD_VECTORS["items"])


@cache
def readers() -> list[tuple[str, set[str]]]:
    """Each test file that reads goldens, and the strings in it."""
    sources = [path.read_text() for path in Path(__file__).parent.glob("test_*.py")]
    sources = [source for source in sources if "golden" in source]
    constants = [[node for node in ast.walk(ast.parse(s)) if isinstance(node, ast.Constant)] for s in sources]
    strings = [{node.value for node in nodes if isinstance(node.value, str)} for nodes in constants]
    return list(zip(sources, strings, strict=True))


@pytest.mark.parametrize("file", sorted(path.stem for path in GOLDENS.glob("*.json")))
def test_every_golden_is_read_by_some_test(file: str) -> None:
    """By one that names its file, or what tests call it, and its key. A key that holds a sentence is a remark."""
    names = re.compile(rf"\b({file}\.json|{file.upper()})\b")
    read = set[str]().union(*(strings for source, strings in readers() if names.search(source)))
    content = json.loads((GOLDENS / f"{file}.json").read_text())
    unread = [key for key, value in content.items() if key not in read and not isinstance(value, str)]
    assert unread == []
