"""Every family scores what its sampler samples, and survives its own files."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import ARCHITECTURES
from torch import Tensor

from dare.families.block import CachedBlocks
from dare.families.checkpoint_files import CheckpointError
from dare.families.doubled import doubled_input
from dare.family import Backbone, family_names, load_family
from dare.sampling.block import sample_block
from dare.sampling_config import SamplingConfig
from dare.seeds import generator_for
from dare.types import NoisyViews, Samples

CHARACTERS = list("0123456789+-*/=()., abcdefghijklmno")

families = pytest.mark.parametrize("architecture", ARCHITECTURES)


def tiny(architecture: str, seed: int = 0) -> Any:
    """A tiny backbone; a router's bias is drawn too, since zeros would hide a forgotten one."""
    generator = generator_for(seed, "init")
    backbone = load_family(ARCHITECTURES[architecture]).tiny(CHARACTERS, generator, architecture)
    with torch.no_grad():
        for buffer in backbone.model.buffers():
            buffer.normal_(0.0, 0.2, generator=generator)
    return backbone


def peaked(architecture: str) -> Any:
    """A tiny backbone with a head strong enough for confidences to differ."""
    backbone = tiny(architecture)
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


# Scores


@families
def test_scores_are_the_log_probabilities_of_a_plain_forward(architecture: str) -> None:
    backbone = peaked(architecture)
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
        logits = backbone.model(ids)[0] / temperature
        shift = backbone.model.logit_shift
        logits = torch.cat((logits[:shift], logits[: len(logits) - shift]))[start:]
        logits[:, backbone.mask_id] = -torch.inf
        logp = logits.log_softmax(-1).gather(1, view.target[0, part, None]).squeeze(1)
        out[part] = torch.where(view.score[0, part], logp, 0.0)
    return out


@families
def test_scores_sum_to_one_over_all_tokens_but_the_mask(architecture: str) -> None:
    backbone = peaked(architecture)
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
def test_scores_do_not_depend_on_padding_order_or_micro_batches(architecture: str) -> None:
    backbone = peaked(architecture)
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
def test_gradients_are_those_of_a_plain_forward(architecture: str) -> None:
    backbone = peaked(architecture)
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
def test_a_copy_of_the_model_scores_as_the_model(architecture: str) -> None:
    backbone = tiny(architecture)
    reference = copy.deepcopy(backbone.model)
    views = views_of(backbone, some_samples(backbone))
    with torch.no_grad():
        before = backbone.logprobs(backbone.model, views)
        for parameter in backbone.model.parameters():
            parameter.add_(0.01)
        assert torch.equal(backbone.logprobs(reference, views), before)
        assert not torch.equal(backbone.logprobs(backbone.model, views), before)


@families
def test_views_that_score_nothing_get_zeros(architecture: str) -> None:
    backbone = tiny(architecture)
    views = views_of(backbone, some_samples(backbone))
    nothing = replace(views, score=torch.zeros_like(views.score))
    assert (backbone.logprobs(backbone.model, nothing) == 0).all()
    half = replace(views, score=views.score & (torch.arange(len(views)) % 2 == 0)[:, None])
    with torch.no_grad():
        found, whole = backbone.logprobs(backbone.model, half), backbone.logprobs(backbone.model, views)
    torch.testing.assert_close(found[::2], whole[::2], atol=1e-5, rtol=0)
    assert (found[1::2] == 0).all()


def test_one_clean_half_serves_all_views_of_a_completion() -> None:
    backbone = tiny("SDARForCausalLM")
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
    seen = [row.nonzero().squeeze(1).tolist() for row in doubled.sight.matrix()[0, 0]]
    assert seen[0] == [0, 1, 2, 3]
    assert seen[4] == list(range(8))
    assert seen[8] == [0, 1, 2, 3, 8, 9, 10, 11]
    assert seen[12] == [*range(8), 12, 13, 14]  # the last block is ragged
    assert doubled.home.tolist() == [5, 11 + 9]


