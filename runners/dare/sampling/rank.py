"""In which order the masked positions of a block are committed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dare.sampling.draw import gumbel, uniform
from dare.sampling_config import SamplingConfig


def certainty(config: SamplingConfig, law: Float[Tensor, "M V"]) -> Float[Tensor, " M"] | None:
    """How certain a position is of its token, where the order asks for more than the token's own probability."""
    if config.remasking == "entropy":
        return -entropy(law)
    if config.remasking == "margin":
        first, second = law.softmax(-1).topk(2).values.unbind(-1)
        return first - second
    return None


def entropy(logits: Float[Tensor, "*M V"]) -> Float[Tensor, "*M"]:
    """Of softmax(logits), in nats."""
    entropies: Tensor = torch.special.entr(logits.softmax(-1)).sum(-1)
    return entropies


def priority(
    config: SamplingConfig, certain: Float[Tensor, "n K"], generators: Sequence[torch.Generator]
) -> Float[Tensor, "n K"]:
    """The higher the earlier. Every row consumes the same number of random numbers whatever it has masked."""
    ranked = certain
    if config.remasking == "random":
        ranked = uniform(generators, certain.shape[1], device=certain.device)
    elif config.remasking == "sequential":
        ranked = -torch.arange(certain.shape[1], dtype=certain.dtype, device=certain.device).expand_as(certain)
    if config.order_temperature is not None:
        # The k largest of priority + Gumbel noise are k draws of the softmax without replacement.
        noise = gumbel(generators, certain.shape[1], device=certain.device)
        ranked = noise.add_(ranked.double(), alpha=1 / config.order_temperature)
    return ranked


def ranks(masked: Bool[Tensor, "n K"], ranked: Float[Tensor, "n K"]) -> Int[Tensor, "n K"]:
    """0 for the masked position of highest priority, the leftmost of equal ones; the others follow all masked ones."""
    by_priority = ranked.sort(dim=-1, descending=True, stable=True).indices
    order = by_priority.gather(1, masked.gather(1, by_priority).sort(dim=-1, descending=True, stable=True).indices)
    place = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, place)
