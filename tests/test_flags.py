"""Intervals agree with the textbook's, and every flag says something that is so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dare.flags import Disagreement, disagreements, flags_of, interval, student, wilson
from dare.spec import ItemOutcome, ItemStatus, Score


def score(solved: int, n: int, **more: object) -> Score:
    given = {"task": "t", "metric": "solved", "decoding": "greedy", "value": solved / n, "standard_error": None, "n": n}
    return Score.model_validate({**given, "scorer": "dare-1", "protocol": "p", **more})


def outcome(item: int, solved: bool, scorer: str, sample: int = 0, status: ItemStatus = "ok") -> ItemOutcome:
    return ItemOutcome(
        item=str(item), sample=sample, score=float(solved), reward=0, status=status, answer=None, scorer=scorer
    )


def names(*arguments: object, **words: object) -> set[str]:
    return {flag.name for flag in flags_of(*arguments, **words)}  # type: ignore[arg-type]


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilsons_interval_is_scipys(counts: tuple[int, int]) -> None:
    solved, n = counts
    theirs = stats.binomtest(solved, n).proportion_ci(method="wilson")
    ours = wilson(solved, n)
    assert ours[:2] == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    assert ours.low <= solved / n <= ours.high


@given(st.integers(1, 20000), st.sampled_from([0.9, 0.95, 0.99]))
def test_students_quantile_is_scipys(degrees: int, level: float) -> None:
    assert student(level, degrees) == pytest.approx(stats.t.ppf(0.5 + level / 2, degrees), abs=2e-5)


def test_a_share_has_wilsons_interval_and_a_mean_of_samples_students() -> None:
    greedy, sampled = interval(score(3, 20)), interval(score(3, 20, decoding="sampled", standard_error=0.01))
    assert greedy is not None
    assert sampled is not None
    assert (greedy.method, sampled.method) == ("wilson", "t")
    assert sampled.high - 0.15 == pytest.approx(stats.t.ppf(0.975, 19) * 0.01, abs=1e-6)
    assert interval(score(1, 1, decoding="sampled")) is None


@pytest.mark.parametrize(
    ("given", "floor", "expected"),
    [
        (score(0, 164), 0.0, {"exactly_0", "not_above_chance"}),
        (score(20, 200), 0.25, {"below_chance"}),
        (score(50, 200), 0.25, {"not_above_chance"}),
        (score(90, 200), 0.25, set()),
        (score(90, 200, n_no_answer=50), 0.25, {"no_answer"}),
        (score(90, 200, n_truncated=50), 0.25, {"truncated"}),
        (score(90, 200, n_undecoded=1), 0.25, {"undecoded"}),
        (score(90, 200, n_error=1), 0.25, {"errors"}),
    ],
)
def test_a_number_that_is_not_what_it_looks_like_is_flagged(given: Score, floor: float, expected: set[str]) -> None:
    assert names(given, floor) == expected


def test_credit_for_the_form_is_not_taken_for_skill() -> None:
    reward = score(0, 256, metric="reward", value=0.1)
    assert names(score(0, 256), 0.04, reward=reward) >= {"exactly_0", "format_credit", "below_chance"}
    assert "format_credit" not in names(score(26, 256), 0.04, reward=score(26, 256, metric="reward"))


def test_two_scorers_differ_when_one_is_kinder_than_a_coin() -> None:
    assert not Disagreement("o", 0, 5, 100).beyond_noise  # 5 of 5 to one side: p = 0.0625
    assert Disagreement("o", 0, 6, 100).beyond_noise  # 0.03125
    assert not Disagreement("o", 40, 45, 1000).beyond_noise
    assert not Disagreement("o", 0, 0, 100).beyond_noise


@given(st.integers(0, 60), st.integers(0, 60))
def test_the_test_of_disagreement_is_the_exact_sign_test(this: int, other: int) -> None:
    theirs = stats.binomtest(this, this + other).pvalue < 0.05 if this + other else False
    assert Disagreement("o", this, other, 200).beyond_noise == theirs


def test_disagreements_are_counted_over_greedy_answers_that_both_have_judged() -> None:
    rows = [outcome(i, i < 5, "dare-1") for i in range(10)] + [outcome(i, i < 8, "x") for i in range(9)]
    rows += [outcome(9, True, "x", status="error"), outcome(0, False, "x", sample=1)]
    assert disagreements(rows, "dare-1") == [Disagreement("x", 0, 3, 9)]
    told = flags_of(score(5, 10), 0.0, others=[Disagreement("x", 0, 30, 100)])
    assert any("x solves 30 items that dare-1 does not" in flag.sentence for flag in told)


def test_first_items_are_no_score() -> None:
    assert names(score(9, 10), 0.0, limited=True) == {"first_items_only"}
