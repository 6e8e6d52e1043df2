"""The export of a policy trained with adapters: plain weights that compute what was trained, or no export at all.

Base, adapted, merged and reloaded model are compared by their float32 logits on real prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dare.family import Backbone
from dare.lora import Adapters, MergeError, SilentBaseError
from dare.tasks import Dialogue

MERGE_TOLERANCE = 1e-4
"""How far the adapted and the merged model may be apart, in units of the largest logit.

Measured is the largest difference of logits at each masked token, and of these the median: what is wrong with a merge
is wrong everywhere, whereas a router of experts may take another way at a token that stood between two.
"""
MASKS = 8


class Probe(NamedTuple):
    """Prompts, each followed by a few masked tokens whose logits are compared."""

    ids: Int[Tensor, "B L"]
    valid: Bool[Tensor, "B L"]
    masked: Bool[Tensor, "B L"]


def probe_of(backbone: Backbone, prompts: Sequence[Dialogue]) -> Probe:
    """The canvas of real prompts."""
    rows = [[*backbone.tokenizer.prompt_ids(text), *[backbone.mask_id] * MASKS] for text in prompts]
    length = torch.tensor([len(row) for row in rows])
    column = torch.arange(int(length.max()))
    ids = torch.full((len(rows), len(column)), backbone.pad_id)
    for row, tokens in zip(ids, rows, strict=True):
        row[: len(tokens)] = torch.tensor(tokens)
    valid = column < length[:, None]
    return Probe(ids, valid, valid & (column >= length[:, None] - MASKS))


@torch.no_grad()
def logits_on(probe: Probe, backbone: Backbone) -> Float[Tensor, "N V"]:
    """Logits at the masked tokens."""
    model = backbone.model
    ids, valid, masked = (tensor.to(next(model.parameters()).device) for tensor in probe)
    logits: Tensor = model(ids, attention_mask=valid, logits_positions=masked)
    return logits.float().cpu()


def distance(a: Float[Tensor, "N V"], b: Float[Tensor, "N V"]) -> float:
    """Largest difference of logits at the median token."""
    return float((a - b).abs().amax(1).median())


@dataclass(frozen=True)
class Export:
    """The logits of the merged model and of its base."""

    merged: Float[Tensor, "N V"]
    base: Float[Tensor, "N V"]

    def check(self, loaded: Tensor, trained: bool = True) -> None:
        """MergeError unless the model that was loaded from the export is the merged one."""
        if trained and torch.equal(loaded, self.base):
            raise SilentBaseError(
                "the exported weights load as the base: their logits equal those of the untrained model"
            )
        if not torch.equal(loaded, self.merged):
            apart = float((loaded - self.merged).abs().max())
            raise MergeError(f"the exported weights, loaded again, give logits that differ by {apart:.2g}")


def export(adapters: Adapters, backbone: Backbone, probe: Probe, directory: Path, trained: bool = True) -> Export:
    """Write the merged model to `directory`, once its logits are known to be those of the adapted one.

    Args:
        trained: whether any update moved the adapters; then logits of the base are an error.
    """
    with adapters.widened():
        adapted = logits_on(probe, backbone)
        with adapters.switched_off():
            base = logits_on(probe, backbone)
    with adapters.merged():
        merged = logits_on(probe, backbone)
        apart, largest = distance(merged, adapted), max(1.0, float(adapted.abs().max()))
        if not apart <= MERGE_TOLERANCE * largest:
            raise MergeError(
                f"merged and adapted model differ by {apart:.2g} in logits of up to {largest:.2g}; allowed is a share "
                f"of {MERGE_TOLERANCE:g}: nothing was exported, the adapter is kept"
            )
        if trained and torch.equal(merged, base):
            raise SilentBaseError(
                "the adapters were trained, but the merged model gives exactly the logits of the base: nothing was "
                "exported, the adapter is kept; the learning rate may be too small to move a weight"
            )
        backbone.save(directory)
    return Export(merged, base)
