"""Every family computes what its reference computes, scores what its sampler samples, and survives its own files."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dare.families.block import BlockBackbone, CachedBlocks
from dare.families.checkpoint_files import CheckpointError, load_model, read_config, save_model
from dare.families.doubled import doubled_input
from dare.families.layers import RMSNorm
from dare.families.llada import LLaDAFamily
from dare.families.llada.configuration import LLaDAConfig
from dare.families.llada.modeling import LLaDAModelLM
from dare.families.masked import MaskedBackbone
from dare.families.published_config import MissingKeyError, UnsupportedValueError
from dare.families.sdar import SDARFamily
from dare.families.sdar.configuration import SDARConfig
from dare.families.sdar.modeling import SDARForCausalLM
from dare.family import Backbone, family_names, load_family
from dare.linear_logp import linear_logp
from dare.sampling.block import sample_block
from dare.sampling.masked import sample_masked
from dare.seeds import generator_for
from dare.spec import SamplingConfig
from dare.types import NoisyViews, Samples

MODELS: dict[str, Any] = {"llada": LLaDAModelLM, "sdar": SDARForCausalLM}
GOLDEN = ["llada", "llada/variant_gqa_bias", "llada/variant_tied", "sdar", "sdar/variant_square"]
CHARACTERS = list("0123456789+-*/=()., abcdefghijklmno")

families = pytest.mark.parametrize("family", ["llada", "sdar"])
goldens = pytest.mark.parametrize("folder", GOLDEN)


def golden_model(shared: Path, folder: str, dtype: torch.dtype = torch.float32) -> Any:
    return load_model(MODELS[folder.split("/")[0]], shared / "goldens" / folder, dtype)


def golden_logits(shared: Path, folder: str) -> dict[str, Tensor]:
    return load_file(shared / "goldens" / folder / "logits.safetensors")


def inputs(golden: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the reference was given: the published mask, and positions where padding moves them."""
    given = {"input_ids": golden["input_ids"], "attention_mask": golden["attention_mask"]}
    return given | ({"position_ids": golden["position_ids"]} if "position_ids" in golden else {})


def tiny(family: str, seed: int = 0) -> Any:
    return load_family(family).tiny(CHARACTERS, generator_for(seed, "init"))


def peaked(family: str) -> Any:
    """A tiny backbone with a head strong enough for confidences to differ."""
    backbone = tiny(family)
    with torch.no_grad():
        backbone.model.get_output_embeddings().weight.mul_(3.0)
    return backbone


def some_prompts(backbone: Backbone) -> list[list[int]]:
    return [backbone.tokenizer.prompt_ids(text) for text in ("1+2", "12+34=", "7", "(1+2)*3-4")]


def some_samples(backbone: Backbone, **changes: Any) -> Samples:
    fields = {"gen_length": 12, "block_length": 4, "steps_per_block": 2, "temperature": 1.0} | changes
    prompts = some_prompts(backbone)
    config = SamplingConfig.model_validate(fields)
    return backbone.sample(prompts, config, [generator_for(0, "rollout", row) for row in range(len(prompts))])


def views_of(backbone: Backbone, samples: Samples, copies: int = 3, seed: int = 0) -> NoisyViews:
    """Several random views per completion; each hides and scores at least one token."""
    row = torch.arange(len(samples.ids)).repeat_interleave(copies)
    chance = torch.rand(len(row), samples.ids.shape[1], generator=generator_for(seed, "hide"))
    completion = samples.completion[row]
    hidden = completion & ((chance < 0.4) | (chance == chance.masked_fill(~completion, 2.0).amin(1, keepdim=True)))
    target = samples.ids[row]
    return NoisyViews(
        ids=torch.where(hidden, backbone.mask_id, target),
        target=target,
        score=hidden,
        coef=hidden.float(),
        unit=row,
        valid=samples.valid[row],
        window=samples.window[row],
    )


# The reference's numbers


@pytest.mark.shared
@goldens
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_logits_are_those_of_the_reference(shared: Path, folder: str, attention: str) -> None:
    golden, model = golden_logits(shared, folder), golden_model(shared, folder)
    real = golden["attention_mask"].bool()
    with torch.no_grad():
        logits = model(**inputs(golden), attention=attention)
    torch.testing.assert_close(logits[real], golden["logits"][real], atol=5e-5, rtol=0)


@pytest.mark.shared
@pytest.mark.parametrize("folder", [folder for folder in GOLDEN if folder.startswith("sdar")])
def test_sdar_takes_an_explicit_block_mask_and_may_see_everything(shared: Path, folder: str) -> None:
    golden, model = golden_logits(shared, folder), golden_model(shared, folder)
    real = golden["attention_mask"].bool()
    everything = torch.ones(1, 1, 24, 24, dtype=torch.bool)
    with torch.no_grad():
        given = model(golden["input_ids"], block_mask=golden["block_mask"], position_ids=golden["position_ids"])
        full = model(golden["input_ids"][2:], block_mask=everything)
    torch.testing.assert_close(given[real], golden["logits"][real], atol=5e-5, rtol=0)
    torch.testing.assert_close(full, golden["logits_full_attention"], atol=5e-5, rtol=0)


