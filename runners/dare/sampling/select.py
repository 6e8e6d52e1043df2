"""How many of the best masked positions a step commits."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dare.sampling_config import SamplingConfig


def select(
    config: SamplingConfig,
    masked: Bool[Tensor, "n K"],
    rank: Int[Tensor, "n K"],
    confidence: Float[Tensor, "n K"],
    certain: Float[Tensor, "n K"],
    share: Int[Tensor, " n"],
) -> Bool[Tensor, "n K"]:
    """Masked positions only, and at least one where there are any, whatever the confidences.

    Args:
        rank: 0 is the best masked position; by confidence for the rules on confidence.
        certain: what `rank` was made from; minus the entropy for `entropy_bounded`.
        share: of the schedule; for `budget` with what earlier steps left of theirs.
    """
    best = rank == 0
    if config.threshold is not None:
        sure = confidence > config.threshold if config.selector == "dynamic" else confidence >= config.threshold
    if config.selector == "threshold":
        chosen = best | sure
    elif config.selector == "dynamic":
        chosen = (rank < share[:, None]) | sure
    elif config.selector == "budget":
        chosen = best | ((rank < share[:, None]) & sure)
    elif config.selector == "factor":
        assert config.factor is not None
        # Fast-dLLM commits the last candidate when it alone fails; here it waits like any other.
        passes = confidence >= 1 - config.factor / (rank + 2)
        chosen = best | (rank < _leading(passes, rank)[:, None])
    elif config.selector == "entropy_bounded":
        assert config.entropy_bound is not None
        total = _in_order(-certain, rank).cumsum(1).gather(1, rank)
        chosen = best | (total < config.entropy_bound)
    else:
        chosen = rank < share[:, None]
    return masked & chosen


def _in_order(values: Tensor, rank: Int[Tensor, "n K"]) -> Tensor:
    """The best position first."""
    return torch.empty_like(values).scatter_(1, rank, values)


def _leading(passes: Bool[Tensor, "n K"], rank: Int[Tensor, "n K"]) -> Int[Tensor, " n"]:
    """How many of the best positions pass before the first that does not; the best itself always does."""
    ordered = _in_order(passes | (rank == 0), rank)
    return ordered.long().cumprod(1).sum(1)
