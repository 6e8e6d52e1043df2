"""Decoding from left to right, and the method that scores exactly what it drew: on enumerable and on tiny models."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as given_settings
from hypothesis import strategies as st
from tiny import rollout_sampling, tiny
from torch import Tensor
from toys import MASK, SEQUENCES, L, Table, ToyBackbone, V, X, code, rollout_of, t1

from dare.algorithm import Algorithm, load_algorithm
from dare.data import load_data
from dare.executor import Executor, MismatchError
from dare.family import family_names
from dare.sampling.left_to_right import left_to_right
from dare.sampling.masked import sample_masked
from dare.sampling.presets import PRESETS
from dare.sampling_config import SamplingConfig
from dare.seeds import generator_for
from dare.spec import AlgorithmSpec, Budget, TrainSettings
from dare.types import Rollout

GOLDENS = Path(__file__).parent / "goldens" / "algorithms"
FACTS = json.loads((GOLDENS / "facts.json").read_text())
LOSSES = json.loads((GOLDENS / "losses.json").read_text())
EXACT = LOSSES["exact policy gradient of the left-to-right decoder on T1-old"]
TOLERANCE = 1e-9
PROMPTS = ["S0321003004002100", "C1 2 3=6", "C4 5 6=26"]
tables = st.integers(0, 10_000).map(
    lambda seed: Table(torch.randn(64, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))
)
rewards = st.lists(st.floats(-3, 3), min_size=V**L, max_size=V**L)


def built_in(name: str, **settings: float | int | str) -> Algorithm:
    return load_algorithm(AlgorithmSpec(name=name, hyperparameters=settings))


def law(table: Table, temperature: float = 1.0) -> Tensor:
    """Probability of every sequence under the decoder, token after token, with gradient: [27]."""
    probabilities = []
    for sequence in SEQUENCES:
        state, p = torch.full((L,), MASK), torch.ones((), dtype=torch.float64)
        for i, token in enumerate(sequence):
            p = p * torch.softmax(table.logits[code(state), i] / temperature, -1)[token]
            state[i] = token
        probabilities.append(p)
    return torch.stack(probabilities)


def expected_gradient(
    algorithm: Algorithm, table: Table, reward: Tensor, temperature: float, scored_at: float
) -> Tensor:
    """Of the loss over groups of two, every pair of completions weighted by its probability under the decoder."""
    p = law(table, temperature).detach()
    pairs = [(i, j) for i in range(len(p)) for j in range(len(p))]
    rows = [i for pair in pairs for i in pair]
    rollout = rollout_of([SEQUENCES[i] for i in rows], reward[rows].tolist(), step_map=[1, 2, 3])
    rollout = replace(rollout, group=torch.arange(len(pairs)).repeat_interleave(2))
    credit = algorithm.credit(rollout, torch.Generator())
    views = algorithm.forward_process(rollout, credit, MASK, [generator_for(0, row) for row in range(len(rows))])
    logp = ToyBackbone(table).logprobs(table, views, scored_at)
    terms = algorithm.loss(logp, logp.detach(), None, credit, views)
    of_a_pair = terms.num.view(-1, 2).sum(1) / terms.den.view(-1, 2).sum(1)
    chance = torch.stack([p[i] * p[j] for i, j in pairs])
    return torch.autograd.grad((chance * of_a_pair).sum(), table.logits)[0]


def policy_gradient(table: Table, reward: Tensor, temperature: float = 1.0) -> Tensor:
    return torch.autograd.grad((law(table, temperature) * reward).sum(), table.logits)[0]


# The score


@pytest.mark.parametrize("which", ["old", "new"])
def test_every_token_has_the_enumerated_score(which: str) -> None:
    rollout = rollout_of([X, X], [1.0, 0.0])
    algorithm = built_in("just_grpo")
    credit = algorithm.credit(rollout, torch.Generator())
    views = algorithm.forward_process(rollout, credit, MASK, [])
    logp = ToyBackbone(t1(which)).logprobs(t1(which), views).detach()
    assert len(views) == 2 * L
    assert bool((views.score.sum(1) == 1).all())
    golden = FACTS[f"left_to_right_per_token_{which}_at_X"]
    assert logp[:L].sum(0).tolist() == pytest.approx(golden, abs=TOLERANCE)


@given(tables)
@given_settings(max_examples=10, deadline=None)
def test_the_scored_likelihood_sums_to_one_and_is_the_law_of_the_decoder(table: Table) -> None:
    rollout = rollout_of(SEQUENCES, [float(i) for i in range(len(SEQUENCES))])
    algorithm = built_in("just_grpo")
    credit = algorithm.credit(rollout, torch.Generator())
    views = algorithm.forward_process(rollout, credit, MASK, [])
    logp = ToyBackbone(table).logprobs(table, views).detach()
    likelihood = torch.zeros(len(SEQUENCES), dtype=torch.float64).index_add(0, views.unit, logp.sum(1)).exp()
    assert float(likelihood.sum()) == pytest.approx(1, abs=TOLERANCE)
    torch.testing.assert_close(likelihood, law(table).detach(), rtol=0, atol=TOLERANCE)


def test_behind_a_token_the_whole_window_is_hidden_and_before_it_everything_is_shown() -> None:
    """Also behind an end of sequence, where the sampler stopped with masks; a row's share is of the window."""
    ids = torch.tensor([[5, 6, 0, 1, 2, 9, 9], [5, 2, 1, 9, 9, 9, 9]])
    column = torch.arange(7)
    rollout = replace(
        rollout_of(ids.tolist(), [1.0, 0.0]),
        valid=torch.stack([column < 7, column < 6]),
        window=torch.stack([(column >= 2) & (column < 7), (column >= 1) & (column < 6)]),
        completion=torch.stack([(column >= 2) & (column < 5), (column >= 1) & (column < 3)]),
    )
    algorithm = built_in("just_grpo")
    credit = algorithm.credit(rollout, torch.Generator())
    views = algorithm.forward_process(rollout, credit, MASK, [])
    assert views.ids.tolist() == [
        [5, 6, MASK, MASK, MASK, MASK, MASK],
        [5, 6, 0, MASK, MASK, MASK, MASK],
        [5, 6, 0, 1, MASK, MASK, MASK],
        [5, MASK, MASK, MASK, MASK, MASK, 9],
        [5, 2, MASK, MASK, MASK, MASK, 9],
    ]
    assert views.score.nonzero()[:, 1].tolist() == [2, 3, 4, 1, 2]
    assert views.unit.tolist() == [0, 0, 0, 1, 1]
    logp = torch.zeros(views.score.shape, dtype=torch.float64)
    terms = algorithm.loss(logp, logp, None, credit, views)
    expected = -credit.advantage * torch.tensor([3, 2]) / 5
    torch.testing.assert_close(terms.num, expected)
    assert terms.den.tolist() == [1.0, 1.0]


