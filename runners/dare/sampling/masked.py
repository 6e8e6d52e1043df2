"""Decoding with full attention: the window is filled block after block, every token looking at the whole row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dare.sampling.canvas import Canvas
from dare.sampling.denoise import DecodingError, check_threshold, denoise
from dare.spec import SamplingConfig
from dare.types import Samples


class MaskedModel(Protocol):
    """Logits at K columns of each row, given the whole row."""

    def __call__(
        self, ids: Int[Tensor, "n S"], valid: Bool[Tensor, "n S"], columns: Int[Tensor, "n K"]
    ) -> Float[Tensor, "n K V"]: ...


def sample_masked(
    model: MaskedModel,
    prompts: Sequence[Sequence[int]],
    config: SamplingConfig,
    generators: Sequence[torch.Generator],
    *,
    mask_id: int,
    pad_id: int,
    eos_ids: Sequence[int],
    device: torch.device | None = None,
) -> Samples:
    """Semi-autoregressive decoding; `block_length` = `gen_length` is pure diffusion, 1 is left to right.

    A row ends when a finished block contains an end of sequence. Rows advance on their own: one that fills its
    block early (threshold) goes on to the next while others are still at theirs.
    """
    check_threshold(config)
    if config.gen_length % config.block_length:
        raise DecodingError(f"gen_length {config.gen_length} is no multiple of block_length {config.block_length}")
    device = device or torch.device("cpu")
    canvas = Canvas.start(prompts, config.gen_length, mask_id, pad_id, device)
    valid, ends = canvas.valid, torch.tensor(list(eos_ids), device=device)
    block = canvas.prompt_length.clone()  # first column of the current block of each row
    step = torch.zeros_like(block)  # steps already done in it
    live = torch.arange(len(prompts), device=device)
    while len(live):
        width = int(canvas.length[live].max())
        columns = block[live, None] + torch.arange(config.block_length, device=device)
        logits = model(canvas.ids[live, :width], valid[live, :width], columns)
        canvas.nfe[live] += 1
        before = canvas.ids[live[:, None], columns]
        own = [generators[row] for row in live.tolist()]
        masked = canvas.step_map[live[:, None], columns] == 0
        ids, committed = denoise(before, masked, logits, step[live], config, mask_id, own)
        canvas.write(live, columns, ids, committed)
        step[live] += 1
        full = ~(masked & ~committed).any(1)
        block[live[full]] += config.block_length
        step[live[full]] = 0
        over = full & (torch.isin(ids, ends).any(1) | (block[live] >= canvas.length[live]))
        live = live[~over]
    return canvas.samples(eos_ids)
