"""What the numbers allow to say: intervals over seeds, tests between entries, rank ranges, and how many digits.

The seed is the unit wherever algorithms are compared, the item wherever one checkpoint is scored. All functions are
pure. With two or three seeds a percentile bootstrap covers half to three quarters of what it promises; the t interval
covers what it promises, and is as wide as that takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr, stdtrit

from dare_platform.board import Estimate

LEVEL = 0.95
ALPHA = 1 - LEVEL
MINUS = "\u2212"

Floats = npt.NDArray[np.float64]


class TooFewValuesError(ValueError):
    """A statistic was asked of fewer values than it needs."""


def mean_interval(values: Sequence[float], level: float = LEVEL) -> Estimate:
    """Mean of seed means with the half-width of its t interval; one seed has a mean and no interval."""
    if not values:
        raise TooFewValuesError("there is no mean of no seeds")
    seeds = len(values)  # a few: plain floats are faster than an array
    mean = float(sum(values) / seeds)
    half_width = None
    if seeds > 1:
        deviation = math.sqrt(sum((value - mean) * (value - mean) for value in values) / (seeds - 1))
        half_width = _quantile(seeds - 1, (1 + level) / 2) * deviation / math.sqrt(seeds)
    return Estimate(value=mean, half_width=half_width, seeds=seeds)


@cache
def _quantile(freedom: int, probability: float) -> float:
    return float(stdtrit(freedom, probability))


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
    paired = _samples([np.subtract(a, b)])
    return float(_two_sided(paired.mean, paired.variance, paired.seeds - 1)[0])


def welch_p(a: Sequence[float], b: Sequence[float]) -> float:
    """Two-sided p of equal means for two samples of seeds with variances of their own."""
    return float(_two_sided(*_welch(*_two_samples(a, b)))[0])


def difference_interval(a: Sequence[float], b: Sequence[float], level: float = LEVEL) -> tuple[float, float]:
    """Welch's interval of mean(a) - mean(b)."""
    difference, variance, freedom = (float(one[0]) for one in _welch(*_two_samples(a, b)))
    half = float(stdtrit(freedom, (1 + level) / 2)) * math.sqrt(variance)
    return difference - half, difference + half


def pooled_spread(a: Sequence[float], b: Sequence[float]) -> float:
    """Standard deviation between seeds, as two samples of them together estimate it."""
    freedom = len(a) + len(b) - 2
    if freedom < 1 or not a or not b:
        raise TooFewValuesError(f"no spread can be seen in {len(a)} and {len(b)} seeds")
    squares = sum(float(np.var(values)) * len(values) for values in (a, b))
    return math.sqrt(squares / freedom)


class _Samples(NamedTuple):
    """Samples of seeds, one or many: what the tests know of each."""

    mean: Floats
    variance: Floats
    """Of the mean; 0 for one seed, which has none."""
    seeds: Floats


def _samples(values: Iterable[Sequence[float] | Floats]) -> _Samples:
    arrays = [np.asarray(one, dtype=np.float64) for one in values]
    return _Samples(
        mean=np.array([one.mean() for one in arrays]),
        variance=np.array([one.var(ddof=1) / len(one) if len(one) > 1 else 0.0 for one in arrays]),
        seeds=np.array([len(one) for one in arrays], dtype=np.float64),
    )


def _two_samples(a: Sequence[float], b: Sequence[float]) -> tuple[_Samples, _Samples]:
    if len(a) < 2 or len(b) < 2:
        raise TooFewValuesError(f"Welch's test needs two seeds a side; given: {len(a)} and {len(b)}")
    return _samples([a]), _samples([b])


def _welch(a: _Samples, b: _Samples) -> tuple[Floats, Floats, Floats]:
    """Differences of the means, their variances, and the degrees of freedom after Welch and Satterthwaite."""
    variance = a.variance + b.variance
    weights = sum(one.variance**2 / np.maximum(one.seeds - 1, 1) for one in (a, b))
    freedom = np.divide(variance**2, weights, out=a.seeds + b.seeds - 2, where=weights > 0)
    return a.mean - b.mean, variance, freedom


def _two_sided(mean: Floats, variance_of_mean: Floats, freedom: Floats) -> Floats:
    """Without any spread the test has its limit: certain when the means differ, nothing to see when they do not."""
    certain = variance_of_mean == 0
    p = 2 * stdtr(freedom, -np.abs(mean) / np.sqrt(np.where(certain, 1, variance_of_mean)))
    return np.where(certain, mean == 0, p)


def holm(p_values: Sequence[float] | Floats) -> Floats:
    """Adjusted p-values that keep the chance of any false finding among all of them below the level."""
    raw = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(raw, kind="stable")
    left = np.arange(len(raw), 0, -1)
    adjusted = np.empty_like(raw)
    adjusted[order] = np.maximum.accumulate(np.minimum(1, left * raw[order]))
    return adjusted


class Pairs(NamedTuple):
    """Every entry (row) against every other (column)."""

    difference: Floats
    p: Floats
    """After Holm over all pairs; 1 of an entry against itself."""

    @property
    def separated(self) -> npt.NDArray[np.bool_]:
        """The difference is significant at 5 % among all comparisons of the board."""
        return self.p < ALPHA


def all_pairs(entries: Sequence[Sequence[float]]) -> Pairs:
    """Welch's test between any two entries, adjusted over all pairs. An entry with one seed is never separated."""
    return _pairs_of(_samples(entries))


def pairs_of_estimates(estimates: Sequence[Estimate]) -> Pairs:
    """The same from means and their t intervals, where the seeds themselves are not at hand."""
    halves = [0.0 if one.half_width is None else one.half_width for one in estimates]
    quantiles = [_quantile(max(one.seeds - 1, 1), (1 + LEVEL) / 2) for one in estimates]
    return _pairs_of(
        _Samples(
            mean=np.array([one.value for one in estimates]),
            variance=(np.array(halves) / np.array(quantiles)) ** 2,
            seeds=np.array([one.seeds for one in estimates], dtype=np.float64),
        )
    )


def _pairs_of(every: _Samples) -> Pairs:
    first, second = np.triu_indices(len(every.mean), k=1)
    a, b = (_Samples(*(values[side] for values in every)) for side in (first, second))
    raw = np.where(np.minimum(a.seeds, b.seeds) > 1, _two_sided(*_welch(a, b)), 1)
    p = np.ones((len(every.mean), len(every.mean)))
    p[first, second] = p[second, first] = holm(raw)
    return Pairs(difference=every.mean[:, None] - every.mean, p=p)


def rank_ranges(entries: Mapping[str, Sequence[float]]) -> dict[str, tuple[int, int]]:
    """From 1 + how many are significantly better to how many are not significantly worse."""
    compared = all_pairs(list(entries.values()))
    better = (compared.separated & (compared.difference < 0)).sum(axis=1)
    worse = (compared.separated & (compared.difference > 0)).sum(axis=1)
    return {
        name: (1 + int(above), len(entries) - int(below))
        for name, above, below in zip(entries, better, worse, strict=True)
    }


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