@pytest.mark.shared
@goldens
def test_padding_does_not_matter(shared: Path, folder: str) -> None:
    golden, model = golden_logits(shared, folder), golden_model(shared, folder)
    with torch.no_grad():
        alone = model(golden["input_ids"][1:2, 5:])
    torch.testing.assert_close(alone, golden["logits_row1_unpadded"], atol=5e-5, rtol=0)
    torch.testing.assert_close(alone, golden["logits"][1:2, 5:], atol=5e-5, rtol=0)


@pytest.mark.shared
@goldens
def test_bfloat16_rounds_where_the_reference_rounds(shared: Path, folder: str) -> None:
    golden, model = golden_logits(shared, folder), golden_model(shared, folder, torch.bfloat16)
    real = golden["attention_mask"].bool()
    names = [name for name in golden if name.startswith("logits_bf16")]
    assert names
    for name in names:
        for module in model.modules():
            if isinstance(module, RMSNorm):
                module.rounds_once = name.endswith("once")
        with torch.no_grad():
            logits = model(**inputs(golden)).float()
        distance = {other: (logits - golden[other])[real].abs().mean().item() for other in names}
        assert distance[name] < 0.05
        assert min(distance, key=distance.__getitem__) == name


@pytest.mark.shared
@pytest.mark.parametrize("folder", [folder for folder in GOLDEN if folder.startswith("llada")])
def test_llada_forwards_a_part_against_cached_keys_and_values(shared: Path, folder: str) -> None:
    golden, model = golden_logits(shared, folder), golden_model(shared, folder)
    start, end = golden["cache_block"].tolist()
    before, step = golden["cache_before_ids"], golden["cache_step_ids"]
    width = before.shape[1]
    for last, length, name in ((width, start, "prefix_cache_logits"), (end, width, "dual_cache_logits")):
        cache = model.empty_cache(1, width)
        everything = torch.arange(width)[None]
        with torch.no_grad():
            model(before, position_ids=everything, cache=cache)
            cache.length[:] = length
            logits = model(step[:, start:last], position_ids=everything[:, start:last], cache=cache)
        torch.testing.assert_close(logits, golden[name], atol=5e-5, rtol=0)


@pytest.mark.shared
@pytest.mark.parametrize("folder", [folder for folder in GOLDEN if folder.startswith("sdar")])
def test_sdar_forwards_a_block_against_cached_blocks(shared: Path, folder: str) -> None:
    golden, model = golden_logits(shared, folder), golden_model(shared, folder)
    start, end = golden["cached_block"].tolist()
    ids = golden["input_ids"][2:]
    blocks = CachedBlocks(model, 4, "sdpa")
    with torch.no_grad():
        blocks.prefill(ids[:, :start], torch.tensor([start]), ids.shape[1])
        columns = torch.arange(start, end)[None]
        logits = blocks.logits(ids[:, start:end], columns, torch.ones_like(columns, dtype=torch.bool))
    torch.testing.assert_close(logits, golden["cached_block_logits"], atol=5e-5, rtol=0)


NOT_YET = {
    "generate_cfg": "classifier-free guidance",
    "generate_cfg_unpadded": "classifier-free guidance",
    **{
        f"fastdllm_{cache}_{tau}": f"{cache} cache"
        for cache in ("prefix", "dual")
        for tau in (None, 0.3, 0.5, 0.7, 0.9)
    },
}
"""Reference decodes of features that no sampler here has."""


@pytest.mark.shared
def test_llada_decodes_token_for_token_as_the_references(shared: Path) -> None:
    golden = json.loads((shared / "goldens/llada/decode.json").read_text())
    model = golden_model(shared, "llada")
    compared = 0
    for case in golden["cases"]:
        if case["id"] in NOT_YET:
            continue
        compared += 1
        fields, prompts = case["settings"], case["prompt_ids"]
        kept = case["attention_mask"] or [[1] * len(prompt) for prompt in prompts]
        prompts = [
            [token for token, keep in zip(*pair, strict=True) if keep] for pair in zip(prompts, kept, strict=True)
        ]
        block = fields["block_length"]
        blocks = fields["gen_length"] // block
        config = SamplingConfig(
            gen_length=fields["gen_length"],
            block_length=block,
            steps_per_block=block if fields["threshold"] else fields["steps"] // blocks,
            threshold=fields["threshold"],
        )
        backbone = MaskedBackbone(model, None, golden["mask_id"], (), golden["eos_id"], "sdpa")  # type: ignore[arg-type]
        samples = backbone.sample(prompts, config, [torch.Generator()] * len(prompts))
        window = samples.window
        assert samples.ids[window].view(len(prompts), -1).tolist() == case["output_ids"], case["id"]
        assert samples.step_map[window].view(len(prompts), -1).tolist() == case["step_map"], case["id"]
        assert int(samples.nfe.max()) == case["nfe"], case["id"]
    assert compared == len(golden["cases"]) - len(NOT_YET) == 11


