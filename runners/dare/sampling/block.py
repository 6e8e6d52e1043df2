"""Decoding of block-causal models: blocks in order, each against the exact keys and values of those before it."""

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


class BlockModel(Protocol):
    """A model with its context of finished blocks, row by row."""

    block_size: int

    def prefill(self, ids: Int[Tensor, "n L"], length: Int[Tensor, " n"], width: int) -> None:
        """Start: the first `length` ids of each row are finished blocks. No row will be longer than `width`."""

    def logits(
        self, ids: Int[Tensor, "n K"], columns: Int[Tensor, "n K"], real: Bool[Tensor, "n K"]
    ) -> Float[Tensor, "n K V"]:
        """One block per row after its context; positions that are not `real` are padding."""

    def extend(self, rows: Bool[Tensor, " n"]) -> None:
        """The block given last to these rows is finished and joins their context."""

    def keep(self, rows: Int[Tensor, " m"]) -> None:
        """Go on with some of the rows."""


def sample_block(
    model: BlockModel,
    prompts: Sequence[Sequence[int]],
    config: SamplingConfig,
    generators: Sequence[torch.Generator],
    *,
    mask_id: int,
    pad_id: int,
    eos_ids: Sequence[int],
    device: torch.device | None = None,
) -> Samples:
    """Blocks count from the first token of the prompt, whose remainder lies inside the first decoded block.

    A forward per denoising step, one more to take a finished block into the context, none after the last block. A row
    ends with the block that contains an end of sequence. Rows advance on their own: while one denoises, another may be
    taking its block into the context in the same forward, and what is drawn for it there is thrown away. Without a
    threshold this is static decoding, with one dynamic; `remasking="sequential"` with as many steps as tokens is left
    to right.
    """
    size = model.block_size
    check_threshold(config)
    if config.block_length != size:
        raise DecodingError(f"block_length is {config.block_length} but this model's blocks have {size} tokens")
    device = device or torch.device("cpu")
    canvas = Canvas.start(prompts, config.gen_length, mask_id, pad_id, device, multiple=size)
    window, valid, ends = canvas.window, canvas.valid, torch.tensor(list(eos_ids), device=device)
    start = canvas.prompt_length // size * size  # first column of the current block of each row
    step = torch.zeros_like(start)  # steps already done in it
    live = torch.arange(len(prompts), device=device)
    if len(live):
        model.prefill(canvas.ids[:, : int(start.max())], start, canvas.ids.shape[1])
        canvas.nfe.add_(start > 0)
    while len(live):
        columns = start[live, None] + torch.arange(size, device=device)
        at = (live[:, None], columns)
        before, inside = canvas.ids[at], window[at]
        masked = inside & (canvas.step_map[at] == 0)
        finished = ~masked.any(1)
        logits = model.logits(before, columns, valid[at])
        model.extend(finished)
        canvas.nfe[live] += 1
        own = [generators[row] for row in live.tolist()]
        ids, committed = denoise(before, masked, logits, step[live], config, mask_id, own)
        canvas.write(live, columns, ids, committed)
        full = ~(masked & ~committed).any(1)
        step[live] = torch.where(full, 0, step[live] + 1)
        start[live] += finished * size
        ended = (inside & torch.isin(ids, ends)).any(1)
        over = ~finished & full & (ended | (columns[:, 0] + size >= canvas.length[live]))
        if over.any():
            stay = (~over).nonzero().squeeze(1)
            live = live[stay]
            model.keep(stay)
    return canvas.samples(eos_ids)
