"""Decoding of block-causal models: blocks in order, each against the exact keys and values of those before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dare.sampling.canvas import Canvas, joined, take_over
from dare.sampling.denoise import Denoiser
from dare.sampling.plan import BlockPlan, DecodingError, quotas_of
from dare.sampling.progress import Progress, ended
from dare.sampling.record import Recorder
from dare.sampling_config import SamplingConfig
from dare.types import Forks, Records, Samples, Watch


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
        """Go on with some of the rows; one that is named twice becomes two."""


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
    record: frozenset[Records] = frozenset(),
    watch: Watch | None = None,
    forks: Forks | None = None,
) -> Samples:
    """Blocks count from the first token of the prompt, whose remainder lies inside the first decoded block.

    A forward per denoising step, one more to take a finished block into the context, none after the last block. Rows
    advance on their own: while one denoises, another may be taking its block into the context in the same forward, and
    what is drawn for it there is thrown away.

    With an `edit_threshold` a block that is filled goes on until a forward changes nothing, which then has taken the
    block into the context already, or until `max_post_steps` forwards did nothing but edit.
    """
    size = model.block_size
    _check(config, size)
    device = device or torch.device("cpu")
    canvas = Canvas.start(prompts, config.gen_length, mask_id, pad_id, device, multiple=size)
    window, valid, ends = canvas.window, canvas.valid, torch.tensor(list(eos_ids), device=device)
    denoiser = Denoiser(config, mask_id, pad_id, ends)
    progress = Progress.start(config, [BlockPlan(size, quotas_of(config))], len(prompts), device)
    recorder = Recorder(canvas, record)
    start = canvas.prompt_length // size * size  # first column of the current block of each row
    edits = torch.zeros_like(start)  # forwards that only edited it
    most_edits = 0 if config.edit_threshold is None else config.max_post_steps
    live = torch.arange(len(prompts), device=device) if forks is None else forks.first.to(device)
    if len(live):
        model.prefill(canvas.ids[live, : int(start.max())], start[live], canvas.ids.shape[1])
        canvas.nfe[live] += start[live] > 0
    while len(live):
        columns = start[live, None] + torch.arange(size, device=device)
        at = (live[:, None], columns)
        before, inside = canvas.ids[at], window[at]
        masked = inside & (canvas.step_map[at] == 0)
        filled = ~masked.any(1)
        stored = filled & (edits[live] >= most_edits)  # this forward only takes the block into the context
        logits = model.logits(before, columns, valid[at])
        canvas.nfe[live] += 1
        own = [generators[row] for row in live.tolist()]
        block = progress.block(live, torch.zeros_like(live), masked, inside, canvas.steps[live], own)
        done = denoiser(block, logits, own)
        edited = denoiser.edits(done, before) & inside & ~masked & ~stored[:, None]
        changed = done.committed | edited
        stored = stored | (filled & ~changed.any(1))
        model.extend(stored)
        if recorder:
            recorder.predicted(live, columns, masked, done, changed)
        canvas.write(live, columns, done.token, done.committed, edited)
        masked = masked & ~done.committed
        full = ~masked.any(1)
        progress.advance(live, full)
        edits[live] += filled
        settled = stored | (full & (edits[live] >= most_edits))
        ids = torch.where(changed, done.token, before)
        last = columns[:, 0] + size >= canvas.length[live]
        over = (settled | ~full) & (ended(config, ids, masked, inside, ends) | (full & last))
        edits[live] *= ~stored
        start[live] += stored * size
        stepped, stay = live[changed.any(1)], (~over).nonzero().squeeze(1)
        if over.any():
            live = live[stay]
            model.keep(stay)
        if watch is not None and len(stepped):
            watch(canvas.frame(stepped, live, open_from=None if config.edit_threshold is None else start))
        if forks is not None and len(pairs := forks.due(live, canvas.ids, window & (canvas.step_map == 0))):
            canvas.copy(pairs)
            progress.copy(pairs)
            take_over(pairs, start, edits)
            live, place = joined(live, pairs)
            model.keep(place)
    while forks is not None and len(pairs := forks.finish(canvas.ids)):
        canvas.copy(pairs)
    return recorder.add_to(canvas.samples(eos_ids))


def _check(config: SamplingConfig, size: int) -> None:
    """Refuse what this model's blocks rule out and what only full attention has."""
    if config.block_length != size:
        raise DecodingError(f"block_length is {config.block_length} but this model's blocks have {size} tokens")
    if config.cache != "none":
        raise DecodingError(f"cache is {config.cache!r}: a block family's own cache is exact and always used")
    if config.schedule == "ascending":
        raise DecodingError(
            "schedule is 'ascending': it divides the window itself, and this model has blocks of its own"
        )
    if config.cfg_scale > 0:
        raise DecodingError(f"cfg_scale is {config.cfg_scale:g}: only full-attention families decode with guidance")
    if config.eos_policy == "eoser":
        raise DecodingError(
            "eos_policy is 'eoser': its factor rises with the steps of the whole decode, whose number depends on the "
            "prompt here; only full-attention families have it"
        )
