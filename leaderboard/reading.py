"""What pages need from outside: the open database, the colour scheme, the reader's clock, and parts that may fail."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import streamlit as st
from sqlalchemy.exc import OperationalError

from dare_platform import host
from dare_platform.database import Database, open_database
from dare_platform.errors import DatabaseLockedError, SchemaError
from dare_platform.settings import Settings
from leaderboard import quantities, serving, texts
from leaderboard.theme import Scheme

_log = logging.getLogger(__name__)
RETRY_SECONDS = 10


@st.cache_resource(show_spinner=False, hash_funcs={Settings: repr})
def _opened(chosen: Settings) -> Database:
    """One engine for all sessions of this server, opened at the first request."""
    return open_database(chosen)


def settings() -> Settings:
    """Settings of this server."""
    return Settings.from_environment()


def database() -> Database:
    """The one open database."""
    return _opened(settings())


@contextmanager
def database_answers() -> Iterator[None]:
    """Runs a page; when the database is away, one sentence stands in its place and the page tries again."""
    try:
        yield
    except (OperationalError, DatabaseLockedError, SchemaError) as error:
        _log.warning("the database does not answer: %s", error)
        last = st.session_state.get("last_answer")
        st.markdown(texts.database_away(quantities.moment(last, zone(), time_only=True) if last else None))
        if isinstance(error, SchemaError):
            st.markdown("It has not been prepared for this version: run `dare migrate`.")
        st.fragment(run_every=RETRY_SECONDS)(_try_again)(time.monotonic())
    else:
        st.session_state["last_answer"] = time.time()


def _try_again(since: float) -> None:
    if time.monotonic() - since > RETRY_SECONDS / 2:
        st.rerun()


@contextmanager
def part(noun: str) -> Iterator[None]:
    """One part of a page, whose failure leaves the rest standing and shows a reference, never a trace."""
    try:
        yield
    except (OperationalError, DatabaseLockedError, SchemaError):
        raise
    except Exception:
        reference = secrets.token_hex(3)
        _log.exception("a part of a page failed, reference %s", reference)
        st.markdown(texts.part_failed(noun, reference))


def scheme() -> Scheme:
    """The reader's colour scheme, for what CSS cannot reach."""
    return "dark" if st.context.theme.type == "dark" else "light"


def zone() -> tzinfo:
    """The reader's time zone; UTC where the browser does not tell."""
    try:
        return ZoneInfo(st.context.timezone) if st.context.timezone else UTC
    except (ZoneInfoNotFoundError, ValueError):
        return UTC


def query() -> Mapping[str, Sequence[str]]:
    """The URL's parameters as they came, before a widget drops what it does not know."""
    return {name: st.query_params.get_all(name) for name in st.query_params}


def query_value(name: str) -> str:
    """One parameter, or an empty text."""
    return (query().get(name) or ("",))[-1].strip()


def is_loopback() -> bool:
    """Whether only this machine reaches the site. Not knowing counts as no."""
    return host.is_loopback(os.environ.get(serving.ADDRESS_VARIABLE, ""))


def takes_files() -> bool:
    """Whether somebody else's code may be sent in: it runs in a container, or only this machine reaches the site."""
    return is_loopback() or settings().launcher != "process"


def title(*words: str) -> None:
    """The browser's title: `BGPO · Entry · DARE`."""
    st.set_page_config(page_title=" · ".join([*words, "DARE"]))
