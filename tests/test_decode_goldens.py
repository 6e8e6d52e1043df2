"""Every decoder gives what its reference gave: tokens, the step of each, forwards and edits, case by case."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from golden_models import MASK_ID, golden_model
from torch import Tensor

from dare.families.block import BlockBackbone
from dare.families.masked import MaskedBackbone
from dare.sampling import draw
from dare.sampling_config import SamplingConfig
from dare.types import Samples

Case = Mapping[str, Any]
pytestmark = pytest.mark.shared

CASES = {"llada": 23, "llada_moe": 3, "dream": 19, "sdar": 27, "sdar_moe": 27, "llada2": 27, "llada2_1": 21}
"""How many decodes each file has: none may be skipped."""
END_ID = 1


class Golden:
    """The decodes of one folder, and the tiny checkpoint they were made with."""

    def __init__(self, shared: Path, folder: str) -> None:
        decodes = json.loads((shared / "goldens" / folder / "decode.json").read_text())
        self.cases: list[Case] = decodes["cases"]
        assert len(self.cases) == CASES[folder]
        assert decodes["mask_id"] == MASK_ID
        assert decodes.get("eos_id", END_ID) == END_ID
        self.model = golden_model(shared, folder)

    def masked(self, case: Case, config: SamplingConfig) -> Samples:
        kept = case["attention_mask"] or [[1] * len(prompt) for prompt in case["prompt_ids"]]
        prompts = [
            [token for token, keep in zip(*pair, strict=True) if keep]
            for pair in zip(case["prompt_ids"], kept, strict=True)
        ]
        shift = self.model.logit_shift
        backbone = MaskedBackbone(self.model, None, MASK_ID, (), END_ID, "sdpa", logit_shift=shift)  # type: ignore[arg-type]
        return backbone.sample(prompts, config, generators(prompts))

    def block(self, case: Case, config: SamplingConfig, ends: Sequence[int]) -> Samples:
        """In blocks of the case's length, which the published configurations leave open."""
        size = config.block_length
        backbone = BlockBackbone(self.model, None, MASK_ID, tuple(ends), END_ID, "sdpa", block_size=size)  # type: ignore[arg-type]
        return backbone.sample(case["prompt_ids"], config, generators(case["prompt_ids"]))


def generators(prompts: Sequence[object]) -> list[torch.Generator]:
    return [torch.Generator() for _ in prompts]


def windows(samples: Samples, values: Tensor) -> list[list[int]]:
    return [values[row, where].tolist() for row, where in enumerate(samples.window)]


def assert_same(case: Case, samples: Samples, forwards: int) -> None:
    """Tokens and steps are equal, and no forward is spent that the reference did not spend."""
    assert windows(samples, samples.ids) == case["output_ids"], case["id"]
    assert windows(samples, samples.step_map) == case["step_map"], case["id"]
    assert samples.nfe.tolist() == [forwards] * len(samples.nfe), case["id"]


def dense(forwards: Sequence[int], among: Iterable[int] = ()) -> list[int]:
    """Forwards numbered without those that changed nothing."""
    changing = sorted({*forwards, *among} - {0})
    number = {forward: step for step, forward in enumerate(changing, start=1)} | {0: 0}
    return [number[forward] for forward in forwards]


def test_every_file_of_decodes_is_compared(shared: Path) -> None:
    assert {path.parent.name for path in (shared / "goldens").glob("*/decode.json")} == set(CASES)
    assert sum(CASES.values()) == 147


# LLaDA: generate and Fast-dLLM


def fast_dllm_forwards(case: Case) -> int:
    """Without the forward that the reference's caches spend on a block that its first forward has filled."""
    if case["settings"].get("cache", "none") == "none":
        return int(case["nfe"])
    size, steps = case["settings"]["block_length"], case["step_map"][0]
    blocks = [steps[start : start + size] for start in range(0, len(steps), size)]
    return int(case["nfe"]) - sum(len(set(block)) == 1 for block in blocks)


