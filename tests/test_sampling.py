"""The samplers and their parts on models small enough to know the answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from decoding import (
    EOS,
    MASK,
    PROMPTS,
    VOCABULARY,
    BlockToy,
    CachedToy,
    MaskedToy,
    Rule,
    decode,
    hashed,
    never_ending,
    settings,
)
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dare.sampling.block import sample_block
from dare.sampling.denoise import Block, Denoised, Denoiser
from dare.sampling.draw import reveal_steps, truncated
from dare.sampling.masked import sample_masked
from dare.sampling.plan import (
    DecodingError,
    ascending_blocks,
    blocks_of,
    early_rejection,
    effective_steps,
    even_schedule,
    reveal_chances,
    timesteps_schedule,
)
from dare.sampling.presets import PRESETS
from dare.sampling.rank import entropy, ranks
from dare.sampling_config import SamplingConfig
from dare.seeds import generator_for
from dare.types import Frame


def step(
    logits: Tensor,
    config: SamplingConfig | None = None,
    generators: Sequence[torch.Generator] = (),
    masked: Tensor | None = None,
    share: int = 1,
) -> Denoised:
    """One denoising step of one block per row."""
    masked = torch.ones(logits.shape[:2], dtype=torch.bool) if masked is None else masked
    none = torch.zeros(len(logits), dtype=torch.long)
    denoiser = Denoiser(config or settings(), MASK, EOS, torch.tensor([EOS]))
    return denoiser(Block(masked, none + share, None, none), logits, generators)


kinds = pytest.mark.parametrize("kind", ["masked", "block"])


# The schedule


@given(st.integers(1, 300), st.integers(1, 300))
def test_a_schedule_commits_every_token_once_and_evenly(tokens: int, steps: int) -> None:
    schedule = even_schedule(tokens, steps)
    assert len(schedule) == steps
    assert sum(schedule) == tokens
    assert max(schedule) - min(schedule) <= 1
    assert list(schedule) == sorted(schedule, reverse=True)


@given(st.data(), st.integers(1, 6))
def test_ranks_go_down_from_the_best_masked_position_and_from_the_left(data: st.DataObject, width: int) -> None:
    masked = data.draw(st.lists(st.booleans(), min_size=width, max_size=width))
    priority = data.draw(
        st.lists(st.sampled_from([-float("inf"), 0.0, 0.5, 1.0, float("inf")]), min_size=width, max_size=width)
    )
    found = ranks(torch.tensor([masked]), torch.tensor([priority]))[0].tolist()
    order = sorted(range(width), key=lambda place: (not masked[place], -priority[place], place))
    assert [found[place] for place in order] == list(range(width))


@kinds
@given(st.data(), st.integers(1, 6), st.integers(1, 3))
def test_every_block_is_filled_by_its_own_steps(kind: str, data: st.DataObject, block: int, blocks: int) -> None:
    steps = data.draw(st.integers(1, block))
    config = settings(gen_length=block * blocks, block_length=block, steps_per_block=steps)
    prompt = [3] * (block * 2)
    samples = decode(kind, config, [prompt], never_ending())
    of_block = samples.step_map[0, len(prompt) :].view(blocks, block)
    for index, part in enumerate(of_block):
        first = index * steps + 1
        assert [int((part == first + step).sum()) for step in range(steps)] == list(even_schedule(block, steps))
    assert samples.step_map.max() == blocks * steps


@given(st.integers(1, 200), st.data())
def test_the_schedule_of_times_commits_every_token_once_by_the_remaining_share(
    tokens: int, data: st.DataObject
) -> None:
    steps = data.draw(st.integers(1, tokens))
    schedule = timesteps_schedule(tokens, steps, 1e-3)
    assert len(schedule) == steps
    assert sum(schedule) == tokens
    times = torch.linspace(1, 1e-3, steps + 1, dtype=torch.float64)
    masks = tokens
    for index, quota in enumerate(schedule):
        if index < steps - 1:
            assert quota == int(masks * (1 - times[index + 1] / times[index]).item() + 1e-9)
        masks -= quota
    config = settings(gen_length=tokens, block_length=tokens, steps_per_block=steps, schedule="timesteps")
    (block,) = blocks_of(config)
    assert block.quotas == tuple(quota for quota in schedule if quota)  # steps that would do nothing are not run
    assert effective_steps(config) == len(block.quotas)


def test_the_schedule_of_times_is_dreams() -> None:
    """With as many steps as tokens the published schedule commits none in the first and two in the last."""
    assert timesteps_schedule(16, 16, 1e-3) == (0, *[1] * 14, 2)
    assert timesteps_schedule(16, 5, 1e-3) == (3, 3, 3, 3, 4)


@given(st.integers(2, 300), st.data())
def test_ascending_steps_double_and_fill_the_window(tokens: int, data: st.DataObject) -> None:
    steps = int(math.log2(tokens))
    blocks = ascending_blocks(tokens, data.draw(st.integers(1, steps)))
    assert sum(block.length for block in blocks) == tokens
    assert all(sum(block.quotas) == block.length for block in blocks)
    quotas = [quota for block in blocks for quota in block.quotas]
    assert quotas[:-1] == [2**step for step in range(steps - 1)]
    assert all(len(block.quotas) == 1 for block in blocks[1:])


def test_ascending_blocks_are_those_of_the_paper() -> None:
    blocks = ascending_blocks(128, 4)
    assert [block.length for block in blocks] == [15, 16, 32, 65]
    assert blocks[0].quotas == (1, 2, 4, 8)


def test_early_rejection_rises_to_one_as_the_decode_goes_on() -> None:
    even = settings(gen_length=6, block_length=3, steps_per_block=3, eos_policy="eoser", eoser_minimum=0.4)
    assert early_rejection(even) == pytest.approx([0.4 + 0.6 * step / 5 for step in range(6)])
    ascending = settings(
        gen_length=8, block_length=8, steps_per_block=3, schedule="ascending", eos_policy="eoser", eoser_minimum=0.01
    )
    assert early_rejection(ascending) == pytest.approx([0.01 + 0.99 * share for share in (1 / 8, 3 / 8, 7 / 8)])
    single = settings(gen_length=4, block_length=4, steps_per_block=1, eos_policy="eoser")
    assert early_rejection(single) == (1.0,)


# What is always true of samples


@kinds
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("remasking", ["low_confidence", "random", "sequential"])
def test_samples_are_consistent(kind: str, temperature: float, remasking: str) -> None:
    samples = decode(kind, settings(gen_length=16, temperature=temperature, remasking=remasking))
    lengths = torch.tensor([len(prompt) for prompt in PROMPTS])
    place = torch.arange(samples.ids.shape[1])
    assert torch.equal(samples.valid, place < (lengths + 16)[:, None])
    assert torch.equal(samples.window, samples.valid & (place >= lengths[:, None]))
    assert not (samples.ids == MASK).any()
    decoded = samples.step_map > 0
    assert not (decoded & ~samples.window).any()
    assert (samples.ids[samples.window & ~decoded] == EOS).all()
    for row, prompt in enumerate(PROMPTS):
        assert samples.ids[row, : len(prompt)].tolist() == prompt
        window = samples.ids[row, samples.window[row]].tolist()
        made = int(decoded[row].sum())
        ends = [index for index in range(made) if window[index] == EOS]
        assert bool(samples.truncated[row]) == (not ends)
        kept = samples.ids[row, samples.completion[row]].tolist()
        assert kept == (window[: ends[0] + 1] if ends else window)
        steps = samples.step_map[row][decoded[row]].unique()
        assert torch.equal(steps, torch.arange(1, len(steps) + 1))  # no step without a token
    assert samples.tokens_decoded == int(decoded.sum())
    assert samples.tokens_kept == int(samples.completion.sum())


@kinds
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"threshold": 0.6, "selector": "dynamic"},
        {"remasking": "random"},
        {"remasking": "sequential"},
    ],
)
def test_a_row_does_not_depend_on_its_batch(kind: str, temperature: float, rule: dict[str, object]) -> None:
    config = settings(gen_length=12, temperature=temperature, **rule)
    together = decode(kind, config)
    for size in (1, 2):
        for first in range(0, len(PROMPTS), size):
            part = decode(kind, config, PROMPTS[first : first + size], first=first)
            width = part.ids.shape[1]
            for name in ("ids", "window", "completion", "step_map"):
                whole = getattr(together, name)[first : first + size]
                assert torch.equal(getattr(part, name), whole[:, :width])
            assert torch.equal(part.nfe, together.nfe[first : first + size])


@kinds
def test_the_mask_token_is_never_committed_however_much_the_model_wants_it(kind: str) -> None:
    def rule(ids: Tensor, sees: Tensor) -> Tensor:
        return hashed(ids, sees).index_fill(-1, torch.tensor([MASK]), 50.0)

    for temperature in (0.0, 1.0):
        samples = decode(kind, settings(temperature=temperature), rule=rule)
        assert not (samples.ids == MASK).any()
        assert (samples.step_map[samples.completion] > 0).all()


@kinds
def test_blocks_are_finished_in_order(kind: str) -> None:
    config = settings(gen_length=16, block_length=4, steps_per_block=4)
    samples = decode(kind, config, [[3] * 4], never_ending())
    of_block = samples.step_map[0, 4:].view(4, 4)
    assert (of_block[1:].amin(1) > of_block[:-1].amax(1)).all()


# Drawing


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_tempered_distribution_without_the_mask(temperature: float) -> None:
    logits = torch.tensor([0.0, 9.0, 1.0, -1.0, 2.0, 0.5])
    n = 60_000
    token = step(logits.expand(1, n, -1), settings(temperature=temperature), [generator_for(11, "law")]).token
    kept = [0, 2, 3, 4, 5]
    expected = n * (logits[kept].double() / temperature).softmax(0)
    counts = token[0].bincount(minlength=6)
    assert counts[MASK] == 0
    chi_square = ((counts[kept] - expected) ** 2 / expected).sum()
    assert chi_square < 18.5  # 99.9 % quantile with 4 degrees of freedom


def test_confidence_is_the_untempered_probability_without_the_mask() -> None:
    logits = torch.randn(2, 5, VOCABULARY, generator=generator_for(1, "logits"))
    generators = [generator_for(1, "draw", row) for row in range(2)]
    token, confidence, _, believed = step(logits, settings(temperature=3.0), generators)
    assert torch.equal(confidence, believed)
    probability = logits.double().index_fill(-1, torch.tensor([MASK]), -torch.inf).softmax(-1)
    torch.testing.assert_close(confidence.double(), probability.gather(-1, token[..., None]).squeeze(-1))


def test_the_temperature_changes_tokens_and_not_their_confidence() -> None:
    """At temperature 0.1 most tempered probabilities tie at 1 in float32; ordering by them would go left to right."""
    logits = 4 * torch.randn(1, 64, VOCABULARY, generator=generator_for(2, "logits"))
    greedy = step(logits)
    cold = step(logits, settings(temperature=0.01), [generator_for(2, "draw")])
    assert torch.equal(greedy.token, cold.token)
    assert torch.equal(greedy.confidence, cold.confidence)
    assert len(cold.confidence.unique()) > 60


def test_low_precision_logits_are_ordered_as_in_float64() -> None:
    logits = (3 * torch.randn(1, 64, 500, generator=generator_for(4, "logits"))).bfloat16()
    ours = step(logits).confidence
    exact = step(logits.double()).confidence
    assert torch.equal(ours.argsort(descending=True), exact.argsort(descending=True))


def test_drawing_leaves_the_global_random_state_and_the_logits_alone() -> None:
    before, logits = torch.get_rng_state(), torch.randn(1, 3, VOCABULARY, generator=generator_for(0))
    copy = logits.clone()
    step(logits, settings(temperature=1.0, top_k=3, top_p=0.9), [generator_for(0)])
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(logits, copy)


@given(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0, 3.0]), min_size=3, max_size=9), st.data())
def test_filters_keep_the_most_probable_tokens_and_the_fewest_that_exceed_top_p(
    values: list[float], data: st.DataObject
) -> None:
    temperature = data.draw(st.sampled_from([0.5, 1.0, 2.0]))
    top_k = data.draw(st.none() | st.integers(2, 6))
    top_p = data.draw(st.none() | st.sampled_from([0.1, 0.5, 0.9, 0.99]))
    probability = (torch.tensor(values, dtype=torch.float64) / temperature).softmax(0).tolist()
    order = sorted(range(len(values)), key=lambda token: (-values[token], token))
    kept = set(order if top_k is None else order[:top_k])
    if top_p is not None:
        mass = [sum(probability[token] for token in order[:place]) for place in range(len(order))]
        kept &= {token for token, before in zip(order, mass, strict=True) if before <= top_p}
    found = truncated(torch.tensor([[values]], dtype=torch.float64), temperature, top_k, top_p)[0, 0]
    assert {token for token in range(len(values)) if found[token] > -torch.inf} == kept
    assert all(found[token] == values[token] for token in kept)


def test_draws_stay_within_the_filters_and_follow_what_is_left() -> None:
    logits = torch.tensor([0.0, 9.0, 1.0, -1.0, 2.0, 0.5])
    n = 30_000
    config = settings(temperature=2.0, top_k=3, confidence="draw")
    done = step(logits.expand(1, n, -1), config, [generator_for(13, "law")])
    kept = [2, 4, 5]
    law = (logits[kept].double() / 2.0).softmax(0)
    counts = done.token[0].bincount(minlength=6)
    assert counts[kept].sum() == n
    assert ((counts[kept] - n * law) ** 2 / (n * law)).sum() < 13.8  # 99.9 % quantile with 2 degrees of freedom
    for token, expected in zip(kept, law, strict=True):
        confidence = done.confidence[0][done.token[0] == token]
        torch.testing.assert_close(confidence.double(), expected.expand(len(confidence)), atol=1e-6, rtol=0)
    whole = logits.double().index_fill(0, torch.tensor([MASK]), -torch.inf).softmax(0)
    torch.testing.assert_close(done.probability[0].double(), whole[done.token[0]], atol=1e-6, rtol=0)


def test_times_of_origin_are_spread_evenly_and_counted_without_empty_steps() -> None:
    steps, places = 5, 20_000
    generators = [generator_for(3, "times", row) for row in range(2)]
    masked = torch.ones(2, places, dtype=torch.bool)
    found = reveal_steps(reveal_chances(steps, 1e-3), masked, generators)
    for row in found:
        counts = row.bincount(minlength=steps)
        assert ((counts - places / steps) ** 2 / (places / steps)).sum() < 18.5  # 99.9 %, 4 degrees of freedom
    few = torch.zeros(2, places, dtype=torch.bool)
    few[0, :2] = few[1, :3] = True
    found = reveal_steps(reveal_chances(400, 1e-3), few, generators)
    assert found[0, :2].sort().values.tolist() == [0, 1]
    assert found[1, :3].sort().values.tolist() == [0, 1, 2]


# Selectors


def chosen(
    config: SamplingConfig, masked: list[bool], confidence: list[float], entropies: list[float], share: int
) -> set[int]:
    """The rules, written out for one row."""
    key = [-value for value in entropies] if config.remasking == "entropy" else confidence
    order = sorted((place for place in range(len(masked)) if masked[place]), key=lambda place: (-key[place], place))
    ordered = [confidence[place] for place in order]
    limit = config.threshold or 0.0
    if config.selector == "threshold":
        number = max(1, sum(value >= limit for value in ordered))
    elif config.selector == "dynamic":
        number = max(share, sum(value > limit for value in ordered))
    elif config.selector == "budget":
        number = max(1, min(share, sum(value >= limit for value in ordered)))
    elif config.selector == "factor":
        assert config.factor is not None
        fails = [n for n, value in enumerate(ordered, start=1) if n > 1 and value < 1 - config.factor / (n + 1)]
        number = fails[0] - 1 if fails else len(ordered)
    elif config.selector == "entropy_bounded":
        assert config.entropy_bound is not None
        totals = [sum(entropies[place] for place in order[: n + 1]) for n in range(len(order))]
        number = max(1, sum(total < config.entropy_bound for total in totals))
    else:
        number = share
    return set(order[:number])


RULES: list[dict[str, Any]] = [
    {},
    {"selector": "threshold", "threshold": 0.5},
    {"selector": "dynamic", "threshold": 0.5},
    {"selector": "budget", "threshold": 0.5},
    {"selector": "factor", "factor": 1.0},
    {"selector": "factor", "factor": 0.3},
    {"selector": "entropy_bounded", "entropy_bound": 1.2, "remasking": "entropy"},
]


@given(st.data(), st.integers(1, 6), st.sampled_from(RULES))
def test_a_selector_commits_what_its_rule_says(data: st.DataObject, width: int, rule: dict[str, Any]) -> None:
    masked = data.draw(st.lists(st.booleans(), min_size=width, max_size=width))
    strength = data.draw(st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0, 4.0, 9.0]), min_size=width, max_size=width))
    share = data.draw(st.integers(1, width))
    logits = torch.zeros(1, width, VOCABULARY)
    logits[0, :, 5] = torch.tensor(strength)
    config = settings(gen_length=width, block_length=width, steps_per_block=width, **rule)
    done = step(logits, config, masked=torch.tensor([masked]), share=share)
    without_mask = logits.index_fill(-1, torch.tensor([MASK]), -torch.inf)
    expected = chosen(config, masked, done.confidence[0].tolist(), entropy(without_mask)[0].tolist(), share)
    assert set(done.committed[0].nonzero().squeeze(1).tolist()) == expected


def test_entropy_is_that_of_the_distribution() -> None:
    logits = torch.tensor([[[0.0, -torch.inf, 0.0, -torch.inf], [0.0, 0.0, 0.0, 0.0], [50.0, 0.0, 0.0, 0.0]]])
    torch.testing.assert_close(entropy(logits)[0], torch.tensor([math.log(2), math.log(4), 0.0]), atol=1e-5, rtol=0)


def steps_of(rule: Rule, **changes: object) -> list[int]:
    """The steps of a window of four tokens in one block, one token a step."""
    config = settings(gen_length=4, steps_per_block=4, early_stop="never", **changes)
    return decode("masked", config, [[3]], rule).step_map[0, 1:].tolist()


def test_orders_rank_by_probability_entropy_and_margin() -> None:
    """Position 0 has the best token, 2 the least entropy, 3 the widest margin: the three do not agree."""
    probability = torch.full((4, VOCABULARY), 0.0)
    probability[0, 2:8] = torch.tensor([0.60, 0.395, 0.0013, 0.0013, 0.0013, 0.0011])
    probability[1, 2:12] = 0.1
    probability[2, 2:4] = torch.tensor([0.51, 0.49])
    probability[3, 2:12] = torch.tensor([0.55, *[0.05] * 9])

    def rule(ids: Tensor, sees: Tensor) -> Tensor:
        return (
            probability.clamp(min=1e-30).log().expand(len(ids), 4, -1).clone() if ids.shape[1] == 4 else _shifted(ids)
        )

    def _shifted(ids: Tensor) -> Tensor:
        logits = torch.zeros(*ids.shape, VOCABULARY)
        logits[:, 1:5] = probability.clamp(min=1e-30).log()
        return logits

    assert steps_of(rule) == [1, 4, 3, 2]
    assert steps_of(rule, remasking="entropy") == [2, 4, 1, 3]
    assert steps_of(rule, remasking="margin") == [2, 4, 3, 1]


def test_an_order_temperature_draws_positions_by_their_softmax() -> None:
    confidences = torch.tensor([0.9, 0.7, 0.4, 0.2])
    rest = (1 - confidences) / (VOCABULARY - 2)
    logits = rest.log()[:, None].repeat(1, VOCABULARY)
    logits[:, 5] = confidences.log()
    n = 8000
    config = settings(temperature=1.0, order_temperature=0.5)
    counts = torch.zeros(4)
    law = torch.zeros(4)
    generators = [generator_for(21, "order", row) for row in range(n)]
    done = step(logits.expand(n, -1, -1), config, generators)
    law = (done.confidence.double() / 0.5).softmax(1)
    counts = done.committed.sum(0)
    assert counts.sum() == n
    deviation = (counts - law.sum(0)) / (law * (1 - law)).sum(0).sqrt()
    assert deviation.abs().max() < 4


def test_a_temperature_leaves_the_order_to_the_model_unless_it_is_asked_to_decide() -> None:
    """E12: at a low temperature nearly all tempered confidences tie at 1, and the leftmost position wins."""
    logits = 4 * torch.randn(1, 64, VOCABULARY, generator=generator_for(2, "logits"))
    cold = {"temperature": 0.05}
    model = step(logits, settings(**cold), [generator_for(2, "draw")])
    tempered = step(logits, settings(**cold, confidence="draw"), [generator_for(2, "draw")])
    assert torch.equal(model.committed, step(logits).committed)
    assert (tempered.confidence == 1).sum() > 32
    assert tempered.committed[0].nonzero().item() == int((tempered.confidence[0] == 1).nonzero()[0])


# Ends of sequence as a policy


def flooding(ids: Tensor, sees: Tensor) -> Tensor:
    """An end of text everywhere, an end of turn (token 2) at every third position; otherwise tokens of less weight."""
    logits = torch.zeros(*ids.shape, VOCABULARY)
    place = torch.arange(ids.shape[1])
    logits[..., 5] = 1.0 + 0.1 * place
    logits[:, place % 2 == 0, EOS] = 5.0
    logits[:, place % 3 == 0, 2] = 6.0
    return logits


def flooded(**changes: object) -> tuple[list[int], list[int]]:
    config = settings(gen_length=6, block_length=6, steps_per_block=6, early_stop="never", **changes)
    samples = decode("masked", config, [[3]], flooding, eos_ids=(EOS, 2))
    return samples.ids[0, 1:].tolist(), samples.step_map[0, 1:].tolist()


def test_policies_hold_ends_of_sequence_back() -> None:
    ids, steps = flooded()
    assert ids == [5, EOS, 2, EOS, 5, 2]
    assert steps == [6, 2, 1, 3, 5, 4]
    ids, steps = flooded(eos_policy="logits_inf")
    assert ids == [5, 5, 2, 5, 5, 2]  # the end of turn may still end the answer
    for policy in ("confidence_last", "eos_zero"):
        ids, steps = flooded(eos_policy=policy)
        assert ids == [5, EOS, 2, EOS, 5, 2]
        assert steps == [2, 3, 4, 5, 1, 6]
    ids, steps = flooded(eos_policy="legacy_eot")
    assert ids == [5, EOS, 2, EOS, 5, 2]
    assert (steps[1], steps[3]) == (1, 2)  # only the end of turn has lost its confidence
    assert {steps[2], steps[5]} == {5, 6}


def test_early_rejection_multiplies_the_confidence_by_the_factor_of_the_step() -> None:
    """Of a text token of confidence a and an end of sequence of confidence b > a, the end comes first once g b > a."""
    weights = torch.tensor([4.0, 2.0, 2.5, 3.0])

    def rule(ids: Tensor, sees: Tensor) -> Tensor:
        logits = torch.zeros(*ids.shape, VOCABULARY)
        logits[:, 1:5, 5] = weights
        logits[:, 1, 5], logits[:, 1, EOS] = 0.0, 4.0
        return logits

    confidence = weights.exp() / (weights.exp() + VOCABULARY - 2)
    order = []
    left = {0, 1, 2, 3}
    for step_number in range(4):
        factor = 0.4 + 0.6 * step_number / 3
        best = max(left, key=lambda place: confidence[place].item() * (factor if place == 0 else 1.0))
        order.append(best)
        left.remove(best)
    steps = steps_of(rule, eos_policy="eoser", eoser_minimum=0.4)
    assert [steps.index(step_number) for step_number in (1, 2, 3, 4)] == order
    assert order[0] != 0
    assert steps_of(rule)[0] == 1


# Orders and thresholds


@kinds
def test_equal_confidences_are_committed_from_the_left(kind: str) -> None:
    samples = decode(
        kind, settings(steps_per_block=4), [[3] * 4], lambda ids, sees: torch.zeros(*ids.shape, VOCABULARY)
    )
    assert samples.ids[0, 4:8].tolist() == [EOS] * 4
    assert samples.step_map[0, 4:8].tolist() == [1, 2, 3, 4]


@kinds
def test_sequential_decoding_goes_from_the_left(kind: str) -> None:
    samples = decode(kind, settings(remasking="sequential", steps_per_block=4), rule=never_ending())
    for row in range(len(PROMPTS)):
        assert samples.step_map[row, samples.window[row]].tolist() == list(range(1, 9))


def test_blocks_of_one_token_are_left_to_right() -> None:
    one = decode("masked", settings(block_length=1, steps_per_block=1), rule=never_ending())
    for row in range(len(PROMPTS)):
        assert one.step_map[row, one.window[row]].tolist() == list(range(1, 9))


def test_random_order_is_uniform() -> None:
    counts = torch.zeros(4, 4)
    config = settings(gen_length=4, steps_per_block=4, remasking="random")
    for seed in range(30):
        generators = [generator_for(seed, "order", row) for row in range(40)]
        samples = sample_masked(
            MaskedToy(never_ending()), [[3]] * 40, config, generators, mask_id=MASK, pad_id=EOS, eos_ids=(EOS,)
        )
        for place in range(4):
            counts[place] += samples.step_map[:, 1 + place].bincount(minlength=5)[1:]
    chi_square = ((counts - 300) ** 2 / 300).sum()
    assert chi_square < 27.9  # 99.9 % quantile with 9 degrees of freedom


@kinds
def test_a_threshold_commits_what_is_sure_and_at_least_the_quota(kind: str) -> None:
    strength = torch.tensor([0.0, 8.0, 8.0, 0.0, 8.0, 8.0, 8.0, 8.0])

    def rule(ids: Tensor, sees: Tensor) -> Tensor:
        logits = torch.zeros(*ids.shape, VOCABULARY)
        logits[:, 4:12, 5] = strength
        return logits

    config = settings(steps_per_block=4, threshold=0.9, selector="dynamic")
    samples = decode(kind, config, [[3] * 4], rule, eos_ids=())
    assert samples.step_map[0, 4:].tolist() == [2, 1, 1, 3, 4, 4, 4, 4]
    assert samples.nfe.item() == (4 if kind == "masked" else 6)  # the prompt block and one finished block in addition


@kinds
def test_a_threshold_that_nothing_reaches_still_ends(kind: str) -> None:
    samples = decode(kind, settings(threshold=1.0, selector="dynamic"), rule=never_ending())
    assert samples.step_map.max() <= 6
    assert not (samples.ids == MASK).any()


# Ends, lengths and costs


def ends_at(place: int) -> Rule:
    """Position `place` is the end of sequence, everything else is token 5."""

    def rule(ids: Tensor, sees: Tensor) -> Tensor:
        logits = torch.zeros(*ids.shape, VOCABULARY)
        logits[..., 5] = 4.0
        if place < ids.shape[1]:
            logits[:, place, EOS] = 8.0
        return logits

    return rule


@kinds
def test_a_row_ends_with_the_block_of_its_first_end_and_leaves_the_batch(kind: str) -> None:
    config = settings(gen_length=12)
    samples = decode(kind, config, [[3] * 4], ends_at(9))
    assert samples.step_map[0, 4:].tolist()[8:] == [0] * 4
    assert (samples.step_map[0, 4:12] > 0).all()  # the whole block of the end is kept
    assert samples.completion[0].nonzero().squeeze(1).tolist() == [4, 5, 6, 7, 8, 9]
    assert samples.ids[0, 12:].tolist() == [EOS] * 4
    assert samples.nfe.item() == (4 if kind == "masked" else 1 + 2 + 1 + 2)
    assert not samples.truncated.item()
    assert (samples.tokens_decoded, samples.tokens_kept) == (8, 6)


def test_finished_rows_cost_nothing() -> None:
    toy = MaskedToy(ends_at(5))
    prompts = [[3] * 4, [3] * 6]  # position 5 lies in the window of the first row only
    config = settings(gen_length=12)
    generators = [generator_for(0, row) for row in range(2)]
    samples = sample_masked(toy, prompts, config, generators, mask_id=MASK, pad_id=EOS, eos_ids=(EOS,))
    assert samples.nfe.tolist() == [2, 6]
    assert toy.rows == [2, 2, 1, 1, 1, 1]


def test_an_end_of_sequence_in_the_prompt_ends_nothing() -> None:
    samples = decode("block", settings(), [[3, 4, 5, 6, EOS]], never_ending())
    assert samples.truncated.item()
    assert (samples.step_map[0, 5:] > 0).all()


@pytest.mark.parametrize(("prompt", "gen_length"), [(8, 8), (10, 8), (3, 8), (3, 5), (9, 2), (1, 2), (0, 4)])
def test_block_decoding_costs_its_steps_and_one_forward_per_finished_block(prompt: int, gen_length: int) -> None:
    config = settings(gen_length=gen_length, steps_per_block=4)
    samples = decode("block", config, [[3] * prompt], never_ending())
    blocks = -(-(prompt + gen_length) // 4) - prompt // 4
    assert samples.nfe.item() == (prompt >= 4) + gen_length + blocks - 1
    assert samples.ids.shape[1] == prompt + gen_length
    assert sorted(samples.step_map[0, prompt:].tolist()) == list(range(1, gen_length + 1))


def test_the_prompt_remainder_is_visible_in_the_first_block() -> None:
    seen: list[Tensor] = []

    def rule(ids: Tensor, sees: Tensor) -> Tensor:
        seen.append(ids.clone())
        return never_ending()(ids, sees)

    decode("block", settings(), [[3, 4, 5, 6, 7, 8]], rule)
    assert seen[0][0, :8].tolist() == [3, 4, 5, 6, 7, 8, MASK, MASK]


def test_no_prompts_give_no_samples() -> None:
    for kind in ("masked", "block"):
        assert len(decode(kind, settings(), []).ids) == 0


# Refusals


@pytest.mark.parametrize(("gen_length", "block_length"), [(20, 8), (2, 4)])
def test_a_window_that_is_no_multiple_of_the_block_is_refused(gen_length: int, block_length: int) -> None:
    with pytest.raises(DecodingError, match=f"gen_length {gen_length} is no multiple of block_length {block_length}"):
        decode("masked", settings(gen_length=gen_length, block_length=block_length, steps_per_block=1))


def test_a_block_model_is_decoded_with_its_own_block_only() -> None:
    with pytest.raises(DecodingError, match="block_length is 4 but this model's blocks have 8 tokens"):
        sample_block(BlockToy(8), [[3]], settings(), [generator_for(0)], mask_id=MASK, pad_id=EOS, eos_ids=(EOS,))


# Guidance and caches


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_guidance_moves_logits_away_from_those_without_prompt_and_costs_two_forwards(temperature: float) -> None:
    def guided(ids: Tensor, sees: Tensor) -> Tensor:
        blind = ids.clone()
        for row in blind:
            row[: lengths[len(blind)]] = MASK
        conditional, unconditional = hashed(ids, sees), hashed(blind, sees)
        return unconditional + 2.5 * (conditional - unconditional)

    lengths = {1: 3}
    changes = {"temperature": temperature, "early_stop": "never"}
    found = decode("masked", settings(**changes, cfg_scale=1.5), [[3, 4, 5]])
    expected = decode("masked", settings(**changes), [[3, 4, 5]], guided)
    assert torch.equal(found.ids, expected.ids)
    assert torch.equal(found.step_map, expected.step_map)
    assert found.nfe.tolist() == [2 * n for n in expected.nfe.tolist()]
    assert not torch.equal(found.ids, decode("masked", settings(**changes), [[3, 4, 5]]).ids)


@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize("rule", [{}, {"selector": "threshold", "threshold": 0.4, "steps_per_block": 4}])
def test_an_exact_cache_changes_nothing_and_is_refilled_once_a_block(cache: str, rule: dict[str, Any]) -> None:
    """E6: rows that need a whole forward stand beside rows that need a part of one, and are not mixed up."""
    toy = CachedToy(cache)
    config = settings(gen_length=12, temperature=0.7, **rule)
    generators = [generator_for(5, "row", row) for row in range(len(PROMPTS))]
    options: dict[str, Any] = {"mask_id": MASK, "pad_id": EOS, "eos_ids": (EOS,)}
    cached = config.model_copy(update={"cache": cache})
    found = sample_masked(toy, PROMPTS, cached, generators, **options)
    expected = decode("masked", config)
    for name in ("ids", "step_map", "nfe"):
        assert torch.equal(getattr(found, name), getattr(expected, name))
    blocks = sum(
        len(found.step_map[row, found.window[row]].view(-1, 4).amax(1).nonzero()) for row in range(len(PROMPTS))
    )
    assert toy.refilled == blocks
    assert toy.reused == int(found.nfe.sum()) - blocks


# Editing


def test_editing_goes_on_until_nothing_changes_and_is_recorded() -> None:
    """Every token wants to be one more than its left neighbour; filled in at once, they find out one after another."""

    def rule(ids: Tensor, sees: Tensor) -> Tensor:
        logits = torch.zeros(*ids.shape, VOCABULARY)
        left = torch.nn.functional.pad(ids, (1, 0), value=2)[:, :-1]
        wanted = torch.where(left == MASK, 11, (left + 1).clamp(max=10))
        return logits.scatter(-1, wanted[..., None], 9.0)

    config = settings(
        gen_length=4, steps_per_block=1, selector="dynamic", threshold=0.5, edit_threshold=0.5, early_stop="never"
    )
    samples = decode("block", config, [[2, 3, 4, 5]], rule)
    assert samples.ids[0].tolist() == [2, 3, 4, 5, 6, 7, 8, 9]
    assert samples.step_map[0, 4:].tolist() == [1, 1, 1, 1]
    assert samples.trace.edits is not None
    final = {(column, token) for _, _, column, token in samples.trace.edits.tolist()}
    assert {(5, 7), (6, 8), (7, 9)} <= final
    assert samples.steps.item() == int(samples.trace.edits[:, 0].max())
    assert samples.nfe.item() == 1 + samples.steps.item() + 1  # the prompt, the steps, and one that found nothing
    short = decode("block", config.model_copy(update={"max_post_steps": 1}), [[2, 3, 4, 5]], rule)
    assert short.ids[0, 4:].tolist() != [6, 7, 8, 9]
    assert short.nfe.item() == 1 + 2


def test_editing_ends_however_undecided_the_model_is() -> None:
    def rule(ids: Tensor, sees: Tensor) -> Tensor:
        return torch.zeros(*ids.shape, VOCABULARY).scatter(-1, torch.where(ids == 5, 6, 5)[..., None], 20.0)

    config = settings(
        selector="dynamic", threshold=0.5, edit_threshold=0.0, max_post_steps=3, steps_per_block=4, early_stop="never"
    )
    samples = decode("block", config, [[3]], rule)
    blocks = 3  # the first one shares its block with the prompt
    assert samples.nfe.item() == blocks * (1 + 3) + blocks - 1
    assert samples.ids[0, 0] == 3


# Early stop


@kinds
def test_a_row_can_end_as_soon_as_its_text_is_whole_or_never(kind: str) -> None:
    def decoded(stop: str) -> tuple[list[int], int]:
        config = settings(steps_per_block=4, remasking="sequential", early_stop=stop)
        samples = decode(kind, config, [[3] * 4], ends_at(6))
        assert samples.completion[0].nonzero().squeeze(1).tolist() == [4, 5, 6]
        return samples.step_map[0, 4:].tolist(), samples.nfe.item()

    prefill, store = (0, 0) if kind == "masked" else (1, 1)
    assert decoded("filled") == ([1, 2, 3, 0, 0, 0, 0, 0], prefill + 3)
    assert decoded("block") == ([1, 2, 3, 4, 0, 0, 0, 0], prefill + 4)
    assert decoded("never") == ([1, 2, 3, 4, 5, 6, 7, 8], prefill + 8 + store)


# Watching


@kinds
def test_a_watcher_sees_every_step_and_what_will_not_change(kind: str) -> None:
    frames: list[Frame] = []
    config = settings(gen_length=12, temperature=1.0)

    def watch(frame: Frame) -> None:
        frames.append(Frame(*(tensor.clone() for tensor in vars(frame).values())))

    samples = decode(kind, config, watch=watch)
    plain = decode(kind, config)
    assert torch.equal(samples.ids, plain.ids)
    assert sum(len(frame.rows) for frame in frames) == int(samples.steps.sum())
    width = samples.ids.shape[1]
    for frame in frames:
        for row in range(len(PROMPTS)):
            settled = min(int(frame.settled[row]), width)
            seen = frame.step_map[row, :settled]
            assert torch.equal(seen, samples.step_map[row, :settled])
            there = seen > 0
            assert torch.equal(frame.ids[row, :settled][there], samples.ids[row, :settled][there])
    last = frames[-1]
    assert last.finished.all()
    assert torch.equal(last.nfe, samples.nfe)


# Presets and settings


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_valid_described_and_decodes(name: str) -> None:
    preset = PRESETS[name]
    assert preset.__doc__
    assert len(preset.__doc__.splitlines()) == 1
    assert preset() == SamplingConfig.model_validate_json(preset().model_dump_json())
    config = preset(64)
    kind = "block" if name.startswith(("sdar", "llada2")) else "masked"
    samples = decode(kind, config, [[3, 4, 5], [6]], never_ending())
    assert (samples.step_map[samples.window] > 0).all()
    assert not (samples.ids == MASK).any()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"steps_per_block": 5}, "steps_per_block is 5 but a block has 4 tokens"),
    ({"threshold": 0.9}, "threshold is 0.9 but nothing reads it: it needs selector 'threshold' or 'dynamic' or"),
    ({"selector": "threshold", "steps_per_block": 4}, "selector is 'threshold' but threshold is not set"),
    ({"selector": "factor", "steps_per_block": 4}, "selector is 'factor' but factor is not set"),
    (
        {"selector": "threshold", "threshold": 0.9},
        "steps_per_block is 2 but selector 'threshold' counts no steps: set it to block_length, 4",
    ),
    ({"selector": "factor", "factor": 1.0}, "steps_per_block is 2 but selector 'factor' counts no steps"),
    (
        {"selector": "dynamic", "threshold": 0.9, "remasking": "random"},
        "selector is 'dynamic' but remasking is 'random': it needs 'low_confidence'",
    ),
    (
        {"selector": "entropy_bounded", "entropy_bound": 0.3, "steps_per_block": 4},
        "selector is 'entropy_bounded' but remasking is 'low_confidence': it needs 'entropy'",
    ),
    ({"entropy_bound": 0.3}, "entropy_bound is 0.3 but nothing reads it: it needs selector 'entropy_bounded'"),
    (
        {"selector": "dynamic", "threshold": 0.9, "schedule": "timesteps"},
        "schedule is 'timesteps' but selector is 'dynamic': it needs selector 'schedule'",
    ),
    ({"remasking": "origin"}, "remasking is 'origin' but schedule is 'even'"),
    ({"eps": 0.1}, "eps is 0.1 but nothing reads it: it needs schedule 'timesteps'"),
    ({"block_num": 2}, "block_num is 2 but nothing reads it: it needs schedule 'ascending'"),
    (
        {"schedule": "ascending"},
        "a window of 8 tokens in floor.log2. = 3 steps and divides it itself: block_length is 4, steps_per_block 2",
    ),
    (
        {"schedule": "ascending", "block_length": 8, "steps_per_block": 3, "block_num": 4},
        "block_num is 4 but 8 tokens are filled in 3 steps",
    ),
    ({"top_p": 0.9}, "top_p is 0.9 but temperature is 0"),
    ({"top_k": 5}, "top_k is 5 but temperature is 0"),
    ({"top_k": 1, "temperature": 1.0}, "greater than 1"),
    ({"order_temperature": 0.5}, "order_temperature is 0.5 but temperature is 0"),
    (
        {"order_temperature": 0.5, "temperature": 1.0, "remasking": "sequential"},
        "order_temperature is 0.5 but remasking is 'sequential'",
    ),
    ({"confidence": "draw"}, "confidence is 'draw' but temperature is 0"),
    ({"cache": "dual", "cfg_scale": 1.5}, "cache is 'dual' and cfg_scale 1.5"),
    ({"eos_policy": "eos_zero", "remasking": "random"}, "eos_policy is 'eos_zero', a rule on confidence"),
    (
        {"eos_policy": "eoser", "selector": "dynamic", "threshold": 0.9},
        "eos_policy is 'eoser' but selector is 'dynamic'",
    ),
    ({"eoser_minimum": 0.1}, "eoser_minimum is 0.1 but nothing reads it"),
    ({"edit_threshold": 0.5}, "edit_threshold is 0.5 but selector is 'schedule'"),
    ({"max_post_steps": 3}, "max_post_steps is 3 but nothing reads it: it needs an edit_threshold"),
    (
        {"edit_threshold": 0.5, "selector": "dynamic", "threshold": 0.7, "early_stop": "filled"},
        "edit_threshold is 0.5 and early_stop 'filled'",
    ),
    (
        {"edit_threshold": 0.5, "selector": "dynamic", "threshold": 0.7, "eos_policy": "eos_zero"},
        "edit_threshold is 0.5 and eos_policy 'eos_zero'",
    ),
]


@pytest.mark.parametrize(("changes", "sentence"), REFUSED)
def test_settings_that_do_not_go_together_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        settings(**changes)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"cache": "prefix"}, "cache is 'prefix': a block family's own cache is exact"),
        ({"cfg_scale": 0.5}, "cfg_scale is 0.5: only full-attention families"),
        ({"eos_policy": "eoser"}, "eos_policy is 'eoser'"),
        ({"gen_length": 4, "schedule": "ascending"}, "schedule is 'ascending'"),
    ],
)
def test_block_models_refuse_what_only_full_attention_has(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DecodingError, match=sentence):
        decode("block", settings(**changes))


def test_full_attention_refuses_to_edit() -> None:
    config = settings(selector="dynamic", threshold=0.7, edit_threshold=0.5)
    with pytest.raises(DecodingError, match=r"edit_threshold is 0\.5: only block families edit"):
        decode("masked", config)


def test_new_settings_change_no_digest_of_old_ones() -> None:
    """The digest of these settings before there were others: they are part of protocol ids."""
    config = settings()
    assert list(config.model_dump()) == [
        "gen_length", "block_length", "steps_per_block", "temperature", "remasking", "threshold",
    ]  # fmt: skip
    assert config.digest() == "c5a0f9b4e4dd2308e52751ed80effcbe1ff590089fd779fa40a769548acc2ece"
    assert settings(early_stop="never").digest() != config.digest()
