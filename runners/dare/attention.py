"""Scaled dot-product attention by named backends, chosen per call and tested equal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor


class Attention(Protocol):
    """H heads may share K key-value heads. `mask` broadcasts to (B, 1, Q, L), True where a query may look; None is all.

    A query that may look nowhere (padding) gets zeros, never NaN.
    """

    def __call__(
        self,
        query: Float[Tensor, "B H Q D"],
        key: Float[Tensor, "B K L D"],
        value: Float[Tensor, "B K L D"],
        mask: Bool[Tensor, "B 1 Q L"] | None,
    ) -> Float[Tensor, "B H Q D"]: ...


class UnknownAttentionError(ValueError):
    """The name is no backend."""


def eager(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """The definition, with the softmax in float32 or better."""
    key, value = _share_heads(query, key), _share_heads(query, value)
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5  # (B, H, Q, L)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if mask is None:
        return torch.matmul(scores.softmax(-1).to(value.dtype), value)
    lowest = torch.finfo(scores.dtype).min
    weights = scores.masked_fill(~mask, lowest).softmax(-1).masked_fill(~mask, 0.0)
    return torch.matmul(weights.to(value.dtype), value)


def sdpa(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """PyTorch's own choice of kernel."""
    key, value = _share_heads(query, key), _share_heads(query, value)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def _share_heads(query: Tensor, shared: Tensor) -> Tensor:
    groups = query.shape[1] // shared.shape[1]
    return shared if groups == 1 else shared.repeat_interleave(groups, dim=1)


ATTENTION: Mapping[str, Attention] = {"eager": eager, "sdpa": sdpa}


def attention_named(name: str) -> Attention:
    """A backend by name."""
    if name not in ATTENTION:
        raise UnknownAttentionError(f"unknown attention {name!r}; known: {', '.join(sorted(ATTENTION))}")
    return ATTENTION[name]
