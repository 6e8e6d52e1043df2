"""The door of a server: who may come in, how much they may bring, and how long they were served."""

from __future__ import annotations

import hmac
import time
from collections.abc import Iterable

from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dare.server.metrics import Metrics

OPEN_PATHS = ("/health",)
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
GONE = 499
"""What a request counts as whose client did not wait; nginx's number."""


def error_response(
    status: int, sentence: str, kind: str = "invalid_request_error", code: str | None = None
) -> JSONResponse:
    """OpenAI's error object."""
    headers = {"Retry-After": "1"} if status in (429, 503) else {}
    return JSONResponse(
        {"error": {"message": sentence, "type": kind, "param": None, "code": code}}, status, headers=headers
    )


class Guard:
    """ASGI middleware. Without a key only local names are answered, so that no web page gets in under another."""

    def __init__(
        self, app: ASGIApp, metrics: Metrics, paths: Iterable[str], body_bytes: int, api_key: str | None
    ) -> None:
        self._app, self._metrics, self._paths = app, metrics, frozenset(paths)
        self._body_bytes = body_bytes
        self._key = api_key.encode() if api_key else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.monotonic(), GONE

        async def counted_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        endpoint = scope["path"] if scope["path"] in self._paths else "other"
        try:
            refused = self._refused(scope)
            if refused is not None:
                await refused(scope, receive, counted_send)
            else:
                await self._app(scope, self._limited(receive), counted_send)
        finally:
            self._metrics.request(endpoint, status, time.monotonic() - began)

    def _refused(self, scope: Scope) -> JSONResponse | None:
        headers = dict(scope["headers"])
        if self._key is None:
            host = headers.get(b"host", b"localhost").decode("latin-1")
            name = host if host.endswith("]") else host.rsplit(":", 1)[0]
            if name.lower() not in LOCAL_NAMES:
                return error_response(403, f"this server answers to {', '.join(LOCAL_NAMES)}, not to {name!r}")
        elif scope["path"] not in OPEN_PATHS:
            given = headers.get(b"authorization", b"").removeprefix(b"Bearer ")
            if not hmac.compare_digest(given, self._key):
                return error_response(
                    401, "send the server's key as `Authorization: Bearer KEY`", code="invalid_api_key"
                )
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._body_bytes:
            return error_response(413, self._too_large, code="body_too_large")
        return None

    @property
    def _too_large(self) -> str:
        return f"a body may have {self._body_bytes} bytes"

    def _limited(self, receive: Receive) -> Receive:
        """`receive` that fails when a body without a length is longer than it may be."""
        seen = 0

        async def limited() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._body_bytes:
                raise HTTPException(413, self._too_large)
            return message

        return limited
