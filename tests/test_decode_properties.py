"""What every decoder keeps to, whatever the settings and the model: settings at random, models that resist."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from decoding import EOS, MASK, PROMPTS, VOCABULARY, Rule, decode, hashed
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import rollout_sampling, tiny
from torch import Tensor

from dare.algorithm import GRPO, Algorithm, load_algorithm
from dare.data import load_data
from dare.executor import Executor
from dare.families.masked import CachedRows, MaskedBackbone
from dare.family import load_family
from dare.sampling.plan import BlockPlan, blocks_of, quotas_of
from dare.sampling_config import SamplingConfig
from dare.seeds import generator_for
from dare.spec import AlgorithmSpec, Budget, TrainSettings
from dare.types import Frame, NoisyViews, Rollout, Samples, Trace


def flat(ids: Tensor, sees: Tensor) -> Tensor:
    return torch.zeros(*ids.shape, VOCABULARY)


def wants(token: int) -> Rule:
    """Prefers one token everywhere, overwhelmingly."""
    return lambda ids, sees: hashed(ids, sees).index_fill(-1, torch.tensor([token]), 80.0)


def restless(ids: Tensor, sees: Tensor) -> Tensor:
    """Certain, at every forward, of another token than the one that is there."""
    return flat(ids, sees).scatter(-1, torch.where(ids == 5, 6, 5)[..., None], 90.0)


def enormous(ids: Tensor, sees: Tensor) -> Tensor:
    return 1e30 * hashed(ids, sees)


def certain_of_many(ids: Tensor, sees: Tensor) -> Tensor:
    """Confidences that tie at 1 in float32."""
    return 200.0 * hashed(ids, sees).round()


MODELS: dict[str, Rule] = {
    "hashed": hashed,
    "flat": flat,
    "wants the mask": wants(MASK),
    "wants the end": wants(EOS),
    "restless": restless,
    "enormous": enormous,
    "ties": certain_of_many,
}


@st.composite
def configs(draw: st.DrawFn, kind: str) -> SamplingConfig:
    """Any valid settings of a kind, built so that none has to be thrown away."""
    block = draw(st.integers(1, 5))
    length = block * draw(st.integers(1, 3)) if kind == "masked" else draw(st.integers(1, 12))
    selector = draw(
        st.sampled_from(["schedule", "schedule", "threshold", "dynamic", "budget", "factor", "entropy_bounded"])
    )
    fields: dict[str, Any] = {
        "gen_length": length,
        "block_length": block,
        "steps_per_block": draw(st.integers(1, block)) if selector in ("schedule", "dynamic", "budget") else block,
        "selector": selector,
        "temperature": draw(st.sampled_from([0.0, 0.3, 1.0])),
        "early_stop": draw(st.sampled_from(["never", "block", "filled"])),
        "remasking": "entropy" if selector == "entropy_bounded" else "low_confidence",
    }
    if selector in ("threshold", "dynamic", "budget"):
        fields["threshold"] = draw(st.sampled_from([0.05, 0.5, 0.95, 1.0]))
    if selector in ("factor", "entropy_bounded"):
        fields["factor" if selector == "factor" else "entropy_bound"] = draw(st.sampled_from([0.1, 1.0, 3.0]))
    if selector == "schedule":
        fields |= draw(schedules(kind, length))
    if fields["temperature"] > 0:
        fields["confidence"] = draw(st.sampled_from(["model", "draw"]))
        fields["top_p"] = draw(st.sampled_from([None, 0.3, 0.9]))
        fields["top_k"] = draw(st.sampled_from([None, 2, 5]))
        if selector == "schedule" and fields["remasking"] in ("low_confidence", "entropy", "margin"):
            fields["order_temperature"] = draw(st.sampled_from([None, 0.5]))
    policies = ["none", "logits_inf"]
    if fields["remasking"] == "low_confidence":
        policies += ["confidence_last", "eos_zero", "legacy_eot"]
        policies += ["eoser"] if selector == "schedule" and kind == "masked" else []
    fields["eos_policy"] = draw(st.sampled_from(policies))
    if kind == "masked":
        fields |= draw(st.sampled_from([{}, {}, {"cfg_scale": 1.5}, {"cache": "prefix"}, {"cache": "dual"}]))
    elif selector == "dynamic" and draw(st.booleans()):
        fields |= {"early_stop": draw(st.sampled_from(["never", "block"])), "edit_threshold": 0.3}
        fields |= {"eos_policy": "none", "max_post_steps": draw(st.integers(0, 3))}
    return SamplingConfig.model_validate(fields)


@st.composite
def schedules(draw: st.DrawFn, kind: str, length: int) -> dict[str, Any]:
    """How tokens spread over steps, and in which order."""
    orders = ["low_confidence", "random", "sequential", "entropy", "margin"]
    schedule = draw(st.sampled_from(["even", "even", "timesteps", "ascending"]))
    if schedule == "timesteps":
        return {"schedule": schedule, "remasking": draw(st.sampled_from([*orders, "origin"]))}
    if schedule == "ascending" and kind == "masked" and length > 1:
        steps = length.bit_length() - 1
        shape = {"block_length": length, "steps_per_block": steps, "block_num": draw(st.integers(1, steps))}
        return {"schedule": schedule, "remasking": draw(st.sampled_from(orders)), **shape}
    return {"remasking": draw(st.sampled_from(orders))}


def bound(config: SamplingConfig, prompt: int, kind: str) -> int:
    """More forwards than any row may take."""
    per_step = 2 if config.cfg_scale else 1
    if kind == "masked":
        return config.gen_length * per_step
    blocks = (prompt + config.gen_length - 1) // config.block_length - prompt // config.block_length + 1
    edits = 0 if config.edit_threshold is None else config.max_post_steps
    return 1 + config.gen_length + blocks * (1 + edits)


def blocks_in_order(config: SamplingConfig, prompt: int, kind: str) -> list[slice]:
    """The window columns of each block."""
    if kind == "masked":
        ends = [0]
        for block in blocks_of(config):
            ends.append(ends[-1] + block.length)
    else:
        size = config.block_length
        ends = [0, *range(size - prompt % size, config.gen_length, size), config.gen_length]
    return [slice(start, end) for start, end in pairwise(ends)]


kinds = pytest.mark.parametrize("kind", ["masked", "block"])
models = st.sampled_from(sorted(MODELS))


@kinds
@settings(max_examples=100)
@given(data=st.data(), name=models)
def test_every_decoder_ends_with_every_token_assigned_to_one_step(kind: str, data: st.DataObject, name: str) -> None:
    config = data.draw(configs(kind))
    samples = decode(kind, config, PROMPTS, MODELS[name], eos_ids=(EOS, 2))
    edits = [] if samples.trace.edits is None else samples.trace.edits.tolist()
    for row, prompt in enumerate(PROMPTS):
        window = samples.window[row]
        steps, ids = samples.step_map[row, window], samples.ids[row, window].tolist()
        assert samples.ids[row, : len(prompt)].tolist() == prompt
        assert len(steps) == config.gen_length
        assert samples.nfe[row] <= bound(config, len(prompt), kind)
        assert MASK not in ids
        assert EOS not in [token for token, at in zip(ids, steps.tolist(), strict=True) if at] or (
            config.eos_policy != "logits_inf"
        )
        if config.early_stop == "never" or samples.truncated[row]:
            assert (steps > 0).all()
        changed = {*steps.tolist(), *(step for step, owner, _, _ in edits if owner == row)} - {0}
        assert changed == set(range(1, len(changed) + 1))  # no step without a token
        assert samples.steps[row] == len(changed)
        parts = [steps[part] for part in blocks_in_order(config, len(prompt), kind)]
        begun = [part[part > 0] for part in parts if (part > 0).any()]
        for before, after in pairwise(begun):
            assert before.max() < after.min()  # only the current block is ever touched
        assert all((part > 0).all() for part in parts[: len(begun) - 1])


@kinds
@settings(max_examples=40)
@given(data=st.data(), name=models)
def test_a_schedule_is_kept_block_by_block(kind: str, data: st.DataObject, name: str) -> None:
    config = data.draw(configs(kind).filter(lambda c: c.selector == "schedule" and c.remasking != "origin"))
    config = config.model_copy(update={"early_stop": "never"})
    prompt = [3] * config.block_length
    samples = decode(kind, config, [prompt], MODELS[name])
    steps = samples.step_map[0, samples.window[0]]
    planned = blocks_of(config) if kind == "masked" else [BlockPlan(config.block_length, quotas_of(config))] * 12
    for part, block in zip(blocks_in_order(config, len(prompt), kind), planned, strict=False):
        if part.stop - part.start == block.length:  # not cut by the end of the window
            assert tuple(steps[part].unique(return_counts=True)[1].tolist()) == block.quotas


@kinds
@settings(max_examples=40)
@given(data=st.data(), name=models)
def test_a_row_depends_on_its_own_prompt_and_seed_alone(kind: str, data: st.DataObject, name: str) -> None:
    config = data.draw(configs(kind))
    together = decode(kind, config, PROMPTS, MODELS[name])
    again = decode(kind, config, PROMPTS, MODELS[name])
    assert torch.equal(together.ids, again.ids)
    row = data.draw(st.integers(0, len(PROMPTS) - 1))
    alone = decode(kind, config, [PROMPTS[row]], MODELS[name], first=row)
    other = decode(kind, config, [PROMPTS[row], [9, 9, 9, 9, 9, 9, 9, 9, 9]], MODELS[name], first=row)
    width = alone.ids.shape[1]
    for found in (alone, other):
        for field in ("ids", "step_map", "completion"):
            assert torch.equal(getattr(found, field)[0, :width], getattr(together, field)[row, :width])
        assert found.nfe[0] == together.nfe[row]


@kinds
@settings(max_examples=40)
@given(data=st.data(), name=models)
def test_watching_and_recording_change_nothing_and_agree(kind: str, data: st.DataObject, name: str) -> None:
    config = data.draw(configs(kind))
    frames: list[Frame] = []

    def watch(frame: Frame) -> None:
        frames.append(Frame(*(tensor.clone() for tensor in vars(frame).values())))

    record = frozenset({"x0", "confidence"})
    plain = decode(kind, config, PROMPTS, MODELS[name])
    samples = decode(kind, config, PROMPTS, MODELS[name], watch=watch, record=record)
    for field in ("ids", "step_map", "nfe"):
        assert torch.equal(getattr(samples, field), getattr(plain, field))
    x0, confidence = samples.trace.x0, samples.trace.confidence
    assert x0 is not None
    assert confidence is not None
    steps = int(samples.steps.max())
    width = samples.ids.shape[1]
    assert x0.shape == confidence.shape == (len(PROMPTS), steps, width)
    assert ((confidence >= 0) & (confidence <= 1.0001)).all()
    assert (confidence[:, :, :][~samples.window[:, None].expand_as(confidence)] == 0).all()
    done = torch.zeros(len(PROMPTS), dtype=torch.long)
    for frame in frames:
        for row in frame.rows.tolist():
            predicted = x0[row, done[row]]
            committed = frame.step_map[row, :width] > 0
            if (
                config.edit_threshold is None
            ):  # an edited token was predicted too, but not where it is committed already
                assert torch.equal(predicted[committed], frame.ids[row, :width][committed])
            done[row] += 1
        for row in range(len(PROMPTS)):
            settled = int(frame.settled[row])
            kept = frame.step_map[row, :settled]
            assert torch.equal(kept[:width], samples.step_map[row, :settled])
            there = kept[:width] > 0
            assert torch.equal(frame.ids[row, :width][:settled][there], samples.ids[row, :settled][there])
    assert torch.equal(done, samples.steps)


# Real models


FAMILIES = [("llada", 1e-4), ("dream", 1e-4), ("sdar", 1e-4), ("llada2", 1e-3)]


def peaked(family: str) -> Any:
    backbone: Any = load_family(family).tiny(list("0123456789+-*/=()., abcdef"), generator_for(0, "init"))
    with torch.no_grad():
        backbone.model.get_output_embeddings().weight.mul_(3.0)
    return backbone


def sampled(backbone: Any, config: SamplingConfig, rows: range, record: frozenset[Any] = frozenset()) -> Samples:
    prompts = [backbone.tokenizer.prompt_ids(text) for text in ("1+2", "12+34=", "1+2", "(1+2)*3-4", "7")]
    generators = [generator_for(3, "row", row) for row in rows]
    samples: Samples = backbone.sample([prompts[row] for row in rows], config, generators, record)
    return samples


def replayed(backbone: Any, samples: Samples, row: int) -> Tensor:
    """What the learner says each token of a row was worth when it was committed, from the step map alone."""
    steps = torch.arange(1, int(samples.step_map[row].max()) + 1)[:, None]
    step_map, window, ids = samples.step_map[row], samples.window[row], samples.ids[row]
    hidden = window & ((step_map >= steps) | (step_map == 0))
    score = step_map == steps
    n = len(steps)
    views = NoisyViews(
        ids=torch.where(hidden, backbone.mask_id, ids),
        target=ids.expand(n, -1),
        score=score,
        coef=score.float(),
        unit=torch.zeros(n, dtype=torch.long),
        valid=samples.valid[row].expand(n, -1),
        window=window.expand(n, -1),
    )
    with torch.no_grad():
        logp = backbone.logprobs(backbone.model, views)
    return torch.where(score, logp, 0.0).sum(0)


@pytest.mark.parametrize(("family", "tolerance"), FAMILIES)
@pytest.mark.parametrize("rule", [{}, {"selector": "dynamic", "threshold": 0.3}])
def test_recorded_confidences_are_the_learners_before_any_update(
    family: str, tolerance: float, rule: dict[str, Any]
) -> None:
    """The replay guarantee: step map in, behaviour probabilities out."""
    backbone = peaked(family)
    config = SamplingConfig(gen_length=12, block_length=4, steps_per_block=3, temperature=0.8, top_p=0.95, **rule)
    samples = sampled(backbone, config, range(4), frozenset({"x0", "confidence"}))
    x0, confidence = samples.trace.x0, samples.trace.confidence
    assert x0 is not None
    assert confidence is not None
    for row in range(4):
        where = samples.step_map[row].nonzero().squeeze(1)
        at = samples.step_map[row, where] - 1
        assert torch.equal(x0[row, at, where], samples.ids[row, where])
        logp = replayed(backbone, samples, row)[where]
        torch.testing.assert_close(confidence[row, at, where].log(), logp, atol=tolerance, rtol=0)


def test_a_recorded_prediction_covers_the_blocks_that_are_still_to_come() -> None:
    backbone = peaked("llada")
    config = SamplingConfig(gen_length=12, block_length=4, steps_per_block=2, temperature=0.8, early_stop="never")
    samples = sampled(backbone, config, range(3), frozenset({"x0", "confidence"}))
    x0, confidence = samples.trace.x0, samples.trace.confidence
    assert x0 is not None
    assert confidence is not None
    for row in range(3):
        window, step_map, length = samples.window[row], samples.step_map[row], int(samples.valid[row].sum())
        begin = int(window.nonzero()[0])
        for step in range(1, int(step_map.max()) + 1):
            canvas = torch.where(window & (step_map >= step), backbone.mask_id, samples.ids[row])[:length]
            with torch.no_grad():
                logits = backbone.model(canvas[None])[0]
            logits[:, backbone.mask_id] = -torch.inf
            later = torch.arange(begin + 4 * ((step - 1) // 2) + 4, length)
            assert torch.equal(x0[row, step - 1, later], logits.argmax(-1)[later])
            torch.testing.assert_close(
                confidence[row, step - 1, later], logits.softmax(-1).amax(-1)[later], atol=1e-4, rtol=0
            )


class Reciter:
    """Knows one text by heart, as tokens by position; its logits lie `shift` to the left of what they predict."""

    device = torch.device("cpu")

    def __init__(self, text: list[int], shift: int) -> None:
        self.text, self.shift = torch.tensor(text), shift

    def __call__(self, ids: Tensor, *, logits_positions: Tensor, **_: object) -> Tensor:
        said = self.text[(logits_positions + self.shift).clamp(max=len(self.text) - 1)]
        return torch.zeros(*said.shape, VOCABULARY).scatter(-1, said[..., None], 9.0)


@pytest.mark.parametrize("shift", [0, 1])
def test_the_adapter_reads_logits_where_the_family_puts_them(shift: int) -> None:
    """E9: read without the shift, a shifted family's text is garbage that still runs."""
    text = [3, 4, 5, 6, 7, 8, 9, 10, 11, 4]
    backbone = MaskedBackbone(Reciter(text, shift), None, MASK, (EOS,), EOS, "sdpa", logit_shift=shift)  # type: ignore[arg-type]
    config = SamplingConfig(gen_length=8, block_length=4, steps_per_block=2)
    samples = backbone.sample([text[:2], text[:1]], config, [generator_for(0), generator_for(1)])
    assert samples.ids[0].tolist() == text
    assert samples.ids[1, :9].tolist() == text[:9]


