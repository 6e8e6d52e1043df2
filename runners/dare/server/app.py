"""`dare serve`: one policy over HTTP, in the shapes of OpenAI's API.

The event loop reads requests and writes answers; tokenizing has a thread and so has the model. See
`dare.server.requests` for what a request may say, `dare.server.queue` for how requests share the model,
`dare.likelihood` for what a likelihood is.
"""

from __future__ import annotations

import asyncio
import copy
import ipaddress
import json
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.exceptions import HTTPException

from dare.policy import Policy, RequestError, first_problem
from dare.seeds import generator_for
from dare.server.guard import GONE, Guard, error_response
from dare.server.metrics import Metrics
from dare.server.queue import FailedError, QueueFullError, StoppingError, Waiting, Work
from dare.server.requests import (
    Chat,
    Completion,
    LikelihoodRequest,
    UnknownModelError,
    check_model,
    check_neutral,
    check_repeats,
)
from dare.server.rows import Answered, DecodedRow, ScoredPairs
from dare.server.shapes import ChatShape, Shape, TextShape

LOOK_SECONDS = 0.25
"""How long a client may be gone before it is noticed."""
T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """What one request, and all of them together, may ask for."""

    batch: int = 16
    """Rows decoded together."""
    queue: int = 256
    """Rows that wait."""
    rows: int = 128
    """Prompts times `n`, or choices, of one request."""
    body_bytes: int = 4_000_000
    stop_seconds: int = 30
    """For requests that are there when the server is told to stop."""


class NoLikelihoodError(RuntimeError):
    """What decodes computes no likelihood, and the weights are not in this process."""


STATUS: dict[type[Exception], tuple[int, str, str | None]] = {
    UnknownModelError: (404, "invalid_request_error", "model_not_found"),
    RequestError: (400, "invalid_request_error", None),
    NoLikelihoodError: (501, "invalid_request_error", "no_likelihood"),
    QueueFullError: (429, "rate_limit_error", "queue_full"),
    StoppingError: (503, "server_error", "stopping"),
    FailedError: (500, "server_error", None),
}
"""Status, type and code of the ways in which a request can fail; the most special class first."""


def response_to(error: Exception) -> JSONResponse:
    """The answer to a request that failed in one of these ways."""
    status, kind, code = next(told for known, told in STATUS.items() if isinstance(error, known))
    return error_response(status, str(error), kind, code)


