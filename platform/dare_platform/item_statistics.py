"""Two checkpoints on the same items: whether these two differ, which says nothing about the algorithms that made them.

Items are the draws here. A difference between two checkpoints that these tests find is real for these two; another seed
of the same algorithm may turn it round. What algorithms do is tested between seeds: `statistics`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, stdtrit

from dare_platform.statistics import ALPHA, LEVEL, TooFewValuesError, standard_error

RESAMPLES = 10_000
CHUNK = 1_000
"""Resamples at once: memory is that of `CHUNK` x clusters numbers."""
FEWEST = 6
"""Draws that differ: with fewer of them no assignment of signs is rarer than 1 in 20, so that nothing can be found."""
FEWEST_CLUSTERS = 20
"""For an interval: of ten clusters of unequal size, one in eight does not hold the truth."""


@dataclass(frozen=True)
class ItemDifference:
    """Mean score of a minus that of b over the same items."""

    difference: float
    interval: tuple[float, float] | None
    """95 %, over items; None where too few of them differ for any finding, or where there are few clusters."""
    p: float
    """Two-sided, of no difference; for this pair alone, not adjusted for others."""
    items: int
    clusters: int
    """Independent draws: items of one cluster are one."""
    differing: int
    """Of them, those in which the two are not equally good."""

    @property
    def differ(self) -> bool:
        """Whether these two checkpoints differ."""
        return self.p < ALPHA

    @property
    def sentence(self) -> str:
        """The finding, with its unit."""
        words = "These checkpoints differ" if self.differ else "These checkpoints cannot be told apart"
        if self.interval is None:
            few = f"{self.clusters} draws, of which {self.differing} differ, are too few for an interval"
            return f"{words}: {_points(self.difference)} points; {few}."
        low, high = map(_points, self.interval)
        return f"{words}: {_points(self.difference)} points ({low} to {high}) over {self.items} items."


def _points(share: float) -> str:
    return f"{100 * share:+.1f}".replace("-", "\u2212")


def mcnemar_p(only_a: int, only_b: int) -> float:
    """Exact two-sided p of McNemar's test: the items that one checkpoint alone solves are a fair coin's throws.

    Exact rather than mid-p: it never promises more than it keeps, and costs little where items are hundreds.
    """
    if only_a < 0 or only_b < 0:
        raise ValueError(f"{min(only_a, only_b)} items cannot be solved by one alone")
    thrown = only_a + only_b
    return 1.0 if thrown == 0 else min(1.0, 2 * float(bdtr(min(only_a, only_b), thrown, 0.5)))


def item_test(
    a: ArrayLike, b: ArrayLike, clusters: Sequence[str | None] | None = None, seed: int = 0
) -> ItemDifference:
    """Compare two checkpoints item by item.

    `a` and `b` are scores of the same items in the same order; where several samples or seeds are given for an item,
    their mean, which then compares these particular runs together. Solved or not, without clusters: McNemar's exact
    test. Everything else: a test by sign flips of whole clusters. The interval is t over clusters either way.
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(f"two lists of the same items are compared; given: {first.shape} and {second.shape}")
    if len(first) < 2:
        raise TooFewValuesError(f"two items are needed; given: {len(first)}")
    difference = first - second
    sums = _by_cluster(difference, clusters)
    if len(sums) == len(first) and set(np.unique(np.concatenate([first, second]))) <= {0.0, 1.0}:
        p = mcnemar_p(int((difference > 0).sum()), int((difference < 0).sum()))
    else:
        p = sign_flip_p(sums, np.random.default_rng(seed))
    mean, differing = float(difference.mean()), int((sums != 0).sum())
    interval = None
    if differing >= FEWEST and (len(sums) == len(first) or len(sums) >= FEWEST_CLUSTERS):
        error = standard_error(difference.tolist(), clusters)
        half = float(stdtrit(len(sums) - 1, (1 + LEVEL) / 2)) * (error or 0.0)
        interval = (mean - half, mean + half)
    return ItemDifference(mean, interval, p, len(first), len(sums), differing)


def sign_flip_p(sums: NDArray[np.float64], generator: np.random.Generator, resamples: int = RESAMPLES) -> float:
    """Two-sided p that clusters' differences are as likely negative as positive.

    Every assignment of signs where there are no more than `resamples`, otherwise so many at random, the observed one
    counted among them, so that p is never zero.
    """
    moved = sums[sums != 0]
    observed = abs(float(moved.sum()))
    if len(moved) == 0:
        return 1.0
    slack = 1e-12 * float(np.abs(moved).sum())  # sums in another order differ by rounding
    if 2 ** len(moved) <= resamples:
        signs = 1 - 2 * ((np.arange(2 ** len(moved))[:, None] >> np.arange(len(moved))) & 1)
        return float((np.abs(signs @ moved) >= observed - slack).mean())
    beyond = 1
    for start in range(0, resamples, CHUNK):
        count = min(CHUNK, resamples - start)
        signs = generator.integers(0, 2, (count, len(moved)), dtype=np.int8) * 2 - 1
        beyond += int((np.abs(signs @ moved) >= observed - slack).sum())
    return beyond / (resamples + 1)


def _by_cluster(difference: NDArray[np.float64], clusters: Sequence[str | None] | None) -> NDArray[np.float64]:
    """Sum of each cluster; an item without one is its own."""
    names = [f"\0{place}" for place in range(len(difference))]
    if clusters is not None:
        if len(clusters) != len(difference):
            raise ValueError(f"{len(clusters)} clusters are given for {len(difference)} items")
        names = [own if name is None else name for own, name in zip(names, clusters, strict=True)]
    _, member = np.unique(np.asarray(names), return_inverse=True)
    return np.asarray(np.bincount(member, weights=difference), dtype=np.float64)