def test_a_trace_of_some_rows_keeps_their_edits() -> None:
    edits = torch.tensor([[2, 0, 5, 7], [3, 2, 6, 8], [4, 1, 5, 9], [5, 2, 4, 3]])
    trace = Trace(step_map=torch.arange(12).view(3, 4), x0=torch.arange(24).view(3, 2, 4), edits=edits).rows(
        torch.tensor([2, 0])
    )
    assert trace.step_map is not None
    assert trace.edits is not None
    assert trace.step_map[:, 0].tolist() == [8, 0]
    assert trace.edits.tolist() == [[2, 1, 5, 7], [3, 0, 6, 8], [5, 0, 4, 3]]


@dataclass(frozen=True)
class Recording(GRPO):
    """Asks for all there is."""

    record: ClassVar[frozenset[str]] = frozenset({"step_map", "x0", "confidence"})


@pytest.mark.parametrize("family", ["llada", "sdar"])
def test_a_rollout_carries_what_its_algorithm_asked_for(family: str) -> None:
    def rollout(algorithm: Algorithm) -> Rollout:
        run = Executor(
            backbone=tiny(family),
            algorithm=algorithm,
            data=load_data("prompts:sudoku", Path()),
            settings=TrainSettings(learning_rate=1e-3, prompts_per_step=1, group_size=2),
            sampling=rollout_sampling(family),
            budget=Budget(optimiser_steps=1, wall_seconds=60),
            seed=0,
        )
        return run._rollout(0, [0])[0]

    found, plain = rollout(Recording()), rollout(load_algorithm(AlgorithmSpec(name="d1"))).trace
    trace, ids = found.trace, found.ids
    assert trace.x0 is not None
    assert trace.confidence is not None
    assert trace.step_map is not None
    steps = int(trace.step_map.max())
    assert trace.x0.shape == trace.confidence.shape == (2, steps, ids.shape[1])
    assert torch.equal(trace.x0[:, -1][trace.step_map == steps], ids[trace.step_map == steps])
    assert torch.equal(found.rows(torch.tensor([1])).trace.x0, trace.x0[1:])
    assert plain.x0 is plain.confidence is None


