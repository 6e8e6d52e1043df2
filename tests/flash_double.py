"""What flash-attn 2 documents of its three functions, as a formula: never compared with the kernels themselves.

Written from the docstrings of `flash_attn_interface.py` (flash-attn 2, commit 0053002): (B, L, H, D) layouts,
(T, H, D) for varlen with int32 `cu_seqlens`, `cache_seqlens` counting the keys of each row, half precision only, heads
shared in groups, a row without keys giving zeros, and no backward pass through the cache function.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import torch
from torch import Tensor


class FlashDouble:
    """Stands for the module `flash_attn`. `calls` counts what was called."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def flash_attn_func(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
    ) -> Tensor:
        self.calls["dense"] += 1
        assert dropout_p == 0.0
        assert not causal
        assert len(q) == len(k) == len(v)
        return torch.stack([attend(*row, softmax_scale) for row in zip(q, k, v, strict=True)])

    def flash_attn_varlen_func(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
    ) -> Tensor:
        self.calls["varlen"] += 1
        assert dropout_p == 0.0
        assert not causal
        assert len(cu_seqlens_q) == len(cu_seqlens_k)
        for starts, longest, tokens in ((cu_seqlens_q, max_seqlen_q, q), (cu_seqlens_k, max_seqlen_k, k)):
            assert starts.dtype == torch.int32
            assert starts[0] == 0
            assert starts[-1] == len(tokens)
            assert type(longest) is int
            assert starts.diff().max() <= longest
        bounds = zip(pairwise(cu_seqlens_q.tolist()), pairwise(cu_seqlens_k.tolist()), strict=True)
        return torch.cat([attend(q[a:b], k[c:d], v[c:d], softmax_scale) for (a, b), (c, d) in bounds])

    def flash_attn_with_kvcache(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        k: Tensor | None = None,
        v: Tensor | None = None,
        *,
        cache_seqlens: Tensor,
        softmax_scale: float | None = None,
        causal: bool = False,
    ) -> Tensor:
        self.calls["kvcache"] += 1
        assert not torch.is_grad_enabled()
        assert not causal
        assert k is None
        assert v is None
        assert cache_seqlens.dtype == torch.int32
        assert cache_seqlens.shape == (len(q),)
        assert int(cache_seqlens.max()) <= k_cache.shape[1]
        rows = zip(q, k_cache, v_cache, cache_seqlens.tolist(), strict=True)
        return torch.stack([attend(a, b[:n], c[:n], softmax_scale) for a, b, c, n in rows])


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
    """(Q, H, D) on (L, K, D), softmax and sums in float32."""
    for x in (q, k, v):
        assert x.dtype in (torch.float16, torch.bfloat16)
        assert x.stride(-1) == 1
        assert x.shape[-1] <= 256
    groups, rest = divmod(q.shape[1], k.shape[1])
    assert rest == 0
    k, v = (x.float().repeat_interleave(groups, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.float(), k) * (scale or q.shape[-1] ** -0.5)
    if not len(k):
        return q * 0
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).to(q.dtype)
