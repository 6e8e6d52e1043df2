from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dare_platform.board import Cost, Estimate
from leaderboard import quantities

finite = st.floats(min_value=-1.0, max_value=1.0)
widths = st.floats(min_value=0.0, max_value=1.0)


def decimals_of(text: str) -> int:
    return len(text.partition(".")[2])


@given(value=finite, half=widths, seeds=st.integers(3, 9), most=st.integers(0, 2), signed=st.booleans())
def test_value_and_interval_have_equal_decimals_and_never_more_than_allowed(
    value: float, half: float, seeds: int, most: int, signed: bool
) -> None:
    write = quantities.gain if signed else quantities.score
    written = write(Estimate(value, half, seeds), most=most)
    assert written.spread.startswith("±")
    assert decimals_of(written.value) == decimals_of(written.spread) <= most
    assert "-" not in written.value
    assert "nan" not in str(written)


@given(value=finite, seeds=st.sampled_from([1, 2]))
def test_fewer_than_three_seeds_show_their_number_and_no_interval(value: float, seeds: int) -> None:
    written = quantities.score(Estimate(value, 0.5 if seeds == 2 else None, seeds))
    assert written.spread == {1: "1 seed", 2: "n=2"}[seeds]


@pytest.mark.parametrize(
    ("value", "half", "expected"),
    [
        (0.8361, 0.0088, "83.6 ±0.9"),
        (0.51, 0.0904, "51.0 ±9.0"),
        (0.4711, 0.1234, "47 ±12"),
        (0.5, 0.0996, "50 ±10"),
        (0.0, 0.0, "0.0 ±0.0"),
    ],
)
def test_the_half_width_keeps_two_significant_digits(value: float, half: float, expected: str) -> None:
    assert str(quantities.score(Estimate(value, half, 3))) == expected


def test_gains_carry_a_sign_and_the_true_minus_and_zero_carries_none() -> None:
    assert quantities.gain(Estimate(0.148, 0.021, 3)).value == "+14.8"
    assert quantities.gain(Estimate(-0.036, 0.024, 3)).value == "−3.6"
    assert quantities.gain(Estimate(-0.0001, 0.02, 3)).value == "0.0"


@given(st.floats(min_value=-1e6, max_value=1e6), st.integers(0, 3))
def test_a_number_that_rounds_to_zero_has_no_sign(value: float, digits: int) -> None:
    text = quantities.fixed(value, digits, signed=True)
    assert re.fullmatch(r"[+−]?\d+(\.\d+)?", text)
    assert (float(text.replace("−", "-")) == 0) == (text[0].isdigit())


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0 s"),
        (40, "40 s"),
        (59.6, "1 min"),
        (720, "12 min"),
        (4200, "1 h 10 min"),
        (3600 * 3 + 300, "3 h 05 min"),
        (200000, "2 days"),
    ],
)
def test_durations_have_units_after_a_thin_space(seconds: float, expected: str) -> None:
    assert quantities.duration(seconds).replace(quantities.THIN, " ") == expected


def test_ranks_are_ranges_and_missing_ones_a_dash() -> None:
    assert quantities.rank((1, 2)) == "1–2"
    assert quantities.rank((7, 7)) == "7"
    assert quantities.rank(None) == "—"


def test_a_small_chance_is_not_written_as_zero() -> None:
    assert quantities.share(0.00005) == "< 0.1"
    assert quantities.share(0.0) == "0.0"
    assert quantities.share(0.114) == "11.4"


def test_costs_of_a_cpu_track_are_minutes() -> None:
    assert quantities.cost_unit("cpu", long=False) == "CPU-min"
    assert quantities.cost_unit("NVIDIA H200", long=True) == "GPU-h"
    assert quantities.cost(Cost(408.0, 64.0, 40.0, "cpu"), long=False) == "6.8"
    assert quantities.cost(Cost(38.2 * 3600, 64.0, 40.0, "NVIDIA H200"), long=True) == "38"


def test_words_have_their_plural() -> None:
    assert quantities.plural(1, "entry") == "1 entry"
    assert quantities.plural(2, "entry") == "2 entries"
    assert quantities.plural(2, "try") == "2 tries"
    assert quantities.plural(1319, "item") == "1,319 items"


def test_times_are_told_in_the_reader_s_zone() -> None:
    from zoneinfo import ZoneInfo

    at = 1_790_000_000.0
    assert quantities.moment(at) == "21 Sep 2026, 14:13"
    assert quantities.moment(at, ZoneInfo("Europe/Berlin"), time_only=True) == "16:13"
