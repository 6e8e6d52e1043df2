"""The adapter of block families: score all views of a completion beside one clean copy, decode with an exact cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dare.attention import Sight
from dare.families.backbone import RECORDS, TransformerBackbone
from dare.families.doubled import DoubledInput, alike, doubled_input, in_blocks
from dare.sampling.block import sample_block
from dare.sampling_config import SamplingConfig
from dare.types import Forks, NoisyViews, Records, Samples, Watch


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
        parts = alike(views.valid.sum(1))
        if len(parts) == 1:
            return self._in_one_forward(model, views, temperature)
        scored = [self._in_one_forward(model, views.rows(part), temperature) for part in parts]
        return torch.cat(scored)[torch.cat(parts).argsort()]

    def _in_one_forward(self, model: nn.Module, views: NoisyViews, temperature: float) -> Float[Tensor, "n S"]:
        flat = torch.zeros(views.score.numel(), dtype=torch.float32, device=views.ids.device)
        doubled = doubled_input(views, self._size)
        if doubled is not None:
            hidden = self._states(model, doubled)
            logp = self._head_logp(model, hidden, views.target.flatten()[doubled.home], temperature)
            flat = flat.to(logp.dtype).index_copy(0, doubled.home, logp)
        return flat.view(views.score.shape)

    def distributions(self, model: nn.Module, views: NoisyViews, temperature: float = 1.0) -> Float[Tensor, "P V"]:
        """As `Backbone.distributions`, in the sight of `logprobs`."""
        doubled = doubled_input(views, self._size)
        if doubled is None:
            return torch.zeros(0, self.model.config.vocab_size, device=views.ids.device)
        hidden = self._states(model, doubled)[doubled.home.argsort()]
        return self._head_distribution(model, hidden, temperature)

    def _states(self, model: nn.Module, doubled: DoubledInput) -> Float[Tensor, "N d"]:
        hidden: Tensor = model(
            doubled.ids,
            block_mask=doubled.sight,
            position_ids=doubled.position,
            logits_positions=doubled.score,
            return_hidden=True,
            attention=self.attention,
        )
        return hidden

    def forwards(self, views: NoisyViews) -> Float[Tensor, " n"]:
        """Scored blocks over blocks of the window: the clean half is shared, so only scored blocks are paid for."""
        scored, window = (in_blocks(where, self._size).any(-1).sum(1) for where in (views.score, views.window))
        return scored / window.clamp(min=1)

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        config: SamplingConfig,
        generators: Sequence[torch.Generator],
        record: frozenset[Records] = frozenset(),
        watch: Watch | None = None,
        forks: Forks | None = None,
    ) -> Samples:
        """As `Backbone.sample`, with an exact key-value cache."""
        self._check_request(record, prompts, config, generators)
        with torch.no_grad():
            return sample_block(
                CachedBlocks(self.model, self._size, self.decodes_with),
                prompts,
                config,
                generators,
                mask_id=self.mask_id,
                pad_id=self.pad_id,
                eos_ids=self.eos_ids,
                device=self.model.device,
                record=record,
                watch=watch,
                forks=forks,
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
        if not ids.shape[1]:
            self._cache = self._model.empty_cache(len(ids), width)
        else:
            # The completions of a group have the same prompt: it is computed once and copied.
            column = torch.arange(ids.shape[1], device=ids.device)
            different, home = torch.unique(ids.masked_fill(column >= length[:, None], 0), dim=0, return_inverse=True)
            self._cache = self._model.empty_cache(len(different), width)
            position = column.expand_as(different)
            sight = Sight.blocks(position, self.block_size)
            nowhere = torch.zeros_like(different, dtype=torch.bool)  # keys and values are all we want
            self._forward(different, position, block_mask=sight, logits_positions=nowhere, return_hidden=True)
            self._cache.keep(home)
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
