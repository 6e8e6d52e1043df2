"""What a reader may do: each act is one transaction of the platform, and the page is drawn again after it."""

from __future__ import annotations

import streamlit as st
from sqlalchemy.exc import OperationalError

from dare_platform import entries
from dare_platform.entries import RefusedError
from dare_platform.errors import DatabaseLockedError
from dare_platform.models import LOCAL_ACCOUNT
from dare_platform.uploads import Submission
from leaderboard import reading, texts
from leaderboard.forms import form_messages

SAID = "said"
"""Key of the sentence that the next drawing of a page shows once."""


def submit(submission: Submission, key: str) -> str | None:
    """Write an entry and its runs; the id of its page, or None with the reason on this page."""
    try:
        with reading.database().write() as session:
            submitted = entries.submit(session, LOCAL_ACCOUNT, submission, key)
    except RefusedError as error:
        st.html(form_messages([error.problem.text], first_is_new=True))
        return None
    except (OperationalError, DatabaseLockedError):
        st.html(form_messages([texts.NOT_SUBMITTED], first_is_new=True))
        return None
    st.session_state[SAID] = submitted.sentence
    return submitted.entry_id


def cancel(id: str) -> None:
    """Cancel a run, or all runs of an entry; the holder of an active one is asked to end it."""
    with reading.database().write() as session:
        st.session_state[SAID] = entries.cancel(session, LOCAL_ACCOUNT, id).sentence
    st.rerun()


def ask_again(entry_id: str) -> str | None:
    """A new try of an ended entry, every run anew. Asking twice gives the same try; the id of its page."""
    try:
        with reading.database().write() as session:
            submitted = entries.retry(session, LOCAL_ACCOUNT, entry_id, f"again-{entry_id}")
    except RefusedError as error:
        st.html(form_messages([error.problem.text], first_is_new=True))
        return None
    st.session_state[SAID] = submitted.sentence
    return submitted.entry_id


def say() -> None:
    """What the last act came to, once."""
    if said := st.session_state.pop(SAID, None):
        st.success(said)
