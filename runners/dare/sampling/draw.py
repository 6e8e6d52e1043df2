"""Drawing tokens from logits: Gumbel noise from one private generator per row, confidence without temperature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Draw(NamedTuple):
    """A token for every position, and how probable the model finds it."""

    token: Int[Tensor, "n K"]
    confidence: Float[Tensor, "n K"]


def draw(
    logits: Float[Tensor, "n K V"], temperature: float, mask_id: int, generators: Sequence[torch.Generator]
) -> Draw:
    """The argmax at temperature 0, else a sample of softmax(logits / temperature); never the mask token.

    The noise is float64: in lower precision its tail is cut and the samples are too sharp (arXiv 2409.02908). The
    confidence is the token's probability at temperature 1 in float32 or better, so that the temperature changes
    tokens and not, through ties at 1, the order of decoding.
    """
    allowed = logits.to(torch.promote_types(logits.dtype, torch.float32))
    allowed = allowed.index_fill(-1, torch.tensor([mask_id], device=logits.device), -torch.inf)
    token = (allowed if temperature == 0 else _noisy(allowed, temperature, generators)).argmax(-1)
    logp = allowed.gather(-1, token[..., None]).squeeze(-1) - allowed.logsumexp(-1)
    return Draw(token, logp.exp())


def uniform(generators: Sequence[torch.Generator], *shape: int, device: torch.device) -> Float[Tensor, "n ..."]:
    """float64 numbers in [0, 1), row by row from its own generator."""
    rows = [torch.rand(shape, dtype=torch.float64, device=g.device, generator=g) for g in generators]
    return torch.stack(rows).to(device)


def _noisy(logits: Tensor, temperature: float, generators: Sequence[torch.Generator]) -> Tensor:
    gumbel = uniform(generators, *logits.shape[1:], device=logits.device).log_().neg_().log_().neg_()
    return gumbel.add_(logits.double(), alpha=1 / temperature)
