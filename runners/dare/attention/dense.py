"""Backends of PyTorch that take any boolean matrix: the definition, and its fused kernels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dare.attention.sight import Mask, Pack, SameKeys, Sight


class Eager:
    """The definition, with the softmax in float32 or better."""

    computes = "the formula: every mask, device and dtype; memory grows with queries times keys"

    def missing(self) -> str | None:
        """Nothing."""
        return None

    def prepare(self, mask: Mask) -> Tensor | None:
        """A boolean matrix."""
        return mask.matrix() if isinstance(mask, Sight) else mask

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, prepared: Tensor | None) -> Tensor:
        key, value = _share_heads(query, key), _share_heads(query, value)
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5  # (B, H, Q, L)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if prepared is None:
            return torch.matmul(scores.softmax(-1).to(value.dtype), value)
        lowest = torch.finfo(scores.dtype).min
        weights = scores.masked_fill(~prepared, lowest).softmax(-1).masked_fill(~prepared, 0.0)
        return torch.matmul(weights.to(value.dtype), value)


class SDPA:
    """PyTorch's own choice of kernel."""

    computes = "every mask, device and dtype; blocks and doubled inputs cost a boolean matrix"

    def missing(self) -> str | None:
        """Nothing."""
        return None

    def prepare(self, mask: Mask) -> Tensor | Pack | None:
        """A boolean matrix, of one row where all queries see the same, none where all see all; a pack as it is."""
        if not isinstance(mask, Sight):
            return mask
        if isinstance(mask.form, SameKeys):
            real = mask.form.real
            return None if bool(real.all()) else real[:, None, None, :]  # one look costs less than a mask per layer
        return mask.form or mask.matrix()

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, prepared: Tensor | Pack | None) -> Tensor:
        if isinstance(prepared, Pack):
            return _per_sequence(query, key, value, prepared)
        if query.device.type != "cpu" and prepared is not None:
            # The kernels of CUDA that take a mask do not share heads, and the one that does both is the slow formula.
            key, value = _share_heads(query, key), _share_heads(query, value)
        shared = query.shape[1] != key.shape[1]
        return F.scaled_dot_product_attention(query, key, value, attn_mask=prepared, enable_gqa=shared)


def _per_sequence(query: Tensor, key: Tensor, value: Tensor, pack: Pack) -> Tensor:
    """Neighbours of equal length as one batch without a mask: never a matrix over the whole pack."""
    runs = list(pack.runs())
    sizes = [count * length for count, length in runs]
    parts = zip(
        *(torch.split(x.squeeze(0), sizes, dim=1) for x in (query, key, value)), strict=True
    )  # split: one backward
    mixed = []
    for (count, length), part in zip(runs, parts, strict=True):
        q, k, v = (x.unflatten(1, (count, length)).transpose(0, 1) for x in part)  # (count, H, length, D)
        out = F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])
        mixed.append(out.transpose(0, 1).flatten(1, 2))
    return torch.cat(mixed, dim=1)[None]


def _share_heads(query: Tensor, shared: Tensor) -> Tensor:
    groups = query.shape[1] // shared.shape[1]
    return shared if groups == 1 else shared.repeat_interleave(groups, dim=1)
