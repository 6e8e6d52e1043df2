"""Keys and values of positions that are computed already."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass
class KeyValueCache:
    """Keys (rotated) and values per layer, stored at the column that is their position; for inference only.

    A forward writes the columns it computes and looks at them and at the first `length` columns of its row. What lies
    elsewhere is never read, so a block that is still noisy may be written again and again until `length` includes it;
    columns below `length` may be written over (the dual cache of full-attention models).
    """

    keys: list[Float[Tensor, "B W K D"]]
    values: list[Float[Tensor, "B W K D"]]
    length: Int[Tensor, " B"]

    @classmethod
    def empty(cls, layers: int, rows: int, width: int, heads: int, size: int, like: Tensor) -> KeyValueCache:
        """Room for `width` positions in the dtype and on the device of `like`."""
        keys, values = ([like.new_zeros(rows, width, heads, size) for _ in range(layers)] for _ in range(2))
        return cls(keys, values, torch.zeros(rows, dtype=torch.long, device=like.device))

    def visible(self, position: Int[Tensor, "B Q"], real: Tensor | None) -> Bool[Tensor, "B 1 1 W"]:
        """Columns that queries at `position` may look at: the committed ones and their own, if real."""
        width = self._reach(position)
        column = torch.arange(width, device=position.device)
        committed = column < self.length[:, None]
        own = torch.ones_like(position, dtype=torch.bool) if real is None else real.bool()
        return (committed.scatter(1, position, own))[:, None, None, :]

    def store(self, layer: int, key: Tensor, value: Tensor, position: Int[Tensor, "B Q"]) -> tuple[Tensor, Tensor]:
        """Write (B, K, Q, D) at `position`; all keys and values up to the last column in use."""
        width = self._reach(position)
        row = torch.arange(len(position), device=position.device)[:, None]
        self.keys[layer][row, position] = key.transpose(1, 2)
        self.values[layer][row, position] = value.transpose(1, 2)
        return self.keys[layer][:, :width].transpose(1, 2), self.values[layer][:, :width].transpose(1, 2)

    def keep(self, rows: Int[Tensor, " n"]) -> None:
        """Forget all other rows."""
        self.keys = [key[rows] for key in self.keys]
        self.values = [value[rows] for value in self.values]
        self.length = self.length[rows]

    def _reach(self, position: Tensor) -> int:
        return max(int(position.max()) + 1, int(self.length.max()))