class Service:
    """The endpoints over one policy."""

    def __init__(self, policy: Policy, limits: Limits) -> None:
        self.metrics = Metrics()
        self._waiting = Waiting(policy, limits.batch, limits.queue, self.metrics)
        self._limits = limits
        # A copy: a tokenizer changes while it encodes, and the model's thread decodes with the other one.
        self._policy = replace(policy, tokenizer=copy.deepcopy(policy.tokenizer))
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        self._born = int(time.time())

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """The threads live as long as the server."""
        self._waiting.start()
        yield
        await asyncio.to_thread(self._waiting.stop)
        self._reader.shutdown()

    async def models(self) -> JSONResponse:
        """The one model, with its decoding when nobody says otherwise."""
        policy = self._policy
        model = {"id": policy.name, "object": "model", "created": self._born, "owned_by": "dare"}
        more: dict[str, Any] = {"context": policy.context, "sampling": policy.sampling.model_dump(mode="json")}
        more |= {} if policy.engine is None else {"engine": policy.engine.name}
        return JSONResponse({"object": "list", "data": [{**model, "extra": more}]})

    async def health(self) -> JSONResponse:
        """Whether requests will be answered."""
        if not self._waiting.alive:
            return error_response(503, "the model's thread has ended; restart the server", "server_error")
        return JSONResponse({"status": "ok", "model": self._policy.name})

    async def prometheus(self) -> PlainTextResponse:
        """Counters."""
        text = self.metrics.text(self._waiting.length, self._waiting.running)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def completions(self, body: Completion, request: Request) -> Response:
        """Continue prompts that are taken as they are."""
        return await self._generate(body, request, TextShape)

    async def chat(self, body: Chat, request: Request) -> Response:
        """Answer a dialogue."""
        return await self._generate(body, request, ChatShape)

    async def likelihood(self, body: LikelihoodRequest, request: Request) -> Response:
        """A lower bound of the log-likelihood of each continuation; see `likelihood`."""
        if self._policy.engine is not None:
            raise NoLikelihoodError(
                f"{self._policy.engine.name} decodes here and computes no likelihood: ask a server without --engine"
            )
        check_neutral(body)
        check_model(body, self._policy)
        if len(body.choices) > self._limits.rows:
            raise RequestError(f"there are {len(body.choices)} choices; one request may have {self._limits.rows}")

        def read() -> list[tuple[list[int], list[int]]]:
            pairs = [choice.pair(self._policy) for choice in body.choices]
            for context, continuation in pairs:
                self._policy.check_fits([*context, *continuation], 0)
            return pairs

        pairs = await self._read(read)
        found = await self._wait([ScoredPairs(pairs, body.mc_samples, body.seed)], request)
        if found is None:
            return Response(status_code=GONE)
        [likelihoods] = found
        prompt_tokens = sum(len(context) + len(continuation) for context, continuation in pairs)
        self.metrics.tokens(prompt_tokens, 0)
        choices = [
            {
                "index": index,
                "log_likelihood": one.logp,
                "standard_error": one.standard_error,
                "tokens": one.tokens,
                "nfe": one.forwards,
            }
            for index, one in enumerate(likelihoods)
        ]
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": 0, "total_tokens": prompt_tokens}
        usage["nfe"] = sum(one.forwards for one in likelihoods)
        head = {"object": "likelihood", "model": self._policy.name, "estimator": "random_order_elbo"}
        return JSONResponse({**head, "choices": choices, "usage": usage})

    async def _generate(self, body: Completion | Chat, request: Request, shape: type[Shape]) -> Response:
        check_neutral(body)
        check_model(body, self._policy)
        stops, returned = body.stops, body.returned
        config, limit = body.decoding(self._policy)
        self._policy.check_decodes(config)
        check_repeats(body, config, self._policy)

        def read() -> list[list[int]]:
            prompts = body.prompts(self._policy)
            if len(prompts) * body.n > self._limits.rows:
                raise RequestError(
                    f"{len(prompts)} prompts times n = {body.n} are {len(prompts) * body.n} rows; "
                    f"one request may have {self._limits.rows}"
                )
            for prompt in prompts:
                self._policy.check_fits(prompt, config.gen_length)
            return prompts

        prompts = await self._read(read)
        seed = body.private_seed()
        rows = [
            DecodedRow(prompt, config, generator_for(seed, "serve", choice), stops, limit)
            for prompt in prompts
            for choice in range(body.n)
        ]
        answer = shape(self._policy.name, returned, sum(len(prompt) for prompt in prompts))
        if body.stream:
            with_usage = body.stream_options is not None and body.stream_options.include_usage
            events = Events(rows, answer, with_usage)
            self._waiting.add(rows)  # before the answer begins, so that a full queue is a status and no event
            return StreamingResponse(
                self._stream(events, request), media_type="text/event-stream", headers={"Cache-Control": "no-cache"}
            )
        found = await self._wait(rows, request)
        if found is None:
            return Response(status_code=GONE)
        self._count(answer, found)
        return JSONResponse(answer.whole(found))

    async def _read(self, read: Callable[[], T]) -> T:
        """What takes a tokenizer, outside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._reader, read)

    async def _wait(self, works: Sequence[Work], request: Request) -> list[Any] | None:
        """What became of the works; None when the client has gone meanwhile."""
        self._waiting.add(works)
        futures: list[asyncio.Future[Any]] = [asyncio.wrap_future(work.future) for work in works]
        try:
            pending = set(futures)
            while pending:
                _, pending = await asyncio.wait(pending, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
                failed = [error for future in futures if future.done() and (error := future.exception()) is not None]
                if failed:
                    raise failed[0]
                if pending and await request.is_disconnected():
                    return None
            return [future.result() for future in futures]
        finally:
            self._waiting.abandon(works)
            for future in futures:
                future.cancel()

    async def _stream(self, events: Events, request: Request) -> AsyncIterator[str]:
        """Server-sent events. Closed early, it abandons its rows."""
        try:
            while not events.over:
                try:
                    yield await asyncio.wait_for(events.next(), LOOK_SECONDS)
                except TimeoutError:
                    if await request.is_disconnected():
                        return
            self._count(events.answer, events.answers)
        finally:
            self._waiting.abandon(events.rows)

    def _count(self, answer: Shape, answers: Sequence[Answered]) -> None:
        self.metrics.tokens(answer.prompt_tokens, sum(len(one.ids) for one in answers))


class Events:
    """The server-sent events of one request: settled text as it comes, the end of every row, usage, [DONE].

    A block family settles block by block, a full canvas from its left end. An error after the first event is an event.
    """

    def __init__(self, rows: Sequence[DecodedRow], answer: Shape, with_usage: bool) -> None:
        self.rows, self.answer = rows, answer
        self.over = False
        self._with_usage = with_usage
        self._queue: asyncio.Queue[tuple[int, str | None]] = asyncio.Queue()
        self._begun: set[int] = set()
        self._open = len(rows)
        loop = asyncio.get_running_loop()
        for index, row in enumerate(rows):
            row.tell = partial(self._happened, loop, index)
            row.future.add_done_callback(partial(self._ended, loop, index))

    def _happened(self, loop: asyncio.AbstractEventLoop, index: int, piece: str | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._queue.put_nowait, (index, piece))

    def _ended(self, loop: asyncio.AbstractEventLoop, index: int, _: Future[Answered]) -> None:
        self._happened(loop, index, None)

    @property
    def answers(self) -> list[Answered]:
        """What became of the rows, once it is over."""
        return [row.future.result() for row in self.rows if not row.future.cancelled() and not row.future.exception()]

    async def next(self) -> str:
        """The next event, or the last ones together."""
        index, piece = await self._queue.get()
        if piece is not None:
            first = index not in self._begun
            self._begun.add(index)
            return _event(self.answer.chunk(index, piece, first))
        self._open -= 1
        error = self.rows[index].future.exception()
        if error is not None:
            self.over = True
            failed = error if isinstance(error, tuple(STATUS)) else FailedError("the model failed on this request")
            return _event(json.loads(bytes(response_to(failed).body))) + DONE  # type: ignore[arg-type]
        text = "" if index in self._begun else _event(self.answer.chunk(index, "", True))
        text += _event(self.answer.end(index, self.rows[index].future.result()))
        if self._open == 0:
            self.over = True
            text += _event(self.answer.usage_chunk(self.answers)) if self._with_usage else ""
            text += DONE
        return text


DONE = "data: [DONE]\n\n"


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


def make_app(policy: Policy, limits: Limits, api_key: str | None = None) -> FastAPI:
    """The application. Its documentation pages are off: they load scripts from elsewhere."""
    service = Service(policy, limits)
    app = FastAPI(title="dare", lifespan=service.lifespan, docs_url=None, redoc_url=None)
    app.get("/health")(service.health)
    app.get("/metrics")(service.prometheus)
    app.get("/v1/models")(service.models)
    app.post("/v1/completions", response_model=None)(service.completions)
    app.post("/v1/chat/completions", response_model=None)(service.chat)
    app.post("/v1/likelihood", response_model=None)(service.likelihood)
    paths = [str(getattr(route, "path", "")) for route in app.routes]
    app.add_middleware(Guard, metrics=service.metrics, paths=paths, body_bytes=limits.body_bytes, api_key=api_key)

    async def known(_: Request, error: Exception) -> Response:
        return response_to(error)

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return error_response(400, _what_is_invalid(error))

    async def http(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return error_response(error.status_code, f"{error.detail}")

    async def unexpected(_: Request, error: Exception) -> Response:
        return error_response(500, f"the server failed ({type(error).__name__}); its log says more", "server_error")

    for kind in STATUS:
        app.add_exception_handler(kind, known)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, unexpected)
    return app


def _what_is_invalid(error: RequestValidationError) -> str:
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return f"the body is not JSON: {first['ctx']['error']}"
    if first["loc"] == ("body",):
        return "the body must be a JSON object with Content-Type application/json"
    return first_problem([{**first, "loc": first["loc"][1:]}])


@contextmanager
def listen(host: str, port: int, allow_remote: bool, api_key: str | None) -> Iterator[socket.socket]:
    """A listening socket, before anything is loaded. Refused where others would reach a server without a key."""
    if not 0 <= port < 2**16:
        raise RequestError(f"--port is {port}; a port is a number from 0 to {2**16 - 1}")
    try:
        [(family, _, _, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise RequestError(f"--host {host!r} cannot be found: {error.strerror}") from error
    local = ipaddress.ip_address(address[0]).is_loopback
    if not local and not (allow_remote and api_key):
        raise RequestError(
            f"others reach this machine at {host}: add --allow-remote and set DARE_API_KEY, or leave --host out"
        )
    try:
        listening = socket.create_server(address[:2], family=family, backlog=128)
    except OSError as error:
        raise RequestError(
            f"cannot listen at {host} port {port}: {error.strerror}; --port 0 takes a free one"
        ) from error
    with listening:
        yield listening


def url_of(listening: socket.socket) -> str:
    """Where to send requests."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run_server(
    policy: Policy, listening: socket.socket, limits: Limits, api_key: str | None, tell: Callable[[str], None]
) -> None:
    """Serve until SIGTERM or Ctrl-C; requests that are there then are still answered, within `stop_seconds`."""
    app = make_app(policy, limits, api_key)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=limits.stop_seconds,
    )
    server = uvicorn.Server(config)

    def stop(*_: object) -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn sends the signal again when it has ended: a normal end
        signal.signal(number, stop)
    tell(f"serving {policy.name} at {url_of(listening)}")
    server.run(sockets=[listening])
