"""FlexAttention: who sees whom is computed inside the kernel from a few numbers per token."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dare.attention.errors import UnsupportedAttentionError
from dare.attention.sight import NOWHERE, Mask, Sight

TILE = 128
"""Queries and keys that the kernel treats together, and skips together where nobody sees anybody."""


class Flex:
    """Compiled on CUDA. Elsewhere the formula, slowly and without a backward pass: good enough to test the arithmetic.

    Memory is a few numbers per token and per tile; nothing grows with queries times keys on CUDA.
    """

    computes = (
        "every mask but a free matrix, by index arithmetic; on CUDA compiled, elsewhere slow and without gradients"
    )

    def missing(self) -> str | None:
        """A compiler on a machine with CUDA."""
        return _missing()

    def prepare(self, mask: Mask) -> Any:
        """A `BlockMask` whose tiles come from the smallest and largest numbers in each tile."""
        if mask is None:
            return None
        if not isinstance(mask, Sight):
            raise UnsupportedAttentionError(
                f"flex attention computes who sees whom and was given a {tuple(mask.shape)} matrix: "
                "give a Sight, or use sdpa"
            )
        from torch.nn.attention.flex_attention import BlockMask

        partial, full = tiles(mask)
        return BlockMask.from_kv_blocks(
            *_listed(partial),
            *_listed(full),
            BLOCK_SIZE=TILE,
            mask_mod=_rule(mask),
            seq_lengths=(mask.limit.shape[1], mask.block.shape[1]),
        )

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, prepared: Any) -> Tensor:
        options = {"block_mask": prepared, "enable_gqa": query.shape[1] != key.shape[1]}
        if query.is_cuda:
            return _compiled()(query, key, value, **options)  # type: ignore[no-any-return]
        if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
            raise UnsupportedAttentionError(
                f"flex attention has no backward pass on {query.device.type}: use sdpa, or score under torch.no_grad()"
            )
        from torch.nn.attention.flex_attention import flex_attention

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that it is not compiled: see the docstring
            return flex_attention(query.detach(), key.detach(), value.detach(), **options)  # type: ignore[no-any-return]


@cache
def _missing() -> str | None:
    if torch.cuda.is_available() and find_spec("triton") is None:
        return "it is compiled by Triton, which is not installed"
    return None


@cache
def _compiled() -> Callable[..., Any]:
    """One compiled kernel for all calls: a second length makes its sizes dynamic instead of compiling for ever."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def _rule(sight: Sight) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """`Sight.matrix`, one pair at a time."""
    limit, block, query_place, key_place = sight.limit, sight.block, sight.query_place, sight.key_place
    if query_place is None or key_place is None:
        return lambda row, _head, query, key: block[row, key] < limit[row, query]
    return lambda row, _head, query, key: (
        (block[row, key] < limit[row, query]) | (key_place[row, key] == query_place[row, query])
    )


def tiles(sight: Sight) -> tuple[Bool[Tensor, "B q k"], Bool[Tensor, "B q k"]]:
    """Tiles in which somebody may see somebody but perhaps not all see all, and tiles in which all see all.

    From the extremes of each tile, so a tile may be called partial that a look at every pair would find empty or full:
    the kernel then applies the rule and finds the same. Ragged tiles at the end are never full.
    """
    limit, block = _tiled(sight.limit, -NOWHERE)[..., None, :], _tiled(sight.block, NOWHERE)[:, None]
    some = block.amin(-1) < limit.amax(-1)
    full = block.amax(-1) < limit.amin(-1)
    if sight.query_place is not None and sight.key_place is not None:
        query, key = _tiled(sight.query_place, -1)[..., None, :], _tiled(sight.key_place, -1)[:, None]
        first_query, first_key = (x.masked_fill(x < 0, NOWHERE).amin(-1) for x in (query, key))
        some = some | ((first_query <= key.amax(-1)) & (first_key <= query.amax(-1)))
    return some & ~full, full


def _tiled(number: Int[Tensor, "B N"], beyond: int) -> Int[Tensor, "B tiles TILE"]:
    """Tile by tile; what a ragged one has too few of is `beyond`."""
    short = number.new_full((len(number), -number.shape[1] % TILE), beyond)  # `F.pad` rounds its value to a float
    return torch.cat((number, short), dim=1).view(len(number), -1, TILE)


def _listed(chosen: Bool[Tensor, "B q k"]) -> tuple[Int[Tensor, "B 1 q"], Int[Tensor, "B 1 q k"]]:
    """How many tiles of keys each tile of queries has, and which, the chosen ones first."""
    chosen_first = torch.sort(chosen.to(torch.int8), dim=-1, descending=True, stable=True).indices
    return chosen.sum(-1, dtype=torch.int32)[:, None], chosen_first.to(torch.int32)[:, None]