def test_forwards_count_one_for_full_attention_and_the_share_of_scored_blocks_for_blocks() -> None:
    masked, block = tiny("LLaDAModelLM"), tiny("SDARForCausalLM")
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
    for architecture, moves in (
        ("LLaDAModelLM", True),
        ("DreamModel", True),
        ("SDARForCausalLM", False),
        ("LLaDA2MoeModelLM", False),
    ):
        backbone = tiny(architecture)
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
def test_decoding_does_not_depend_on_the_batch(architecture: str, temperature: float) -> None:
    backbone = peaked(architecture)
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
    backbone = peaked("SDARForCausalLM")

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


# Files


@families
def test_a_saved_backbone_comes_back_with_the_same_logits(architecture: str, tmp_path: Path) -> None:
    backbone = tiny(architecture)
    backbone.save(tmp_path)
    loaded = load_family(ARCHITECTURES[architecture]).load(tmp_path)
    ids = torch.randint(0, 45, (2, 16), generator=generator_for(0))
    with torch.no_grad():
        assert torch.equal(loaded.model(ids), backbone.model(ids))
    for name in ("kind", "mask_id", "eos_ids", "pad_id", "block_size", "records"):
        assert getattr(loaded, name) == getattr(backbone, name)
    assert loaded.tokenizer.prompt_ids("1+2") == backbone.tokenizer.prompt_ids("1+2")
    backbone.save(tmp_path / "half", torch.bfloat16)
    half = load_family(ARCHITECTURES[architecture]).load(tmp_path / "half", torch.bfloat16)
    assert {parameter.dtype for parameter in half.model.parameters()} == {torch.bfloat16}


@families
def test_an_empty_folder_is_refused(architecture: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        load_family(ARCHITECTURES[architecture]).load(tmp_path)


# The tiny backbones


@families
def test_a_tiny_backbone_has_the_promised_size_and_comes_from_its_generator_alone(architecture: str) -> None:
    before = torch.get_rng_state()
    backbone = tiny(architecture)
    assert torch.equal(torch.get_rng_state(), before)
    size = sum(parameter.numel() for parameter in backbone.model.parameters())
    assert 190_000 < size < (450_000 if "moe" in architecture.lower() else 220_000)
    same, other = tiny(architecture), tiny(architecture, seed=1)
    name, parameter = next(iter(backbone.model.named_parameters()))
    assert torch.equal(parameter, same.model.get_parameter(name))
    assert not torch.equal(parameter, other.model.get_parameter(name))
    buffers = {name.rsplit(".", 1)[-1] for name, _ in backbone.model.named_buffers()}
    assert buffers <= {"expert_bias"}  # rotary frequencies are computed anew, so that no dtype can round them
    assert backbone.tokenizer.decode([backbone.eos_ids[0]]) == ""
    assert backbone.mask_id not in backbone.eos_ids
    assert len(backbone.eos_ids) == 2


@families
def test_lora_targets_name_layers_and_never_the_head(architecture: str) -> None:
    model = tiny(architecture).model
    linear = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    for target in model.lora_targets:
        matched = [name for name in linear if name.split(".")[-1] == target]
        assert len(matched) == 4
        assert model.get_output_embeddings() not in [model.get_submodule(name) for name in matched]


@families
def test_gradient_checkpointing_changes_neither_scores_nor_gradients(architecture: str) -> None:
    backbone = tiny(architecture)
    views = views_of(backbone, some_samples(backbone))
    found = []
    for switch in ("gradient_checkpointing_disable", "gradient_checkpointing_enable"):
        getattr(backbone.model, switch)()
        backbone.model.zero_grad()
        logp = backbone.logprobs(backbone.model, views)
        logp.sum().backward()
        found.append([logp.detach(), *(p.grad for p in backbone.model.parameters())])
    for plain, checkpointed in zip(*found, strict=True):
        assert torch.equal(plain, checkpointed)


@families
def test_transformers_names_for_loading_and_saving_are_ours(architecture: str, tmp_path: Path) -> None:
    model = tiny(architecture).model
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())


def test_families_are_found_by_their_folder() -> None:
    assert set(family_names()) == {"dream", "llada", "llada2", "sdar"}
    assert {load_family(name).name for name in family_names()} == set(family_names())
