"""A real site beside a real worker, and Debian's Chromium."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright
from small import home_with, worker_environment

from dare_platform.database import open_database
from dare_platform.tracks import load_track

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "browser"))

from watching import Site, Watched

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
START_SECONDS = 60


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


def wait_for(url: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/_stcore/health", timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"the site did not start: {log.read_text()}")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Debian's Chromium. Without it these tests are skipped, and fail where CI is set."""
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


@pytest.fixture
def watched(chromium: Browser, site: Site) -> Iterator[Watched]:
    """A fresh page that remembers what it must not do."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(20_000)
    page = Watched(context.new_page(), site)
    yield page
    context.close()
    assert page.errors == []
    assert page.foreign == []
