"""Keys and values of positions that are computed already."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dare.attention import Sight


@dataclass
class KeyValueCache:
    """Keys (rotated) and values per layer, stored at the column that is their position; for inference only.

    A forward writes the columns it computes and looks at them and at the first `length` columns of its row. What lies
    elsewhere is never read, so a block that is still noisy may be written again and again until `length` includes it;
    columns below `length` may be written over (the dual cache of full-attention models).
    """

    keys: list[Float[Tensor, "R W K D"]]
    values: list[Float[Tensor, "R W K D"]]
    length: Int[Tensor, " B"]
    rows: Int[Tensor, " B"] | None = None
    """Which of the R stored rows these B are; None for all of them in order."""
    width: int = 0
    """Columns that the current forward reads."""

    @classmethod
    def empty(cls, layers: int, rows: int, width: int, heads: int, size: int, like: Tensor) -> KeyValueCache:
        """Room for `width` positions in the dtype and on the device of `like`."""
        keys, values = ([like.new_zeros(rows, width, heads, size) for _ in range(layers)] for _ in range(2))
        return cls(keys, values, torch.zeros(rows, dtype=torch.long, device=like.device))

    def of(self, rows: Int[Tensor, " n"], length: Int[Tensor, " n"]) -> KeyValueCache:
        """The same storage for a forward of some of the rows (distinct, ascending), which look at `length` columns.

        What is read of a part of the rows is copied, of all of them it is not.
        """
        return KeyValueCache(self.keys, self.values, length, None if len(rows) == len(self.length) else rows)

    def visible(self, position: Int[Tensor, "B Q"], real: Tensor | None) -> Sight:
        """Columns that queries at `position` may look at: the committed ones and their own, if real."""
        width = self._reach(position)
        column = torch.arange(width, device=position.device)
        committed = column < self.length[:, None]
        own = torch.ones_like(position, dtype=torch.bool) if real is None else real.bool()
        return Sight.everywhere(committed.scatter(1, position, own), queries=position.shape[1])

    def store(self, layer: int, key: Tensor, value: Tensor, position: Int[Tensor, "B Q"]) -> tuple[Tensor, Tensor]:
        """Write (B, K, Q, D) at `position`; all keys and values up to the last column in use."""
        if layer == 0:
            self.width = self._reach(position)  # once a forward: reading it off a GPU waits for the GPU
        row = torch.arange(len(position), device=position.device) if self.rows is None else self.rows
        self.keys[layer][row[:, None], position] = key.transpose(1, 2)
        self.values[layer][row[:, None], position] = value.transpose(1, 2)
        keys, values = self.keys[layer][:, : self.width], self.values[layer][:, : self.width]
        if self.rows is not None:
            keys, values = keys[self.rows], values[self.rows]
        return keys.transpose(1, 2), values.transpose(1, 2)

    def keep(self, rows: Int[Tensor, " n"]) -> None:
        """Go on with these rows only, in this order; one that is named twice becomes two."""
        self.keys = [key[rows] for key in self.keys]
        self.values = [value[rows] for value in self.values]
        self.length = self.length[rows]

    def _reach(self, position: Tensor) -> int:
        return max(int(position.max()) + 1, int(self.length.max()))