@pytest.mark.shared
def test_sdar_decodes_token_for_token_as_the_reference(shared: Path) -> None:
    """The reference fills the last block whatever `gen_length`, and spends a forward to store it; we do neither."""
    golden = json.loads((shared / "goldens/sdar/decode.json").read_text())
    model = golden_model(shared, "sdar")
    for case in golden["cases"]:
        fields, prompts = case["settings"], case["prompt_ids"]
        config = SamplingConfig(
            gen_length=len(case["output_ids"][0]),
            block_length=fields["block_length"],
            steps_per_block=fields["denoising_steps"],
            threshold=fields["confidence_threshold"],
            remasking="sequential" if fields["remasking"] == "sequential" else "low_confidence",
        )
        stop = tuple(fields["stop_ids"] or ())
        backbone = BlockBackbone(model, None, golden["mask_id"], stop, golden["eos_id"], "sdpa", fields["block_length"])  # type: ignore[arg-type]
        samples = backbone.sample(prompts, config, [torch.Generator()])
        window = samples.window
        decoded = samples.step_map[window] > 0
        assert samples.ids[window][decoded].tolist() == torch.tensor(case["output_ids"][0])[decoded].tolist(), case[
            "id"
        ]
        assert samples.step_map[window].tolist() == case["step_map"][0], case["id"]
        assert samples.step_map.max().item() == case["denoising_forwards"], case["id"]
        assert samples.nfe.item() == case["nfe"] - 1, case["id"]
        if stop:
            assert samples.ids[samples.completion].tolist() == case["kept_ids_up_to_first_stop"][0]


def with_mask_token(shared: Path, family: str, views: NoisyViews) -> tuple[Any, Tensor]:
    """The scores of a golden model as the reference computes losses: the mask token keeps its share of probability."""
    model = golden_model(shared, family)
    hidden: Tensor
    if family == "llada":
        where = views.score
        hidden = model(views.ids, attention_mask=views.valid, logits_positions=where, return_hidden=True)
        target = views.target[where]
    else:
        doubled = doubled_input(views, 4)
        assert doubled is not None
        hidden = model(
            doubled.ids,
            block_mask=doubled.mask,
            position_ids=doubled.position,
            logits_positions=doubled.score,
            return_hidden=True,
        )
        target = views.target.flatten()[doubled.home]
    return model, linear_logp(hidden, model.get_output_embeddings().weight, target)


@pytest.mark.shared
def test_llada_losses_and_gradients_are_those_of_the_reference(shared: Path) -> None:
    golden = json.loads((shared / "goldens/llada/loss.json").read_text())
    names = ("input_ids", "noisy_ids", "valid", "answer", "hidden", "t")
    sft = {name: torch.tensor(golden["masked_sft"][name]) for name in names}
    hidden, valid, answer = sft["hidden"].bool(), sft["valid"].bool(), sft["answer"].bool()
    views = NoisyViews(
        ids=sft["noisy_ids"],
        target=sft["input_ids"],
        score=hidden,
        coef=hidden / sft["t"][:, None],
        unit=torch.arange(2),
        valid=valid,
        window=answer,
    )
    row, expected = hidden.nonzero()[:, 0], golden["masked_sft"]
    for name in ("mean_of_sample_means", "global_answer_tokens"):
        model, logp = with_mask_token(shared, "llada", views)
        torch.testing.assert_close(
            -logp,
            torch.tensor([loss for losses in expected["token_cross_entropy_at_hidden"] for loss in losses]),
            rtol=1e-5,
            atol=1e-5,
        )
        numerator = torch.zeros(2).index_add(0, row, -logp * views.coef[hidden])
        tokens = answer.sum(1)
        means = {
            "mean_of_sample_means": (numerator / tokens).mean(),
            "global_answer_tokens": numerator.sum() / tokens.sum(),
        }
        assert means[name].item() == pytest.approx(expected["loss"][name], rel=1e-5)
        assert means[name].item() != pytest.approx(expected["loss"]["DEFECT_divided_by_masked_tokens"], rel=0.1)
        means[name].backward()
        norms = expected["gradient_norms"][name]
        found = {key: parameter.grad.norm().item() for key, parameter in model.named_parameters()}
        assert found == pytest.approx({key: norm for key, norm in norms.items() if key != "total"}, rel=1e-4)


