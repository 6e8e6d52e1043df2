"""flash-attn: masks become lengths, so padding costs nothing and no matrix exists."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from dare.attention.errors import UnsupportedAttentionError
from dare.attention.sight import Mask, Pack, SameKeys, Sight

HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Varlen:
    """Queries and keys of all sequences end to end, and where each begins."""

    query_starts: Int[Tensor, " P+1"]
    key_starts: Int[Tensor, " P+1"]
    longest_query: int
    longest_key: int
    real: Int[Tensor, " T"] | None = None
    """Which keys of the flattened rows there are; None for all."""


@dataclass(frozen=True)
class FirstKeys:
    """Each row sees its first `count` keys: the cache is read in place."""

    count: Int[Tensor, " B"]


@dataclass(frozen=True)
class Other:
    """A mask in the form of the backend that takes over."""

    prepared: Any


class Flash:
    """The kernel that fits: dense without a mask, varlen for padding and packs, kvcache for decoding.

    flash-attn has no form for blocks, the doubled input and free matrices: those go to `otherwise`, which is flex, so
    that no matrix appears on CUDA either.

    Args:
        otherwise: takes every mask that flash-attn has no form for.
        kernels: the module `flash_attn`; imported at first use unless given.
    """

    computes = "padding, packs and cached decoding in half precision on CUDA; blocks and doubled inputs go through flex"

    def __init__(self, otherwise: Any, kernels: Any = None) -> None:
        self._otherwise = otherwise
        self._given = kernels

    def missing(self) -> str | None:
        """CUDA, or the package."""
        return None if self._given else _missing()

    @property
    def _kernels(self) -> Any:
        return self._given or importlib.import_module("flash_attn")

    def prepare(self, mask: Mask) -> Varlen | FirstKeys | Other | None:
        """Lengths where the mask has them."""
        if mask is None:
            return None
        form = mask.form if isinstance(mask, Sight) else None
        if isinstance(mask, Sight) and isinstance(form, SameKeys):
            return _same_keys(form, queries=mask.limit.shape[1])
        if isinstance(mask, Sight) and isinstance(form, Pack):
            starts = _starts(torch.tensor(form.lengths, device=mask.limit.device))
            return Varlen(starts, starts, max(form.lengths), max(form.lengths))
        return Other(self._otherwise.prepare(mask))

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, prepared: Varlen | FirstKeys | Other | None
    ) -> Tensor:
        if isinstance(prepared, Other):
            out: Tensor = self._otherwise(query, key, value, prepared.prepared)
            return out
        if query.dtype not in HALF:
            raise UnsupportedAttentionError(
                f"flash-attn computes in float16 or bfloat16 and was given {query.dtype}: use sdpa or flex"
            )
        q, k, v = (x.transpose(1, 2) for x in (query, key, value))  # (B, L, H, D)
        if prepared is None:
            out = self._kernels.flash_attn_func(q, k, v, causal=False)
        elif isinstance(prepared, FirstKeys):
            out = self._kernels.flash_attn_with_kvcache(q, k, v, cache_seqlens=prepared.count, causal=False)
        else:
            k, v = (x.flatten(0, 1) if prepared.real is None else x.flatten(0, 1)[prepared.real] for x in (k, v))
            out = self._kernels.flash_attn_varlen_func(
                q.flatten(0, 1),
                k,
                v,
                cu_seqlens_q=prepared.query_starts,
                cu_seqlens_k=prepared.key_starts,
                max_seqlen_q=prepared.longest_query,
                max_seqlen_k=prepared.longest_key,
                causal=False,
            ).unflatten(0, q.shape[:2])
        return out.transpose(1, 2)


@cache
def _missing() -> str | None:
    if not torch.cuda.is_available():
        return "flash-attn needs CUDA"
    return None if find_spec("flash_attn") else "flash-attn is not installed"


def _same_keys(form: SameKeys, queries: int) -> Varlen | FirstKeys:
    """The cache kernel reads first keys where they lie, but has no backward pass; else the real keys are gathered."""
    rows, keys = form.real.shape
    if not torch.is_grad_enabled():
        count = form.count
        if count is None and bool((form.real[:, 1:] <= form.real[:, :-1]).all()):
            count = form.real.sum(1)
        if count is not None:
            return FirstKeys(count.to(torch.int32))
    every = torch.full((rows,), queries, device=form.real.device)
    real = form.real.flatten().nonzero().squeeze(1)
    return Varlen(_starts(every), _starts(form.real.sum(1)), queries, keys, real)


def _starts(lengths: Int[Tensor, " P"]) -> Int[Tensor, " P+1"]:
    return torch.cat((lengths.new_zeros(1), lengths.cumsum(0))).to(torch.int32)
