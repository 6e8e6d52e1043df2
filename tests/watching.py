"""The site in a real browser: a page under observation, what it must not do, and where its pictures are kept."""

from __future__ import annotations

import os
import shutil
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright
from sqlalchemy import select

from dare_platform.database import Database
from dare_platform.models import Run

SCREENSHOTS = Path(__file__).resolve().parents[1] / "artefacts" / "screenshots"


@dataclass
class Site:
    """A running server, its database and the entries in it by name."""

    url: str
    database: Database
    entries: dict[str, str]

    def run(self, entry: str, state: str) -> str:
        """A run of an entry in a state."""
        with self.database.read() as session:
            query = select(Run.id).where(Run.entry_id == self.entries[entry], Run.state == state)
            return session.execute(query.order_by(Run.id).limit(1)).scalar_one()


@dataclass
class Watched:
    """A browser page that remembers what it must not do: errors on the console, requests to other hosts."""

    page: Page
    site: Site
    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self._request)

    def _console(self, message: ConsoleMessage) -> None:
        # Streamlit looks for its own endpoints below the path of a page first, and finds them at the root.
        if message.type == "error" and "/_stcore/" not in message.location.get("url", ""):
            self.errors.append(message.text)

    def _request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.hostname != "127.0.0.1":
            self.foreign.append(request.url)

    def open(self, path: str) -> Page:
        """Go to a page of the site and wait until it has been drawn."""
        self.page.goto(f"{self.site.url}/{path}")
        self.settle()
        return self.page

    def settle(self) -> None:
        """Wait for the end of a run of the script, and until every element it asked for has its own code."""
        self.page.get_by_test_id("stHeading").first.wait_for()
        self.page.wait_for_function(
            "document.querySelector('.stApp')?.getAttribute('data-test-script-state') === 'notRunning'"
        )
        self.page.wait_for_function("document.querySelector('[data-testid=stSkeleton]') === null")
        self.page.wait_for_timeout(300)


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


def wait_for(url: str, log: Path) -> None:
    """Until the site answers; a test that waits too long fails with what the site said."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/_stcore/health", timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"the site did not start: {log.read_text()}")


@contextmanager
def debians_chromium() -> Iterator[Browser]:
    """Debian's Chromium. Without it the tests are skipped, and fail where CI is set."""
    program = shutil.which("chromium")
    if program is None:
        message = "no chromium: apt-get install chromium"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def fresh_page(browser: Browser, site: Site, width: int, scheme: Literal["light", "dark"]) -> Iterator[Watched]:
    """A page that remembers what it must not do: errors on the console, and requests to other hosts."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    context.set_default_timeout(20_000)
    page = Watched(context.new_page(), site)
    yield page
    context.close()
    assert page.errors == []
    assert page.foreign == []