def test_its_advantage_has_the_constant_of_the_authors() -> None:
    for case in json.loads((GOLDENS / "advantages.json").read_text())["groups"]:
        rollout = rollout_of([X] * len(case["rewards"]), case["rewards"])
        credit = built_in("just_grpo").credit(rollout, torch.Generator())
        assert credit.advantage.tolist() == pytest.approx(case["grpo_eps_1e-4"], abs=TOLERANCE)


# Exactness in expectation


@given(tables, rewards)
@given_settings(max_examples=8, deadline=None)
def test_the_expected_gradient_is_that_of_the_expected_reward(table: Table, reward: list[float]) -> None:
    """Enumerated over all pairs of completions; the loss is per token of the window, hence L."""
    r = torch.tensor(reward, dtype=torch.float64)
    gradient = expected_gradient(built_in("just_grpo", advantage="rloo"), table, r, 1.0, 1.0)
    torch.testing.assert_close(L * gradient, -policy_gradient(table, r), rtol=0, atol=TOLERANCE)
    # a group of two centres with half of its own reward, so that exactly half of the gradient is left
    gradient = expected_gradient(built_in("just_grpo", advantage="centred"), table, r, 1.0, 1.0)
    torch.testing.assert_close(2 * L * gradient, -policy_gradient(table, r), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("key", "earns"),
    [("reward first token is 2", lambda x: x[0] == 2), ("reward sum of tokens is even", lambda x: sum(x) % 2 == 0)],
)
def test_on_t1_it_is_the_gradient_that_was_enumerated_elsewhere(key: str, earns: Any) -> None:
    reward = torch.tensor([float(earns(x)) for x in SEQUENCES], dtype=torch.float64)
    assert float((law(t1()) * reward).sum().detach()) == pytest.approx(EXACT[key]["expected_reward"], abs=TOLERANCE)
    gradient = L * expected_gradient(built_in("just_grpo", advantage="rloo"), t1(), reward, 1.0, 1.0)
    assert float(gradient.norm()) == pytest.approx(EXACT[key]["gradient_norm"], abs=TOLERANCE)


