"""What a comparison can see: the smallest gap that so many seeds, or so many items, show four times in five."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import chdtri, ndtr, ndtri, stdtrit

from dare_platform.statistics import ALPHA, TooFewValuesError

POWER = 0.8
"""Chance of seeing a gap that is there."""
SEEDS = (3, 5, 8, 12, 20)
QUANTILES = 400
LARGEST_GAP = 100.0
"""In standard deviations: two seeds a side need ten."""


def power_of_welch(seeds: int, gap: float) -> float:
    """Chance that Welch's two-sided test at 5 % sees a gap of so many standard deviations with `seeds` a side.

    Given both sample variances the difference of the means is normal and the edge of the test is known; the chance is
    the mean of that over the two chi-squared distributions, by their quantiles. Counts findings of either sign.
    """
    squares, edges = _edges(seeds)
    scale = math.sqrt(2 / seeds)
    reach = edges * np.sqrt(squares[:, None] + squares[None, :]) / math.sqrt(seeds)
    found = ndtr((gap - reach) / scale) + ndtr((-gap - reach) / scale)
    return float(found.mean())


@cache
def _edges(seeds: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Quantiles of a sample variance, and for each pair of them the edge of the t distribution that Welch takes."""
    shares = (np.arange(QUANTILES) + 0.5) / QUANTILES
    squares = np.asarray(chdtri(seeds - 1, 1 - shares)) / (seeds - 1)
    first, second = squares[:, None], squares[None, :]
    freedom = (seeds - 1) * (first + second) ** 2 / (first**2 + second**2)
    return squares, np.asarray(stdtrit(freedom, 1 - ALPHA / 2))


def gap_between_seeds(seeds: int, spread: float, power: float = POWER) -> float:
    """Smallest gap of two algorithms that Welch's test between `seeds` a side sees with this power, for one pair.

    A board adjusts over all of its pairs and needs more. `spread` is the standard deviation between seeds, equal on
    both sides, in the unit of the answer.
    """
    if seeds < 2:
        raise TooFewValuesError(f"one seed shows no gap between algorithms, whatever it is; given: {seeds}")
    if spread <= 0:
        return 0.0
    return spread * _standard_gap(seeds, power)


@cache
def _standard_gap(seeds: int, power: float) -> float:
    return float(brentq(lambda gap: power_of_welch(seeds, gap) - power, 0.0, LARGEST_GAP, xtol=1e-6))


def gap_between_checkpoints(items: int, discordant: float, power: float = POWER) -> float | None:
    """Smallest gap of two checkpoints that a paired test over `items` sees, where a share `discordant` differs.

    None where even a gap as large as that, all of it in favour of one, is seen less often.

    By the normal approximation of McNemar's test: the variance of an item's difference is `discordant` minus the gap
    squared.
    """
    if not 0 <= discordant <= 1:
        raise ValueError(f"{discordant} is no share of items")
    if items < 2:
        raise TooFewValuesError(f"one item shows no gap; given: {items}")
    edge, wanted = float(ndtri(1 - ALPHA / 2)), float(ndtri(power))

    def short(gap: float) -> float:
        spread = math.sqrt(max(discordant - gap**2, 0.0))
        return gap * math.sqrt(items) - edge * math.sqrt(discordant) - wanted * spread

    return None if short(discordant) < 0 else float(brentq(short, 0.0, discordant))


@dataclass(frozen=True)
class Settling:
    """What would settle a comparison."""

    seeds: int
    gap: float
    """What that many seeds a side can show."""
    more: tuple[tuple[int, float], ...]
    """Seeds a side and what they would show, while it shrinks."""
    enough: int | None
    """Seeds a side with which a gap of the observed size would be seen; None where none of those tried is enough."""

    @property
    def sentence(self) -> str:
        """In points. The spread is that of few seeds, so that its figures are a guide and no promise."""
        if self.gap == 0:
            return "Its seeds agree to the last item, so that nothing can be said of more of them."
        shown = f"With {self.seeds} seeds a side a gap of {100 * self.gap:.1f} points is seen four times in five"
        if not self.more:
            return f"{shown}."
        if self.enough is not None:
            return f"{shown}; one as large as this takes about {self.enough}, if further seeds spread as these do."
        seeds, gap = self.more[-1]
        return f"{shown}, with {seeds} one of {100 * gap:.1f}: this one is smaller."


def what_would_settle(difference: float, spread: float, seeds: int) -> Settling:
    """What seeds a side would see a gap of this size, given the spread between seeds that was observed."""
    more = tuple((count, gap_between_seeds(count, spread)) for count in SEEDS if count > seeds)
    enough = next((count for count, gap in more if gap <= abs(difference)), None)
    return Settling(seeds, gap_between_seeds(seeds, spread), more, enough)