@pytest.mark.shared
def test_sdar_losses_are_those_of_the_reference(shared: Path) -> None:
    golden = json.loads((shared / "goldens/sdar/loss.json").read_text())["doubled_sequence"]
    lengths, width = golden["packed_lengths"], max(golden["packed_lengths"])

    def unpack(name: str, empty: int = 0) -> Tensor:
        rows, start = torch.full((len(lengths), width), empty), 0
        for row, length in enumerate(lengths):
            rows[row, :length] = torch.tensor(golden[name][0][start : start + length])
            start += length
        return rows

    score = unpack("target_mask").bool()
    valid = torch.arange(width) < torch.tensor(lengths)[:, None]
    views = NoisyViews(
        ids=unpack("noisy_ids"),
        target=unpack("input_ids"),
        score=score,
        coef=score.float(),
        unit=torch.arange(2),
        valid=valid,
        window=valid & (unpack("labels", -100) != -100),
    )
    _, logp = with_mask_token(shared, "sdar", views)
    doubled = doubled_input(views, 4)
    assert doubled is not None
    in_order = -logp[doubled.home.argsort()]  # the golden lists them row by row
    torch.testing.assert_close(in_order, torch.tensor(golden["token_cross_entropy"]), rtol=1e-5, atol=2e-5)


# Scores


@families
def test_scores_are_the_log_probabilities_of_a_plain_forward(family: str) -> None:
    backbone = peaked(family)
    views = views_of(backbone, some_samples(backbone))
    with torch.no_grad():
        for temperature in (1.0, 0.7):
            found = backbone.logprobs(backbone.model, views, temperature)
            for index in range(len(views)):
                expected = plain_scores(backbone, views.rows(slice(index, index + 1)), temperature)
                torch.testing.assert_close(found[index], expected, atol=1e-5, rtol=1e-5)
                assert (found[index][~views.score[index]] == 0).all()


def plain_scores(backbone: Any, view: NoisyViews, temperature: float) -> Tensor:
    """One view, unbatched and unpadded; for a block family every block by its own forward after a clean context."""
    length = int(view.valid.sum())
    out = torch.zeros(view.ids.shape[1])
    size = backbone.block_size or length
    for start in range(0, length, size):
        part = slice(start, min(start + size, length))
        ids = torch.cat((view.target[:, :start], view.ids[:, part]), dim=1)
        logits = backbone.model(ids)[0, start:] / temperature
        logits[:, backbone.mask_id] = -torch.inf
        logp = logits.log_softmax(-1).gather(1, view.target[0, part, None]).squeeze(1)
        out[part] = torch.where(view.score[0, part], logp, 0.0)
    return out


@families
def test_scores_sum_to_one_over_all_tokens_but_the_mask(family: str) -> None:
    backbone = peaked(family)
    view = views_of(backbone, some_samples(backbone), copies=1).rows(slice(0, 1))
    place = int(view.score[0].nonzero()[-1])
    vocabulary = backbone.model.get_output_embeddings().weight.shape[0]
    total = 0.0
    for token in range(vocabulary):
        target, score = view.target.clone(), torch.zeros_like(view.score)
        target[0, place], score[0, place] = token, True
        with torch.no_grad():
            logp = backbone.logprobs(backbone.model, replace(view, target=target, score=score))[0, place]
        total += logp.exp().item()
        assert (token == backbone.mask_id) == (logp == -torch.inf).item()
    assert total == pytest.approx(1.0, abs=1e-5)


@families
def test_scores_do_not_depend_on_padding_order_or_micro_batches(family: str) -> None:
    backbone = peaked(family)
    views = views_of(backbone, some_samples(backbone))
    with torch.no_grad():
        whole = backbone.logprobs(backbone.model, views)
        assert torch.equal(whole, backbone.logprobs(backbone.model, views))  # deterministic
        order = torch.randperm(len(views), generator=generator_for(0, "order"))
        torch.testing.assert_close(
            backbone.logprobs(backbone.model, views.rows(order)), whole[order], atol=1e-5, rtol=0
        )
        for size in (1, 5):
            parts = [
                backbone.logprobs(backbone.model, views.rows(slice(start, start + size)))
                for start in range(0, len(views), size)
            ]
            torch.testing.assert_close(torch.cat(parts), whole, atol=1e-5, rtol=0)
        padded = NoisyViews(
            **{
                name: value
                if value.ndim == 1
                else torch.nn.functional.pad(value, (0, 3), value=7 if name in ("ids", "target") else 0)
                for name, value in vars(views).items()
            }
        )
        wide = backbone.logprobs(backbone.model, padded)
        junk = replace(
            padded, ids=torch.where(padded.valid, padded.ids, 9), target=torch.where(padded.valid, padded.target, 8)
        )
        for found in (wide, backbone.logprobs(backbone.model, junk)):
            torch.testing.assert_close(found[:, : whole.shape[1]], whole, atol=1e-5, rtol=0)


