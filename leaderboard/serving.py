"""Starting the site: every setting of Streamlit in one place, so that no configuration file has to travel along.

The site's server has the HTTP API too, below /api: one process, one port (docs/adr/0031).
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType

import uvicorn
from streamlit.starlette import App
from streamlit.web import bootstrap

from dare_platform import api
from dare_platform.host import is_loopback
from dare_platform.settings import Settings
from leaderboard import theme
from leaderboard.sign_in import Provider, secrets_file

SCRIPT = Path(__file__).parent / "script" / "streamlit_app.py"
ADDRESS_VARIABLE = "DARE_SITE_ADDRESS"
"""Tells the pages under which address the server is reached."""
MOST_UPLOAD_MB = 1

MOST_MESSAGE_BYTES = 200 * 2**20
"""What Streamlit itself allows between a page and its server."""
PING_SECONDS = 30.0
SHUTDOWN_SECONDS = 5
"""For so long answers that are under way may take after Ctrl-C."""

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


def serve(port: int = 8501, address: str = "127.0.0.1", published: str | None = None) -> None:
    """Run the site until it is stopped.

    Args:
        published: address under which the port of a container is published, where that is not `address`.
    """
    reached_at = published or address
    os.environ[ADDRESS_VARIABLE] = reached_at
    settings = Settings.from_environment()
    provider = Provider.from_environment() if settings.sign_in == "oidc" else None
    with secrets_file(provider) as files, api.Door(settings, is_loopback(reached_at)) as door:
        bootstrap.load_config_options({**options(port, address), "secrets.files": files})
        app = App(SCRIPT, routes=[api.mounted(door)])
        signal.signal(signal.SIGTERM, _leave)
        uvicorn.run(
            app, host=address, port=port, log_level="warning", log_config=None, access_log=False,
            ws="websockets-sansio", ws_max_size=MOST_MESSAGE_BYTES, ws_ping_interval=PING_SECONDS,
            ws_ping_timeout=PING_SECONDS, timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )  # fmt: skip


def _leave(_signal: int, _frame: FrameType | None) -> None:
    """Uvicorn ends in good order and raises the signal again: by then the file with the secrets must go."""
    sys.exit(0)
