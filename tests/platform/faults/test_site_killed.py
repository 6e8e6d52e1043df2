"""The site's process killed in the middle of a submission: the entry is there once or not at all, with all its runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from launching import free_address
from played import register, tiny
from playwright.sync_api import Browser
from sqlalchemy import select, text
from test_services_away import is_blocked
from test_worker import count, wait_for
from watching import Site, Watched
from watching import wait_for as wait_for_site

from dare_platform import entries
from dare_platform.database import Database
from dare_platform.models import Entry, Outbox, Run
from dare_platform.settings import Settings
from dare_platform.uploads import read_builtin
from dare_platform.viewer import LOCAL

pytestmark = pytest.mark.full


@contextmanager
def site(settings: Settings, browser: Browser) -> Iterator[tuple[subprocess.Popen[bytes], Watched]]:
    """The real server and a page of a browser."""
    url = free_address()
    settings.home.mkdir(parents=True, exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DARE_")}
    environment |= {"DARE_HOME": str(settings.home), "DARE_DATABASE_URL": settings.database_url}
    command = [sys.executable, "-m", "leaderboard", "--port", str(urlsplit(url).port)]
    with (settings.home / "site.log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    context = browser.new_context()
    try:
        wait_for_site(url, settings.home / "site.log")
        with Database(settings.database_url) as database:
            yield server, Watched(context.new_page(), Site(url, database, {}))
    finally:
        context.close()
        server.kill()
        server.wait()


def press_queue(watched: Watched) -> None:
    page = watched.open("submit?backbones=llada-tiny")
    page.get_by_label("Built-in method").click()
    page.get_by_role("option", name="bgpo", exact=True).click()
    page.get_by_role("button", name="Queue 6 runs").click()


def test_a_site_killed_inside_its_transaction_leaves_nothing_and_the_next_one_all(
    postgres_settings: Settings, browser: Browser, seen: Callable[[str], None]
) -> None:
    with Database(postgres_settings.database_url) as database:
        with database.write() as session:
            register(session)
        with site(postgres_settings, browser) as (server, watched), database.write() as session:
            session.execute(text("LOCK TABLE outbox IN EXCLUSIVE MODE"))  # entry and a run are written by then
            press_queue(watched)
            wait_for(lambda: is_blocked(database))
            server.send_signal(signal.SIGKILL)
            server.wait()
        wait_for(lambda: not is_blocked(database))
        assert (count(database, Entry), count(database, Run), count(database, Outbox)) == (0, 0, 0)
        with site(postgres_settings, browser) as (server, watched):
            press_queue(watched)
            wait_for(lambda: count(database, Entry))
            server.send_signal(signal.SIGKILL)  # before or after it has said so: the commit was before
            server.wait()
        assert (count(database, Entry), count(database, Run)) == (1, 6)
        with database.write() as session:
            made = session.execute(select(Entry)).scalar_one()
            submission = read_builtin("bgpo", None, tiny(), ["llada-tiny"]).submission
            assert submission is not None
            again = entries.submit(session, LOCAL, submission, made.idempotency_key)
        assert (again.entry_id, again.created, count(database, Run)) == (made.id, False, 6)
    seen("killed inside the transaction: nothing; after it: one entry with all runs, to which the same key leads")
