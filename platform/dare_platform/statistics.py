"""What the numbers allow to say: intervals over seeds, tests between entries, rank ranges, and how many digits.

The seed is the unit wherever algorithms are compared, the item wherever one checkpoint is scored. All functions are
pure. With two or three seeds a percentile bootstrap covers half to three quarters of what it promises; the t interval
covers what it promises, and is as wide as that takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import stdtr, stdtrit

from dare_platform.board import Estimate

LEVEL = 0.95
ALPHA = 1 - LEVEL
MINUS = "\u2212"


class TooFewValuesError(ValueError):
    """A statistic was asked of fewer values than it needs."""


def mean_interval(values: Sequence[float], level: float = LEVEL) -> Estimate:
    """Mean of seed means with the half-width of its t interval; one seed has a mean and no interval."""
    if not values:
        raise TooFewValuesError("there is no mean of no seeds")
    array = np.asarray(values, dtype=np.float64)
    half_width = None
    if len(array) > 1:
        quantile = float(stdtrit(len(array) - 1, (1 + level) / 2))
        half_width = quantile * float(array.std(ddof=1)) / math.sqrt(len(array))
    return Estimate(value=float(array.mean()), half_width=half_width, seeds=len(array))


def differences(values: Mapping[int, float], reference: Mapping[int, float]) -> dict[int, float]:
    """Value minus reference for every seed that has both."""
    return {seed: values[seed] - reference[seed] for seed in sorted(values.keys() & reference.keys())}


def excludes_zero(estimate: Estimate) -> bool:
    """Whether the interval lies on one side of zero. Never with one seed, which has none."""
    return estimate.half_width is not None and abs(estimate.value) > estimate.half_width


def paired_p(a: Sequence[float], b: Sequence[float]) -> float:
    """Two-sided p of equal means, from differences seed by seed."""
    if len(a) != len(b) or len(a) < 2:
        raise TooFewValuesError(f"a paired test needs two pairs or more; given: {len(a)} and {len(b)} values")
    difference = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    return _two_sided(float(difference.mean()), float(difference.var(ddof=1)) / len(difference), len(difference) - 1)


def welch_p(a: Sequence[float], b: Sequence[float]) -> float:
    """Two-sided p of equal means for two samples of seeds with variances of their own."""
    return _two_sided(*_welch(a, b))


def difference_interval(a: Sequence[float], b: Sequence[float], level: float = LEVEL) -> tuple[float, float]:
    """Welch's interval of mean(a) - mean(b)."""
    difference, variance, freedom = _welch(a, b)
    half = float(stdtrit(freedom, (1 + level) / 2)) * math.sqrt(variance)
    return difference - half, difference + half


def _welch(a: Sequence[float], b: Sequence[float]) -> tuple[float, float, float]:
    """Difference of the means, its variance, and the degrees of freedom after Welch and Satterthwaite."""
    if len(a) < 2 or len(b) < 2:
        raise TooFewValuesError(f"Welch's test needs two seeds a side; given: {len(a)} and {len(b)}")
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    share_a, share_b = float(first.var(ddof=1)) / len(a), float(second.var(ddof=1)) / len(b)
    weights = share_a**2 / (len(a) - 1) + share_b**2 / (len(b) - 1)
    freedom = (share_a + share_b) ** 2 / weights if weights else len(a) + len(b) - 2
    return float(first.mean() - second.mean()), share_a + share_b, freedom


def _two_sided(mean: float, variance_of_mean: float, freedom: float) -> float:
    """Without any spread the test has its limit: certain when the means differ, nothing to see when they do not."""
    if variance_of_mean == 0:
        return 1.0 if mean == 0 else 0.0
    return float(2 * stdtr(freedom, -abs(mean) / math.sqrt(variance_of_mean)))


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Adjusted p-values that keep the chance of any false finding among all of them below the level."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for position, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - position) * p_values[index]))
        adjusted[index] = largest
    return tuple(adjusted)


@dataclass(frozen=True)
class Comparison:
    """Whether a beats b: p after Holm over all pairs of the board, and the sign of the difference."""

    difference: float
    p: float

    @property
    def separated(self) -> bool:
        """The difference is significant at 5 % among all comparisons of the board."""
        return self.p < ALPHA


