"""How an error is answered: a status, a stable code and one sentence; never a trace."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import asdict
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import TypeAdapter
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dare.source.problems import Problem
from dare_platform.api_messages import KINDS, MEDIA_TYPE, VERSION, VERSION_HEADER, ApiProblem, problem_of
from dare_platform.quotas import QuotaError
from dare_platform.service import Service

RETRY_SECONDS = 2
"""When to ask again while the database is away."""

log = logging.getLogger(__name__)


def _documented(sentence: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/ApiProblem"}
    return {"description": sentence, "content": {MEDIA_TYPE: {"schema": schema}}}


FOR_ALL: dict[int | str, dict[str, Any]] = {
    400: _documented("The body cannot be read at all."),
    401: _documented("The token is unknown, over or revoked."),
    403: _documented("Whoever asks may not do that."),
    404: _documented("There is nothing of this name, or it is somebody's private one."),
    409: _documented("It would contradict what is there."),
    413: _documented("The body is too large."),
    422: _documented("The request, or what is submitted, is not as it must be; `problems` lists everything."),
    429: _documented("The quota is used up; `Retry-After` says for how many seconds."),
    503: _documented("The database does not answer."),
}


class Marked:
    """Every answer says that it is ours, and is kept by nobody: it is for the one who asked."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""

        async def marking(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[VERSION_HEADER] = VERSION
                headers["Cache-Control"] = "no-store"
                headers["Vary"] = "Authorization"
                headers["X-Content-Type-Options"] = "nosniff"
            await send(message)

        await self._app(scope, receive, marking)


def say_problems(app: FastAPI) -> None:
    """Answer every error as a problem, and complete the document."""
    for kind in KINDS:
        app.add_exception_handler(kind.error, _known)
    app.add_exception_handler(RequestValidationError, _no_request)
    app.add_exception_handler(HTTPException, no_answer)
    app.add_exception_handler(Exception, _ours)
    _describe(app)


def _known(request: Request, error: Exception) -> Response:
    problem = problem_of(error)
    if problem.status == HTTPStatus.SERVICE_UNAVAILABLE:
        log.warning("%s: %s", problem.code, error)
    headers = {
        HTTPStatus.UNAUTHORIZED: {"WWW-Authenticate": 'Bearer realm="DARE"'},
        HTTPStatus.SERVICE_UNAVAILABLE: {"Retry-After": str(RETRY_SECONDS)},
    }.get(HTTPStatus(problem.status), {})
    if isinstance(error, QuotaError):
        headers = _free_again(request.state.service)
    return _answer(problem, headers)


def _free_again(service: Service) -> dict[str, str]:
    quota = service.whoami().quota
    if quota is None or quota.next_free_at is None:
        return {}
    return {"Retry-After": str(max(1, math.ceil(quota.next_free_at - time.time())))}


def _no_request(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = tuple(Problem("request", None, _sentence(one["loc"], one["msg"])) for one in error.errors())
    return _answer(_of_status(422, "request", " ".join(one.text for one in problems[:3]), problems))


def _sentence(where: tuple[int | str, ...], what: str) -> str:
    """Never with the value that was sent: it may be a secret."""
    place = ".".join(str(part) for part in where[1:]) or str(where[0])
    return f"`{place}`: {what.removeprefix('Value error, ')}."


def no_answer(_request: Request, error: Exception) -> Response:
    """There is nothing at this address, or not for this method, or the body is none."""
    assert isinstance(error, HTTPException)
    codes = {400: "unreadable", 404: "no_such_path", 405: "no_such_method", 413: "too_large"}
    sentences = {404: "there is nothing at this address", 405: "this address is not asked by this method"}
    detail = sentences.get(error.status_code, str(error.detail))
    return _answer(_of_status(error.status_code, codes.get(error.status_code, "http"), detail), error.headers)


def _ours(_request: Request, _error: Exception) -> Response:
    """Whoever runs the server finds the trace in its log."""
    return _answer(_of_status(500, "internal", "something went wrong on the server; its log says what"))


def _of_status(status: int, code: str, detail: str, problems: tuple[Problem, ...] = ()) -> ApiProblem:
    return ApiProblem(status, code, HTTPStatus(status).phrase, detail, problems)


def _answer(problem: ApiProblem, headers: Any = None) -> Response:
    return JSONResponse(asdict(problem), problem.status, headers, MEDIA_TYPE)


def _describe(app: FastAPI) -> None:
    """Add what FastAPI does not know: the shape of our problems, in the place of its own, and that tokens are optional.

    What is public may be read by anybody, so that no operation has to have one.
    """
    made = app.openapi

    def described() -> dict[str, Any]:
        document = made()
        schemas = document["components"]["schemas"]
        if "ApiProblem" not in schemas:
            schema = TypeAdapter(ApiProblem).json_schema(ref_template="#/components/schemas/{model}")
            schemas |= schema.pop("$defs", {}) | {"ApiProblem": schema}
            for unused in ("HTTPValidationError", "ValidationError"):
                schemas.pop(unused, None)
            for methods in document["paths"].values():
                for operation in methods.values():
                    operation.setdefault("security", []).append({})
        return document

    app.openapi = described  # type: ignore[method-assign]  # FastAPI's own way to extend the document
