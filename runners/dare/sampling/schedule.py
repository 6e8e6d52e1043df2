"""How many masked positions of a block a denoising step commits, and which ones."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def even_schedule(tokens: int, steps: int) -> tuple[int, ...]:
    """`tokens` over `steps` as evenly as whole numbers allow: the remainder goes to the first steps, one each."""
    share, remainder = divmod(tokens, steps)
    return tuple(share + (step < remainder) for step in range(steps))


def select(
    masked: Bool[Tensor, "n K"],
    priority: Float[Tensor, "n K"],
    quota: Int[Tensor, " n"],
    sure: Bool[Tensor, "n K"] | None = None,
) -> Bool[Tensor, "n K"]:
    """The `quota` masked positions of highest priority, and every masked position that is `sure`.

    Only masked positions are ever selected, so a quota above their number selects all of them. Of equal priorities
    the leftmost wins.
    """
    order = priority.masked_fill(~masked, -torch.inf).sort(dim=-1, descending=True, stable=True).indices
    rank = torch.empty_like(order).scatter_(
        1, order, torch.arange(order.shape[1], device=order.device).expand_as(order)
    )
    chosen = rank < quota[:, None]
    return masked & (chosen if sure is None else chosen | sure)