CACHED: list[dict[str, Any]] = [
    {"cache": "prefix"},
    {"cache": "dual"},
    {"cache": "prefix", "selector": "threshold", "threshold": 0.3, "steps_per_block": 4},
    {"cache": "dual", "selector": "threshold", "threshold": 0.3, "steps_per_block": 4},
]


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("rule", CACHED)
def test_cached_decoding_does_not_depend_on_the_batch(family: str, rule: dict[str, Any]) -> None:
    """Prompts of four lengths, rows that advance on their own: keys and values of rows must not mix (E6)."""
    backbone = peaked(family)
    config = SamplingConfig.model_validate(
        {"gen_length": 12, "block_length": 4, "steps_per_block": 2, "temperature": 0.7} | rule
    )
    together = sampled(backbone, config, range(5))
    for rows in (range(1), range(1, 3), range(3, 5)):
        part = sampled(backbone, config, rows)
        width = part.ids.shape[1]
        for field in ("ids", "step_map"):
            assert torch.equal(getattr(part, field), getattr(together, field)[rows.start : rows.stop, :width])
        assert torch.equal(part.nfe, together.nfe[rows.start : rows.stop])


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_a_cache_that_is_refilled_at_every_step_is_exact(family: str, cache: str) -> None:
    backbone = peaked(family)
    config = SamplingConfig(gen_length=12, block_length=4, steps_per_block=1, temperature=0.7)
    exact = sampled(backbone, config, range(5))
    cached = sampled(backbone, config.model_copy(update={"cache": cache}), range(5))
    for field in ("ids", "step_map", "nfe"):
        assert torch.equal(getattr(cached, field), getattr(exact, field))


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_a_partial_forward_of_an_unchanged_row_gives_the_logits_of_the_whole_one(family: str, cache: Any) -> None:
    """Also for the first token of the block, which a shifted family predicts from its left neighbour."""
    backbone = peaked(family)
    rows = CachedRows(backbone, cache)
    ids = torch.randint(6, 26, (3, 16), generator=generator_for(1))
    valid = torch.arange(16) < torch.tensor([[16], [13], [16]])
    columns = torch.tensor([[4], [5], [9]]) + torch.arange(4)
    everyone = torch.arange(3)
    with torch.no_grad():
        rows.start(3, 16)
        whole = rows.refill(everyone, ids, valid, columns)
        part = rows.reuse(everyone, ids, valid, columns)
        few = rows.reuse(everyone[1:], ids[1:], valid[1:], columns[1:])
        plain = backbone._logits(ids, valid, columns)
    torch.testing.assert_close(whole, plain, atol=1e-4, rtol=0)
    torch.testing.assert_close(part, whole, atol=1e-4, rtol=0)
    torch.testing.assert_close(few, whole[1:], atol=1e-4, rtol=0)


