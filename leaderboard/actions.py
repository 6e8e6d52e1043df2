"""What a reader may do: each act is one transaction of the platform, and the page is drawn again after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import streamlit as st
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from dare_platform import entries, snapshots, subscriptions, visibility
from dare_platform.entries import RefusedError
from dare_platform.errors import DatabaseLockedError, PlatformError
from dare_platform.models import Channel, Visibility
from dare_platform.subscriptions import Subscribed
from dare_platform.tracks import Track
from dare_platform.uploads import Submission
from dare_platform.viewer import NotAllowedError, Viewer
from leaderboard import people, reading, texts
from leaderboard.forms import form_messages

KEPT = "kept"
"""Key of the hash of a board that was just kept."""
SAID = "said"
"""Key of the sentence that the next drawing of a page shows once."""


T = TypeVar("T")


def act(do: Callable[[Session, Viewer], T]) -> T | None:
    """One transaction in the name of whoever looks; None with the reason on this page when it is refused."""
    try:
        who = people.viewer()
        with reading.database().write() as session:
            return do(session, who)
    except RefusedError as error:
        reason = error.problem.text
    except NotAllowedError as error:
        reason = f"Not done: {error}."
    except (OperationalError, DatabaseLockedError):
        reason = texts.NOT_SUBMITTED
    except PlatformError as error:
        reason = str(error)
    st.html(form_messages([reason], first_is_new=True))
    return None


def submit(submission: Submission, key: str, seen_by: Visibility = "public") -> str | None:
    """Write an entry and its runs; the id of its page, or None with the reason on this page."""
    quota = reading.settings().quota
    submitted = act(lambda session, who: entries.submit(session, who, submission, key, seen_by, quota))
    if submitted is None:
        return None
    st.session_state[SAID] = submitted.sentence
    return submitted.entry_id


def cancel(id: str) -> None:
    """Cancel a run, or all runs of an entry; the holder of an active one is asked to end it."""
    cancelled = act(lambda session, who: entries.cancel(session, who, id))
    if cancelled is not None:
        st.session_state[SAID] = cancelled.sentence
        st.rerun()


def ask_again(entry_id: str) -> str | None:
    """A new try of an ended entry, every run anew. Asking twice gives the same try; the id of its page."""
    quota = reading.settings().quota
    submitted = act(lambda session, who: entries.retry(session, who, entry_id, f"again-{entry_id}", quota=quota))
    if submitted is None:
        return None
    st.session_state[SAID] = submitted.sentence
    return submitted.entry_id


def show_to(entry_id: str, seen_by: Visibility) -> None:
    """Let more people see an entry."""
    do(f"It is {seen_by} now.", lambda session, who: visibility.show_to(session, who, entry_id, seen_by))


def subscribe(channel: Channel, target: str, each_run: bool) -> Subscribed | None:
    """Ask to be told; None with the reason on this page."""
    chosen = reading.settings()
    return act(lambda session, who: subscriptions.subscribe(session, chosen, who, channel, target, each_run=each_run))


def end_subscription(id: str) -> None:
    """Be told no more."""
    do("Ended. Nothing more is sent there.", lambda session, who: subscriptions.end_subscription(session, who, id))


def keep_board(track: Track, backbone: str) -> None:
    """Keep the public board as it is now. Whoever reads it may: it is the same for everybody, and kept once."""
    kept = act(lambda session, _who: snapshots.take(session, track, backbone))
    if kept is not None:
        st.session_state[KEPT] = kept


def do(sentence: str, change: Callable[[Session, Viewer], object]) -> None:
    """One change without an answer, and the sentence that the next drawing of the page shows."""

    def changed(session: Session, who: Viewer) -> bool:
        change(session, who)
        return True

    if act(changed):
        st.session_state[SAID] = sentence
        st.rerun()


def say() -> None:
    """What the last act came to, once."""
    if said := st.session_state.pop(SAID, None):
        st.success(said)
