"""Who asks: the owner of a token, the one person of this machine, or nobody."""

from __future__ import annotations

import threading
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from dare_platform import tokens
from dare_platform.database import Database, open_database
from dare_platform.host import is_loopback
from dare_platform.local_service import LocalService
from dare_platform.service import Service
from dare_platform.settings import Settings
from dare_platform.viewer import LOCAL, NOBODY, NotAllowedError, Viewer

bearer = HTTPBearer(
    auto_error=False, scheme_name="token", description="A token of `dare tokens new` or of the account page: `dare_…`."
)


class Door:
    """Lets requests in: opens the database at the first one, and says whose each of them is. Close it when done."""

    def __init__(self, settings: Settings, is_local: bool) -> None:
        """`is_local`: only this machine reaches the server, so that nobody needs a token."""
        self._settings = settings
        self._is_local = is_local
        self._lock = threading.Lock()
        self._opened: Database | None = None

    def __enter__(self) -> Door:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._opened is not None:
            self._opened.close()

    def database(self) -> Database:
        """The one open database. What keeps it from being opened is tried anew at the next request."""
        with self._lock:
            if self._opened is None:
                self._opened = open_database(self._settings)
            return self._opened

    def service(self, request: Request, token: str | None) -> LocalService:
        """What there is for whoever asks."""
        database = self.database()
        viewer = self._without_token(request) if token is None else tokens.admit(database, token)
        takes_files = self._is_local or self._settings.launcher != "process"
        return LocalService(self._settings, database, viewer, takes_files)

    def _without_token(self, request: Request) -> Viewer:
        if self._settings.sign_in != "local" or not self._is_local:
            return NOBODY
        _require_own_page(request)
        return LOCAL


def _require_own_page(request: Request) -> None:
    """NotAllowedError for what a page of somebody else makes this machine's browser ask.

    Such a page reaches the loopback like any program here: by its address, which `Origin` and `Sec-Fetch-Site` give
    away, or by a name of its own that was turned to point here (DNS rebinding), which `Host` gives away.
    """
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    if not _is_this_machine(host):
        raise NotAllowedError(f"this server answers 127.0.0.1 and localhost without a token, not {host[:80]!r}")
    is_foreign = origin is not None and origin not in (f"http://{host}", f"https://{host}")
    if is_foreign or request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise NotAllowedError("a page of another site asked, which needs a token")


def _is_this_machine(host: str) -> bool:
    """Whether a `Host` header, `127.0.0.1:8501`, is of the loopback."""
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False


def _asked(request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Security(bearer)]) -> Service:
    if given is None and "authorization" in request.headers:
        raise tokens.BadTokenError("the Authorization header is no `Bearer dare_…`")
    door: Door = request.app.state.door
    service = door.service(request, given.credentials if given else None)
    request.state.service = service
    return service


Asked = Annotated[Service, Depends(_asked)]
"""The service, in the name of whoever asks."""
