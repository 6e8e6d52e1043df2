"""The site: which pages there are, and the answer when the database is away. Pages are in `leaderboard/pages`."""

from __future__ import annotations

import streamlit as st

from leaderboard import frame, reading
from leaderboard.pages import leaderboard as board
from leaderboard.pages import queue, rules, run, submit


def main() -> None:
    """One run of the script: the frame, then the page that the URL names."""
    frame.identity()
    page = st.navigation(
        [
            frame.listed(board.page, "Leaderboard", "leaderboard", default=True),
            frame.listed(submit.page, "Submit", "submit"),
            frame.listed(queue.page, "Queue", "queue"),
            frame.listed(rules.page, "Rules", "rules"),
            frame.entry_page(),
            st.Page(run.page, title="Run", url_path="run", visibility="hidden"),
        ],
        position="top",
    )
    with reading.database_answers():
        page.run()
