"""The samplers on models small enough to know the answer: tables of logits that depend on what is visible."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dare.sampling.block import sample_block
from dare.sampling.denoise import DecodingError
from dare.sampling.draw import draw
from dare.sampling.masked import sample_masked
from dare.sampling.schedule import even_schedule, select
from dare.seeds import generator_for
from dare.spec import SamplingConfig
from dare.types import Samples

EOS, MASK, VOCABULARY = 0, 1, 12
PROMPTS = [[3, 4, 5], [6], [7, 8, 9, 10, 11, 2, 3], [4, 4]]
Rule = Callable[[Tensor, Tensor], Tensor]
"""From ids (n, S) and what each position may see (n, S, S), logits (n, S, V)."""


def hashed(ids: Tensor, sees: Tensor) -> Tensor:
    """Logits that depend on the position and on every visible token and its position, so that any leak shows."""
    place = torch.arange(ids.shape[1])
    mixed = ((ids + 1) * (place * 7 + 3)) % 101
    context = (sees * mixed[:, None, :]).sum(-1)  # (n, S)
    token = torch.arange(VOCABULARY)
    phase = context[..., None] * 0.37 + place[:, None] * 1.7 + token * 2.9
    return 2.5 * torch.sin(phase) + torch.cos(phase * 1.3)


def never_ending(rule: Rule = hashed) -> Rule:
    return lambda ids, sees: rule(ids, sees).index_fill(-1, torch.tensor([EOS]), -30.0)


class MaskedToy:
    """Full attention over valid positions; remembers the batch sizes it was asked for."""

    def __init__(self, rule: Rule = hashed) -> None:
        self.rule, self.rows = rule, list[int]()

    def __call__(self, ids: Tensor, valid: Tensor, columns: Tensor) -> Tensor:
        self.rows.append(len(ids))
        logits = self.rule(ids, valid[:, None, :].expand(-1, ids.shape[1], -1))
        return logits.gather(1, columns[..., None].expand(-1, -1, VOCABULARY))


class BlockToy:
    """A block-causal toy that keeps the ids of its context instead of keys and values."""

    def __init__(self, block_size: int, rule: Rule = hashed) -> None:
        self.block_size, self.rule, self.rows = block_size, rule, list[int]()

    def prefill(self, ids: Tensor, length: Tensor, width: int) -> None:
        self.ids = torch.full((len(ids), width), -1)
        self.ids[:, : ids.shape[1]] = ids.masked_fill(torch.arange(ids.shape[1]) >= length[:, None], -1)
        self.length = length.clone()

    def logits(self, ids: Tensor, columns: Tensor, real: Tensor) -> Tensor:
        self.rows.append(len(ids))
        assert (columns[:, 0] == self.length).all()  # exactly the next block
        row = torch.arange(len(ids))[:, None]
        self.ids[row, columns] = ids.masked_fill(~real, -1)
        visible = torch.arange(self.ids.shape[1]) < self.length[:, None] + self.block_size
        sees = (visible & (self.ids >= 0))[:, None, :].expand(-1, self.ids.shape[1], -1)
        return self.rule(self.ids, sees)[row, columns]

    def extend(self, rows: Tensor) -> None:
        self.length = self.length + rows * self.block_size

    def keep(self, rows: Tensor) -> None:
        self.ids, self.length = self.ids[rows], self.length[rows]


def settings(**changes: object) -> SamplingConfig:
    return SamplingConfig.model_validate({"gen_length": 8, "block_length": 4, "steps_per_block": 2} | changes)


def decode(
    kind: str,
    config: SamplingConfig,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    rule: Rule = hashed,
    eos_ids: Sequence[int] = (EOS,),
    first: int = 0,
) -> Samples:
    generators = [generator_for(5, "row", first + row) for row in range(len(prompts))]
    ids = {"mask_id": MASK, "pad_id": EOS, "eos_ids": eos_ids}
    if kind == "masked":
        return sample_masked(MaskedToy(rule), prompts, config, generators, **ids)  # type: ignore[arg-type]
    return sample_block(BlockToy(config.block_length, rule), prompts, config, generators, **ids)  # type: ignore[arg-type]


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
def test_selection_is_the_best_masked_positions_leftmost_first(data: st.DataObject, width: int) -> None:
    masked = data.draw(st.lists(st.booleans(), min_size=width, max_size=width))
    priority = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=width, max_size=width))
    quota = data.draw(st.integers(0, width + 1))
    found = select(torch.tensor([masked]), torch.tensor([priority]), torch.tensor([quota]))
    best = sorted((place for place in range(width) if masked[place]), key=lambda place: (-priority[place], place))
    assert found[0].nonzero().squeeze(1).tolist() == sorted(best[:quota])


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
    ("remasking", "threshold"),
    [("low_confidence", None), ("low_confidence", 0.6), ("random", None), ("sequential", None)],
)
def test_a_row_does_not_depend_on_its_batch(
    kind: str, temperature: float, remasking: str, threshold: float | None
) -> None:
    config = settings(gen_length=12, temperature=temperature, remasking=remasking, threshold=threshold)
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
    token, _ = draw(logits.expand(1, n, -1), temperature, MASK, [generator_for(11, "law")])
    kept = [0, 2, 3, 4, 5]
    expected = n * (logits[kept].double() / temperature).softmax(0)
    counts = token[0].bincount(minlength=6)
    assert counts[MASK] == 0
    chi_square = ((counts[kept] - expected) ** 2 / expected).sum()
    assert chi_square < 18.5  # 99.9 % quantile with 4 degrees of freedom


def test_confidence_is_the_untempered_probability_without_the_mask() -> None:
    logits = torch.randn(2, 5, VOCABULARY, generator=generator_for(1, "logits"))
    generators = [generator_for(1, "draw", row) for row in range(2)]
    token, confidence = draw(logits, 3.0, MASK, generators)
    probability = logits.double().index_fill(-1, torch.tensor([MASK]), -torch.inf).softmax(-1)
    torch.testing.assert_close(confidence.double(), probability.gather(-1, token[..., None]).squeeze(-1))


def test_the_temperature_changes_tokens_and_not_their_confidence() -> None:
    """At temperature 0.1 most tempered probabilities tie at 1 in float32; ordering by them would go left to right."""
    logits = 4 * torch.randn(1, 64, VOCABULARY, generator=generator_for(2, "logits"))
    greedy = draw(logits, 0.0, MASK, [])
    cold = draw(logits, 0.01, MASK, [generator_for(2, "draw")])
    assert torch.equal(greedy.token, cold.token)
    assert torch.equal(greedy.confidence, cold.confidence)
    assert len(cold.confidence.unique()) > 60


def test_low_precision_logits_are_ordered_as_in_float64() -> None:
    logits = (3 * torch.randn(1, 64, 500, generator=generator_for(4, "logits"))).bfloat16()
    ours = draw(logits, 0.0, MASK, []).confidence
    exact = draw(logits.double(), 0.0, MASK, []).confidence
    assert torch.equal(ours.argsort(descending=True), exact.argsort(descending=True))


def test_drawing_leaves_the_global_random_state_and_the_logits_alone() -> None:
    before, logits = torch.get_rng_state(), torch.randn(1, 3, VOCABULARY, generator=generator_for(0))
    copy = logits.clone()
    draw(logits, 1.0, MASK, [generator_for(0)])
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(logits, copy)


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

    config = settings(steps_per_block=4, threshold=0.9)
    samples = decode(kind, config, [[3] * 4], rule, eos_ids=())
    assert samples.step_map[0, 4:].tolist() == [2, 1, 1, 3, 4, 4, 4, 4]
    assert samples.nfe.item() == (4 if kind == "masked" else 6)  # the prompt block and one finished block in addition


@kinds
def test_a_threshold_that_nothing_reaches_still_ends(kind: str) -> None:
    samples = decode(kind, settings(threshold=1.0, steps_per_block=2), rule=never_ending())
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


@kinds
def test_a_threshold_with_another_order_is_refused(kind: str) -> None:
    with pytest.raises(DecodingError, match=r"threshold is 0\.9 but remasking is 'random'"):
        decode(kind, settings(threshold=0.9, remasking="random"))