@families
def test_gradients_are_those_of_a_plain_forward(family: str) -> None:
    backbone = peaked(family)
    views = views_of(backbone, some_samples(backbone), copies=2)
    weight = torch.rand(views.ids.shape, generator=generator_for(0, "weight"))
    (backbone.logprobs(backbone.model, views) * weight).sum().backward()
    found = {name: parameter.grad.clone() for name, parameter in backbone.model.named_parameters()}
    backbone.model.zero_grad()
    for index in range(len(views)):
        (plain_scores(backbone, views.rows(slice(index, index + 1)), 1.0) * weight[index]).sum().backward()
    for name, parameter in backbone.model.named_parameters():
        torch.testing.assert_close(
            found[name], parameter.grad, atol=2e-4, rtol=1e-3, msg=lambda text, name=name: f"{name}: {text}"
        )


@families
def test_scores_of_the_steps_are_what_the_sampler_drew_from(family: str) -> None:
    """Replaying a trajectory gives the log-probability that every token had when it was committed."""
    backbone = peaked(family)
    for number, prompt in enumerate(some_prompts(backbone)):
        config = SamplingConfig(
            gen_length=11 if family == "sdar" else 12, block_length=4, steps_per_block=3, temperature=1.0
        )
        samples, drawn = recorded_sample(backbone, prompt, config, generator_for(9, number))
        steps = torch.arange(1, int(samples.step_map.max()) + 1)[:, None]
        hidden = samples.window & ((samples.step_map >= steps) | (samples.step_map == 0))
        score = samples.step_map == steps
        n = len(steps)
        target = samples.ids.expand(n, -1)
        views = NoisyViews(
            ids=torch.where(hidden, backbone.mask_id, target),
            target=target,
            score=score,
            coef=score.float(),
            unit=torch.zeros(n, dtype=torch.long),
            valid=samples.valid.expand(n, -1),
            window=samples.window.expand(n, -1),
        )
        with torch.no_grad():
            logp = backbone.logprobs(backbone.model, views)
        for step in range(n):
            columns, logits = drawn[step]
            logits[..., backbone.mask_id] = -torch.inf
            seen = torch.zeros_like(samples.ids, dtype=torch.float32)
            inside = columns[0] < samples.ids.shape[1]
            at = columns[0, inside]
            seen[0, at] = logits[0, inside].log_softmax(-1).gather(1, samples.ids[0, at, None]).squeeze(1)
            torch.testing.assert_close(logp[step], torch.where(score[step], seen[0], 0.0), atol=1e-5, rtol=1e-5)


def recorded_sample(
    backbone: Any, prompt: list[int], config: SamplingConfig, generator: torch.Generator
) -> tuple[Samples, list[tuple[Tensor, Tensor]]]:
    """A sample of one prompt with the columns and logits of every denoising forward."""
    drawn: list[tuple[Tensor, Tensor]] = []
    ids = {"mask_id": backbone.mask_id, "pad_id": backbone.pad_id, "eos_ids": backbone.eos_ids}
    if isinstance(backbone, MaskedBackbone):

        def model(row: Tensor, valid: Tensor, columns: Tensor) -> Tensor:
            logits = backbone._logits(row, valid, columns)
            drawn.append((columns, logits.clone()))
            return logits

        with torch.no_grad():
            return sample_masked(model, [prompt], config, [generator], **ids), drawn

    class Recorded(CachedBlocks):
        def logits(self, block: Tensor, columns: Tensor, real: Tensor) -> Tensor:
            logits = super().logits(block, columns, real)
            if (block == backbone.mask_id).any():
                drawn.append((columns, logits.clone()))
            return logits

    blocks = Recorded(backbone.model, backbone.block_size, "sdpa")
    with torch.no_grad():
        return sample_block(blocks, [prompt], config, [generator], **ids), drawn


@families
def test_a_copy_of_the_model_scores_as_the_model(family: str) -> None:
    backbone = tiny(family)
    reference = copy.deepcopy(backbone.model)
    views = views_of(backbone, some_samples(backbone))
    with torch.no_grad():
        before = backbone.logprobs(backbone.model, views)
        for parameter in backbone.model.parameters():
            parameter.add_(0.01)
        assert torch.equal(backbone.logprobs(reference, views), before)
        assert not torch.equal(backbone.logprobs(backbone.model, views), before)


