"""A policy's server that answers from a table, over real HTTP: for everything that asks one."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = Mapping[str, Any]
Before = Callable[[int], tuple[int, str] | None]
"""The n-th request is answered with this status and message; with status 0 the connection ends; None: as usual."""


class Replay:
    """`say` gives the answer to the text of a prompt; `rank` the log-likelihood of a continuation of one."""

    def __init__(
        self,
        say: Callable[[str], str] = lambda _: "",
        rank: Callable[[str, str], float] = lambda *_: -1.0,
        before: Before = lambda _: None,
        tokens: int = 1,
    ) -> None:
        self.say, self.rank, self.before, self.tokens = say, rank, before, tokens
        self.asked: list[tuple[str, Body]] = []
        self.headers: list[Mapping[str, str]] = []
        self.lock = threading.Lock()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answer(self, path: str, body: Body) -> dict[str, Any]:
        if path == "/v1/likelihood":
            choices = [
                {
                    "index": index,
                    "log_likelihood": self.rank(choice["context"], choice["continuation"]),
                    "standard_error": 0.0,
                    "tokens": self.tokens,
                    "nfe": 1,
                }
                for index, choice in enumerate(body["choices"])
            ]
            return {"choices": choices, "usage": {"prompt_tokens": 1, "nfe": len(choices)}}
        prompt = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
        text = self.say(prompt)
        said = {"message": {"role": "assistant", "content": text}} if "messages" in body else {"text": text}
        choice = {"index": 0, **said, "finish_reason": "stop", "extra": {"nfe": 7}}
        return {"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 5, "nfe": 7}}


@contextmanager
def replaying(replay: Replay) -> Iterator[Replay]:
    """The endpoint on a free port of the loopback. `before` may refuse the n-th request, or drop it with status 0."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with replay.lock:
                replay.asked.append((self.path, body))
                replay.headers.append(dict(self.headers))
                refused = replay.before(len(replay.asked))
            if refused is not None and refused[0] == 0:
                self.close_connection = True
                return
            status, payload = (200, replay.answer(self.path, body)) if refused is None else (refused[0], None)
            content = json.dumps(payload if refused is None else {"error": {"message": refused[1]}}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256

        def handle_error(self, *_: Any) -> None:
            if not isinstance(sys.exception(), ConnectionError):  # the client is gone, as tests want it to be
                super().handle_error(*_)

    server = Server(("127.0.0.1", 0), Handler)
    replay.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield replay
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
