"""One denoising step of one block per row: draw, rank, commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dare.sampling.draw import draw, uniform
from dare.sampling.schedule import even_schedule, select
from dare.spec import SamplingConfig


class Denoised(NamedTuple):
    """The block after the step, and what the step committed."""

    ids: Int[Tensor, "n K"]
    committed: Bool[Tensor, "n K"]


class DecodingError(ValueError):
    """Settings that do not fit together or do not fit the model."""


def denoise(
    ids: Int[Tensor, "n K"],
    masked: Bool[Tensor, "n K"],
    logits: Float[Tensor, "n K V"],
    step: Int[Tensor, " n"],
    config: SamplingConfig,
    mask_id: int,
    generators: Sequence[torch.Generator],
) -> Denoised:
    """Commit the share of step `step` (from 0, per row) of the even schedule; more where the threshold allows.

    Every row consumes the same number of random numbers per step whatever it has masked.
    """
    token, confidence = draw(logits, config.temperature, mask_id, generators)
    schedule = torch.tensor(even_schedule(config.block_length, config.steps_per_block), device=ids.device)
    if config.remasking == "low_confidence":
        priority = confidence
    elif config.remasking == "random":
        priority = uniform(generators, ids.shape[1], device=ids.device)
    else:
        priority = -torch.arange(ids.shape[1], dtype=confidence.dtype, device=ids.device).expand_as(confidence)
    sure = None if config.threshold is None else confidence > config.threshold
    committed = select(masked, priority, schedule[step], sure)
    return Denoised(torch.where(committed, token, ids), committed)


def check_threshold(config: SamplingConfig) -> None:
    """A threshold is a rule on confidence: together with another order it would be a decoder nobody has described."""
    if config.threshold is not None and config.remasking != "low_confidence":
        raise DecodingError(
            f"threshold is {config.threshold} but remasking is {config.remasking!r}: a threshold needs 'low_confidence'"
        )