@families
def test_views_that_score_nothing_get_zeros(family: str) -> None:
    backbone = tiny(family)
    views = views_of(backbone, some_samples(backbone))
    nothing = replace(views, score=torch.zeros_like(views.score))
    assert (backbone.logprobs(backbone.model, nothing) == 0).all()
    half = replace(views, score=views.score & (torch.arange(len(views)) % 2 == 0)[:, None])
    with torch.no_grad():
        found, whole = backbone.logprobs(backbone.model, half), backbone.logprobs(backbone.model, views)
    torch.testing.assert_close(found[::2], whole[::2], atol=1e-5, rtol=0)
    assert (found[1::2] == 0).all()


def test_one_clean_half_serves_all_views_of_a_completion() -> None:
    backbone = tiny("sdar")
    samples = some_samples(backbone)
    doubled = doubled_input(views_of(backbone, samples, copies=5), 4)
    assert doubled is not None
    assert len(doubled.ids) == len(samples.ids)


def test_a_doubled_input_holds_only_blocks_with_a_scored_position() -> None:
    ids = torch.arange(1, 12)[None].repeat(2, 1)
    score = torch.zeros(2, 11, dtype=torch.bool)
    score[0, 5], score[1, 9] = True, True
    every = torch.ones_like(score)
    views = NoisyViews(ids, ids, score, score.float(), torch.arange(2), every, every)
    doubled = doubled_input(views, 4)
    assert doubled is not None
    assert doubled.ids.tolist() == [[1, 2, 3, 4, 5, 6, 7, 8, 5, 6, 7, 8, 9, 10, 11, 0]]  # clean 0..7, blocks 1 and 2
    assert doubled.position.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7, 8, 9, 10, 11]]
    seen = [row.nonzero().squeeze(1).tolist() for row in doubled.mask[0, 0]]
    assert seen[0] == [0, 1, 2, 3]
    assert seen[4] == list(range(8))
    assert seen[8] == [0, 1, 2, 3, 8, 9, 10, 11]
    assert seen[12] == [*range(8), 12, 13, 14]  # the last block is ragged
    assert doubled.home.tolist() == [5, 11 + 9]


def test_forwards_count_one_for_full_attention_and_the_share_of_scored_blocks_for_blocks() -> None:
    masked, block = tiny("llada"), tiny("sdar")
    ids = torch.zeros(3, 16, dtype=torch.long)
    window = torch.zeros(3, 16, dtype=torch.bool)
    window[:, 6:15] = True  # touches blocks 1, 2 and 3
    score = torch.zeros_like(window)
    score[0, 6] = score[1, 6:15] = True
    score[2, [7, 14]] = True
    views = NoisyViews(ids, ids, score, score.float(), torch.arange(3), window, window)
    assert masked.forwards(views).tolist() == [1.0, 1.0, 1.0]
    torch.testing.assert_close(block.forwards(views), torch.tensor([1 / 3, 1.0, 2 / 3]))


# Who sees whom


def test_a_block_of_the_decoder_is_not_a_block_of_attention() -> None:
    """Changing a later block moves the logits of an earlier one with full attention, and never with block attention."""
    for family, moves in (("llada", True), ("sdar", False)):
        backbone = tiny(family)
        ids = torch.randint(6, 40, (1, 16), generator=generator_for(1))
        changed = ids.clone()
        changed[0, 8:] = 7
        with torch.no_grad():
            difference = (backbone.model(ids) - backbone.model(changed))[0].abs().amax(1)
        assert (difference[:8] > 1e-6).all() == moves
        assert moves or (difference[:8] == 0).all()
        inside = ids.clone()
        inside[0, 3] = 8  # the last token of the first block: seen by all of it
        with torch.no_grad():
            difference = (backbone.model(ids) - backbone.model(inside))[0].abs().amax(1)
        assert (difference > 1e-6).all()


@families
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_decoding_does_not_depend_on_the_batch(family: str, temperature: float) -> None:
    backbone = peaked(family)
    prompts = some_prompts(backbone)
    config = SamplingConfig(gen_length=12, block_length=4, steps_per_block=2, temperature=temperature)

    def decode(rows: range) -> Samples:
        return backbone.sample([prompts[row] for row in rows], config, [generator_for(3, row) for row in rows])

    together = decode(range(4))
    for size in (1, 2):
        for first in range(0, 4, size):
            part = decode(range(first, first + size))
            for name in ("ids", "step_map", "completion"):
                whole = getattr(together, name)[first : first + size, : part.ids.shape[1]]
                assert torch.equal(getattr(part, name), whole)
            assert torch.equal(part.nfe, together.nfe[first : first + size])


