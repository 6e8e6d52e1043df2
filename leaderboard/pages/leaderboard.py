"""Leaderboard: which methods help on one backbone, how sure that is, what it costs, and the way to the evidence."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from dare import catalog
from dare_platform import claims, exports
from dare_platform.board import Board
from dare_platform.board_flags import Flag
from dare_platform.tracks import Track, load_track, slugs_here
from leaderboard import (
    across,
    actions,
    boards,
    claim_parts,
    flag_list,
    frame,
    links,
    quantities,
    reading,
    snapshot_parts,
    tables,
    texts,
)
from leaderboard.links import BoardChoices, BoardView

CHECK_SECONDS = 15


def page() -> None:
    """The question, the verdict, the controls, the table and how far to trust it."""
    query = reading.query()
    reading.title("Leaderboard")
    st.title(texts.QUESTION)
    verdict = st.container()

    slugs = slugs_here()
    asked_track = links.known_or_first(query.get("track", ()), slugs)
    track = load_track(asked_track)
    backbones = tuple(track.backbones)
    offered = (*backbones, across.ALL) if len(backbones) > 1 else backbones
    board = boards.current(track, links.known_or_first(query.get("backbone", ()), backbones))
    choices = BoardChoices(offered, slugs, links.sorts_of(board))
    _, notices = links.read_board_view(query, choices)

    view = _controls(choices)
    if view.backbone == across.ALL:
        _across(load_track(view.track), verdict)
        return
    if (view.track, view.backbone) != (track.track, board.backbone):
        track = load_track(view.track)
        board = boards.current(track, view.backbone)
    for notice in notices:
        st.info(notice)

    verdict.markdown(board.verdict)
    if board.backbone not in catalog.backbones():
        st.info(texts.backbone_is_not_here(board.backbone))
    elif not any(row.kind != "reference" for row in board.rows):
        st.markdown(texts.EMPTY_BOARD)
        st.html(tables.ways_in(track.track))
    _partial(board, view, choices)
    with reading.part("table"):
        flags = boards.flags(board)
        st.html(tables.board_table(board, view, choices, flags=flags))
        _flags(flags, board, view)
        st.html(tables.ways_on(board))
    _below_the_table(board)
    _proof(track)
    _before_and_after(board)
    if stated := claims.beside(board):
        with st.expander(claim_parts.title(stated)):
            st.markdown(stated[0].claim.protocol)
            st.html(claim_parts.table(stated))
    with st.expander("How to read this table"):
        st.markdown("\n\n".join(texts.HOW_TO_READ))


def _flags(flags: Sequence[Flag], board: Board, view: BoardView) -> None:
    """What each flag of the rows that are shown means, and where it is."""
    rows = {row.entry_id for row in tables.arranged(board, view).rows}
    shown = [flag for flag in flags if flag.where.entry_id in rows]
    if shown:
        with st.expander(flag_list.heading(shown)):
            st.html(flag_list.legend(shown, board))


def _across(track: Track, verdict: DeltaGenerator) -> None:
    """All backbones of a track beside one another."""
    found = [boards.current(track, backbone) for backbone in track.backbones]
    verdict.markdown(f"{across.QUESTION} {across.carries_over(found)}")
    with reading.part("table"):
        st.html(across.across_table(found))


def _controls(choices: BoardChoices) -> BoardView:
    """Every control is bound to the URL, and its options are the slugs that stand there."""
    with st.container(horizontal=True):
        backbone = st.segmented_control(
            "Backbone",
            choices.backbones,
            default=choices.backbones[0],
            required=True,
            key="backbone",
            bind="query-params",
        )
        track = st.segmented_control(
            "Track", choices.tracks, default=choices.tracks[0], required=True, key="track", bind="query-params"
        )
        if backbone == across.ALL:  # nothing of the rest applies
            return BoardView(across.ALL, track or choices.tracks[0])
        sort = st.selectbox("Sort or show", choices.sorts, key="sort", bind="query-params", width=190)
        direction = st.segmented_control(
            "Order", links.DIRECTIONS, default="desc", required=True, key="dir", bind="query-params"
        )
        search = st.text_input("Search", type="search", key="q", bind="query-params", width=190, live=True)
        show = st.pills(
            "Also show",
            links.SHOWABLE,
            selection_mode="multi",
            default=["unranked"],
            key="show",
            bind="query-params",
        )
    return BoardView(
        backbone=backbone or choices.backbones[0],
        track=track or choices.tracks[0],
        sort=sort or "gain",
        direction=direction or "desc",
        search=search or "",
        show=tuple(item for item in links.SHOWABLE if item in show),
    )


def _partial(board: Board, view: BoardView, choices: BoardChoices) -> None:
    """How many rows are not ranked, and the way to hide them."""
    missing = tables.incomplete_rows(board)
    if missing and "unranked" in view.show:
        st.html(tables.partial_line(missing, sum(row.kind == "method" for row in board.rows), view, choices))


def _below_the_table(board: Board) -> None:
    """Files with full precision, what was drawn and when, and whether there is something newer."""
    files(board, boards.flags(board))
    _keep(board)
    st.html(tables.snapshot_line(board, quantities.moment(board.made_at, reading.zone())))
    st.fragment(run_every=CHECK_SECONDS)(_newer)(board)


def files(board: Board, flags: Sequence[Flag] = ()) -> None:
    """Downloads with full precision."""
    name = f"dare-{board.track}-{board.version}-{board.backbone}"
    with st.container(horizontal=True, vertical_alignment="center"):
        for label, make, ending, mime in (
            ("CSV", exports.csv, "csv", "text/csv"),
            ("JSON", exports.json, "json", "application/json"),
            ("LaTeX", exports.latex, "tex", "text/plain"),
        ):
            content = make(board, flags)
            st.download_button(label, content, f"{name}.{ending}", mime, on_click="ignore", key=f"export-{ending}")


def _keep(board: Board) -> None:
    """The board by a link that never changes, and how it is cited."""
    with st.expander("Cite or keep this board"):
        st.markdown(texts.KEEP)
        if st.button("Make a permalink", key="permalink"):
            actions.keep_board(load_track(board.track, board.version), board.backbone)
        if kept := st.session_state.pop(actions.KEPT, None):
            st.html(snapshot_parts.permalink(kept))
        st.code(snapshot_parts.bibtex(board, reading.settings().public_url), language=None, wrap_lines=True)


def _newer(shown: Board) -> None:
    """Says that there is something new; never moves the table under the reader's eyes."""
    newer = tables.newer_results(shown, boards.current(load_track(shown.track, shown.version), shown.backbone))
    if newer:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(texts.newer_results(newer))
            if st.button("Update", key="update"):
                st.rerun()


def _proof(track: Track) -> None:
    """What this track can show, and what it cannot."""
    st.header("What this demo proves, and what it does not" if track.track == "tiny" else "What this track proves")
    left, right = st.columns(2, gap="large")
    left.subheader("It proves")
    left.markdown(track.proves)
    right.subheader("It does not prove")
    right.markdown(track.does_not_prove)


def _before_and_after(board: Board) -> None:
    """Where training moved each entry, the control among them, on the ranked tasks."""
    for column in board.columns:
        if column.role != "ranked":
            continue
        with reading.part("chart"):
            drawn = boards.before_after(board, column.task, reading.scheme())
            if drawn is None:
                continue
            st.header(f"What did training move on {column.title}?")
            frame.draw(drawn, f"before-after-{column.task}")
            st.caption(boards.before_after_caption(board, column.task))
