"""The slow path of block families: no cache, the whole prefix again at every step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dare.attention import Sight


class Recomputed:
    """A `BlockModel` without a cache: the whole prefix again at every step."""

    def __init__(self, model: Any, block_size: int) -> None:
        self.block_size = block_size
        self._model = model

    def prefill(self, ids: Tensor, length: Tensor, width: int) -> None:
        """Remember the finished blocks."""
        self._context = [row[:n] for row, n in zip(ids, length.tolist(), strict=True)]

    def logits(self, ids: Tensor, columns: Tensor, real: Tensor) -> Tensor:
        """One forward over context and block, rows of equal length together."""
        self._last = ids
        out = [None] * len(ids)
        for n in {len(context) for context in self._context}:
            rows = [row for row, context in enumerate(self._context) if len(context) == n]
            whole = torch.stack([torch.cat([self._context[row], ids[row]]) for row in rows])
            position = torch.arange(whole.shape[1], device=ids.device).expand_as(whole)
            mask = Sight.blocks(position, self.block_size)
            columns = torch.arange(n, whole.shape[1], device=ids.device).expand(len(rows), -1)
            logits = self._model(whole, position_ids=position, block_mask=mask, logits_positions=columns)
            for row, one in zip(rows, logits, strict=True):
                out[row] = one
        return torch.stack(out)  # type: ignore[arg-type]

    def extend(self, rows: Tensor) -> None:
        """Finished blocks join the context."""
        for row in rows.nonzero().flatten().tolist():
            self._context[row] = torch.cat([self._context[row], self._last[row]])

    def keep(self, rows: Tensor) -> None:
        """Go on with some rows."""
        self._context = [self._context[row] for row in rows.tolist()]
        self._last = self._last[rows]
