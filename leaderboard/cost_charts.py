"""Charts of Cost, Task and Backbone: the front of prices, a histogram of difficulty, scores against denoising steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import altair as alt

from dare_platform.views.backbones import Untouched
from dare_platform.views.cost import MORE_IS_BETTER, CostPoint, CostView
from dare_platform.views.tasks import BINS
from leaderboard import costs, quantities
from leaderboard.charts import Chart, _above, _styled, unchecked
from leaderboard.theme import ACCENT, AXIS, BACKGROUND, OTHER_SERIES, SECONDARY, TEXT, Scheme

LOG_FROM = 5
"""Ratio of the dearest to the cheapest from which on costs stand on a logarithmic axis."""
SHAPES = {
    "frontier": "circle", "within noise": "square", "dominated": "square", "preliminary": "circle", "beside": "diamond",
}  # fmt: skip
HOLLOW = ("within noise", "preliminary")
NARROW = 480
"""Pixels of the plot below which only the frontier is named."""
MOST_NAMES = 12
"""Above this only the frontier is named: names would stand on one another, and the table has them all."""


@unchecked
def front(view: CostView, scheme: Scheme) -> Chart:
    """Gain against cost: every entry with its interval, the frontier as a thin dashed step, zero as a dashed line."""
    unit = costs.unit_of(view)
    shown = [(point, point.cost / unit.scale) for point in view.points]
    prices = [cost for _, cost in shown]
    is_log = min(prices) > 0 and max(prices) > LOG_FROM * min(prices)
    low, high = (min(prices), max(prices)) if is_log else (0.0, max(prices))
    margin = (high / low) ** 0.08 if is_log else 0.08 * (high - low or 1)
    domain = [low / margin, high * margin] if is_log else [0.0, high + margin]
    middle = low + 0.66 * (high - low) if not is_log else low * (high / low) ** 0.66
    values = [_point(point, cost, cost > middle, len(shown) <= MOST_NAMES, scheme) for point, cost in shown]
    x = alt.X(
        "cost:Q",
        title=f"{unit.title}{' (log)' if is_log else ''}",
        axis=alt.Axis(tickCount=5, grid=False),
        scale=alt.Scale(type="log" if is_log else "linear", domain=domain, nice=False),
    )
    y = alt.Y("gain:Q", title=None, axis=alt.Axis(tickCount=6), scale=alt.Scale(zero=True))
    ink = alt.Color("ink:N", scale=None)
    base = alt.Chart(alt.Data(values=values)).encode(x=x)
    layers: list[Any] = [
        alt.Chart(alt.Data(values=[{"gain": 0}]))
        .mark_rule(strokeDash=[4, 4], color=AXIS.of(scheme))
        .encode(y="gain:Q"),
    ]
    steps = _steps(view, unit.scale)
    if len(steps) > 1:
        layers.append(
            alt.Chart(alt.Data(values=steps))
            .mark_line(
                interpolate="step-before" if view.measure in MORE_IS_BETTER else "step-after",
                strokeDash=[3, 3],
                strokeWidth=1,
                color=ACCENT.of(scheme),
            )
            .encode(x=x, y=y, order="order:Q")
        )
    layers += [
        base.mark_rule(strokeWidth=2).encode(y=alt.Y("low:Q", title=None), y2="high:Q", color=ink),
        base.mark_point(size=64, opacity=1, strokeWidth=2).encode(
            y=y, color=ink, fill=alt.Fill("fill:N", scale=None), shape=alt.Shape("shape:N", scale=None)
        ),
    ]
    for is_right, is_front in product((False, True), repeat=2):  # names of the frontier above, all others below
        names = alt.Chart(
            alt.Data(values=[one for one in values if (one["right"], one["front"]) == (is_right, is_front)])
        ).mark_text(
            align="right" if is_right else "left",
            dx=-9 if is_right else 9,
            dy=-9 if is_front else 12,
            fontSize=12,
            color=TEXT.of(scheme),
        )
        seen = 1 if is_front else alt.ExprRef(f"width < {NARROW} ? 0 : 1")
        layers.append(names.encode(x=x, y=y, text="label:N", opacity=alt.value(seen)))
    above = _above("gain, points over the untouched backbone", scheme)
    return Chart(_styled(alt.layer(*layers).properties(height=420, title=above), scheme), costs.takeaway(view))


def _point(point: CostPoint, cost: float, is_right: bool, all_named: bool, scheme: Scheme) -> dict[str, object]:
    gain, half = 100 * point.gain.value, costs.half_width(point)
    is_front = point.standing == "frontier"
    ink = (ACCENT if is_front else OTHER_SERIES).of(scheme)
    return {
        "cost": cost,
        "gain": gain,
        "low": gain - half,
        "high": gain + half,
        "front": is_front,
        "ink": ink,
        "fill": BACKGROUND.of(scheme) if point.standing in HOLLOW else ink,
        "shape": SHAPES[point.standing],
        "right": is_right,
        "label": point.name if is_front or all_named else "",
    }


def _steps(view: CostView, scale: float) -> list[dict[str, float]]:
    """The corners of the frontier, from the best price on."""
    return [
        {"cost": point.cost / scale, "gain": 100 * point.gain.value, "order": place}
        for place, point in enumerate(view.frontier)
    ]


@unchecked
def difficulty(bins: Sequence[int], never: int, always: int, scheme: Scheme) -> Chart:
    """Items by the share of checkpoints that solve them; bars begin at zero."""
    labels = [f"{10 * place}–{10 * place + 10}" for place in range(BINS)]
    values = [{"share": label, "items": items} for label, items in zip(labels, bins, strict=True)]
    bars = (
        alt.Chart(alt.Data(values=values))
        .mark_bar(color=ACCENT.of(scheme))
        .encode(
            x=alt.X(
                "share:N",
                sort=labels,
                title="per cent of checkpoints that solve the item",
                axis=alt.Axis(labelAngle=0, labelOverlap=True, ticks=False),
            ),
            y=alt.Y("items:Q", title=None, axis=alt.Axis(tickCount=5, format="d")),
        )
    )
    counts = bars.mark_text(dy=-7, fontSize=12, color=SECONDARY.of(scheme)).encode(text="items:Q")
    every = sum(bins)
    takeaway = (
        f"Of {quantities.plural(every, 'item')}, {quantities.count(never)} {'is' if never == 1 else 'are'} never "
        f"solved and {quantities.count(always)} always; the fullest tenth is "
        f"{labels[max(range(BINS), key=lambda place: bins[place])]} per cent."
    )
    return Chart(
        _styled(alt.layer(bars, counts).properties(height=320, title=_above("items", scheme)), scheme), takeaway
    )


@unchecked
def by_steps(task: str, found: Sequence[Untouched], scheme: Scheme) -> Chart:
    """One task's untouched score at each number of denoising steps, dots with intervals."""
    ordered = sorted((one for one in found if one.steps is not None), key=lambda one: one.steps or 0)
    values = []
    for one in ordered:
        half = 100 * one.solved.half_width if one.solved.half_width is not None and one.solved.seeds > 2 else 0.0
        solved = 100 * one.solved.value
        values.append({"steps": one.steps, "solved": solved, "low": solved - half, "high": solved + half})
    x = alt.X("steps:Q", title="denoising steps of an answer", axis=alt.Axis(tickCount=5, grid=False, format="d"))
    y = alt.Y("solved:Q", title=None, axis=alt.Axis(tickCount=5), scale=alt.Scale(zero=True))
    base = alt.Chart(alt.Data(values=values)).encode(x=x)
    ink = ACCENT.of(scheme)
    chart = alt.layer(
        base.mark_line(color=ink, strokeWidth=1).encode(y=y),
        base.mark_rule(color=ink, strokeWidth=2).encode(y=alt.Y("low:Q", title=None), y2="high:Q"),
        base.mark_point(filled=True, color=ink, size=64, opacity=1).encode(y=y),
    ).properties(height=320, title=_above("per cent solved, greedy", scheme))
    said = ", ".join(f"{quantities.score(one.solved).value} at {one.steps} steps" for one in ordered)
    return Chart(_styled(chart, scheme), f"{task}: {said}.")
