"""The adapter of families with full attention: score by one forward per view, decode by refilling the whole row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dare.families.backbone import RECORDS, TransformerBackbone, spread
from dare.families.packing import packed_input, packing_pays
from dare.sampling.masked import sample_masked
from dare.sampling_config import SamplingConfig
from dare.types import Forks, NoisyViews, Records, Samples, Watch


@dataclass
class MaskedBackbone(TransformerBackbone):
    """A checkpoint whose tokens all see one another."""

    kind: Literal["masked", "block"] = "masked"
    records: frozenset[Records] = RECORDS
    block_size: int | None = None

    def logprobs(self, model: nn.Module, views: NoisyViews, temperature: float = 1.0) -> Float[Tensor, "n S"]:
        """As `Backbone.logprobs`: the real tokens end to end where that is faster, else a padded batch."""
        if self._packs(views):
            hidden, home = self._packed_states(model, views)
            logp = self._head_logp(model, hidden, views.target.flatten()[home], temperature)
            flat = torch.zeros(views.score.numel(), dtype=logp.dtype, device=logp.device)
            return flat.index_copy(0, home, logp).view(views.score.shape)
        hidden = self._states(model, views)
        return spread(self._head_logp(model, hidden, views.target[views.score], temperature), views.score)

    def distributions(self, model: nn.Module, views: NoisyViews, temperature: float = 1.0) -> Float[Tensor, "P V"]:
        """As `Backbone.distributions`."""
        if self._packs(views):
            hidden, home = self._packed_states(model, views)
            hidden = hidden[home.argsort()]
        else:
            hidden = self._states(model, views)
        return self._head_distribution(model, hidden, temperature)

    def _packs(self, views: NoisyViews) -> bool:
        return packing_pays(views.valid[:, : used_width(views.valid)], self.attention)

    def _states(self, model: nn.Module, views: NoisyViews) -> Float[Tensor, "P d"]:
        """What the head reads for every scored position, in row-major order."""
        width = used_width(views.valid)
        score, valid = views.score[:, :width], views.valid[:, :width]
        read, place = self._predicting_scored(score)
        hidden: Tensor = model(
            views.ids[:, :width],
            attention_mask=None if bool(valid.all()) else valid,
            logits_positions=read,
            return_hidden=True,
            attention=self.attention,
        )
        return hidden if place is None else hidden[place]

    def _packed_states(self, model: nn.Module, views: NoisyViews) -> tuple[Float[Tensor, "P d"], Int[Tensor, " P"]]:
        """The same in the order of the pack, and where each position lies in the flattened views."""
        packed = packed_input(views, self.logit_shift)
        hidden = model(
            packed.ids,
            block_mask=packed.sight,
            position_ids=packed.position,
            logits_positions=packed.read,
            return_hidden=True,
            attention=self.attention,
        )[0]
        return hidden, packed.home

    def forwards(self, views: NoisyViews) -> Float[Tensor, " n"]:
        """One each."""
        return torch.ones(len(views))

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        config: SamplingConfig,
        generators: Sequence[torch.Generator],
        record: frozenset[Records] = frozenset(),
        watch: Watch | None = None,
        forks: Forks | None = None,
    ) -> Samples:
        """As `Backbone.sample`; the head runs on the current blocks only."""
        self._check_request(record, prompts, config, generators)
        with torch.no_grad():
            return sample_masked(
                self._logits if config.cache == "none" else CachedRows(self, config.cache),
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

    def _logits(self, ids: Tensor, valid: Tensor, columns: Tensor) -> Tensor:
        logits: Tensor = self.model(
            ids,
            attention_mask=None if bool(valid.all()) else valid,
            logits_positions=self.predicting(columns),
            attention=self.decodes_with,
        )
        return logits

    def _predicting_scored(self, score: Bool[Tensor, "n S"]) -> tuple[Bool[Tensor, "n S"], Int[Tensor, " N"] | None]:
        """Where logits are read, and which of these each scored token takes; None where each has its own, in order."""
        if self.logit_shift == 0:
            return score, None
        row, column = score.nonzero(as_tuple=True)
        source = row * score.shape[1] + self.predicting(column)
        read = torch.zeros_like(score).flatten().index_fill(0, source, True)
        return read.view_as(score), (read.cumsum(0) - 1)[source]

    def predicting(self, columns: Int[Tensor, "*K"]) -> Int[Tensor, "*K"]:
        """Where the logits lie that predict the tokens at `columns`."""
        return (columns - self.logit_shift).clamp(min=0)


class CachedRows:
    """A `CachedModel`: keys and values of whole rows, of which the later forwards of a block renew a part.

    `prefix` renews all from the block on, `dual` the block alone (Fast-dLLM, arXiv 2505.22618). Where logits lie left
    of their token, the left neighbour of the block is renewed as well: it predicts the block's first token, and may
    itself have been a mask when the row was last computed whole.
    """

    def __init__(self, backbone: MaskedBackbone, kind: Literal["prefix", "dual"]) -> None:
        self._backbone = backbone
        self._kind = kind

    def start(self, rows: int, width: int) -> None:
        # Rows of unequal lengths are renewed over equally many columns, for the shorter ones beyond their end.
        self._cache = self._backbone.model.empty_cache(rows, 2 * width if self._kind == "prefix" else width)

    def refill(self, rows: Tensor, ids: Tensor, valid: Tensor, columns: Int[Tensor, "m K"]) -> Tensor:
        begin = self._backbone.predicting(columns)
        self._cache.length[rows] = begin[:, 0] if self._kind == "prefix" else valid.sum(1)
        everywhere = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        return self._forward(rows, torch.zeros_like(rows), ids, valid, everywhere, begin)

    def reuse(self, rows: Tensor, ids: Tensor, valid: Tensor, columns: Int[Tensor, "m K"]) -> Tensor:
        predicting, length = self._backbone.predicting(columns), valid.sum(1)
        begin, end = predicting[:, 0], columns[:, -1] + 1 if self._kind == "dual" else length
        renewed = begin[:, None] + torch.arange(int((end - begin).max()), device=ids.device)
        real, inside = renewed < length[:, None], renewed.clamp(max=ids.shape[1] - 1)
        where = predicting - begin[:, None]
        return self._forward(rows, self._cache.length[rows], ids.gather(1, inside), real, renewed, where)

    def keep(self, rows: Int[Tensor, " m"]) -> None:
        self._cache.keep(rows)

    def _forward(
        self, rows: Tensor, length: Tensor, ids: Tensor, real: Tensor, position: Tensor, where: Tensor
    ) -> Tensor:
        logits: Tensor = self._backbone.model(
            ids,
            attention_mask=real,
            position_ids=position,
            cache=self._cache.of(rows, length),
            logits_positions=where,
            attention=self._backbone.decodes_with,
        )
        return logits


def used_width(valid: Tensor) -> int:
    """Columns up to the last valid one of any row."""
    used = valid.any(0).nonzero()
    return int(used[-1]) + 1 if len(used) else 0
