"""The site: which pages there are, and the answer when the database is away. Pages are in `leaderboard/pages`."""

from __future__ import annotations

import streamlit as st
from streamlit.navigation.page import StreamlitPage

from leaderboard import frame, people, reading
from leaderboard.pages import account, backbone, compare, cost, curves, queue, rules, run, snapshot, submit, task
from leaderboard.pages import leaderboard as board


def main() -> None:
    """One run of the script: the frame, then the page that the URL names."""
    frame.identity()
    with reading.database_answers():
        page = st.navigation(
            [
                frame.listed(board.page, "Leaderboard", "leaderboard", default=True),
                frame.listed(compare.page, "Compare", "compare"),
                frame.listed(cost.page, "Cost", "cost"),
                frame.listed(submit.page, "Submit", "submit"),
                frame.listed(queue.page, "Queue", "queue"),
                frame.listed(rules.page, "Rules", "rules"),
                frame.entry_page(),
                st.Page(task.page, title="Task", url_path="task", visibility="hidden"),
                st.Page(backbone.page, title="Backbone", url_path="backbone", visibility="hidden"),
                st.Page(curves.page, title="Curves", url_path="curves", visibility="hidden"),
                st.Page(snapshot.page, title="Snapshot", url_path="snapshot", visibility="hidden"),
                st.Page(run.page, title="Run", url_path="run", visibility="hidden"),
                _account(),
            ],
            position="top",
        )
        page.run()


def _account() -> StreamlitPage:
    """The last of the menu where people sign in: who one is, or the way in. Where there is one person, out of it."""
    person = people.person()
    title = person.handle if person is not None else "Sign in"
    if not people.has_sign_in():
        return st.Page(account.page, title="Account", url_path="account", visibility="hidden")
    return st.Page(account.page, title=title, url_path="account")
