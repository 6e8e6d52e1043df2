"""Which blocks a window is decoded in, and how many tokens each step of a block commits."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from dare.sampling_config import SamplingConfig


class DecodingError(ValueError):
    """Settings that do not fit the model or the prompts."""


class BlockPlan(NamedTuple):
    """One block: its tokens, and how many of them each step commits. No step is empty: one that were is not run."""

    length: int
    quotas: tuple[int, ...]


def blocks_of(config: SamplingConfig) -> tuple[BlockPlan, ...]:
    """The blocks of a full-attention family's window, from the left."""
    if config.schedule == "ascending":
        return ascending_blocks(config.gen_length, config.block_num)
    number, rest = divmod(config.gen_length, config.block_length)
    if rest:
        raise DecodingError(f"gen_length {config.gen_length} is no multiple of block_length {config.block_length}")
    return (BlockPlan(config.block_length, quotas_of(config)),) * number


def quotas_of(config: SamplingConfig) -> tuple[int, ...]:
    """Tokens per step of a whole block, where all blocks are alike."""
    if config.schedule == "timesteps":
        quotas = timesteps_schedule(config.block_length, config.steps_per_block, config.eps)
        return tuple(quota for quota in quotas if quota)
    return even_schedule(config.block_length, config.steps_per_block)


def effective_steps(config: SamplingConfig) -> int:
    """Denoising steps of a whole window, when every step commits its share: what `steps` amounts to."""
    return sum(len(block.quotas) for block in blocks_of(config))


def even_schedule(tokens: int, steps: int) -> tuple[int, ...]:
    """`tokens` over `steps` as evenly as whole numbers allow: the remainder goes to the first steps, one each."""
    share, remainder = divmod(tokens, steps)
    return tuple(share + (step < remainder) for step in range(steps))


def timesteps_schedule(tokens: int, steps: int, eps: float) -> tuple[int, ...]:
    """Dream: of n masks step i commits n (1 - t_(i+1) / t_i), rounded down, the last step all. Some commit none."""
    left, quotas = tokens, list[int]()
    for chance in reveal_chances(steps, eps):
        quotas.append(int(left * chance))
        left -= quotas[-1]
    return tuple(quotas)


def reveal_chances(steps: int, eps: float) -> tuple[float, ...]:
    """The share of the remaining masks that the reverse process removes at each of `steps` times from 1 to `eps`."""
    times = [1 - (1 - eps) * step / steps for step in range(steps)]
    return (*(1 - after / before for before, after in pairwise(times)), 1.0)


def ascending_blocks(gen_length: int, block_num: int) -> tuple[BlockPlan, ...]:
    """ASS (arXiv 2509.23924): step i of L = floor(log2 gen_length) commits 2^i tokens, the last one all that are left.

    The last `block_num` - 1 steps have a block each, the steps before them share the first.
    """
    steps = gen_length.bit_length() - 1
    quotas = [2**step for step in range(steps)]
    quotas[-1] += gen_length - sum(quotas)
    shared = steps - block_num + 1
    return (
        BlockPlan(sum(quotas[:shared]), tuple(quotas[:shared])),
        *(BlockPlan(quota, (quota,)) for quota in quotas[shared:]),
    )


def early_rejection(config: SamplingConfig) -> tuple[float, ...]:
    """EOSER: what the confidence of an end of sequence is multiplied by at each step of the whole decode."""
    steps, least = effective_steps(config), config.eoser_minimum
    if config.schedule == "ascending":
        progress = [(2 ** (step + 1) - 1) / 2**steps for step in range(steps)]
    else:
        progress = [step / (steps - 1) for step in range(steps - 1)] + [1.0]
    return tuple(least + (1 - least) * share for share in progress)
