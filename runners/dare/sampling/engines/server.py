"""JSON over HTTP to an engine's server: every way in which it can fail is an exception with a name and a sentence."""

from __future__ import annotations

from typing import Any

import httpx

from dare.sampling.engines import EngineDiedError, EngineReplyError, EngineTimeoutError


class EngineServer:
    """A connection to one server. `timeout` is for one request: a whole batch of completions."""

    def __init__(self, engine: str, url: str, timeout: float = 3600.0, api_key: str | None = None) -> None:
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self.engine, self.url, self.timeout = engine, url.rstrip("/"), timeout
        # No limit on connections: whoever asks decides how many requests are in flight.
        self._client = httpx.Client(headers=headers, timeout=timeout, limits=httpx.Limits())

    def get(self, path: str) -> Any:
        """The decoded answer of a GET request."""
        return self._ask("GET", path)

    def post(self, path: str, body: object, **query: str | list[str]) -> Any:
        """The decoded answer of a POST request; None where the body is empty."""
        return self._ask("POST", path, json=body, params=query)

    def close(self) -> None:
        """Give the connections back."""
        self._client.close()

    def _ask(self, method: str, path: str, **options: Any) -> Any:
        where = f"{self.engine} at {self.url}"
        try:
            answer = self._client.request(method, self.url + path, **options)
        except httpx.TimeoutException as error:
            raise EngineTimeoutError(f"{where} did not answer {path} within {self.timeout:g} seconds") from error
        except httpx.ConnectError as error:
            raise EngineDiedError(f"nothing answers for {where} ({error}): start the server first") from error
        except httpx.TransportError as error:
            raise EngineDiedError(f"{where} ended the connection during {path} ({error}): see its log") from error
        if answer.is_error:
            raise EngineReplyError(f"{where} refused {path} with {answer.status_code}: {_message(answer)}")
        if not answer.content:
            return None
        try:
            return answer.json()
        except ValueError as error:
            raise EngineReplyError(f"{where} answered {path} with no JSON: {answer.text[:200]!r}") from error


def _message(answer: httpx.Response) -> str:
    """SGLang says {"error": {"message"}} or {"message"}, LMDeploy {"message"}, FastAPI {"detail"}."""
    try:
        body = answer.json()
    except ValueError:
        return answer.text[:200]
    for key in ("error", "message", "detail"):
        if isinstance(body, dict) and key in body:
            body = body[key]
    return str(body)[:500]
