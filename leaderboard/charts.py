"""Charts as pure functions from plain data to a Vega-Lite specification, each with a sentence that says what it shows.

Altair checks every part against its schema as it is made, which takes most of the time of a page; tests check the
whole instead. Each layer owns its data, so that curves are sent as they are and not as Arrow tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import altair as alt
from altair.utils.schemapi import debug_mode

from dare_platform.board import Board, Estimate, Row
from dare_platform.statistics import MINUS
from dare_platform.views import CurvesView, Series
from leaderboard import quantities
from leaderboard.theme import ACCENT, AXIS, BACKGROUND, HAIRLINE, SECONDARY, SLOTS, TEXT, Scheme

FONT = '"Source Sans", "Source Sans Pro", sans-serif'
MOST_POINTS = 400
"""Points of one line; above this a chart is drawn on a canvas and grows heavy."""


P = ParamSpec("P")
R = TypeVar("R")


def unchecked(draw: Callable[P, R]) -> Callable[P, R]:
    """Altair's checks are off while a chart is made."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> R:
        with debug_mode(False):
            return draw(*args, **kwargs)

    return drawn


@dataclass(frozen=True)
class Chart:
    """A specification, and its takeaway for those who do not see it."""

    spec: dict[str, Any]
    alt: str


def thinned(points: Sequence[tuple[float, float | None]], most: int = MOST_POINTS) -> list[tuple[float, float | None]]:
    """At most `most` points: of each bucket the smallest and the largest value, gaps kept."""
    if len(points) <= most:
        return list(points)
    buckets = max(1, most // 3)
    width = len(points) / buckets
    kept: list[tuple[float, float | None]] = []
    for bucket in range(buckets):
        part = points[int(bucket * width) : int((bucket + 1) * width)]
        finite = [(x, y) for x, y in part if y is not None]
        gap = next(((x, y) for x, y in part if y is None), None)
        chosen: set[tuple[float, float | None]] = {gap} if gap else set()
        if finite:
            chosen |= {min(finite, key=lambda point: point[1]), max(finite, key=lambda point: point[1])}
        kept.extend(sorted(chosen, key=lambda point: point[0]))
    return kept


def _styled(chart: Any, scheme: Scheme) -> dict[str, Any]:
    """Ink, hairlines and sizes of the site on any chart."""
    styled = (
        chart.configure(font=FONT, background="transparent")
        .configure_view(stroke=None)
        .configure_axis(
            labelColor=SECONDARY.of(scheme),
            titleColor=SECONDARY.of(scheme),
            gridColor=HAIRLINE.of(scheme),
            domainColor=AXIS.of(scheme),
            tickColor=AXIS.of(scheme),
            labelFontSize=12,
            titleFontSize=12,
            titleFontWeight=400,
        )
        .configure_legend(
            labelColor=TEXT.of(scheme), labelFontSize=13, labelLimit=320, orient="top", title=None, columns=1
        )
    )
    specification: dict[str, Any] = styled.to_dict(validate=False)
    return specification


_TITLES = {
    "reward": "mean reward of the rollouts",
    "loss": "loss",
    "kl": "KL penalty, nats a token",
    "log_ratio_abs": "mean |log ratio| to the sampling policy",
    "clip_fraction_low": "share clipped below",
    "clip_fraction_high": "share clipped above",
    "reward_std": "spread of rewards",
    "gradient_norm": "gradient norm",
}
_FIRST = ("reward", "loss", "kl", "log_ratio_abs", "clip_fraction_high", "gradient_norm")
MOST_CURVES = 4


def metric_title(name: str) -> str:
    """An axis title for a metric."""
    return _TITLES.get(name, name.replace("_", " "))


def ordered(metrics: Sequence[Series]) -> list[Series]:
    """The metrics worth a chart, the reward first (the loss, where there is no reward), at most four."""
    by_name = {series.name: series for series in metrics if series.points}
    first = [by_name[name] for name in _FIRST if name in by_name]
    rest = [series for name, series in by_name.items() if name not in _FIRST]
    return (first + rest)[:MOST_CURVES]


@unchecked
def metric_curve(series: Series, title: str, scheme: Scheme, until: int | None = None, height: int = 220) -> Chart:
    """One metric of one run, growing towards its last step while it trains. A value that is not finite leaves a gap."""
    values = [
        {"step": step, "value": value}
        for step, value in thinned([(float(point.step), point.value) for point in series.points])
    ]
    gaps = [{"step": point.step} for point in series.points if point.value is None]
    finite = [(point.step, point.value) for point in series.points if point.value is not None]
    last = [{"step": step, "value": value} for step, value in finite[-1:]]
    reach = max([until or 0, *(point.step for point in series.points)])
    x = alt.X(
        "step:Q",
        title="optimiser step",
        axis=alt.Axis(tickCount=5, grid=False, format="d"),
        scale=alt.Scale(domain=[0, reach], nice=False),
    )
    y = alt.Y("value:Q", title=None, **_value_axis([value for _, value in finite], ticks=4))
    layers = [
        alt.Chart(alt.Data(values=values))
        .mark_line(color=ACCENT.of(scheme), strokeWidth=2, invalid="break-paths-show-domains")
        .encode(x=x, y=y)
    ]
    if last:
        dot = alt.Chart(alt.Data(values=last)).mark_circle(color=ACCENT.of(scheme), size=64, opacity=1)
        layers.append(dot.encode(x=x, y=y))
    if gaps:
        marks = alt.Chart(alt.Data(values=gaps)).mark_point(
            shape="triangle-up", color=TEXT.of(scheme), filled=True, size=60, yOffset=-6, opacity=1
        )
        layers.append(marks.encode(x=x, y=alt.value("height")))
    if finite:
        takeaway = (
            f"{title}: {_short(finite[0][1])} at step {finite[0][0]}, {_short(finite[-1][1])} at step {finite[-1][0]}."
        )
    else:
        takeaway = f"{title}: no finite value."
    if gaps:
        takeaway += f" Not a finite number at {quantities.plural(len(gaps), 'step')}, marked at the axis."
    return Chart(_styled(alt.layer(*layers).properties(height=height, title=_above(title, scheme)), scheme), takeaway)


def _value_axis(values: Sequence[float], ticks: int) -> dict[str, Any]:
    """Axis and scale of a metric; one that never changes is a level line with its one value beside it."""
    if values and min(values) == max(values):
        value = values[0]
        axis = alt.Axis(values=[value], labelExpr=f"'{_short(value)}'")
        return {"axis": axis, "scale": alt.Scale(domain=[value - 1, value + 1], nice=False)}
    return {"axis": alt.Axis(tickCount=ticks), "scale": alt.Scale(zero=False)}


def _above(title: str, scheme: Scheme) -> Any:
    """The name of the vertical axis, set level above the chart, where it can be read."""
    return alt.Title(
        title, anchor="start", fontSize=13, font=FONT, fontWeight=400, color=SECONDARY.of(scheme), offset=8
    )


@unchecked
def seed_curves(view: CurvesView, title: str, scheme: Scheme, height: int = 320) -> Chart:
    """Every seed as a thin line in its entry's colour, by position; the mean thick where all seeds have a value."""
    names = list(dict.fromkeys(curve.entry_name for curve in view.curves))[: len(SLOTS)]
    colours = [SLOTS[place].of(scheme) for place in range(len(names))]
    seeds: list[dict[str, object]] = []
    by_step: dict[tuple[str, int], list[float]] = {}
    lines_of: dict[str, int] = dict.fromkeys(names, 0)
    for curve in view.curves:
        if curve.entry_name not in names:
            continue
        lines_of[curve.entry_name] += 1
        for step, value in thinned([(float(point.step), point.value) for point in curve.points]):
            seeds.append({"entry": curve.entry_name, "run": curve.run_id, "step": step, "value": value})
        for point in curve.points:
            if point.value is not None:
                by_step.setdefault((curve.entry_name, point.step), []).append(point.value)
    means: dict[str, list[tuple[float, float | None]]] = {name: [] for name in names}
    for (name, step), values in sorted(by_step.items()):
        if len(values) == lines_of[name] > 1:
            means[name].append((float(step), sum(values) / len(values)))
    mean_rows = [
        {"entry": name, "step": step, "value": value} for name in names for step, value in thinned(means[name])
    ]
    colour = alt.Color(
        "entry:N", scale=alt.Scale(domain=names, range=colours), legend=alt.Legend() if len(names) > 1 else None
    )
    reach = max([1, *(point.step for curve in view.curves for point in curve.points)])
    x = alt.X(
        "step:Q",
        title="optimiser step",
        axis=alt.Axis(tickCount=6, grid=False, format="d"),
        scale=alt.Scale(domain=[0, reach], nice=False),
    )
    y = alt.Y("value:Q", title=None, axis=alt.Axis(tickCount=5), scale=alt.Scale(zero=False))
    thin = (
        alt.Chart(alt.Data(values=seeds))
        .mark_line(strokeWidth=1, opacity=0.5 if mean_rows else 1, invalid="break-paths-show-domains")
        .encode(x=x, y=y, color=colour, detail="run:N")
    )
    thick = alt.Chart(alt.Data(values=mean_rows)).mark_line(strokeWidth=2.5).encode(x=x, y=y, color=colour)
    takeaway = f"{title} of {quantities.plural(len(view.curves), 'training run')} over optimiser steps."
    for name in names:
        if means[name]:
            first, last = means[name][0][1], means[name][-1][1]
            if first is not None and last is not None:
                takeaway += f" {name}: mean {_short(first)} to {_short(last)}."
    return Chart(
        _styled(alt.layer(thin, thick).properties(height=height, title=_above(title, scheme)), scheme), takeaway
    )


def before_after_rows(board: Board, task: str) -> list[Row]:
    """Rows with something to compare, preliminary ones among them."""
    return [
        row
        for row in board.rows
        if row.kind != "reference"
        and (cell := row.cells.get(task)) is not None
        and (cell.greedy is not None or cell.sampled is not None)
    ]


def _change(name: str, measure: str, before: Estimate, after: Estimate, is_final: bool) -> dict[str, object]:
    has_interval = is_final and after.half_width is not None and after.seeds >= 3
    half = after.half_width if has_interval and after.half_width is not None else 0.0
    return {
        "entry": name,
        "measure": measure,
        "final": is_final,
        "before": 100 * before.value,
        "after": 100 * after.value,
        "low": 100 * (after.value - half),
        "high": 100 * (after.value + half),
    }


GREEDY, SAMPLED = "solved, greedy", "mean reward, sampled"


@unchecked
def before_after(board: Board, task: str, scheme: Scheme) -> Chart | None:
    """What training moved on one task: from the untouched backbone (dashed) to each entry (point with its interval).

    An entry with fewer seeds than required is a hollow point without an interval. Greedy and sampled results and the
    control share one axis. None while there is nothing to compare.
    """
    reference = next((row for row in board.rows if row.kind == "reference"), None)
    untouched = reference.cells.get(task) if reference else None
    rows = before_after_rows(board, task)
    if untouched is None or not rows:
        return None
    values = []
    sentences = []
    for row in rows:
        name = row.name if row.kind == "method" else f"{row.name} ({row.kind})"
        cell = row.cells[task]
        is_final = cell.state == "measured"
        if untouched.greedy is not None and cell.greedy is not None:
            values.append(_change(name, GREEDY, untouched.greedy, cell.greedy, is_final))
        if untouched.sampled is not None and cell.sampled is not None:
            values.append(_change(name, SAMPLED, untouched.sampled, cell.sampled, is_final))
            before, after = quantities.score(untouched.sampled).value, quantities.score(cell.sampled).value
            few = "" if is_final else f" ({quantities.plural(cell.sampled.seeds, 'seed')}, preliminary)"
            sentences.append(f"{name}: sampled {before} to {after}{few}")
    if not values:
        return None
    order = list(dict.fromkeys(value["entry"] for value in values))
    measures = [measure for measure in (SAMPLED, GREEDY) if any(value["measure"] == measure for value in values)]
    slots = {SAMPLED: SLOTS[0].of(scheme), GREEDY: SLOTS[1].of(scheme)}
    shapes = {SAMPLED: "circle", GREEDY: "square"}
    only_hollow = not any(value["final"] for value in values)
    legend = alt.Legend(symbolFillColor="transparent") if only_hollow else alt.Legend()
    colour = alt.Color("measure:N", scale=alt.Scale(domain=measures, range=[slots[m] for m in measures]), legend=legend)
    shape = alt.Shape("measure:N", scale=alt.Scale(domain=measures, range=[shapes[m] for m in measures]))
    y = alt.Y(
        "entry:N", sort=order, title=None, axis=alt.Axis(labelFontSize=13, labelLimit=180, labelPadding=12, ticks=False)
    )
    offset = alt.YOffset("measure:N", sort=measures, scale=alt.Scale(paddingOuter=0.6))
    base = alt.Chart(alt.Data(values=values)).encode(y=y, yOffset=offset, color=colour)
    untrained = [
        {"measure": measure, "before": before}
        for measure, before in {value["measure"]: value["before"] for value in values}.items()
    ]
    hollow = alt.value(BACKGROUND.of(scheme))
    fill = hollow if only_hollow else alt.condition("datum.final", colour, hollow)
    x = alt.X("after:Q", title="per cent", axis=alt.Axis(tickCount=6, grid=True), scale=alt.Scale(zero=True, nice=True))
    chart = alt.layer(
        alt.Chart(alt.Data(values=untrained)).mark_rule(strokeDash=[4, 4]).encode(x="before:Q", color=colour),
        base.mark_rule(strokeWidth=1, opacity=0.8).encode(x="before:Q", x2="after:Q"),
        base.mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q"),
        base.mark_point(size=70, opacity=1, strokeWidth=2).encode(x=x, shape=shape, fill=fill),
    ).properties(height=max(110, 52 * len(order) + 20))
    return Chart(_styled(chart, scheme), f"Untouched backbone to trained, {task}. " + "; ".join(sentences) + ".")


def _short(value: float) -> str:
    """Three significant digits, plain decimals."""
    text = f"{abs(value):.3g}"
    if "e" in text:
        text = f"{abs(value):.6f}".rstrip("0").rstrip(".") or "0"
    return (MINUS if value < 0 else "") + text