def test_an_exact_cache_changes_no_token() -> None:
    backbone = peaked("sdar")

    class Uncached(CachedBlocks):
        """The same interface over whole forwards."""

        def prefill(self, ids: Tensor, length: Tensor, width: int) -> None:
            self.ids = torch.zeros(len(ids), width, dtype=torch.long)
            self.ids[:, : ids.shape[1]] = ids

        def logits(self, ids: Tensor, columns: Tensor, real: Tensor) -> Tensor:
            row = torch.arange(len(ids))[:, None]
            self.ids[row, columns] = ids
            valid = torch.ones_like(self.ids, dtype=torch.bool)
            valid[row, columns] = real
            logits: Tensor = self._model(self.ids, attention_mask=valid)
            return logits[row, columns]

        def extend(self, rows: Tensor) -> None:
            pass

        def keep(self, rows: Tensor) -> None:
            self.ids = self.ids[rows]

    prompts = some_prompts(backbone)
    config = SamplingConfig(gen_length=11, block_length=4, steps_per_block=3, temperature=0.8)
    ids = {"mask_id": backbone.mask_id, "pad_id": backbone.pad_id, "eos_ids": backbone.eos_ids}
    with torch.no_grad():
        found = [
            sample_block(
                kind(backbone.model, 4, "sdpa"), prompts, config, [generator_for(1, r) for r in range(4)], **ids
            )
            for kind in (CachedBlocks, Uncached)
        ]
    assert torch.equal(found[0].ids, found[1].ids)
    assert torch.equal(found[0].step_map, found[1].step_map)


def test_an_unknown_record_is_refused() -> None:
    backbone = tiny("llada")
    config = SamplingConfig(gen_length=4, block_length=4, steps_per_block=1)
    with pytest.raises(ValueError, match="cannot record x0; known: step_map"):
        backbone.sample([[2]], config, [generator_for(0)], frozenset({"x0"}))


# Files and configurations


@families
def test_a_saved_backbone_comes_back_with_the_same_logits(family: str, tmp_path: Path) -> None:
    backbone = tiny(family)
    backbone.save(tmp_path)
    loaded = load_family(family).load(tmp_path)
    ids = torch.randint(0, 45, (2, 16), generator=generator_for(0))
    with torch.no_grad():
        assert torch.equal(loaded.model(ids), backbone.model(ids))
    for name in ("kind", "mask_id", "eos_ids", "pad_id", "block_size", "records"):
        assert getattr(loaded, name) == getattr(backbone, name)
    assert loaded.tokenizer.prompt_ids("1+2") == backbone.tokenizer.prompt_ids("1+2")
    backbone.save(tmp_path / "half", torch.bfloat16)
    half = load_family(family).load(tmp_path / "half", torch.bfloat16)
    assert {parameter.dtype for parameter in half.model.parameters()} == {torch.bfloat16}


@pytest.mark.shared
@goldens
def test_published_keys_survive_a_round_trip(shared: Path, folder: str, tmp_path: Path) -> None:
    save_model(golden_model(shared, folder), tmp_path)
    before, after = read_config(shared / "goldens" / folder), read_config(tmp_path)
    administrative = {"torch_dtype", "transformers_version", "use_cache"}
    assert {key: after.get(key) for key in before.keys() - administrative} == {
        key: value for key, value in before.items() if key not in administrative
    }
    weights = load_file(shared / "goldens" / folder / "model.safetensors")
    again = load_file(tmp_path / "model.safetensors")
    assert weights.keys() == again.keys()
    assert all(torch.equal(weights[key], again[key]) for key in weights)


@pytest.mark.shared
@pytest.mark.parametrize("family", ["llada", "sdar"])
def test_published_checkpoints_have_exactly_our_tensors(shared: Path, family: str) -> None:
    published = json.loads((shared / f"goldens/{family}/published.json").read_text())
    for checkpoint in published["checkpoints"]:
        model_class = MODELS[family]
        with torch.device("meta"):
            model = model_class(model_class.config_class(**checkpoint["config"]))
        ours = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
        theirs = {}
        for tensor in checkpoint["tensors"]:
            layers = range(tensor["count"]) if "{layer}" in tensor["key"] else [0]
            theirs |= {tensor["key"].replace("{layer}", str(layer)): tensor["shape"] for layer in layers}
        assert ours == theirs
        assert sum(parameter.numel() for parameter in model.parameters()) == checkpoint["n_parameters"]