def test_it_holds_at_a_temperature_exactly_if_tokens_are_scored_at_it() -> None:
    """Why a rollout at another temperature is refused, and why no mean-field score would do."""
    reward = torch.tensor([float(sum(x) % 2 == 0) for x in SEQUENCES], dtype=torch.float64)
    true = -policy_gradient(t1(), reward, 0.6)
    for name, scored_at, exact in (("just_grpo", 0.6, True), ("just_grpo", 1.0, False), ("d1", 0.6, False)):
        settings = {"kl_coef": 0.0, "prompt_mask": 0.0} if name == "d1" else {}
        algorithm = built_in(name, advantage="rloo", **settings)
        gradient = L * expected_gradient(algorithm, t1(), reward, 0.6, scored_at)
        assert bool(((gradient - true).abs() < TOLERANCE).all()) == exact
        cosine = float((gradient * true).sum() / gradient.norm() / true.norm())
        assert (cosine > 1 - TOLERANCE) == exact


# The decoder


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_of_the_decoder_of_a_track_only_window_and_temperature_stay(preset: str) -> None:
    track = PRESETS[preset]()
    full, block = left_to_right(track, None), left_to_right(track, 8)
    assert (full.gen_length, full.temperature) == (track.gen_length, track.temperature)
    assert (full.block_length, full.steps_per_block, block.block_length, block.steps_per_block) == (1, 1, 8, 8)
    own = {"gen_length", "block_length", "steps_per_block", "temperature", "remasking", "early_stop"}
    for config in (full, block):
        plain = SamplingConfig(gen_length=1, block_length=1, steps_per_block=1)
        assert config.model_dump(exclude=own) == plain.model_dump(exclude=own)
        assert config.remasking == "sequential"


def test_the_law_of_its_samples_is_the_autoregressive_one() -> None:
    """Six thousand completions of T1 by the real sampler against the enumerated law, at two temperatures."""
    table, n = t1(), 6000

    def model(ids: Tensor, valid: Tensor, columns: Tensor) -> Tensor:
        logits = table.logits.detach()[code(ids)]  # (n, L, V)
        logits = torch.nn.functional.pad(logits, (0, 1), value=9.0)  # the mask token, which must never be drawn
        return logits.gather(1, columns[..., None].expand(-1, -1, V + 1))

    for temperature in (1.0, 0.6):
        track = SamplingConfig(gen_length=L, block_length=L, steps_per_block=1, temperature=temperature)
        samples = sample_masked(
            model, [[]] * n, left_to_right(track, None), [generator_for(3, row) for row in range(n)],
            mask_id=MASK, pad_id=7, eos_ids=(),
        )  # fmt: skip
        assert torch.equal(samples.step_map, torch.arange(1, L + 1).expand(n, L))
        seen = torch.bincount((samples.ids * torch.tensor([9, 3, 1])).sum(1), minlength=V**L)
        expected = n * law(table, temperature).detach()
        assert float(((seen - expected) ** 2 / expected).sum()) < 54.1  # 99.9 % quantile with 26 degrees of freedom


