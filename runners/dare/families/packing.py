"""The real tokens of all views end to end in one row, so that padding costs nothing."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dare.attention import Sight
from dare.types import NoisyViews

PACKS = {("cpu", "sdpa"), ("cuda", "flash"), ("cuda", "flex")}
"""Where attention over a pack costs what its sequences cost: one by one, by varlen kernels, or by skipping tiles."""
PAYS_FROM = 0.1
"""The share of padding that costs more than packing does: by `python -m benchmarks attention` on a CPU the two are
equal at 1 to 3 %, and packing is 1.1 times as fast at 10 to 18 %, 1.7 to 2.2 times at 50 %."""


class PackedInput(NamedTuple):
    """T real tokens, the shortest views first, so that views of equal length can be attended to as one batch."""

    ids: Int[Tensor, "1 T"]
    position: Int[Tensor, "1 T"]
    """The column of each token in its view."""
    sight: Sight
    read: Int[Tensor, "1 N"]
    """Where the logits of each scored token lie in the row."""
    home: Int[Tensor, " N"]
    """Where each scored token lies in the flattened views."""


def packed_input(views: NoisyViews, logit_shift: int = 0) -> PackedInput:
    """The input that scores all views at once.

    Args:
        logit_shift: how far left of a token its logits lie, never beyond the first token of its own view.
    """
    lengths, order = views.valid.sum(1).sort(stable=True)
    row, column = views.valid[order].nonzero(as_tuple=True)  # (T,)
    home = order[row] * views.ids.shape[1] + column
    sizes = [length for length in lengths.tolist() if length]
    score = views.score.flatten()[home]
    inside = torch.arange(len(row), device=row.device) - (lengths.cumsum(0) - lengths)[row]
    shift = inside.clamp(max=logit_shift)
    return PackedInput(
        ids=views.ids.flatten()[home][None],
        position=column[None],
        sight=Sight.packed(sizes, row.device),
        read=(torch.arange(len(row), device=row.device) - shift)[score][None],
        home=home[score],
    )


def packing_pays(valid: Bool[Tensor, "n S"], attention: str) -> bool:
    """Whether a batch is scored faster without its padding."""
    if (valid.device.type, attention) not in PACKS or not valid.numel():
        return False
    return 1.0 - float(valid.float().mean()) >= PAYS_FROM