@pytest.mark.parametrize("folder", ["llada", "llada_moe"])
def test_llada_decodes_token_for_token_as_the_references(shared: Path, folder: str) -> None:
    golden = Golden(shared, folder)
    for case in golden.cases:
        fields = case["settings"]
        block, tau = fields["block_length"], fields.get("threshold")
        config = SamplingConfig(
            gen_length=fields["gen_length"],
            block_length=block,
            steps_per_block=block if tau else fields["steps"] * block // fields["gen_length"],
            selector="threshold" if tau else "schedule",
            threshold=tau,
            cfg_scale=fields["cfg_scale"],
            cache=fields.get("cache", "none"),
        )
        rows = 2 if fields["cfg_scale"] else 1  # the reference counts a batch of both rows once
        assert_same(case, golden.masked(case, config), fast_dllm_forwards(case) * rows)


# Dream: diffusion_generate, and the threshold that Fast-dLLM added to it


DREAM = {"entropy": "entropy", "maskgit_plus": "low_confidence", "topk_margin": "margin", "origin": "origin"}


def dream_config(fields: Mapping[str, Any]) -> SamplingConfig:
    length = fields["gen_length"]
    shape = {"gen_length": length, "block_length": length, "steps_per_block": fields["steps"]}
    if fields["alg"] == "confidence_threshold":
        return SamplingConfig(**shape, selector="budget", threshold=fields["threshold"])
    return SamplingConfig(**shape, remasking=DREAM[fields["alg"]], schedule="timesteps", eps=fields["eps"])  # type: ignore[arg-type]