def all_pairs(entries: Mapping[str, Sequence[float]]) -> dict[tuple[str, str], Comparison]:
    """Welch's test between any two entries, adjusted over all pairs. An entry with one seed is never separated."""
    names = list(entries)
    pairs = [(a, b) for index, a in enumerate(names) for b in names[index + 1 :]]
    raw = [welch_p(entries[a], entries[b]) if min(len(entries[a]), len(entries[b])) > 1 else 1.0 for a, b in pairs]
    found: dict[tuple[str, str], Comparison] = {}
    for (a, b), p in zip(pairs, holm(raw), strict=True):
        difference = float(np.mean(entries[a]) - np.mean(entries[b]))
        found[a, b], found[b, a] = Comparison(difference, p), Comparison(-difference, p)
    return found


def rank_ranges(entries: Mapping[str, Sequence[float]]) -> dict[str, tuple[int, int]]:
    """From 1 + how many are significantly better to how many are not significantly worse."""
    compared = all_pairs(entries)
    ranges = {}
    for name in entries:
        against = [compared[name, other] for other in entries if other != name]
        better = sum(one.separated and one.difference < 0 for one in against)
        worse = sum(one.separated and one.difference > 0 for one in against)
        ranges[name] = (1 + better, len(entries) - worse)
    return ranges


def standard_error(outcomes: Sequence[float], clusters: Sequence[str | None] | None = None) -> float | None:
    """Standard error of a mean over items; items of one cluster count as one draw. None for fewer than two draws."""
    values = np.asarray(outcomes, dtype=np.float64)
    if clusters is None or all(cluster is None for cluster in clusters):
        return float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else None
    names = [cluster if cluster is not None else f"\0{position}" for position, cluster in enumerate(clusters)]
    distinct, member = np.unique(np.asarray(names), return_inverse=True)
    if len(distinct) < 2:
        return None
    sums = np.bincount(member, weights=values - values.mean(), minlength=len(distinct))
    correction = len(distinct) / (len(distinct) - 1)
    return math.sqrt(correction * float((sums**2).sum())) / len(values)


@cache
def chance_p(successes: int, trials: int, chance: float) -> float:
    """Probability of so many successes or more when each has probability `chance`: exact, one-sided."""
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} of {trials} items cannot be right")
    if successes == 0 or chance >= 1:
        return 1.0
    if chance <= 0:
        return 0.0
    logs = [
        math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
        + k * math.log(chance) + (trials - k) * math.log1p(-chance)
        for k in range(successes, trials + 1)
    ]  # fmt: skip
    return min(1.0, math.fsum(math.exp(log) for log in logs))


def above_chance(value: float, items: int, chance: float) -> bool:
    """Whether a share of items is significantly above the floor.

    Seeds answer the same items, so that they are no further independent draws: the mean over seeds is tested as if
    one checkpoint had given it.
    """
    return chance_p(round(value * items), items, chance) < ALPHA


# --- digits ---------------------------------------------------------------------------------------------------------


def decimals(half_width: float | None, most: int = 1) -> int:
    """Decimals of a number in points: the half-width keeps two significant digits, none from 10 on, `most` at most."""
    if half_width is None or half_width <= 0:
        return most
    digits = max(0, 1 - math.floor(math.log10(half_width)))
    if round(half_width, digits) >= 10 ** (2 - digits):  # 9.96 becomes 10
        digits = max(0, digits - 1)
    return min(digits, most)


def written(
    value: float, half_width: float | None = None, *, scale: float = 100, signed: bool = False, most: int = 1
) -> tuple[str, str | None]:
    """A number and its half-width as they are shown, always with equal decimals. Shares become percent by `scale`."""
    half = None if half_width is None else half_width * scale
    places = decimals(half, most)
    number = round(value * scale, places)
    sign = MINUS if number < 0 else "+" if signed and number > 0 else ""
    return f"{sign}{abs(number):.{places}f}", None if half is None else f"{half:.{places}f}"


def in_words(estimate: Estimate, *, signed: bool = False) -> str:
    """`14.8 ± 2.1`; the half-width is left out below three seeds, where it would be wider than the scale."""
    half = estimate.half_width if estimate.seeds > 2 else None
    value, width = written(estimate.value, half, signed=signed)
    return f"{value} ± {width}" if width is not None else value
