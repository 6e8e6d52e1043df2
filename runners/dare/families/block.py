"""The adapter of block families: score all views of a completion beside one clean copy, decode with an exact cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dare.families.backbone import RECORDS, TransformerBackbone
from dare.families.layers import block_causal_mask
from dare.sampling.block import sample_block
from dare.spec import SamplingConfig
from dare.types import NoisyViews, Records, Samples


@dataclass
class BlockBackbone(TransformerBackbone):
    """A checkpoint whose blocks see themselves and the blocks before them; blocks count from column 0."""

    block_size: int | None = None
    kind: Literal["masked", "block"] = "block"
    records: frozenset[Records] = RECORDS

    def logprobs(self, model: nn.Module, views: NoisyViews, temperature: float = 1.0) -> Float[Tensor, "n S"]:
        """As `Backbone.logprobs`. A scored block sees `views.ids` inside itself and `views.target` before itself.

        So what a view hides outside its scored blocks has no effect: hiding prompt tokens matters only where prompt
        and answer share a scored block.
        """
        rows, columns = views.score.shape
        doubled = doubled_input(views, self._size)
        flat = torch.zeros(rows * columns, dtype=torch.float32, device=views.ids.device)
        if doubled is not None:
            hidden = model(
                doubled.ids,
                block_mask=doubled.mask,
                position_ids=doubled.position,
                logits_positions=doubled.score,
                return_hidden=True,
                attention=self.attention,
            )
            logp = self._head_logp(model, hidden, views.target.flatten()[doubled.home], temperature)
            flat = flat.to(logp.dtype).index_copy(0, doubled.home, logp)
        return flat.view(rows, columns)

    def forwards(self, views: NoisyViews) -> Float[Tensor, " n"]:
        """Scored blocks over blocks of the window: the clean half is shared, so only scored blocks are paid for."""
        scored, window = (_blocks(where, self._size).any(-1).sum(1) for where in (views.score, views.window))
        return scored / window.clamp(min=1)

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        config: SamplingConfig,
        generators: Sequence[torch.Generator],
        record: frozenset[Records] = frozenset(),
    ) -> Samples:
        """As `Backbone.sample`, with an exact key-value cache."""
        self._check_request(record, prompts, generators)
        with torch.no_grad():
            return sample_block(
                CachedBlocks(self.model, self._size, self.attention),
                prompts,
                config,
                generators,
                mask_id=self.mask_id,
                pad_id=self.pad_id,
                eos_ids=self.eos_ids,
                device=self.model.device,
            )

    @property
    def _size(self) -> int:
        assert self.block_size is not None
        return self.block_size


class CachedBlocks:
    """A `BlockModel` over a transformer and its key-value cache."""

    def __init__(self, model: Any, block_size: int, attention: str) -> None:
        self.block_size = block_size
        self._model = model
        self._attention = attention
        self._last = torch.empty(0)  # end column of the block given last, per row

    def prefill(self, ids: Int[Tensor, "n L"], length: Int[Tensor, " n"], width: int) -> None:
        self._cache = self._model.empty_cache(len(ids), width)
        if ids.shape[1]:
            position = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
            mask = block_causal_mask(position, self.block_size)
            nowhere = torch.zeros_like(ids, dtype=torch.bool)  # keys and values are all we want
            self._forward(ids, position, block_mask=mask, logits_positions=nowhere, return_hidden=True)
        self._cache.length = length.clone()

    def logits(self, ids: Tensor, columns: Int[Tensor, "n K"], real: Bool[Tensor, "n K"]) -> Tensor:
        self._last = columns[:, -1] + 1
        return self._forward(ids, columns, attention_mask=real)

    def extend(self, rows: Bool[Tensor, " n"]) -> None:
        self._cache.length = torch.where(rows, self._last, self._cache.length)

    def keep(self, rows: Int[Tensor, " m"]) -> None:
        self._cache.keep(rows)

    def _forward(self, ids: Tensor, position: Tensor, **options: Any) -> Tensor:
        out: Tensor = self._model(ids, position_ids=position, cache=self._cache, attention=self._attention, **options)
        return out


class DoubledInput(NamedTuple):
    """[clean sequence ; its noisy blocks] for every distinct target among the views.

    G targets, C blocks (the most of any target) of B tokens, Q = clean columns + C * B.
    """

    ids: Int[Tensor, "G Q"]
    position: Int[Tensor, "G Q"]
    mask: Bool[Tensor, "G 1 Q Q"]
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
    score = _blocks(views.score, size)  # (n, blocks, B)
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
    noisy_real = noisy(_blocks(views.valid, size)[view, block], 0)
    noisy_score = noisy(score[view, block], 0)
    home = noisy(view[:, None] * views.ids.shape[1] + block[:, None] * size + inside, 0)
    clean_position = torch.arange(columns, device=device)
    clean_real = clean[:, :columns] >= 0

    # A query looks at clean blocks below `limit`: up to its own from the clean half, before its own from a noisy block.
    limit = torch.cat(((clean_position // size + 1).expand(targets, -1), noisy_position // size), dim=1)
    sees_clean = (clean_position // size < limit[..., None]) & clean_real[:, None, :]
    place = torch.arange(slots, device=device).repeat_interleave(size)
    query_place = torch.cat((torch.full((columns,), -1, device=device), place))
    sees_noisy = (query_place[:, None] == place) & noisy_real[:, None, :]
    return DoubledInput(
        ids=torch.cat((clean[:, :columns].clamp(min=0), noisy(_blocks(views.ids, size)[view, block], 0)), dim=1),
        position=torch.cat((clean_position.expand(targets, -1), noisy_position), dim=1),
        mask=torch.cat((sees_clean, sees_noisy), dim=-1)[:, None],
        score=torch.cat((torch.zeros_like(clean_real), noisy_score), dim=1),
        home=home[noisy_score],
    )


def _blocks(x: Tensor, size: int) -> Tensor:
    """(n, S) as (n, blocks, size), the last one filled up with zeros."""
    return F.pad(x, (0, -x.shape[1] % size)).reshape(len(x), -(-x.shape[1] // size), size)


def _rank_within(owner: Int[Tensor, " T"]) -> Int[Tensor, " T"]:
    """How many earlier entries have the same owner."""
    order = owner.argsort(stable=True)
    first = torch.cat((owner.new_zeros(1), owner.bincount().cumsum(0)[:-1]))
    rank = torch.empty_like(owner)
    rank[order] = torch.arange(len(owner), device=owner.device) - first[owner[order]]
    return rank
