from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import altair as alt
import pytest
from board_samples import BGPO, EARLY, FULL, HALF, REFERENCE, RUNNING, SHUFFLED, board, run_view
from hypothesis import given
from hypothesis import strategies as st

from dare_platform.board import Row
from dare_platform.views import CurvesView, Point, SeedCurve, Series
from leaderboard import boards, charts, theme

SCHEMES: tuple[theme.Scheme, ...] = ("light", "dark")


def checked(chart: charts.Chart) -> dict[str, Any]:
    """The specification, valid against Vega-Lite's schema."""
    alt.Chart.from_dict(chart.spec).to_dict(validate=True)
    return chart.spec


def values_of(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """All rows of data, wherever Altair put them."""
    found = list(spec.get("data", {}).get("values", []))
    for rows in spec.get("datasets", {}).values():
        found += rows
    for layer in spec.get("layer", []):
        found += values_of(layer)
    return found


@given(st.lists(st.one_of(st.none(), st.floats(-1e3, 1e3)), max_size=2000), st.integers(30, 400))
def test_thinning_keeps_extremes_and_order_and_never_exceeds_its_bound(values: list[float | None], most: int) -> None:
    points = [(float(step), value) for step, value in enumerate(values)]
    kept = charts.thinned(points, most)
    assert len(kept) <= most
    assert [step for step, _ in kept] == sorted(step for step, _ in kept)
    assert set(kept) <= set(points)
    finite = [value for value in values if value is not None]
    if finite:
        shown = [value for _, value in kept if value is not None]
        assert (min(shown), max(shown)) == (min(finite), max(finite))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_curve_marks_gaps_and_says_where_it_went(scheme: theme.Scheme) -> None:
    series = Series("reward", (Point(1, 1.0, 0.4), Point(2, 2.0, None), Point(3, 3.0, 0.625)))
    drawn = charts.metric_curve(series, "mean reward", scheme, until=10)
    spec = checked(drawn)
    assert drawn.alt == (
        "mean reward: 0.4 at step 1, 0.625 at step 3. Not a finite number at 1 step, marked at the axis."
    )
    assert {"step": 2.0, "value": None} in values_of(spec)
    assert spec["layer"][0]["encoding"]["x"]["scale"]["domain"] == [0, 10]
    assert theme.ACCENT.of(scheme) in json.dumps(spec)


def test_a_curve_without_any_finite_value_is_still_drawn() -> None:
    drawn = charts.metric_curve(Series("kl", (Point(1, 1.0, None),)), "KL", "light")
    assert drawn.alt.startswith("KL: no finite value.")
    checked(drawn)


def test_the_reward_comes_first_and_no_more_than_four_metrics_are_drawn() -> None:
    names = [series.name for series in charts.ordered(run_view().metrics)]
    assert names == ["reward", "kl", "log_ratio_abs"]
    many = tuple(Series(f"m{n}", (Point(1, 1.0, 1.0),)) for n in range(9))
    assert len(charts.ordered(many)) == 4
    assert charts.ordered((Series("reward", ()),)) == []


def curves_of(seeds: int, entries: int = 1) -> CurvesView:
    return CurvesView(
        metric="reward",
        backbone="llada-tiny",
        curves=tuple(
            SeedCurve(f"e{e}", f"entry {e}", f"r{e}{s}", s, tuple(Point(t, t, t / 10 + s) for t in range(1, 5)), ())
            for e in range(entries)
            for s in range(seeds)
        ),
        metrics=("reward",),
        without=(),
    )


def test_seeds_are_thin_lines_and_their_mean_a_thick_one() -> None:
    spec = checked(charts.seed_curves(curves_of(3), "reward", "light"))
    thin, thick = spec["layer"]
    assert (thin["mark"]["strokeWidth"], thick["mark"]["strokeWidth"]) == (1, 2.5)
    assert thin["encoding"]["detail"]["field"] == "run"
    means = [row["value"] for row in values_of(spec) if "run" not in row]
    assert means == pytest.approx([1.1, 1.2, 1.3, 1.4])


def test_one_seed_has_no_mean_and_never_more_than_four_colours_are_used() -> None:
    assert all("run" in row for row in values_of(charts.seed_curves(curves_of(1), "reward", "light").spec))
    spec = charts.seed_curves(curves_of(1, entries=6), "reward", "dark").spec
    assert spec["layer"][0]["encoding"]["color"]["scale"]["range"] == [slot.dark for slot in theme.SLOTS]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_before_and_after_shows_both_decodings_and_the_control_on_one_axis(scheme: theme.Scheme) -> None:
    drawn = charts.before_after(board(SHUFFLED, BGPO, RUNNING), "sudoku", scheme)
    assert drawn is not None
    rows = [row for row in values_of(checked(drawn)) if "entry" in row]
    assert {row["entry"] for row in rows} == {"shuffled-d1 (control)", "BGPO"}
    assert {row["measure"] for row in rows} == {charts.SAMPLED, charts.GREEDY}
    bgpo = next(row for row in rows if row["entry"] == "BGPO" and row["measure"] == charts.SAMPLED)
    assert bgpo["before"] == pytest.approx(41.0)
    assert bgpo["after"] == pytest.approx(62.1)
    assert (bgpo["low"], bgpo["high"]) == (pytest.approx(58.3), pytest.approx(65.9))
    assert drawn.alt == (
        "Untouched backbone to trained, sudoku. shuffled-d1 (control): sampled 41.0 to 41.8; "
        "BGPO: sampled 41.0 to 62.1."
    )


def test_too_few_seeds_are_a_hollow_point_without_an_interval() -> None:
    shown = board(BGPO, EARLY, HALF)
    drawn = charts.before_after(shown, "sudoku", "light")
    assert drawn is not None
    spec = checked(drawn)
    rows = {(row["entry"], row["measure"]): row for row in values_of(spec) if "entry" in row}
    for entry in ("SPG", "wd1"):
        for measure in (charts.SAMPLED, charts.GREEDY):
            row = rows[entry, measure]
            assert row["final"] is False
            assert row["low"] == row["high"] == row["after"]
    assert rows["BGPO", charts.SAMPLED]["final"] is True
    points = spec["layer"][-1]["encoding"]["fill"]
    assert points["condition"]["test"] == "datum.final"
    assert points["value"] == theme.BACKGROUND.light
    assert "SPG: sampled 41.0 to 76.7 (1 seed, preliminary)" in drawn.alt
    assert boards.before_after_caption(shown, "sudoku") == (
        "Dashed: the untouched backbone. Filled: after training, mean of seeds with its 95 % t interval. "
        "Hollow: after training, fewer seeds than a rank needs, without an interval."
    )


@pytest.mark.parametrize(("rows", "hollow"), [((EARLY,), True), ((BGPO, EARLY), False), ((BGPO,), False)])
def test_the_legend_is_hollow_when_all_points_are(rows: tuple[Row, ...], hollow: bool) -> None:
    drawn = charts.before_after(board(*rows), "sudoku", "light")
    assert drawn is not None
    encodings = [layer["encoding"] for layer in checked(drawn)["layer"]]
    legends = [encoding["color"].get("legend", {}) for encoding in encodings if "color" in encoding]
    fills = {legend.get("symbolFillColor") for legend in legends}
    assert fills == ({"transparent"} if hollow else {None})


def test_the_claim_stands_below_the_chart_where_there_is_a_control() -> None:
    assert boards.before_after_caption(board(SHUFFLED, BGPO), "sudoku") == (
        "Dashed: the untouched backbone. Filled: after training, mean of seeds with its 95 % t interval. "
        "A method whose sampled reward rises clearly above the control's learned from the reward."
    )


def test_a_metric_that_never_changes_is_a_level_line_with_its_value() -> None:
    series = Series("clip_fraction_high", (Point(1, 1.0, 0.0), Point(2, 2.0, 0.0)))
    axis = checked(charts.metric_curve(series, "share", "light"))["layer"][0]["encoding"]["y"]["axis"]
    assert (axis["values"], axis["labelExpr"]) == ([0.0], "'0'")


def test_no_line_of_a_chart_has_more_than_400_points() -> None:
    long = tuple(Point(step, step, None if step % 97 == 0 else step % 7) for step in range(20_000))
    spec = charts.metric_curve(Series("reward", long), "reward", "light").spec
    assert len(spec["layer"][0]["data"]["values"]) <= 400
    view = CurvesView("reward", "b", tuple(SeedCurve("e", "e", f"r{s}", s, long, ()) for s in range(3)), (), ())
    thin, thick = charts.seed_curves(view, "reward", "light").spec["layer"]
    assert len(thin["data"]["values"]) <= 3 * 400
    assert 200 < len(thick["data"]["values"]) <= 400


def test_nothing_is_compared_without_a_reference_or_without_results() -> None:
    assert charts.before_after(board(RUNNING), "sudoku", "light") is None
    assert charts.before_after(replace(FULL, rows=(BGPO,)), "sudoku", "light") is None
    assert charts.before_after(replace(FULL, rows=(REFERENCE,)), "countdown", "light") is None


def test_every_layer_owns_its_data() -> None:
    """Streamlit turns data at the top of a specification into Arrow tables, which curves do not need."""
    drawn = charts.before_after(board(SHUFFLED, BGPO), "sudoku", "light")
    assert drawn is not None
    specs = [drawn.spec, charts.seed_curves(curves_of(3), "reward", "light").spec]
    specs += [charts.metric_curve(series, series.name, "light").spec for series in run_view().metrics]
    for spec in specs:
        assert "data" not in spec


def test_specifications_are_small() -> None:
    long = tuple(Point(step, step, step % 7) for step in range(20_000))
    view = CurvesView("reward", "b", tuple(SeedCurve("e", "e", f"r{s}", s, long, ()) for s in range(5)), (), ())
    assert len(json.dumps(charts.seed_curves(view, "reward", "light").spec)) < 200_000