def test_a_shifted_family_renews_the_left_neighbour_of_its_block() -> None:
    """It was a mask when the row was computed whole. With one layer nothing else of the cache has aged since."""
    backbone = peaked("dream")
    del backbone.model.model.layers[1:]
    ids = torch.randint(6, 26, (1, 12), generator=generator_for(1))
    before = ids.clone()
    before[0, 5] = backbone.mask_id
    valid, columns, row = torch.ones(1, 12, dtype=torch.bool), torch.arange(6, 10)[None], torch.arange(1)
    for cache in ("prefix", "dual"):
        rows = CachedRows(backbone, cache)  # type: ignore[arg-type]
        with torch.no_grad():
            rows.start(1, 12)
            stale = rows.refill(row, before, valid, columns)
            found = rows.reuse(row, ids, valid, columns)
            fresh = backbone._logits(ids, valid, columns)
        torch.testing.assert_close(found, fresh, atol=1e-4, rtol=0)
        assert (stale - fresh).abs().max() > 0.1


@pytest.mark.parametrize("family", ["sdar", "llada2"])
def test_equal_prompts_are_prefilled_once_and_decoded_as_if_alone(family: str) -> None:
    backbone = peaked(family)
    config = SamplingConfig(gen_length=8, block_length=4, steps_per_block=2, temperature=1.0)
    prompt = backbone.tokenizer.prompt_ids("1+2")
    other = backbone.tokenizer.prompt_ids("12+34=")
    prompts = [prompt, other, prompt, prompt]
    prefilled: list[int] = []
    hook = backbone.model.register_forward_pre_hook(
        lambda _, args, kwargs: prefilled.append(len(args[0])) if kwargs.get("return_hidden") else None,
        with_kwargs=True,
    )
    together = backbone.sample(prompts, config, [generator_for(7, row) for row in range(4)])
    hook.remove()
    assert prefilled == [2]
    for row in range(4):
        alone = backbone.sample([prompts[row]], config, [generator_for(7, row)])
        assert torch.equal(alone.ids[0], together.ids[row, : alone.ids.shape[1]])
        assert alone.nfe[0] == together.nfe[row]
