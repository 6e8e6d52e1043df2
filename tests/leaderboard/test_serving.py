"""The site's process: pages and API at one port, and a good end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from filled_database import prepared
from watching import wait_for

from dare_platform.settings import Settings

pytestmark = pytest.mark.full


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A site for people who sign in, and its process."""
    prepared(Settings.from_environment({"DARE_HOME": str(tmp_path)})).close()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    environment = {
        **os.environ, "DARE_HOME": str(tmp_path), "DARE_SIGN_IN": "oidc", "DARE_PUBLIC_URL": url,
        "DARE_OIDC_ISSUER": url, "DARE_OIDC_CLIENT_ID": "dare", "DARE_OIDC_CLIENT_SECRET": "client-secret-canary",
        "DARE_OIDC_COOKIE_SECRET": "cookie-secret-canary-of-32-letters", "TMPDIR": str(tmp_path),
    }  # fmt: skip
    environment.pop("DARE_DATABASE_URL", None)
    command = [sys.executable, "-m", "leaderboard", "--port", str(port)]
    with (
        (tmp_path / "site.log").open("w") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log) as process,
    ):
        try:
            wait_for(url, tmp_path / "site.log")
            yield url, process
        finally:
            process.kill()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_one_port_serves_pages_and_api_and_ends_in_good_order(
    site: tuple[str, subprocess.Popen[bytes]], how: signal.Signals, tmp_path: Path
) -> None:
    url, process = site
    with urlopen(f"{url}/api/v1/health", timeout=20) as answer:
        assert json.load(answer) == {"status": "ok"}
        assert answer.headers["DARE-API"] == "1"
    with urlopen(f"{url}/queue", timeout=20) as answer:
        assert b"<title>" in answer.read()
    with pytest.raises(HTTPError) as refused:
        urlopen(Request(f"{url}/api/v1/entries/x/cancel", method="POST", headers={"Host": "127.0.0.1"}), timeout=20)
    with refused.value as answer:
        assert (answer.code, json.load(answer)["code"]) == (404, "unknown_entry")
    assert list(tmp_path.glob("dare-site-*"))
    process.send_signal(how)
    assert process.wait(20) == 0
    assert not list(tmp_path.glob("dare-site-*")), "the file with the secrets is gone"
    said = (tmp_path / "site.log").read_text()
    assert said.startswith(f"The site: {url}\n")
    assert "Traceback" not in said
    assert "canary" not in said
