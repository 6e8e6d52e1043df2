"""The decoder that an algorithm asks for, made from the one of the track."""

from __future__ import annotations

from dare.sampling_config import SamplingConfig


def left_to_right(config: SamplingConfig, block_size: int | None) -> SamplingConfig:
    """One token a step, always the leftmost, drawn from the whole distribution until an end of sequence.

    The track keeps its window and temperature. Everything else would move the law of the tokens away from the product
    of conditionals that is scored: filters, forbidden tokens, guidance, inexact caches, edits.

    Args:
        block_size: of a block family, whose blocks stay; None for full attention, where a block is one token.
    """
    length = block_size or 1
    return SamplingConfig(
        gen_length=config.gen_length,
        block_length=length,
        steps_per_block=length,
        temperature=config.temperature,
        remasking="sequential",
        early_stop="filled",
    )


def decoder_of(sampler: str, config: SamplingConfig, block_size: int | None) -> SamplingConfig:
    """What `RolloutSpec.sampler` makes of the decoder of a track; only `left_to_right` is one of its own."""
    return left_to_right(config, block_size) if sampler == "left_to_right" else config
