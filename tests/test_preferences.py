"""Preferences: pairs from a file or made with the judge, as rows of a rollout, and the losses that train on them."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_algorithms_on_toys import ESTIMATORS, LOSSES, TOLERANCE, built_in
from test_executor import algorithm_named, executor
from tiny import FAMILIES, tiny
from torch import Tensor
from toys import MASK, L, ToyBackbone, X, Y, credit_of, rollout_of, t1, uniform, views_for

from dare.catalog import backbone_directory
from dare.data import DataError, PreferenceData, TrainingData, load_data
from dare.data.batches import preference_rollout
from dare.data.corpus import Preference, preferences
from dare.executor import AlgorithmFaultError, Executor, MismatchError, guarded
from dare.family import Backbone, load_family
from dare.forward_process import hide_counts
from dare.seeds import generator_for
from dare.tasks import load_task
from dare.types import Credit, NoisyViews, Rollout

TASKS = ("countdown", "sudoku")
METHODS = ("dpo", "vrpo")
PAIR = {"prompt": "C1 2 3=6", "chosen": "1+2+3", "rejected": "1-2+3"}


# --- data -----------------------------------------------------------------------------------------------------------


def test_a_file_of_pairs_is_preference_data(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps({**PAIR, "rejected": ""}) + "\n\n" + json.dumps(PAIR))
    data = load_data("file:x.jsonl", tmp_path)
    assert isinstance(data, PreferenceData)
    assert data.rows == [Preference("C1 2 3=6", "1+2+3", ""), Preference("C1 2 3=6", "1+2+3", "1-2+3")]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({**PAIR, "chosen": 6}, "line 2: 'chosen' is 6; it must be a list of messages"),
        ({**PAIR, "rejected": [{"role": "user", "content": "6"}]}, "line 2: 'rejected' ends with 'user'"),
        ({**PAIR, "prompt": None}, "line 2: 'prompt' is missing or null"),
    ],
)
def test_a_row_that_is_no_pair_is_refused_with_its_line(row: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps(PAIR) + "\n" + json.dumps(row))
    with pytest.raises(DataError, match=words):
        load_data("file:x.jsonl", tmp_path)


@pytest.mark.parametrize("name", TASKS)
def test_the_judge_holds_the_chosen_answer_for_the_better_one(name: str) -> None:
    task = load_task(name)
    assert task.item_of is not None
    pairs = preferences(task, 300)
    assert len(pairs) > 290
    for pair in pairs:
        item = task.item_of(pair.prompt)
        better, worse = task.judge(item, pair.chosen), task.judge(item, pair.rejected)
        assert (better.solved, better.reward) > (worse.solved, worse.reward)
    assert preferences(task, 300) == pairs
    assert preferences(task, 100) == pairs[: len(preferences(task, 100))]


def test_where_the_demonstration_is_the_worse_answer_it_is_the_rejected_one() -> None:
    """The lazy corpus leaves holes blank; a copy that fills one by luck is chosen over what was demonstrated."""
    lazy = replace(load_task("sudoku"), corpora=("lazy",))
    assert lazy.demonstrations is not None
    shown = {(d.prompt, d.answer) for d in lazy.demonstrations("lazy", 300)}
    pairs = preferences(lazy, 300)
    demonstrated = sum((pair.prompt, pair.chosen) in shown for pair in pairs)
    assert 0 < demonstrated < len(pairs)
    assert all(((p.prompt, p.chosen) in shown) != ((p.prompt, p.rejected) in shown) for p in pairs)


@pytest.mark.parametrize("name", TASKS)
def test_the_item_of_a_prompt_is_the_one_that_asked_it(name: str) -> None:
    task = load_task(name)
    assert task.item_of is not None
    for item in task.items("train", None)[:200]:
        assert dict(task.item_of(item.prompt).gold) == dict(item.gold)


# --- rows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pair_is_two_rows_of_one_group_that_end_with_their_answers(family: str) -> None:
    backbone = tiny(family)
    rows = [Preference("C1 2 3=6", "1+2+3", ""), Preference("S" + "0" * 16, "3" * 16, "12")]
    rollout = preference_rollout(backbone, rows, 20)
    assert rollout.group.tolist() == [0, 0, 1, 1]
    assert rollout.reward.tolist() == [1, -1, 1, -1]
    for i, answer in enumerate(("1+2+3", "", "3" * 16, "12")):
        done = rollout.ids[i][rollout.completion[i]].tolist()
        assert done == list(backbone.tokenizer.answer_ids(answer))  # no template, no header, one end
        assert rollout.ids[i][rollout.valid[i] & ~rollout.window[i]].tolist() == list(
            backbone.tokenizer.prompt_ids(rows[i // 2].prompt)
        )
        behind = rollout.ids[i][rollout.window[i] & ~rollout.completion[i]].tolist()
        assert set(behind) <= {backbone.eos_ids[0]}
    with pytest.raises(DataError, match="the window holds 16"):
        preference_rollout(backbone, rows, 16)


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("vrpo", "prompts:sudoku", "trains on preferences, the data are prompts"),
        ("vrpo", "corpus:sudoku/clean", "trains on preferences, the data are demonstrations"),
        ("sft", "preferences:sudoku", "trains on demonstrations, the data are preferences"),
        ("d1", "preferences:sudoku", "trains on prompts, the data are preferences"),
    ],
)
def test_a_method_gets_the_data_it_trains_on_or_says_so(name: str, data: str, sentence: str) -> None:
    run = executor("llada", algorithm_named(name))
    given: TrainingData = load_data(data, Path())
    with pytest.raises(MismatchError, match=sentence):
        Executor(run.backbone, run.algorithm, given, run.settings, run.sampling, run.budget, 0)


# --- loss -----------------------------------------------------------------------------------------------------------


def pair_views(winner: tuple[int, ...] = X, loser: tuple[int, ...] = Y) -> NoisyViews:
    sides = [
        views_for([([1], [1], 3, unit), ([0, 2], [0, 2], 1.5, unit)], sequence)
        for unit, sequence in enumerate((winner, loser))
    ]
    return NoisyViews.concatenate(sides)


def pair_credit() -> Credit:
    return credit_of([1, -1], [3, 3])


def scores(which: str, views: NoisyViews) -> Tensor:
    return ToyBackbone(t1(which)).logprobs(t1(which), views).detach()


@pytest.mark.parametrize("name", METHODS)
def test_swapping_the_sides_negates_the_margin(name: str) -> None:
    golden = LOSSES["VRPO, beta 0.2, winner X, loser Y"]
    algorithm = built_in(name, beta=0.2)
    for sides, key in (((X, Y), "margin"), ((Y, X), "margin_with_sides_swapped")):
        views = pair_views(*sides)
        terms = algorithm.loss(scores("new", views), None, scores("ref", views), pair_credit(), views)
        # the margin of the record includes beta
        assert 0.2 * terms.metrics["margin"] == pytest.approx(golden[key], abs=TOLERANCE)
        assert terms.metrics["prefers_chosen"] == float(golden[key] > 0)


@pytest.mark.parametrize("name", METHODS)
def test_a_policy_that_is_its_reference_has_a_loss_of_exactly_log_two(name: str) -> None:
    """Whatever was drawn: the views are shared, so the margin has no variance."""
    algorithm = built_in(name)
    rollout = replace(rollout_of([X, Y] * 50, [1.0, -1.0] * 50), group=torch.arange(50).repeat_interleave(2))
    credit = algorithm.credit(rollout, torch.Generator())
    views = algorithm.forward_process(rollout, credit, MASK, [generator_for(0, row) for row in range(100)])
    terms = algorithm.loss(scores("old", views), None, scores("old", views), credit, views)
    assert torch.equal(terms.num[0::2], torch.full((50,), math.log(2), dtype=torch.float64))
    assert not bool(terms.num[1::2].any())
    assert terms.den.tolist() == [1, 0] * 50
    assert LOSSES["VRPO, beta 0.2, winner X, loser Y"]["loss_when_policy_equals_reference"] == math.log(2)


def test_independent_masks_would_give_the_recorded_variance_and_excess_loss() -> None:
    """What sharing them saves, enumerated over one mask for each side of policy and reference."""
    golden = LOSSES["VRPO, policy = ref = old, independent masks, n=1, beta 0.2"]
    estimates, chances = {}, []
    for name, sequence in (("chosen", X), ("rejected", Y)):
        values = []
        for k in range(1, L + 1):
            for hidden in itertools.combinations(range(L), k):
                views = views_for([(hidden, hidden, L / k, 0)], sequence)
                values.append(float((scores("old", views) * views.coef).sum()))
                chances.append(1 / (L * math.comb(L, k)))
        estimates[name] = torch.tensor(values, dtype=torch.float64)
    chance = torch.tensor(chances[:7], dtype=torch.float64)
    n = 7**4
    new_w, ref_w, new_l, ref_l = (grid.flatten() for grid in torch.meshgrid([torch.arange(7)] * 4, indexing="ij"))
    logp = torch.stack([estimates["chosen"][new_w], estimates["rejected"][new_l]], 1).view(2 * n, 1)
    ref = torch.stack([estimates["chosen"][ref_w], estimates["rejected"][ref_l]], 1).view(2 * n, 1)
    everywhere = torch.ones(2 * n, 1, dtype=torch.bool)
    ids = torch.zeros(2 * n, 1, dtype=torch.long)
    views = NoisyViews(ids, ids, everywhere, everywhere.double(), torch.arange(2 * n), everywhere, everywhere)
    loss = built_in("vrpo").loss(logp, None, ref, credit_of([1, -1] * n, [3, 3] * n), views).num[0::2]
    weight = chance[new_w] * chance[ref_w] * chance[new_l] * chance[ref_l]
    margin = 0.2 * (logp - ref).view(n, 2) @ torch.tensor([1.0, -1.0], dtype=torch.float64)
    assert float(weight.sum()) == pytest.approx(1, abs=TOLERANCE)
    assert float((weight * margin).sum()) == pytest.approx(0, abs=TOLERANCE)
    assert float((weight * margin**2).sum()) == pytest.approx(golden["margin_variance"], abs=TOLERANCE)
    assert float((weight * loss).sum()) == pytest.approx(golden["expected_loss"], abs=TOLERANCE)


def one_number_a_side(chosen: float, rejected: float) -> tuple[Tensor, NoisyViews]:
    """Log-probabilities whose weighted sums are the two numbers."""
    return torch.tensor([[chosen, 0, 0], [rejected, 0, 0]], dtype=torch.float64), views_for(
        [([0], [0], 1, 0), ([0], [0], 1, 1)]
    )


def test_the_margin_is_in_nats_and_is_not_divided_by_a_length() -> None:
    golden = LOSSES["DPO scale: summed nats against division by 512"]
    logp, views = one_number_a_side(golden["raw_margin_nats"], 0)
    for length in (3, 512):
        credit = credit_of([1, -1], [length, length])
        loss = built_in("vrpo").loss(logp, None, torch.zeros_like(logp), credit, views).num.sum()
        assert float(loss) == pytest.approx(golden["loss_summed"], abs=TOLERANCE)


@pytest.mark.parametrize("margin", [-1000.0, -30.0, -1.0, 0.0, 2.5, 30.0, 1000.0])
@pytest.mark.parametrize("name", METHODS)
def test_each_side_pulls_with_beta_times_the_chance_of_being_wrong(name: str, margin: float) -> None:
    """dL/dB is -beta sigmoid(-beta m) for the chosen side and its opposite for the other, finite for any margin."""
    algorithm = built_in(name)
    beta: float = algorithm.beta  # type: ignore[attr-defined]
    logp, views = one_number_a_side(margin / 2, -margin / 2)
    logp.requires_grad_(True)
    loss = algorithm.loss(logp, None, torch.zeros_like(logp), pair_credit(), views).num.sum()
    (gradient,) = torch.autograd.grad(loss, logp)
    pull = beta * torch.sigmoid(torch.tensor(-beta * margin, dtype=torch.float64))
    assert math.isfinite(float(loss.detach()))
    torch.testing.assert_close(gradient[:, 0], torch.stack([-pull, pull]))


def test_more_views_make_the_margin_steadier_and_leave_its_mean() -> None:
    """Of 2000 draws of the margin between the current and the reference policy."""
    elbo = ESTIMATORS["E-k, k ~ U{1..L}, weight L/k"]["expectation"]
    rollout = rollout_of([X] * 2000, [0.0] * 2000)
    credit = replace(credit_of([0.0] * 2000, [3] * 2000), row=torch.arange(2000))
    spread = []
    for n in (1, 4):
        views = hide_counts(rollout, credit, n, MASK, [generator_for(0, row) for row in range(2000)])
        estimate = (scores("old", views) * views.coef).sum(1).view(2000, n).mean(1)
        spread.append(float(estimate.std()))
        assert abs(float(estimate.mean()) - elbo) < 4 * spread[-1] / math.sqrt(2000)
    assert spread[1] < spread[0] / 2  # by more than the square root of four: the counts are stratified


# --- pairs are formed by id -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_pairs_are_formed_by_id_never_by_position(name: str) -> None:
    algorithm = built_in(name)
    rollout = replace(rollout_of([X, Y, Y, X], [1.0, -1.0, 1.0, -1.0]), group=torch.tensor([4, 4, 9, 9]))
    straight = algorithm.credit(rollout, torch.Generator())
    for order in itertools.permutations(range(4)):
        index = torch.tensor(order)
        credit = algorithm.credit(rollout.rows(index), torch.Generator())
        assert credit.advantage.tolist() == [1, -1, 1, -1]
        assert torch.equal(index[credit.row], straight.row)


@pytest.mark.parametrize(
    ("group", "reward"), [([0, 0, 1, 1], [1, 1, 1, -1]), ([0, 1, 0, 1], [1, 1, 1, -1]), ([0, 0, 0, 1], [1, -1, -1, 1])]
)
def test_a_group_that_is_no_pair_is_refused(group: list[int], reward: list[float]) -> None:
    rollout: Rollout = replace(rollout_of([X, Y, X, Y], reward), group=torch.tensor(group))
    with pytest.raises(AlgorithmFaultError, match="exactly one chosen row"):
        guarded("credit", built_in("vrpo").credit, rollout, torch.Generator())


def test_on_the_uniform_model_two_answers_of_one_length_pull_nowhere_together() -> None:
    """Their scores are the same number, so the pulls on it cancel."""
    table, views = uniform(), pair_views(X, X)
    logp = ToyBackbone(table).logprobs(table, views)
    terms = built_in("vrpo").loss(logp, None, logp.detach(), pair_credit(), views)
    terms.num.sum().backward()  # type: ignore[no-untyped-call]
    assert table.logits.grad is not None
    assert float(table.logits.grad.abs().max()) < 1e-12


# --- training -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", METHODS)
def test_training_starts_at_log_two_and_the_first_update_helps_the_chosen_side(name: str, family: str) -> None:
    run = executor(family, algorithm_named(name), inner_epochs=1)
    rollout, _, _ = run._batch(0)
    credit = run.algorithm.credit(rollout, torch.Generator())
    views = run._views(rollout, credit, 0, 0)
    start = run.step().metrics
    assert start["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert start["margin"] == 0
    with torch.no_grad():
        logp = run.backbone.logprobs(run.backbone.model, views)
        ref = run.backbone.logprobs(tiny(family).model, views)  # type: ignore[arg-type]
    after = run.algorithm.loss(logp, None, ref, credit, views)
    assert float(after.num.sum() / after.den.sum()) < math.log(2)
    assert after.metrics["margin"] > 0


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", METHODS)
def test_held_out_pairs_are_told_apart_after_training(name: str, family: str) -> None:
    """25 steps of the shipped backbone on judged pairs; a wrong sign or a dead gradient cannot pass.

    Over seeds 0 to 2 the lowest share was 0.80. The held-out pairs are other puzzles of the training grids.
    """
    model, untouched = shipped(family), shipped(family).model
    like = executor(family, algorithm_named(name), steps=25, prompts_per_step=8, inner_epochs=1)
    assert isinstance(like.data, PreferenceData)
    held = like.data.rows[:100]
    prompts = {pair.prompt for pair in held}
    rest = PreferenceData([pair for pair in like.data.rows[100:] if pair.prompt not in prompts])
    run = Executor(model, like.algorithm, rest, like.settings, like.sampling, like.budget, seed=0)
    while not run.step().finished:
        pass
    rollout = preference_rollout(model, held, 20)
    judge = built_in("vrpo", mc_samples=4)
    credit = judge.credit(rollout, torch.Generator())
    generators = [generator_for(9, row) for row in range(len(credit.row))]
    views = judge.forward_process(rollout, credit, model.mask_id, generators)
    with torch.no_grad():
        logp, ref = model.logprobs(model.model, views), model.logprobs(untouched, views)  # type: ignore[arg-type]
    metrics = judge.loss(logp, None, ref, credit, views).metrics
    assert metrics["prefers_chosen"] > 0.7
    assert metrics["margin"] > 0


def shipped(family: str) -> Backbone:
    """The tiny backbone of a family as it is trained, fresh from its files."""
    return load_family(family).load(backbone_directory(f"{family}-tiny"))
