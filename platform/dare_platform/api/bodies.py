"""A limit on what is sent to us, kept while it is read: nobody fills the memory first and is refused afterwards."""

from __future__ import annotations

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dare_platform.api_messages import MOST_BYTES, TOO_LARGE


class LimitedBodies:
    """Refuses a larger body with 413, as soon as it is known to be larger."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        read = 0

        async def limited() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > MOST_BYTES:
                raise HTTPException(413, TOO_LARGE)
            return message

        await self._app(scope, limited, send)
