"""One comparison: two ways to do the same work, alternating in one process, as a ratio."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One comparison: the fast path, the slow one, and slow over fast."""

    name: str
    fast: float
    slow: float
    ratio: float
    unit: str
    pairs: int


def paired(name: str, fast: Callable[[], object], slow: Callable[[], object], pairs: int) -> Row:
    """Alternate the two after one warm-up of each."""
    fast(), slow()
    taken = [(seconds(fast), seconds(slow)) for _ in range(pairs)]
    ratio = statistics.median(b / a for a, b in taken)
    a, b = (statistics.median(column) for column in zip(*taken, strict=True))
    return Row(name, a, b, ratio, "CPU s", pairs)


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of this process."""
    start = time.process_time()
    work()
    return time.process_time() - start
