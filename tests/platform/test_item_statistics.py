"""Two checkpoints on the same items, held against enumeration, scipy and what must be true of any such test."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, permutation_test

from dare_platform.item_statistics import item_test, mcnemar_p, sign_flip_p
from dare_platform.power import gap_between_checkpoints, gap_between_seeds, what_would_settle
from dare_platform.statistics import ALPHA, TooFewValuesError, welch_p

solved = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=2, max_size=40)


@pytest.mark.parametrize(("only_a", "only_b"), [(0, 0), (0, 5), (3, 9), (9, 3), (7, 7), (0, 300), (140, 200)])
def test_mcnemar_is_the_exact_binomial_test(only_a: int, only_b: int) -> None:
    thrown = only_a + only_b
    oracle = binomtest(only_a, thrown, 0.5).pvalue if thrown else 1.0
    assert mcnemar_p(only_a, only_b) == pytest.approx(oracle, rel=1e-10)


@pytest.mark.parametrize(("only_a", "only_b"), [(1, 4), (2, 2), (0, 6)])
def test_mcnemar_counts_all_throws_of_the_coin(only_a: int, only_b: int) -> None:
    thrown = only_a + only_b
    as_far = [
        sum(throw) for throw in itertools.product((0, 1), repeat=thrown)
        if abs(sum(throw) - thrown / 2) >= abs(only_a - thrown / 2)
    ]  # fmt: skip
    assert mcnemar_p(only_a, only_b) == pytest.approx(len(as_far) / 2**thrown)


def test_sign_flips_count_every_assignment_where_there_are_few() -> None:
    sums = np.array([0.5, -0.25, 1.0, 0.75, 0.0])
    oracle = permutation_test(
        (sums, np.zeros_like(sums)), lambda x, y: np.mean(x - y), permutation_type="samples", n_resamples=np.inf
    )
    assert sign_flip_p(sums, np.random.default_rng(0)) == pytest.approx(oracle.pvalue)


def test_sign_flips_at_random_come_near_the_exact_share_and_are_never_zero() -> None:
    sums = np.random.default_rng(1).normal(0.3, 1, 12)
    exact = sign_flip_p(sums, np.random.default_rng(0), resamples=2**12)
    drawn = sign_flip_p(sums, np.random.default_rng(0), resamples=4000)
    assert drawn == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 4000))
    assert sign_flip_p(np.ones(60), np.random.default_rng(0)) == 1 / 10_001


@given(solved)
@settings(deadline=None, max_examples=40)
def test_changing_sides_changes_the_sign_only(pairs: list[tuple[int, int]]) -> None:
    a, b = zip(*pairs, strict=True)
    there, back = item_test(a, b), item_test(b, a)
    assert (there.p, there.items) == (back.p, back.items)
    assert there.difference == -back.difference
    if there.interval is not None and back.interval is not None:
        assert there.interval == pytest.approx((-back.interval[1], -back.interval[0]))


@given(solved, st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=40)
def test_the_order_of_items_does_not_matter(pairs: list[tuple[int, int]], random: object) -> None:
    shuffled = list(pairs)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = item_test(*zip(*pairs, strict=True)), item_test(*zip(*shuffled, strict=True))
    assert (one.p, one.items, one.clusters) == (other.p, other.items, other.clusters)
    assert one.difference == pytest.approx(other.difference)


@given(solved)
@settings(deadline=None, max_examples=25)
def test_clusters_of_one_are_no_clusters(pairs: list[tuple[int, int]]) -> None:
    a, b = zip(*pairs, strict=True)
    assert item_test(a, b, [str(place) for place in range(len(a))]).p == item_test(a, b).p
    assert item_test(a, b, [None] * len(a)) == item_test(a, b)


def test_copies_of_an_item_in_one_cluster_prove_nothing_more() -> None:
    generator = np.random.default_rng(0)
    a, b = (generator.random(40) < 0.6).astype(int), (generator.random(40) < 0.4).astype(int)
    once = item_test(a, b)
    names = [str(place) for place in range(40) for _ in range(5)]
    copied = item_test(np.repeat(a, 5), np.repeat(b, 5), names)
    assert copied.clusters == 40
    assert copied.difference == pytest.approx(once.difference)
    assert copied.interval == pytest.approx(once.interval, abs=0.01)
    assert copied.p > 0.5 * once.p
    careless = item_test(np.repeat(a, 5), np.repeat(b, 5))
    assert careless.p < copied.p


def test_the_sentence_says_what_may_be_said() -> None:
    assert item_test([1] * 20 + [0] * 10, [0] * 30).sentence == (
        "These checkpoints differ: +66.7 points (+48.8 to +84.6) over 30 items."
    )
    assert item_test([1, 0] * 10, [0, 1] * 10).sentence.startswith(
        "These checkpoints cannot be told apart: +0.0 points"
    )


@given(solved)
@settings(deadline=None, max_examples=60)
def test_a_finding_has_an_interval_and_without_one_there_is_none(pairs: list[tuple[int, int]]) -> None:
    found = item_test(*zip(*pairs, strict=True))
    assert (found.interval is None) == (found.differing < 6)
    assert not (found.differ and found.interval is None)


def test_too_few_draws_find_nothing_however_clear_they_look() -> None:
    few = "5 draws, of which 5 differ, are too few for an interval."
    assert item_test([1] * 5, [0] * 5).sentence == f"These checkpoints cannot be told apart: +100.0 points; {few}"
    one_story = item_test([1] * 12, [0] * 12, ["a"] * 12)
    assert (one_story.clusters, one_story.interval, one_story.p) == (1, None, 1.0)


@pytest.mark.parametrize(("a", "b"), [([1], [0]), ([1, 0], [1]), ([[1, 0]], [[1, 0]])])
def test_what_cannot_be_compared_is_refused(a: list[float], b: list[float]) -> None:
    with pytest.raises(ValueError, match="items"):
        item_test(a, b)


# --- power ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seeds", [2, 3, 5, 8])
def test_the_gap_that_seeds_can_show_is_found_four_times_in_five(seeds: int) -> None:
    gap, tries = gap_between_seeds(seeds, 1.0), 3000
    generator = np.random.default_rng(seeds)
    found = sum(
        welch_p(generator.normal(gap, 1, seeds).tolist(), generator.normal(0, 1, seeds).tolist()) < ALPHA
        for _ in range(tries)
    )
    assert found / tries == pytest.approx(0.8, abs=0.03)


def test_more_seeds_show_smaller_gaps_and_the_unit_is_that_of_the_spread() -> None:
    gaps = [gap_between_seeds(seeds, 1.0) for seeds in range(2, 12)]
    assert gaps == sorted(gaps, reverse=True)
    assert gap_between_seeds(3, 2.5) == pytest.approx(2.5 * gap_between_seeds(3, 1.0))
    assert gap_between_seeds(3, 0.0) == 0.0
    with pytest.raises(TooFewValuesError):
        gap_between_seeds(1, 1.0)


def test_the_gap_that_items_can_show_is_found_four_times_in_five() -> None:
    items, discordant, tries = 400, 0.3, 1500
    gap = gap_between_checkpoints(items, discordant)
    assert gap is not None
    generator = np.random.default_rng(0)
    up = (discordant + gap) / 2
    throws = generator.multinomial(items, [up, discordant - up, 1 - discordant], tries)
    found = sum(mcnemar_p(int(a), int(b)) < ALPHA for a, b, _ in throws)
    assert found / tries == pytest.approx(0.8, abs=0.05)
    assert gap_between_checkpoints(10, 0.05) is None, "one item in twenty is not seen among ten"


def test_what_would_settle_a_comparison_is_said_in_points() -> None:
    assert what_would_settle(0.05, 0.03, 3).sentence == (
        "With 3 seeds a side a gap of 10.5 points is seen four times in five; one as large as this takes about 8, "
        "if further seeds spread as these do."
    )
    small = what_would_settle(0.001, 0.03, 3)
    assert small.enough is None
    assert small.sentence.endswith("with 20 one of 2.7: this one is smaller.")
    assert "nothing can be said of more" in what_would_settle(0.1, 0.0, 3).sentence
