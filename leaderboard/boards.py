"""The board that a page shows: one prepared object per track version and backbone."""

from __future__ import annotations

import streamlit as st

from dare_platform import board_flags, rankings
from dare_platform.board import Board
from dare_platform.board_flags import Flag
from dare_platform.tracks import Track
from dare_platform.views.flags import flag_facts
from leaderboard import charts, people, reading, texts
from leaderboard.charts import Chart
from leaderboard.theme import Scheme


def current(track: Track, backbone: str, beside: str | None = None) -> Board:
    """The board of this moment: one for everybody, and one private entry beside it for somebody who sees that."""
    with reading.database().read() as session:
        return rankings.board(session, track.name, backbone, people.viewer(), beside)


@st.cache_data(show_spinner=False, max_entries=64, ttl=60, hash_funcs={Board: lambda board: board.digest})
def flags(board: Board) -> tuple[Flag, ...]:
    """What must be said beside the numbers of a board. Its content is the key: who may see one may see its flags."""
    with reading.database().read() as session:
        return board_flags.flags(board, flag_facts(session, board))


@st.cache_data(show_spinner=False, max_entries=64, hash_funcs={Board: lambda board: board.digest})
def before_after(board: Board, task: str, scheme: Scheme) -> Chart | None:
    """What training moved on one task, drawn once for each content of a board."""
    return charts.before_after(board, task, scheme)


def before_after_caption(board: Board, task: str) -> str:
    """How that chart is read."""
    states = {row.cells[task].state == "measured" for row in charts.before_after_rows(board, task)}
    has_control = any(row.kind == "control" for row in board.rows)
    return texts.before_after(has_control, with_filled=True in states, with_hollow=False in states)
