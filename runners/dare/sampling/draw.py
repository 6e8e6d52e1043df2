"""Drawing tokens from logits: Gumbel noise from one private generator per row, never the mask token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def logits_at(
    logits: Float[Tensor, "n K V"], where: Bool[Tensor, "n K"], forbidden: Sequence[int]
) -> Float[Tensor, "M V"]:
    """A copy of some positions, row by row, in float32 or better, in which some tokens have probability zero."""
    chosen = logits[where].to(torch.promote_types(logits.dtype, torch.float32))
    return chosen.index_fill_(-1, torch.tensor(list(forbidden), dtype=torch.long, device=logits.device), -torch.inf)


def truncated(
    logits: Float[Tensor, "M V"], temperature: float, top_k: int | None, top_p: float | None
) -> Float[Tensor, "M V"]:
    """Only the `top_k` most probable tokens and the fewest whose tempered probabilities exceed `top_p` keep theirs.

    Both are read off the same tempered distribution, so their order does not matter. Of equal tokens the first wins.
    """
    if top_k is None and top_p is None:
        return logits
    order = logits.sort(dim=-1, descending=True, stable=True).indices
    kept = torch.ones_like(logits, dtype=torch.bool)
    if top_k is not None:
        kept[..., top_k:] = False
    if top_p is not None:
        probability = (logits.gather(-1, order) / temperature).softmax(-1)
        kept &= probability.cumsum(-1) - probability <= top_p
    return logits.masked_fill(~torch.empty_like(kept).scatter_(-1, order, kept), -torch.inf)


def draw(
    logits: Float[Tensor, "M V"],
    where: Bool[Tensor, "n K"],
    temperature: float,
    generators: Sequence[torch.Generator],
) -> Int[Tensor, " M"]:
    """The argmax at temperature 0, else a sample of softmax(logits / temperature), of the positions `where`.

    Every row consumes random numbers for all of its K positions, whichever are drawn. The noise is float64: in lower
    precision its tail is cut and the samples are too sharp (arXiv 2409.02908).
    """
    if temperature == 0:
        return logits.argmax(-1)
    noise = gumbel(generators, where.shape[1], logits.shape[1], device=logits.device)[where]
    return noise.add_(logits.double(), alpha=1 / temperature).argmax(-1)


def gumbel(generators: Sequence[torch.Generator], *shape: int, device: torch.device) -> Float[Tensor, "n ..."]:
    """float64 Gumbel noise, row by row from its own generator."""
    return uniform(generators, *shape, device=device).log_().neg_().log_().neg_()


def uniform(generators: Sequence[torch.Generator], *shape: int, device: torch.device) -> Float[Tensor, "n ..."]:
    """float64 numbers in [0, 1), row by row from its own generator."""
    rows = [torch.rand(shape, dtype=torch.float64, device=g.device, generator=g) for g in generators]
    return torch.stack(rows).to(device)


def probability(logits: Float[Tensor, "*M V"], token: Int[Tensor, "*M"]) -> Float[Tensor, "*M"]:
    """Of `token` under softmax(logits)."""
    return (logits.gather(-1, token[..., None]).squeeze(-1) - logits.logsumexp(-1)).exp()


def reveal_steps(
    chances: Sequence[float], masked: Bool[Tensor, "n K"], generators: Sequence[torch.Generator]
) -> Int[Tensor, "n K"]:
    """When each masked position is revealed if step i reveals any with probability `chances[i]`; the last is 1.

    Steps are counted from 0 and row by row without those that reveal nothing.
    """
    drawn = uniform(generators, len(chances), masked.shape[1], device=masked.device)  # (n, steps, K)
    revealed = drawn < torch.tensor(chances, dtype=drawn.dtype, device=drawn.device)[:, None]
    first = revealed.int().argmax(1)  # (n, K)
    step = torch.arange(len(chances), device=masked.device)
    taken = ((first[..., None] == step) & masked[..., None]).any(1)  # (n, steps)
    return (taken.cumsum(1) - 1).gather(1, first)
