"""Queue: that the machine is alive, what waits for what, and who works."""

from __future__ import annotations

import streamlit as st

from dare_platform import views
from leaderboard import lists, people, reading, texts

REFRESH_SECONDS = 5


def page() -> None:
    """One sentence, then two tables that renew themselves."""
    reading.title("Queue")
    st.title("Queue")
    _tables()


@st.fragment(run_every=REFRESH_SECONDS)
def _tables() -> None:
    with reading.database().read() as session:
        queue = views.queue_view(session, people.viewer())
    st.markdown(queue.headline)
    if queue.running or queue.waiting:
        st.header("Runs")
    if queue.running:
        st.html(lists.running_runs(queue.running))
    if queue.waiting:
        st.html(lists.waiting_runs(queue.waiting))
    if queue.blocked:
        st.caption(texts.blocked(queue.blocked))
    st.header("Workers")
    if queue.workers:
        st.html(lists.workers(queue.workers))
    else:
        st.markdown(texts.NO_WORKER_YET)
