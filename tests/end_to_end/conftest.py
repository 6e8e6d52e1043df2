"""A real site beside a real worker, and Debian's Chromium."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser
from small import home_with, worker_environment
from watching import Site, Watched, fresh_page, wait_for

from dare_platform.database import open_database
from dare_platform.tracks import load_track


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The site and one worker on an empty database that knows the tiny track."""
    home = tmp_path_factory.mktemp("site") / "home"
    settings = home_with(home, load_track("tiny"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for name, command in (
        ("site", ("leaderboard", "--port", str(port))),
        ("worker", ("dare_platform", "worker", "--family", "sdar")),
    ):
        with (home / f"{name}.log").open("wb") as log:
            command = (sys.executable, "-m", *command)
            started.append(subprocess.Popen(command, env=worker_environment(settings), stdout=log, stderr=log))
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(url, home / "site.log")
        with open_database(settings) as database:
            yield Site(url, database, {})
    finally:
        for process in started:
            process.send_signal(signal.SIGTERM)
        for process in started:
            process.wait(30)


@pytest.fixture
def watched(browser: Browser, site: Site) -> Iterator[Watched]:
    with fresh_page(browser, site, 1280, "light") as page:
        yield page
