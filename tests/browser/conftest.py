"""The real site on a free loopback port with a filled database, and Debian's Chromium."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright
from watching import Site, Watched

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "leaderboard"))

from filled_database import fill, prepared

from dare_platform.database import open_database
from dare_platform.settings import Settings

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
START_SECONDS = 60


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
            _wait_for(url, server, home / "site.log")
            yield Site(url, database, entries)
        finally:
            server.terminate()


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/_stcore/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"the site did not start: {log.read_text()}")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium. Without it these tests are skipped, and fail where CI is set."""
    chromium = shutil.which("chromium")
    if chromium is None:
        message = "no chromium: apt-get install chromium"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def watched(browser: Browser, site: Site, request: pytest.FixtureRequest) -> Iterator[Watched]:
    """A fresh page; `@pytest.mark.parametrize("watched", [(width, scheme)], indirect=True)` chooses its look."""
    width, scheme = getattr(request, "param", (1440, "light"))
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    context.set_default_timeout(20_000)
    page = Watched(context.new_page(), site)
    yield page
    context.close()
    assert page.errors == []
    assert page.foreign == []
