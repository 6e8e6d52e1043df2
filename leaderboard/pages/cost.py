"""Cost: which methods are worth their price, and whether a dearer one is really worse."""

from __future__ import annotations

import streamlit as st

from dare_platform.board import Board
from dare_platform.tracks import Track, load_track, slugs_here
from dare_platform.views.cost import MEAN, MEASURES, CostView, Measure, cost_view, spending
from leaderboard import boards, cost_charts, costs, frame, links, reading, tables


def page() -> None:
    """The question, who is on the frontier, the picture, and every entry at its price."""
    query = reading.query()
    reading.title("Cost")
    st.title(costs.QUESTION)
    verdict = st.container()
    slugs = slugs_here()
    track = load_track(links.known_or_first(query.get("track", ()), slugs))
    backbones = tuple(track.backbones)
    board = boards.current(track, links.known_or_first(query.get("backbone", ()), backbones))
    scores = (MEAN, *(column.task for column in links.shown_columns(board)))
    known = {"backbone": backbones, "track": slugs, "xcost": MEASURES, "task": scores}
    notices = links.unknown_values(query, known, "page", {name: options[0] for name, options in known.items()})

    board, measure, task = _controls(board, track, slugs, scores)
    for notice in notices:
        st.info(notice)
    with reading.database().read() as session:
        spent = spending(session, board)
    view = cost_view(board, spent, measure, task)
    if len(view.devices) > 1:
        verdict.markdown(costs.devices(view))
        device = st.segmented_control(
            "Device", view.devices, default=view.devices[0], required=True, key="device", bind="query-params"
        )
        view = cost_view(board, spent, measure, task, device)
    verdict.markdown(costs.verdict(view, board.backbone))
    _picture(view)
    if view.unpriced:
        st.html(costs.unpriced_table(view))
    st.html(tables.back_to(board))


def _controls(
    board: Board, track: Track, slugs: tuple[str, ...], scores: tuple[str, ...]
) -> tuple[Board, Measure, str]:
    """Every control is bound to the URL; backbone and track are those of the board."""
    backbones = tuple(track.backbones)
    with st.container(horizontal=True):
        backbone = st.segmented_control(
            "Backbone", backbones, default=backbones[0], required=True, key="backbone", bind="query-params"
        )
        slug = st.segmented_control("Track", slugs, default=slugs[0], required=True, key="track", bind="query-params")
        measure = st.segmented_control(
            "Cost measure", MEASURES, default=MEASURES[0], required=True, key="xcost", bind="query-params"
        )
        task = st.selectbox("Score", scores, key="task", bind="query-params", width=190)
    if (slug, backbone) != (board.track, board.backbone):
        chosen = load_track(slug)
        board = boards.current(chosen, backbone if backbone in chosen.backbones else next(iter(chosen.backbones)))
    return board, measure, task


def _picture(view: CostView) -> None:
    if not view.points:
        return
    with reading.part("chart"):
        frame.draw(cost_charts.front(view, reading.scheme()), "front")
    st.caption(costs.HOW_TO_READ)
    with reading.part("table"):
        st.header("Every entry at its price")
        st.html(costs.price_table(view))
