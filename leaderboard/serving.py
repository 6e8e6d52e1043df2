"""Starting the site: every setting of Streamlit in one place, so that no configuration file has to travel along."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path

from streamlit.web import bootstrap

from dare_platform.settings import Settings
from leaderboard import theme
from leaderboard.sign_in import Provider, secrets_file

SCRIPT = Path(__file__).parent / "script" / "streamlit_app.py"
ADDRESS_VARIABLE = "DARE_SITE_ADDRESS"
"""Tells the pages under which address the server is reached."""
MOST_UPLOAD_MB = 1

Option = str | bool | int | list[str] | list[int]


def options(port: int, address: str) -> dict[str, Option]:
    """All options: look, privacy, limits, and no trace in front of a reader."""
    return {
        **theme.streamlit_options(),
        "server.port": port,
        "server.address": address,
        "server.headless": True,
        "server.maxUploadSize": MOST_UPLOAD_MB,
        "server.fileWatcherType": "none",
        "server.runOnSave": False,
        "browser.gatherUsageStats": False,
        "browser.serverAddress": address,
        "client.toolbarMode": "viewer",
        "client.showErrorDetails": "none",
        "client.showErrorLinks": False,
        "global.developmentMode": False,
    }


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach an address."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def serve(port: int = 8501, address: str = "127.0.0.1", published: str | None = None) -> None:
    """Run the site until it is stopped.

    Args:
        published: address under which the port of a container is published, where that is not `address`.
    """
    os.environ[ADDRESS_VARIABLE] = published or address
    provider = Provider.from_environment() if Settings.from_environment().sign_in == "oidc" else None
    with secrets_file(provider) as files:
        chosen = {**options(port, address), "secrets.files": files}
        bootstrap.load_config_options(chosen)
        bootstrap.run(str(SCRIPT), False, [], chosen)
