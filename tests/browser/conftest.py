"""The real site on a free loopback port with a filled database, and Debian's Chromium."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from watching import Site, Watched, fresh_page, wait_for

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "leaderboard"))

from filled_database import fill, prepared

from dare_platform.database import open_database
from dare_platform.settings import Settings


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("home")
    settings = Settings.from_environment({"DARE_HOME": str(home)})
    with prepared(settings) as database:
        entries = fill(database)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "DARE_HOME": str(home)}
    environment.pop("DARE_DATABASE_URL", None)
    with (
        (home / "site.log").open("w") as log,
        subprocess.Popen(
            [sys.executable, "-m", "leaderboard", "--port", str(port)], env=environment, stdout=log, stderr=log
        ) as server,
        open_database(settings) as database,
    ):
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for(url, home / "site.log")
            yield Site(url, database, entries)
        finally:
            server.terminate()


@pytest.fixture
def watched(browser: Browser, site: Site, request: pytest.FixtureRequest) -> Iterator[Watched]:
    """A fresh page; `@pytest.mark.parametrize("watched", [(width, scheme)], indirect=True)` chooses its look."""
    width, scheme = getattr(request, "param", (1440, "light"))
    with fresh_page(browser, site, width, scheme) as page:
        yield page
