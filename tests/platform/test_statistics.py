"""Our statistics agree with scipy where it has them, and keep their promises in simulation where it has not."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from dare_platform import statistics
from dare_platform.board import Estimate

finite = st.floats(-1, 1, allow_nan=False)


@given(st.lists(finite, min_size=2, max_size=12))
def test_the_t_interval_is_scipys(values: list[float]) -> None:
    found = statistics.mean_interval(values)
    error = scipy.stats.sem(values)
    low, high = scipy.stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=error) if error else (0, 0)
    assert found.half_width is not None
    assert found.value == pytest.approx(np.mean(values))
    assert found.half_width == pytest.approx((high - low) / 2, rel=1e-6, abs=1e-12)


def test_one_seed_has_a_mean_and_no_interval() -> None:
    assert statistics.mean_interval([0.3]) == Estimate(0.3, None, 1)
    with pytest.raises(statistics.TooFewValuesError):
        statistics.mean_interval([])


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_the_t_interval_covers_what_it_promises(seeds: int) -> None:
    """95 % nominal. 4000 draws: the Monte Carlo standard error is 0.35 points, the margin four of them."""
    draws = np.random.default_rng(seeds).normal(0.4, 0.05, size=(4000, seeds))
    inside = 0
    for row in draws:
        found = statistics.mean_interval(row.tolist())
        assert found.half_width is not None
        inside += abs(found.value - 0.4) <= found.half_width
    assert abs(inside / 4000 - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 4000)


@given(st.lists(finite, min_size=2, max_size=8), st.lists(finite, min_size=2, max_size=8))
def test_welch_is_scipys(a: list[float], b: list[float]) -> None:
    if np.var(a) < 1e-12 or np.var(b) < 1e-12:
        return
    found = scipy.stats.ttest_ind(a, b, equal_var=False)
    assert statistics.welch_p(a, b) == pytest.approx(found.pvalue, abs=1e-9)
    interval = found.confidence_interval()
    assert statistics.difference_interval(a, b) == pytest.approx((interval.low, interval.high), abs=1e-9)


@given(st.lists(st.tuples(finite, finite), min_size=2, max_size=8))
def test_the_paired_test_is_scipys(pairs: list[tuple[float, float]]) -> None:
    a, b = (list(side) for side in zip(*pairs, strict=True))
    if np.var(np.subtract(a, b)) < 1e-12:
        return
    assert statistics.paired_p(a, b) == pytest.approx(scipy.stats.ttest_rel(a, b).pvalue, abs=1e-9)


def test_without_spread_the_tests_have_their_limits() -> None:
    assert statistics.welch_p([0.5, 0.5], [0.5, 0.5]) == 1.0
    assert statistics.welch_p([0.5, 0.5], [0.6, 0.6]) == 0.0
    assert statistics.paired_p([0.1, 0.2, 0.3], [0.1, 0.2, 0.3]) == 1.0
    with pytest.raises(statistics.TooFewValuesError):
        statistics.welch_p([0.5], [0.5, 0.6])


def test_holm_is_the_worked_example() -> None:
    """Holm 1979: sorted p times the number of hypotheses left, made monotone, at most 1."""
    assert statistics.holm([0.01, 0.04, 0.03]) == pytest.approx((0.03, 0.06, 0.06))
    assert statistics.holm([0.5, 0.9]).tolist() == [1.0, 1.0]
    assert statistics.holm([]).tolist() == []


@given(st.lists(st.floats(0, 1), max_size=10))
def test_holm_lies_between_the_raw_p_and_bonferroni(raw: list[float]) -> None:
    for p, adjusted in zip(raw, statistics.holm(raw), strict=True):
        assert p <= adjusted <= min(1.0, p * len(raw)) + 1e-12


def test_boards_without_any_difference_are_left_alone_by_holm() -> None:
    """Four equal entries, three seeds each: a false pair on at most 5 % of boards, within four Monte Carlo errors."""
    generator = np.random.default_rng(7)
    boards = 1000
    false = 0
    for _ in range(boards):
        false += bool(statistics.all_pairs(generator.normal(0.5, 0.03, (4, 3)).tolist()).separated.any())
    assert false / boards < 0.05 + 4 * math.sqrt(0.05 * 0.95 / boards)


def pair_by_pair(entries: list[list[float]]) -> tuple[list[list[float]], list[list[float]]]:
    """Differences and p-values after Holm, each pair on its own and in plain numbers."""
    pairs = list(itertools.combinations(range(len(entries)), 2))
    raw = []
    for a, b in ((entries[i], entries[j]) for i, j in pairs):
        if min(len(a), len(b)) < 2:
            raw.append(1.0)
            continue
        shares = [float(np.var(one, ddof=1)) / len(one) for one in (a, b)]
        weights = sum(share**2 / (len(one) - 1) for share, one in zip(shares, (a, b), strict=True))
        freedom = sum(shares) ** 2 / weights if weights else len(a) + len(b) - 2
        mean = float(np.mean(a) - np.mean(b))
        if sum(shares) == 0:
            raw.append(1.0 if mean == 0 else 0.0)
        else:
            raw.append(float(2 * scipy.special.stdtr(freedom, -abs(mean) / math.sqrt(sum(shares)))))
    p = [[1.0] * len(entries) for _ in entries]
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(pairs)), key=raw.__getitem__)):
        largest = max(largest, min(1.0, (len(pairs) - rank) * raw[index]))
        i, j = pairs[index]
        p[i][j] = p[j][i] = largest
    return [[float(np.mean(a) - np.mean(b)) for b in entries] for a in entries], p


scores = st.lists(st.sampled_from([0.0, 0.25, 0.5]) | st.floats(0, 1), min_size=1, max_size=6)


def test_pairs_of_estimates_are_those_of_the_seeds_they_were_made_of() -> None:
    generator = np.random.default_rng(0)
    entries = [
        generator.normal(centre, 0.02, seeds).tolist() for centre, seeds in ((0.3, 3), (0.5, 5), (0.5, 2), (0.9, 1))
    ]
    known = statistics.all_pairs(entries)
    again = statistics.pairs_of_estimates([statistics.mean_interval(one) for one in entries])
    assert np.allclose(again.p, known.p)
    assert np.allclose(again.difference, known.difference)


@given(st.lists(scores, max_size=7))
def test_all_pairs_at_once_are_each_pair_on_its_own(entries: list[list[float]]) -> None:
    difference, p = pair_by_pair(entries)
    found = statistics.all_pairs(entries)
    np.testing.assert_allclose(found.difference, np.reshape(difference, found.difference.shape), rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.p, np.reshape(p, found.p.shape), rtol=0, atol=1e-12)
    separated = found.separated
    better = [sum(s and d < 0 for s, d in zip(*row, strict=True)) for row in zip(separated, difference, strict=True)]
    worse = [sum(s and d > 0 for s, d in zip(*row, strict=True)) for row in zip(separated, difference, strict=True)]
    ranges = statistics.rank_ranges({str(place): one for place, one in enumerate(entries)})
    assert list(ranges.values()) == [(1 + b, len(entries) - w) for b, w in zip(better, worse, strict=True)]


def test_ranks_are_ranges_of_what_the_data_allow() -> None:
    far = {"a": [0.90, 0.91, 0.89], "b": [0.50, 0.51, 0.49], "c": [0.50, 0.52, 0.48], "d": [0.1, 0.11, 0.09]}
    assert statistics.rank_ranges(far) == {"a": (1, 1), "b": (2, 3), "c": (2, 3), "d": (4, 4)}
    assert statistics.rank_ranges({"a": [0.9], "b": [0.1]}) == {"a": (1, 2), "b": (1, 2)}
    assert statistics.rank_ranges({"a": [0.9]}) == {"a": (1, 1)}
    assert statistics.rank_ranges({}) == {}


def test_differences_are_taken_seed_by_seed() -> None:
    assert statistics.differences({0: 0.5, 1: 0.6, 3: 0.9}, {0: 0.4, 1: 0.4, 2: 0.1}) == pytest.approx({0: 0.1, 1: 0.2})


def test_an_interval_excludes_zero_only_when_there_is_one() -> None:
    assert statistics.excludes_zero(Estimate(0.1, 0.05, 3))
    assert statistics.excludes_zero(Estimate(-0.1, 0.05, 3))
    assert not statistics.excludes_zero(Estimate(0.1, 0.1, 3))
    assert not statistics.excludes_zero(Estimate(0.1, None, 1))


def test_the_standard_error_over_items() -> None:
    outcomes = [1.0, 0.0, 0.0, 1.0, 1.0]
    assert statistics.standard_error(outcomes) == pytest.approx(scipy.stats.sem(outcomes))
    assert statistics.standard_error([1.0]) is None


def test_items_of_one_cluster_count_as_one_draw() -> None:
    """Every item doubled within its cluster: the error is that of the single items, not smaller by the root of two."""
    outcomes = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0]
    doubled = [value for value in outcomes for _ in range(2)]
    clusters = [str(index) for index in range(6) for _ in range(2)]
    assert statistics.standard_error(doubled, clusters) == pytest.approx(scipy.stats.sem(outcomes))
    assert statistics.standard_error(doubled, ["a"] * 12) is None
    assert statistics.standard_error(outcomes, [None] * 6) == statistics.standard_error(outcomes)
    own = [str(index) for index in range(6)]
    assert statistics.standard_error(outcomes, own) == pytest.approx(scipy.stats.sem(outcomes))


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.001, 0.999))
def test_the_chance_test_is_the_exact_binomial(counts: tuple[int, int], chance: float) -> None:
    k, n = counts
    exact = scipy.stats.binomtest(k, n, chance, alternative="greater").pvalue
    assert statistics.chance_p(k, n, chance) == pytest.approx(exact, rel=1e-6, abs=1e-12)


def test_the_chance_floor_at_its_ends() -> None:
    assert statistics.chance_p(0, 10, 0.5) == 1.0
    assert statistics.chance_p(1, 10, 0.0) == 0.0
    assert statistics.chance_p(10, 10, 1.0) == 1.0
    assert statistics.above_chance(0.3, 256, 0.114)
    assert not statistics.above_chance(0.098, 256, 0.114)
    with pytest.raises(ValueError, match="11 of 10"):
        statistics.chance_p(11, 10, 0.5)


# --- digits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "half", "most", "expected"),
    [
        (0.836, 0.009, 1, ("83.6", "0.9")),
        (0.51, 0.09, 1, ("51.0", "9.0")),
        (0.47, 0.12, 1, ("47", "12")),
        (0.83612, 0.0091, 2, ("83.61", "0.91")),
        (0.5, 0.0996, 1, ("50", "10")),  # 9.96 rounds to 10
        (0.5, 0.0, 1, ("50.0", "0.0")),
        (0.5, None, 1, ("50.0", None)),
    ],
)
def test_the_rule_of_digits(value: float, half: float | None, most: int, expected: tuple[str, str | None]) -> None:
    assert statistics.written(value, half, most=most) == expected


@given(st.floats(-1, 1), st.floats(0, 2), st.sampled_from([1, 2]), st.booleans())
def test_value_and_half_width_have_equal_decimals(value: float, half: float, most: int, signed: bool) -> None:
    number, width = statistics.written(value, half, most=most, signed=signed)
    assert width is not None
    decimals = [len(text.partition(".")[2]) for text in (number, width)]
    assert decimals[0] == decimals[1] <= most
    if 100 * half >= 10:
        assert decimals[0] == 0


def test_signs_are_real_minuses_and_zero_has_none() -> None:
    assert statistics.written(-0.036, 0.024, signed=True) == ("−3.6", "2.4")
    assert statistics.written(0.148, 0.021, signed=True) == ("+14.8", "2.1")
    assert statistics.written(-0.0001, 0.024, signed=True)[0] == "0.0"
    assert statistics.in_words(Estimate(0.148, 0.021, 5)) == "14.8 ± 2.1"
    assert statistics.in_words(Estimate(0.148, 0.5, 2)) == "14.8"
