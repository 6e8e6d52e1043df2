"""Curves: how training went, per seed and in the mean, for up to four entries on one backbone."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import streamlit as st

from dare_platform.tracks import Track, load_track, slugs_here
from dare_platform.verdict import escaped
from dare_platform.views import CurvesView, curves
from dare_platform.views.comparison import entries_to_compare
from leaderboard import charts, compare_parts, frame, links, people, reading, texts

KEYS = ("a", "b", "c", "d")
FIRST = "reward"


def page() -> None:
    """Which entries and which metric, the chart, the alarms, and the numbers as a file."""
    query = reading.query()
    reading.title("Curves")
    st.title("How did training go?")
    track = load_track(links.known_or_first(query.get("track", ()), slugs_here()))
    chosen = _choose(track)
    backbones = tuple(track.backbones)
    backbone = st.segmented_control(
        "Backbone", backbones, default=backbones[0], required=True, key="backbone", bind="query-params"
    )
    if not chosen:
        st.markdown(texts.CHOOSE_CURVES)
        return
    with reading.database().read() as session:
        known = curves(session, chosen, backbone or backbones[0], FIRST, people.viewer())
        if not known.metrics:
            st.markdown(texts.NO_CURVE)
            return
        metric = st.selectbox(
            "Metric", known.metrics, index=known.metrics.index(FIRST) if FIRST in known.metrics else 0,
            key="metric", bind="query-params", width=320,
        )  # fmt: skip
        view = known if metric == FIRST else curves(session, chosen, known.backbone, metric, people.viewer())
    view = told_apart(view)
    st.header(charts.metric_title(view.metric))
    with reading.part("chart"):
        frame.draw(charts.seed_curves(view, charts.metric_title(view.metric), reading.scheme(), 420), "curves")
    _without(view)
    if alarms := compare_parts.alarms(view):
        st.header("Alarms")
        st.html(alarms)
    st.download_button(
        "CSV", _csv(view), f"dare-curves-{view.backbone}-{view.metric}.csv", "text/csv", on_click="ignore", key="csv"
    )


def told_apart(view: CurvesView) -> CurvesView:
    """Two entries of one name with the end of their ids behind it: a chart knows entries by name."""
    ids = {(curve.entry_name, curve.entry_id) for curve in view.curves}
    twice = {name for name, _ in ids if sum(other == name for other, _ in ids) > 1}
    return replace(
        view,
        curves=tuple(
            replace(curve, entry_name=f"{curve.entry_name} ({curve.entry_id[-6:]})")
            if curve.entry_name in twice
            else curve
            for curve in view.curves
        ),
    )


def _choose(track: Track) -> list[str]:
    """Up to four, which stand in the URL by id; each once."""
    with reading.database().read() as session:
        names = dict(entries_to_compare(session, track, people.viewer()))
    with st.container(horizontal=True):
        chosen = [frame.entry_box(key.upper(), key, names) for key in KEYS]
    return list(dict.fromkeys(filter(None, chosen)))


def _without(view: CurvesView) -> None:
    """Entries whose method does not log this metric, or that have not been trained here."""
    if view.without:
        st.caption(f"{len(view.without)} of the chosen entries log no {escaped(view.metric)} on {view.backbone}.")


def _csv(view: CurvesView) -> str:
    """Every point of every seed, with the device's seconds up to it; nothing thinned, a gap where it was no number."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(("entry", "run", "seed", "step", "device_seconds", view.metric))
    for curve in view.curves:
        for point in curve.points:
            value = "" if point.value is None else repr(point.value)
            writer.writerow((curve.entry_id, curve.run_id, curve.seed, point.step, point.device_seconds, value))
    return out.getvalue()