def test_dream_decodes_token_for_token_as_the_references(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forwards that change nothing in a row, which the reference runs for some schedules, are left out row by row."""
    golden = Golden(shared, "dream")
    for case in golden.cases:
        given = torch.tensor(case.get("uniforms_step_row_position", []), dtype=torch.float64)
        monkeypatch.setattr(draw, "uniform", lambda *_, device, given=given: given.transpose(0, 1).to(device))
        samples = golden.masked(case, dream_config(case["settings"]))
        steps = [dense(row) for row in case["forward_map"]]
        assert windows(samples, samples.ids) == case["output_ids"], case["id"]
        assert windows(samples, samples.step_map) == steps, case["id"]
        assert samples.nfe.tolist() == [max(row) for row in steps], case["id"]
        assert max(samples.nfe.tolist()) <= case["nfe"], case["id"]
        assert case["settings"]["alg"] == "origin" or steps == case["step_map"], case["id"]


# SDAR: block_diffusion_generate


@pytest.mark.parametrize("folder", ["sdar", pytest.param("sdar_moe", marks=pytest.mark.full)])
def test_sdar_decodes_token_for_token_as_the_reference(shared: Path, folder: str) -> None:
    """The reference fills the last block whatever `gen_length`, and spends a forward to store it; we do neither."""
    golden = Golden(shared, folder)
    for case in golden.cases:
        fields = case["settings"]
        threshold = fields["confidence_threshold"]
        config = SamplingConfig(
            gen_length=len(case["output_ids"][0]),
            block_length=fields["block_length"],
            steps_per_block=fields["denoising_steps"],
            remasking="sequential" if fields["remasking"] == "sequential" else "low_confidence",
            selector="schedule" if threshold is None else "dynamic",
            threshold=threshold,
        )
        stops = fields["stop_ids"] or ()
        samples = golden.block(case, config, stops)
        expected = torch.tensor(case["output_ids"][0])
        decoded = samples.step_map[samples.window] > 0
        assert samples.ids[samples.window][decoded].tolist() == expected[decoded].tolist(), case["id"]
        assert windows(samples, samples.step_map) == case["step_map"], case["id"]
        assert samples.steps.item() == case["denoising_forwards"], case["id"]
        assert samples.nfe.item() == case["nfe"] - 1, case["id"]
        if stops:
            assert samples.ids[samples.completion].tolist() == case["kept_ids_up_to_first_stop"][0], case["id"]
        else:
            assert decoded.all()


# LLaDA2.0 and 2.1: generate


def llada2_config(fields: Mapping[str, Any], canvas: int, steps: int, **changes: Any) -> SamplingConfig:
    return SamplingConfig(
        gen_length=canvas,
        block_length=fields["block_length"],
        steps_per_block=steps,
        selector="dynamic",
        threshold=fields["threshold"],
        **changes,
    )


def stored_blocks(case: Case) -> int:
    """Forwards that only take keys and values in: the prompt's blocks, and each finished block but the last."""
    size, prompt = case["settings"]["block_length"], len(case["prompt_ids"][0])
    decoded = sum(step > 0 for step in case["step_map"][0])
    return (prompt >= size) + -(-(prompt + decoded) // size) - prompt // size - 1


def assert_same_canvas(case: Case, samples: Samples) -> None:
    window = samples.window
    decoded = samples.step_map[window] > 0
    canvas = torch.tensor(case["canvas_after_prompt"][0])
    assert (canvas[~decoded] == 2).all(), case["id"]
    assert samples.ids[window][decoded].tolist() == canvas[decoded].tolist(), case["id"]
    if case["settings"]["eos_id"] is not None:
        assert samples.ids[samples.completion].tolist() == case["output_ids"][0], case["id"]
    else:
        assert canvas[: len(case["output_ids"][0])].tolist() == case["output_ids"][0]


@pytest.mark.full
def test_llada2_decodes_token_for_token_as_the_reference(shared: Path) -> None:
    """The reference has no cache and fills the last block whatever `gen_length`."""
    golden = Golden(shared, "llada2")
    for case in golden.cases:
        fields = case["settings"]
        ends = () if fields["eos_id"] is None else (fields["eos_id"],)
        stop = "filled" if fields.get("eos_early_stop") else "block"
        config = llada2_config(fields, len(case["canvas_after_prompt"][0]), fields["steps"], early_stop=stop)
        samples = golden.block(case, config, ends)
        assert_same_canvas(case, samples)
        assert windows(samples, samples.step_map) == case["step_map"], case["id"]
        assert samples.nfe.item() == case["nfe"] + stored_blocks(case), case["id"]


@pytest.mark.full
def test_llada2_1_decodes_and_edits_token_for_token_as_the_reference(shared: Path) -> None:
    """Steps of the reference are forwards; ours are those that changed something."""
    golden = Golden(shared, "llada2_1")
    for case in golden.cases:
        fields = case["settings"]
        ends = () if fields["eos_id"] is None else (fields["eos_id"],)
        steps = fields["block_length"] // fields.get("num_to_transfer", 1)
        config = llada2_config(
            fields,
            len(case["canvas_after_prompt"][0]),
            steps,
            edit_threshold=fields["editing_threshold"],
            max_post_steps=fields["max_post_steps"],
            early_stop="block" if fields.get("eos_early_stop") else "never",
        )
        samples = golden.block(case, config, ends)
        assert_same_canvas(case, samples)
        edits, forwards = case["edits_step_row_position_token"], case["forward_map"][0]
        changing = [edit[0] for edit in edits]
        assert windows(samples, samples.step_map) == [dense(forwards, changing)], case["id"]
        assert sorted(found_edits(samples)) == sorted(
            [step, row, len(case["prompt_ids"][0]) + place, token]
            for step, (_, row, place, token) in zip(dense(changing, forwards), edits, strict=True)
        ), case["id"]
        assert samples.nfe.item() == case["nfe"] + stored_by_force(case), case["id"]


def found_edits(samples: Samples) -> list[list[int]]:
    return [] if samples.trace.edits is None else samples.trace.edits.tolist()


def stored_by_force(case: Case) -> int:
    """Forwards that only take keys and values in: the prompt's blocks, and blocks whose last forward changed something.

    A forward that changes nothing has taken its block in already.
    """
    size, prompt, forwards = case["settings"]["block_length"], len(case["prompt_ids"][0]), case["forward_map"][0]
    changing = {*forwards, *(edit[0] for edit in case["edits_step_row_position_token"])}
    begins = [start for start in range(-(prompt % size), len(forwards), size) if start > 0 and forwards[start]]
    last_of_blocks = [min(forwards[start : start + size]) - 1 for start in begins]
    return (prompt >= size) + sum(forward in changing for forward in last_of_blocks)
