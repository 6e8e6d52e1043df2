"""Decoding with full attention: the window is filled block after block, every token looking at the whole row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dare.sampling.canvas import Canvas, joined, take_over
from dare.sampling.denoise import Denoiser
from dare.sampling.plan import DecodingError, blocks_of
from dare.sampling.progress import Progress, ended
from dare.sampling.record import Recorder
from dare.sampling_config import SamplingConfig
from dare.types import Forks, Records, Samples, Watch


class MaskedModel(Protocol):
    """Logits at K columns of each row, given the whole row."""

    def __call__(
        self, ids: Int[Tensor, "n S"], valid: Bool[Tensor, "n S"], columns: Int[Tensor, "n K"]
    ) -> Float[Tensor, "n K V"]: ...


class CachedModel(Protocol):
    """The same with keys and values that are kept from one forward of a row to the next. `columns` are its block."""

    def start(self, rows: int, width: int) -> None:
        """Room for `rows` of at most `width` tokens, about which nothing is known yet."""

    def refill(self, rows: Tensor, ids: Tensor, valid: Tensor, columns: Tensor) -> Float[Tensor, "m K V"]:
        """Whole forwards of some of the rows, whose keys and values are kept from here on."""

    def reuse(self, rows: Tensor, ids: Tensor, valid: Tensor, columns: Tensor) -> Float[Tensor, "m K V"]:
        """Forwards of a part of some of the rows against what is kept of the rest."""

    def keep(self, rows: Int[Tensor, " m"]) -> None:
        """Go on with some of the rows; one that is named twice becomes two."""


def sample_masked(
    model: MaskedModel | CachedModel,
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
    """Semi-autoregressive decoding; `block_length` = `gen_length` is pure diffusion, 1 is left to right.

    Rows advance on their own: one that fills its block early goes on to the next while others are still at theirs.
    With a `cache` the model must be a `CachedModel`: the first forward of every block is whole, those that follow see
    the rest of the row as it was then.
    """
    if config.edit_threshold is not None:
        raise DecodingError(
            f"edit_threshold is {config.edit_threshold:g}: only block families edit what they have committed"
        )
    blocks = blocks_of(config)
    device = device or torch.device("cpu")
    canvas = Canvas.start(prompts, config.gen_length, mask_id, pad_id, device)
    valid, window, ends = canvas.valid, canvas.window, torch.tensor(list(eos_ids), device=device)
    denoiser = Denoiser(config, mask_id, pad_id, ends)
    progress = Progress.start(config, blocks, len(prompts), device)
    recorder = Recorder(canvas, record)
    lengths = torch.tensor([block.length for block in blocks], device=device)
    number = torch.zeros_like(canvas.length)  # of the current block of each row
    start = canvas.prompt_length.clone()  # its first column
    live = torch.arange(len(prompts), device=device) if forks is None else forks.first.to(device)
    if config.cache != "none":
        model.start(len(live), canvas.ids.shape[1])  # type: ignore[union-attr]
    while len(live):
        # Blocks of unequal lengths come from a schedule, which keeps all rows at the same one.
        length = lengths[number[live]]
        columns = start[live, None] + torch.arange(int(length.max()), device=device)
        at, width = (live[:, None], columns), int(canvas.length[live].max())
        before, masked = canvas.ids[at], canvas.step_map[at] == 0
        row, real, asked = canvas.ids[live, :width], valid[live, :width], columns
        if config.cache != "none":
            logits = _with_cache(model, row, real, columns, progress.step[live] == 0)  # type: ignore[arg-type]
        else:
            if recorder:  # wants to know about later blocks too
                asked = canvas.prompt_length[live, None] + torch.arange(config.gen_length, device=device)
            prompt = real & ~window[live, :width]
            logits = _guided(model, config.cfg_scale, row, real, asked, prompt, mask_id)  # type: ignore[arg-type]
        canvas.nfe[live] += 1 if config.cfg_scale == 0 else 2
        own = [generators[index] for index in live.tolist()]
        block = progress.block(live, number[live], masked, torch.ones_like(masked), canvas.steps[live], own)
        done = denoiser(block, logits if asked is columns else _part(logits, columns - asked[:, :1]), own)
        if recorder:
            recorder.predicted(live, columns, masked, done, done.committed, denoiser.guess(asked, logits))
        canvas.write(live, columns, done.token, done.committed)
        masked = masked & ~done.committed
        full = ~masked.any(1)
        progress.advance(live, full)
        number[live] += full
        start[live] += full * length
        ids = torch.where(done.committed, done.token, before)
        over = ended(config, ids, masked, torch.ones_like(masked), ends) | (start[live] >= canvas.length[live])
        stepped, stay = live, (~over).nonzero().squeeze(1)
        if over.any():
            live = live[stay]
            if config.cache != "none":
                model.keep(stay)  # type: ignore[union-attr]
        if watch is not None:
            watch(canvas.frame(stepped, live))
        if forks is not None and len(pairs := forks.due(live, canvas.ids, window & (canvas.step_map == 0))):
            canvas.copy(pairs)
            progress.copy(pairs)
            take_over(pairs, number, start)
            live, place = joined(live, pairs)
            if config.cache != "none":
                model.keep(place)  # type: ignore[union-attr]
    while forks is not None and len(pairs := forks.finish(canvas.ids)):
        canvas.copy(pairs)
    return recorder.add_to(canvas.samples(eos_ids))


def _guided(
    model: MaskedModel, scale: float, ids: Tensor, valid: Tensor, columns: Tensor, prompt: Tensor, mask_id: int
) -> Tensor:
    """Logits moved away from those of the same rows without their prompt."""
    if scale == 0:
        return model(ids, valid, columns)
    blind = ids.masked_fill(prompt, mask_id)
    both = model(torch.cat((ids, blind)), torch.cat((valid, valid)), torch.cat((columns, columns)))
    conditional, unconditional = both.chunk(2)
    return unconditional + (scale + 1) * (conditional - unconditional)


def _with_cache(model: CachedModel, ids: Tensor, valid: Tensor, columns: Tensor, fresh: Bool[Tensor, " n"]) -> Tensor:
    """Rows at the first step of a block apart from the others: the former need their whole forward."""
    logits: Tensor | None = None
    for chosen, forward in ((fresh, model.refill), (~fresh, model.reuse)):
        rows = chosen.nonzero().squeeze(1)
        if len(rows):
            part = forward(rows, ids[rows], valid[rows], columns[rows])
            logits = part.new_empty(len(ids), *part.shape[1:]) if logits is None else logits
            logits[rows] = part
    assert logits is not None
    return logits


def _part(logits: Float[Tensor, "n W V"], index: Int[Tensor, "n K"]) -> Float[Tensor, "n K V"]:
    return logits.gather(1, index[..., None].expand(-1, -1, logits.shape[-1]))
