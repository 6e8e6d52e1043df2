"""The adapter of families with full attention: score by one forward per view, decode by refilling the whole row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dare.families.backbone import RECORDS, TransformerBackbone, spread
from dare.sampling.masked import sample_masked
from dare.spec import SamplingConfig
from dare.types import NoisyViews, Records, Samples


@dataclass
class MaskedBackbone(TransformerBackbone):
    """A checkpoint whose tokens all see one another."""

    kind: Literal["masked", "block"] = "masked"
    records: frozenset[Records] = RECORDS
    block_size: int | None = None

    def logprobs(self, model: nn.Module, views: NoisyViews, temperature: float = 1.0) -> Float[Tensor, "n S"]:
        """As `Backbone.logprobs`. Columns that are padding in every view are cut off before the forward."""
        width = used_width(views.valid)
        score, valid = views.score[:, :width], views.valid[:, :width]
        hidden = model(
            views.ids[:, :width],
            attention_mask=None if bool(valid.all()) else valid,
            logits_positions=score,
            return_hidden=True,
            attention=self.attention,
        )
        logp = self._head_logp(model, hidden, views.target[:, :width][score], temperature)
        return spread(logp, views.score)

    def forwards(self, views: NoisyViews) -> Float[Tensor, " n"]:
        """One each."""
        return torch.ones(len(views))

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        config: SamplingConfig,
        generators: Sequence[torch.Generator],
        record: frozenset[Records] = frozenset(),
    ) -> Samples:
        """As `Backbone.sample`; the head runs on the current blocks only."""
        self._check_request(record, prompts, generators)
        with torch.no_grad():
            return sample_masked(
                self._logits,
                prompts,
                config,
                generators,
                mask_id=self.mask_id,
                pad_id=self.pad_id,
                eos_ids=self.eos_ids,
                device=self.model.device,
            )

    def _logits(self, ids: Tensor, valid: Tensor, columns: Tensor) -> Tensor:
        logits: Tensor = self.model(
            ids,
            attention_mask=None if bool(valid.all()) else valid,
            logits_positions=columns,
            attention=self.attention,
        )
        return logits


def used_width(valid: Tensor) -> int:
    """Columns up to the last valid one of any row."""
    used = valid.any(0).nonzero()
    return int(used[-1]) + 1 if len(used) else 0
