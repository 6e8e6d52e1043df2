"""Where phases of a training step run: here, in this process. Several devices implement the same small Protocol later.

The driver loop is written once against `PolicyGroup` and cannot tell how many ranks there are. Rows are CPU tensors
with a common leading dimension; results do not depend on how they are cut, since every draw is keyed by row and every
denominator is global.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from torch import Tensor

Rows = Mapping[str, Tensor]
T = TypeVar("T")


class PolicyGroup(Protocol):
    """Runs phases of a rank-local object on every rank."""

    world: int

    def map(self, phase: str, rows: Rows) -> dict[str, Tensor]:
        """Rows in, rows out, order kept: each rank gets a part."""

    def reduce(self, phase: str, rows: Rows, units: Rows) -> dict[str, float]:
        """Rows in, one global answer: an update. Rows that share a unit stay on one rank."""

    def each(self, phase: str, *args: Any) -> list[Any]:
        """The same call on every rank, for example saving a checkpoint."""

    def once(self, work: Callable[[], T]) -> T:
        """Exactly one execution in the whole group, its answer known to all: rewards, logging."""

    def close(self) -> None:
        """Give the devices back."""


class InProcess:
    """One device, no process group."""

    world = 1

    def __init__(self, core: object) -> None:
        self._core = core

    def map(self, phase: str, rows: Rows) -> dict[str, Tensor]:
        """Run the phase on all rows."""
        answer: dict[str, Tensor] = getattr(self._core, phase)(**rows)
        return answer

    def reduce(self, phase: str, rows: Rows, units: Rows) -> dict[str, float]:
        """Run the phase on all rows and units."""
        answer: dict[str, float] = getattr(self._core, phase)(rows, units)
        return answer

    def each(self, phase: str, *args: Any) -> list[Any]:
        """Call the phase once."""
        return [getattr(self._core, phase)(*args)]

    def once(self, work: Callable[[], T]) -> T:
        """Do the work."""
        return work()

    def close(self) -> None:
        """Nothing to give back."""