@pytest.mark.parametrize("family", family_names())
def test_a_tiny_backbone_decodes_strictly_from_the_left_and_scores_what_it_drew(family: str) -> None:
    """The sampler's own probability of every token is the score, on full attention and on doubled block input."""
    backbone = tiny(family)
    prompts = [backbone.tokenizer.prompt_ids(prompt) for prompt in PROMPTS]
    size = backbone.block_size or 5
    track = SamplingConfig(gen_length=20, block_length=size, steps_per_block=2, temperature=1.0)
    samples = backbone.sample(
        prompts, left_to_right(track, backbone.block_size), [generator_for(1, row) for row in range(len(prompts))],
        frozenset({"step_map", "confidence"}),
    )  # fmt: skip
    for row in range(len(prompts)):
        order = samples.step_map[row, samples.window[row]].tolist()
        decoded = [step for step in order if step]
        assert decoded == list(range(1, len(decoded) + 1))
        assert order == decoded + [0] * (20 - len(decoded))
        assert len(decoded) == int(samples.completion[row].sum())  # nothing is decoded behind an end of sequence
    rollout = Rollout(
        ids=samples.ids,
        valid=samples.valid,
        window=samples.window,
        completion=samples.completion,
        group=torch.zeros(len(prompts), dtype=torch.long),
        reward=torch.linspace(0, 1, len(prompts)),
    )
    algorithm = built_in("just_grpo")
    credit = algorithm.credit(rollout, torch.Generator())
    views = algorithm.forward_process(rollout, credit, backbone.mask_id, [])
    logp = backbone.logprobs(backbone.model, views).detach()
    scored = torch.zeros(samples.ids.shape).index_add(0, views.unit, logp.float())
    assert samples.trace.confidence is not None
    drawn = samples.trace.confidence[:, -1].log()
    torch.testing.assert_close(scored[samples.completion], drawn[samples.completion], rtol=0, atol=2e-5)
    # a forward a token, or a block of the window a token where a clean half serves all views of a completion
    paid = float(backbone.forwards(views).sum())
    tokens = int(samples.completion.sum())
    if backbone.block_size is None:
        assert paid == tokens
    else:
        assert paid <= tokens * backbone.block_size / 20 + TOLERANCE


def run(**changes: Any) -> Executor:
    sampling = rollout_sampling("llada").model_copy(update={"temperature": changes.pop("temperature", 1.0)})
    return Executor(
        backbone=tiny("llada"),
        algorithm=built_in("just_grpo"),
        data=load_data("prompts:sudoku", Path()),
        settings=TrainSettings(learning_rate=1e-3, prompts_per_step=2, group_size=2, **changes),
        sampling=sampling,
        budget=Budget(optimiser_steps=2, wall_seconds=60),
        seed=0,
    )


def test_the_executor_rolls_out_from_the_left_whatever_the_track_decodes_with() -> None:
    executor = run()
    rollout, _, sample = executor._rollout(0, [0, 1])
    decoded = [step for step in sample.step_map if step]
    assert decoded == list(range(1, len(decoded) + 1))
    assert executor.sampling == rollout_sampling("llada")  # the track's own, for everything else
    assert int(rollout.completion.sum()) == executor.used.tokens_decoded


def test_a_rollout_at_another_temperature_than_scoring_is_refused() -> None:
    with pytest.raises(MismatchError, match=r"drawn at temperature 0\.6 and scored at 1: decode rollouts at"):
        run(temperature=0.6)
    with pytest.raises(MismatchError, match=r"drawn at temperature 0 and scored at 1"):
        run(temperature=0.0, score_temperature=True)
    report = run(temperature=0.6, score_temperature=True).step()
    assert report.metrics["scoring_temperature"] == 0.6
    assert math.isfinite(report.metrics["loss"])