@families
def test_weights_that_do_not_fit_are_refused_by_name(family: str, tmp_path: Path) -> None:
    backbone = tiny(family)
    backbone.save(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    name = sorted(weights)[0]
    for broken, message in (
        ({key: value for key, value in weights.items() if key != name}, f"missing {name}"),
        (weights | {"model.extra": torch.zeros(1)}, r"unexpected model\.extra"),
        (weights | {name: torch.zeros(3)}, rf"{name} has shape \(3,\) instead of"),
    ):
        save_file(broken, path)
        with pytest.raises(CheckpointError, match=message):
            load_family(family).load(tmp_path)


def test_weights_may_come_in_shards(tmp_path: Path) -> None:
    backbone = tiny("sdar")
    backbone.save(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    names = sorted(weights)
    shards = {"model-1.safetensors": names[:10], "model-2.safetensors": names[10:]}
    for file, part in shards.items():
        save_file({name: weights[name] for name in part}, tmp_path / file)
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    loaded = load_family("sdar").load(tmp_path)
    assert all(torch.equal(value, weights[key]) for key, value in loaded.model.state_dict().items())
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"names model-2\.safetensors"):
        load_family("sdar").load(tmp_path)


@families
def test_an_empty_folder_is_refused(family: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        load_family(family).load(tmp_path)


UNSUPPORTED = [
    ("llada", "alibi", True),
    ("llada", "activation_type", "swiglu"),
    ("llada", "block_group_size", 2),
    ("llada", "include_bias", True),
    ("llada", "rope", False),
    ("llada", "attention_dropout", 0.1),
    ("llada", "rope_scaling", {"type": "yarn"}),
    ("llada", "sliding_window", 128),
    ("llada", "rope_parameters", {"rope_type": "yarn", "rope_theta": 1.0}),
    ("sdar", "rope_scaling", {"type": "yarn"}),
    ("sdar", "use_sliding_window", True),
    ("sdar", "sliding_window", 128),
    ("sdar", "attention_bias", True),
    ("sdar", "tie_word_embeddings", True),
    ("sdar", "hidden_act", "gelu"),
]


def config_of(family: str) -> tuple[Any, dict[str, Any]]:
    config = tiny(family).model.config
    return type(config), {key: value for key, value in config.to_dict().items() if key != "model_type"}


@pytest.mark.parametrize(("family", "key", "value"), UNSUPPORTED)
def test_a_configuration_that_we_do_not_implement_is_refused(family: str, key: str, value: object) -> None:
    make, values = config_of(family)
    with pytest.raises(UnsupportedValueError, match=r"rope_type = 'yarn'" if key == "rope_parameters" else f"{key} = "):
        make(**values | {key: value})


@pytest.mark.parametrize(
    ("family", "key"),
    [("llada", "mask_token_id"), ("llada", "d_model"), ("sdar", "head_dim"), ("sdar", "mask_token_id")],
)
def test_a_missing_key_is_not_guessed(family: str, key: str) -> None:
    make, values = config_of(family)
    del values[key]
    with pytest.raises(MissingKeyError, match=key):
        make(**values)


def test_the_rotary_base_may_have_its_newer_key() -> None:
    for family in ("llada", "sdar"):
        make, values = config_of(family)
        del values["rope_theta"]
        with pytest.raises(MissingKeyError, match="rope_theta"):
            make(**values)
        assert make(**values, rope_parameters={"rope_type": "default", "rope_theta": 77.0}).rope_theta == 77.0


def test_a_mask_that_is_the_padding_is_refused() -> None:
    make, values = config_of("llada")
    with pytest.raises(UnsupportedValueError, match="mask_token_id = pad_token_id = 0"):
        make(**values | {"mask_token_id": 0})


# The tiny backbones


@families
def test_a_tiny_backbone_has_the_promised_size_and_comes_from_its_generator_alone(family: str) -> None:
    before = torch.get_rng_state()
    backbone = tiny(family)
    assert torch.equal(torch.get_rng_state(), before)
    assert 190_000 < sum(parameter.numel() for parameter in backbone.model.parameters()) < 220_000
    same, other = tiny(family), tiny(family, seed=1)
    name, parameter = next(iter(backbone.model.named_parameters()))
    assert torch.equal(parameter, same.model.get_parameter(name))
    assert not torch.equal(parameter, other.model.get_parameter(name))
    assert not list(backbone.model.buffers())  # rotary frequencies are never rounded
    assert backbone.tokenizer.decode([backbone.eos_ids[0]]) == ""
    assert backbone.mask_id not in backbone.eos_ids
    assert len(backbone.eos_ids) == 2


@families
def test_lora_targets_name_layers_and_never_the_head(family: str) -> None:
    model = tiny(family).model
    linear = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    for target in load_family(family).lora_targets:
        matched = [name for name in linear if name.split(".")[-1] == target]
        assert len(matched) == 4
        assert model.get_output_embeddings() not in [model.get_submodule(name) for name in matched]


def test_families_are_found_by_their_folder() -> None:
    assert {"llada", "sdar"} <= set(family_names())
    assert isinstance(load_family("llada"), LLaDAFamily)
    assert isinstance(load_family("sdar"), SDARFamily)
    assert (LLaDAConfig.model_type, SDARConfig.model_type) == ("llada", "sdar")
