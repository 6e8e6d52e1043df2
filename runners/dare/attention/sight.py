"""Who looks at whom, by index arithmetic: a few numbers per token instead of a matrix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from jaxtyping import Bool, Int
from torch import Tensor

NOWHERE = torch.iinfo(torch.long).max
"""The block of a key that no query sees by its block."""


@dataclass(frozen=True)
class SameKeys:
    """Every query of a row sees exactly the row's `real` keys (padding, decoding against a cache)."""

    real: Bool[Tensor, "B L"]
    count: Int[Tensor, " B"] | None = None
    """How many they are, where it is known that they are the first ones of the row."""


@dataclass(frozen=True)
class Pack:
    """Sequences end to end in one row, each token seeing exactly its own sequence."""

    lengths: tuple[int, ...]

    def runs(self) -> Iterator[tuple[int, int]]:
        """(count, length) of neighbours of equal length."""
        for length, group in groupby(self.lengths):
            yield len(list(group)), length


@dataclass(frozen=True)
class Sight:
    """Query q of a row sees key k when `block[k] < limit[q]`, or when both have the same place.

    Places count from 0; a negative one is nobody's, and another for queries than for keys.
    Full attention, padding, causal blocks, packed sequences and the doubled input of block families are all of this
    form. `form` says the same once more for kernels that want structure instead of a rule; `matrix` is the definition.
    """

    limit: Int[Tensor, "B Q"]
    block: Int[Tensor, "B L"]
    query_place: Int[Tensor, "B Q"] | None = None
    key_place: Int[Tensor, "B L"] | None = None
    form: SameKeys | Pack | None = None

    @classmethod
    def everywhere(cls, real: Tensor, queries: int | None = None) -> Sight:
        """All queries (as many as keys, unless said) look at all `real` keys (B, L)."""
        return cls._same(SameKeys(real.bool()), queries)

    @classmethod
    def first(cls, count: Int[Tensor, " B"], keys: int, queries: int | None = None) -> Sight:
        """All queries look at the first `count` of `keys` keys of their row."""
        return cls._same(SameKeys(torch.arange(keys, device=count.device) < count[:, None], count), queries)

    @classmethod
    def _same(cls, form: SameKeys, queries: int | None) -> Sight:
        rows, keys = form.real.shape
        block = torch.zeros_like(form.real, dtype=torch.long).masked_fill(~form.real, NOWHERE)
        return cls(block.new_ones(rows, keys if queries is None else queries), block, form=form)

    @classmethod
    def blocks(cls, position: Int[Tensor, "B L"], size: int, real: Tensor | None = None) -> Sight:
        """A token looks at its own block and the blocks before it; blocks of `size` count from position 0."""
        block = position // size
        return cls(block + 1, block if real is None else torch.where(real.bool(), block, NOWHERE))

    @classmethod
    def packed(cls, lengths: Sequence[int], device: torch.device | None = None) -> Sight:
        """One row of sequences end to end; a token looks at its own."""
        count = torch.tensor(lengths, dtype=torch.long, device=device)
        own = torch.arange(len(lengths), device=device).repeat_interleave(count, output_size=sum(lengths))[
            None
        ]  # (1, T)
        nobody = torch.full_like(own, NOWHERE)
        return cls(torch.zeros_like(own), nobody, own, own, Pack(tuple(lengths)))

    def matrix(self) -> Bool[Tensor, "B 1 Q L"]:
        """The same as a boolean matrix: what kernels without index arithmetic need."""
        seen = self.block[:, None, :] < self.limit[..., None]
        if self.query_place is not None and self.key_place is not None:
            seen = seen | (self.key_place[:, None, :] == self.query_place[..., None])
        return seen[:, None]


Mask = Bool[Tensor, "B 1 Q L"] | Sight | None
"""True where a query may look; None is everywhere."""
