"""Snapshot: a board that never changes, to cite and to check, and what changed since another one."""

from __future__ import annotations

import streamlit as st

from dare_platform import snapshots
from dare_platform.board import Board
from dare_platform.snapshots import Taken, UnknownSnapshotError
from dare_platform.tracks import tracks
from dare_platform.verdict import escaped
from leaderboard import links, quantities, reading, snapshot_parts, tables
from leaderboard.links import BoardChoices, BoardView
from leaderboard.pages.leaderboard import files


def page() -> None:
    """The board as it was, then its files, how it is checked, and what changed."""
    reading.title("Snapshot")
    taken = _found(reading.query_value("hash"))
    if taken is None:
        return
    board = taken.board
    st.title(f"Board of {quantities.moment(board.made_at, reading.zone())}", anchor=False)
    st.html(snapshot_parts.facts(taken))
    if not taken.is_intact:
        st.error("**This snapshot does not match its hash.** It is kept for inspection and must not be cited.")
    st.markdown(board.verdict)
    st.html(tables.board_table(board, *_view(board), sortable=False))
    files(board)
    st.caption("Check it, with every run and answer behind it:")
    st.code(f"dare verify {taken.sha256}", language="shell", wrap_lines=True)
    _against(taken)


def _found(sha256: str) -> Taken | None:
    """The one that is asked for, or the sentence instead."""
    with reading.database().read() as session:
        try:
            return snapshots.find(session, sha256)
        except UnknownSnapshotError as error:
            st.title("Snapshot", anchor=False)
            said = str(error)[:200]
            st.markdown(f"**{escaped(said[0].upper() + said[1:])}.** The link may be cut.")
            st.html(tables.back_to_board())
            return None


def _view(board: Board) -> tuple[BoardView, BoardChoices]:
    choices = BoardChoices((board.backbone,), (board.track,), links.sorts_of(board))
    return BoardView(board.backbone, board.track), choices


def _against(taken: Taken) -> None:
    """What changed since an earlier or later board of the same track and backbone."""
    board = taken.board
    track = tracks().get(f"{board.track} {board.version}")
    if track is None:
        return
    with reading.database().read() as session:
        others = dict(snapshots.listed(session, track, board.backbone))
    others.pop(taken.sha256, None)
    st.header("What changed", anchor=False)
    if not others:
        st.markdown("This is the only snapshot of its board.")
        return
    asked = reading.query_value("against")
    options = list(others)
    chosen = st.selectbox(
        "Since", options, index=options.index(asked) if asked in options else 0, key="since", width=360,
        format_func=lambda one: f"{quantities.moment(others[one], reading.zone())}, {quantities.short_hash(one)}",
    )  # fmt: skip
    with reading.part("changes"), reading.database().read() as session:
        _changes(snapshots.find(session, chosen), board)


def _changes(other: Taken, board: Board) -> None:
    found = snapshots.changes(other.board, board)
    if found:
        st.html(snapshot_parts.changes_table(found, other.board, board))
    else:
        st.markdown(f"**No difference in {quantities.plural(len(board.rows), 'row')}.**")
