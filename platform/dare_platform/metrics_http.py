"""The figures of `metrics` for a Prometheus server: GET /metrics, and nothing else.

The housekeeper reads them as one of its chores; a question gets what was read last. So an answer takes no time however
the database is, a thousand questions cost it nothing, and no chore waits for a question.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from dare_platform.control import Chore
from dare_platform.errors import SettingsError
from dare_platform.metrics import Metrics

EVERY_SECONDS = 5.0
LOOK_SECONDS = 0.1
"""How soon the server sees that it shall end."""
SILENCE_SECONDS = 5.0
"""For so long somebody may be connected and ask nothing."""


def reading(metrics: Metrics) -> Chore:
    """The chore that the answers come from."""
    return Chore("read the metrics", EVERY_SECONDS, metrics.read)


def application(metrics: Metrics) -> WSGIApplication:
    """The last figures, or 503 in one line while the database does not answer."""
    figures: WSGIApplication = make_wsgi_app(metrics.registry)

    def answer(asked: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if asked["PATH_INFO"] != "/metrics":
            return _line(start, "404 Not Found", "there is nothing here but /metrics")
        if not metrics.are_current:
            return _line(start, "503 Service Unavailable", "there are no figures: the database does not answer")
        return figures(asked, start)

    return answer


def _line(start: StartResponse, status: str, sentence: str) -> list[bytes]:
    start(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{sentence}\n".encode()]


class _Connection(WSGIRequestHandler):
    timeout = SILENCE_SECONDS

    def handle(self) -> None:
        with contextlib.suppress(TimeoutError):
            super().handle()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: somebody asks every few seconds."""


@contextlib.contextmanager
def serving(metrics: Metrics, host: str, port: int) -> Iterator[WSGIServer]:
    """A server in threads of its own, until the block ends. SettingsError for an address that cannot be had."""
    try:
        server = make_server(host, port, application(metrics), ThreadingWSGIServer, _Connection)
    except OSError as error:
        raise SettingsError(
            f"the metrics cannot be served on {host}:{port} ({error.strerror}): choose another --metrics-port or host"
        ) from error
    thread = threading.Thread(target=server.serve_forever, args=(LOOK_SECONDS,), name="metrics")
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
