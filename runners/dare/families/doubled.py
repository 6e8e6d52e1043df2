"""All noisy views of a completion beside one clean copy, as one input."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor

from dare.attention import NOWHERE, Sight
from dare.types import NoisyViews

NO_QUERY, NO_KEY = -1, -2
"""Places of a token that looks at no noisy block, and of one that none looks at."""


ALIKE = 1.5
"""Sequences go into one forward whose lengths differ by less than this factor: a part of 41 % padding costs more than a
second forward does (`python -m benchmarks.train --only block`)."""


class DoubledInput(NamedTuple):
    """[clean sequence ; its noisy blocks] for every distinct target among the views.

    G targets, C blocks (the most of any target) of B tokens, Q = clean columns + C * B.
    """

    ids: Int[Tensor, "G Q"]
    position: Int[Tensor, "G Q"]
    sight: Sight
    score: Bool[Tensor, "G Q"]
    home: Int[Tensor, " N"]
    """Where each scored position, in row-major order, lies in the flattened views."""


def doubled_input(views: NoisyViews, size: int) -> DoubledInput | None:
    """The input that scores all views at once; None when nothing is scored.

    A clean query sees clean blocks up to its own, a noisy one the clean blocks before its own and its own noisy block:
    no two noisy blocks see each other, so it is exact to leave out the blocks without a scored position. Clean columns
    behind the last scored block are seen by nobody and left out too.
    """
    device = views.ids.device
    score = in_blocks(views.score, size)  # (n, blocks, B)
    view, block = score.any(-1).nonzero(as_tuple=True)  # one entry per noisy block
    if not len(view):
        return None
    clean, group = torch.unique(views.target.masked_fill(~views.valid, -1), dim=0, return_inverse=True)
    owner = group[view]
    slot = _rank_within(owner)
    targets, slots, columns = len(clean), int(slot.max()) + 1, int(block.max()) * size

    def noisy(blocks: Tensor, empty: int) -> Tensor:
        out = torch.full((targets, slots, size), empty, dtype=blocks.dtype, device=device)
        out[owner, slot] = blocks
        return out.flatten(1)  # (G, C * B)

    inside = torch.arange(size, device=device)
    noisy_position = noisy(block[:, None] * size + inside, 0)
    noisy_real = noisy(in_blocks(views.valid, size)[view, block], 0)
    noisy_score = noisy(score[view, block], 0)
    home = noisy(view[:, None] * views.ids.shape[1] + block[:, None] * size + inside, 0)
    clean_position = torch.arange(columns, device=device)
    clean_real = clean[:, :columns] >= 0

    # Clean queries look at clean blocks up to their own, noisy ones at those before their own and at their own copy.
    clean_block = (clean_position // size).expand(targets, -1)
    place = torch.arange(slots, device=device).repeat_interleave(size).expand(targets, -1)
    nobody, nothing = torch.full_like(clean_block, NO_QUERY), torch.full_like(clean_block, NO_KEY)
    sight = Sight(
        limit=torch.cat((clean_block + 1, noisy_position // size), dim=1),
        block=torch.cat((clean_block.masked_fill(~clean_real, NOWHERE), torch.full_like(place, NOWHERE)), dim=1),
        query_place=torch.cat((nobody, place), dim=1),
        key_place=torch.cat((nothing, place.masked_fill(~noisy_real, NO_KEY)), dim=1),
    )
    return DoubledInput(
        ids=torch.cat((clean[:, :columns].clamp(min=0), noisy(in_blocks(views.ids, size)[view, block], 0)), dim=1),
        position=torch.cat((clean_position.expand(targets, -1), noisy_position), dim=1),
        sight=sight,
        score=torch.cat((torch.zeros_like(clean_real), noisy_score), dim=1),
        home=home[noisy_score],
    )


def alike(lengths: Int[Tensor, " n"]) -> list[Int[Tensor, " m"]]:
    """Rows in parts of similar length, the shortest first; equal lengths, so all views of one target, share a part."""
    found, order = lengths.sort(stable=True)
    cuts, shortest = [], 0
    for place, length in enumerate(found.tolist()):
        if not place:
            shortest = length
        elif length >= ALIKE * max(shortest, 1):
            cuts.append(place)
            shortest = length
    return list(order.tensor_split(cuts))


def in_blocks(x: Tensor, size: int) -> Tensor:
    """(n, S) as (n, blocks, size), the last one filled up with zeros."""
    return F.pad(x, (0, -x.shape[1] % size)).reshape(len(x), -(-x.shape[1] // size), size)


def _rank_within(owner: Int[Tensor, " T"]) -> Int[Tensor, " T"]:
    """How many earlier entries have the same owner."""
    order = owner.argsort(stable=True)
    first = torch.cat((owner.new_zeros(1), owner.bincount().cumsum(0)[:-1]))
    rank = torch.empty_like(owner)
    rank[order] = torch.arange(len(owner), device=owner.device) - first[owner[order]]
    return rank
