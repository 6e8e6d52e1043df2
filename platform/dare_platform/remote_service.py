"""The service as a server answers it: the same questions, data, errors and sentences as of a database beside us."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar
from urllib.parse import quote, urlsplit

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from dare.source.problems import Problem
from dare_platform.api_messages import MOST_BYTES, TOO_LARGE, VERSION, VERSION_HEADER, ApiProblem, LogAnswer, error_of
from dare_platform.asking import SubmitRequest, SweepRequest
from dare_platform.board import Board
from dare_platform.entries import Cancelled, RefusedError, Submitted
from dare_platform.errors import PlatformError, SettingsError
from dare_platform.host import is_loopback
from dare_platform.log_chunks import Place
from dare_platform.models import Channel, Visibility
from dare_platform.service import AwayError, Checked, ExportFormat, LogPiece, Whoami
from dare_platform.subscriptions import Subscribed, SubscriptionView
from dare_platform.views import EntrySummary, EntryView, QueueView, RunSummary, RunView

TRIES = 3
PAUSE_SECONDS = 0.5
TIMEOUT = httpx.Timeout(60.0, connect=10.0)
"""Longer than a server waits for a locked database."""
T = TypeVar("T")


class ServerError(PlatformError):
    """What answers is no DARE server, or one that this program does not understand."""


@dataclass(frozen=True)
class _Question:
    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    parameters: Mapping[str, Any]
    body: BaseModel | Mapping[str, Any] | None
    key: str | None

    @property
    def may_be_asked_again(self) -> bool:
        """Whether asking twice does the same as asking once."""
        return self.method == "GET" or self.key is not None


class RemoteService:
    """What `service.Service` says, asked of a server."""

    def __init__(self, url: str, token: str | None = None, transport: httpx.BaseTransport | None = None) -> None:
        """SettingsError for an address that cannot be, or over which a token would travel in the open."""
        _require_address(url, token)
        self._url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.Client(
            base_url=f"{self._url}/api/v{VERSION}/", headers=headers, timeout=TIMEOUT, transport=transport
        )

    def __enter__(self) -> RemoteService:
        return self

    def __exit__(self, *exception: object) -> None:
        self._client.close()

    def whoami(self) -> Whoami:
        """As in `Service`."""
        return self._get(Whoami, "whoami")

    # --- looking ----------------------------------------------------------------------------------------------------

    def entries(self, track: str | None = None) -> tuple[EntrySummary, ...]:
        """As in `Service`."""
        return self._get(tuple[EntrySummary, ...], "entries", track=track)

    def entry(self, id: str) -> EntryView:
        """As in `Service`."""
        return self._get(EntryView, f"entries/{_part(id)}")

    def runs(self, entry: str | None = None, limit: int = 50) -> tuple[RunSummary, ...]:
        """As in `Service`."""
        return self._get(tuple[RunSummary, ...], "runs", entry=entry, limit=limit)

    def run(self, id: str, log_lines: int = 200) -> RunView:
        """As in `Service`."""
        return self._get(RunView, f"runs/{_part(id)}", log_lines=log_lines)

    def queue(self) -> QueueView:
        """As in `Service`."""
        return self._get(QueueView, "queue")

    def board(self, track: str, backbone: str | None = None) -> Board:
        """As in `Service`."""
        return self._get(Board, f"boards/{_part(track)}", backbone=backbone)

    def export(self, track: str, backbone: str | None, format: ExportFormat) -> str:
        """As in `Service`."""
        asked = {"backbone": backbone, "format": format}
        return self._asked(_Question("GET", f"boards/{_part(track)}/export", asked, None, None)).text

    def log(self, run: str, place: Place | None = None) -> LogPiece:
        """As in `Service`."""
        token, offset = (place.job_token, place.offset) if place else (None, None)
        return self._get(LogAnswer, f"runs/{_part(run)}/log", token=token, offset=offset).piece()

    # --- submitting -------------------------------------------------------------------------------------------------

    def check(self, asked: SubmitRequest) -> Checked:
        """As in `Service`."""
        return self._post(Checked, "entries/check", asked)

    def check_sweep(self, asked: SweepRequest) -> Checked:
        """As in `Service`."""
        return self._post(Checked, "sweeps/check", asked)

    def submit(self, asked: SubmitRequest, key: str) -> Submitted:
        """As in `Service`."""
        return self._post(Submitted, "entries", asked, key)

    def submit_sweep(self, asked: SweepRequest, key: str) -> tuple[Submitted, ...]:
        """As in `Service`."""
        return self._post(tuple[Submitted, ...], "sweeps", asked, key)

    def retry(self, id: str, key: str) -> Submitted:
        """As in `Service`."""
        return self._post(Submitted, f"entries/{_part(id)}/retry", key=key)

    # --- changing ---------------------------------------------------------------------------------------------------

    def cancel(self, id: str) -> Cancelled:
        """As in `Service`."""
        return self._post(Cancelled, f"entries/{_part(id)}/cancel")

    def withdraw(self, entry: str, reason: str | None = None) -> None:
        """As in `Service`."""
        self._asked(_Question("POST", f"entries/{_part(entry)}/withdraw", {}, {"reason": reason}, None))

    def show_to(self, entry: str, visibility: Visibility) -> None:
        """As in `Service`."""
        body = {"visibility": visibility}
        self._asked(_Question("PUT", f"entries/{_part(entry)}/visibility", {}, body, None))

    def subscriptions(self) -> tuple[SubscriptionView, ...]:
        """As in `Service`."""
        return self._get(tuple[SubscriptionView, ...], "subscriptions")

    def subscribe(self, channel: Channel, target: str, entry: str | None = None, each_run: bool = False) -> Subscribed:
        """As in `Service`."""
        body = {"channel": channel, "target": target, "entry": entry, "each_run": each_run}
        return self._post(Subscribed, "subscriptions", body)

    def end_subscription(self, id: str) -> None:
        """As in `Service`."""
        self._asked(_Question("DELETE", f"subscriptions/{_part(id)}", {}, None, None))

    # --- asking -----------------------------------------------------------------------------------------------------

    def _get(self, shape: type[T], path: str, **parameters: Any) -> T:
        given = {name: value for name, value in parameters.items() if value is not None}
        return self._read(shape, self._asked(_Question("GET", path, given, None, None)))

    def _post(
        self, shape: type[T], path: str, body: BaseModel | Mapping[str, Any] | None = None, key: str | None = None
    ) -> T:
        return self._read(shape, self._asked(_Question("POST", path, {}, body, key)))

    def _asked(self, question: _Question) -> httpx.Response:
        """The server's answer where it is one of success; otherwise the error that it stands for."""
        tries = TRIES if question.may_be_asked_again else 1
        for attempt in range(tries):
            if attempt:
                time.sleep(PAUSE_SECONDS)
            try:
                answer = self._sent(question)
                break
            except httpx.TransportError as error:
                failure = error
        else:
            raise AwayError(self._why(failure, question)) from failure
        self._require_dare(answer)
        if answer.is_success:
            return answer
        raise error_of(self._read(ApiProblem, answer))

    def _sent(self, question: _Question) -> httpx.Response:
        headers = {"Content-Type": "application/json"}
        if question.key is not None:
            headers["Idempotency-Key"] = question.key
        given = {name: value for name, value in question.parameters.items() if value is not None}
        body = question.body.model_dump() if isinstance(question.body, BaseModel) else question.body
        content = None if body is None else json.dumps(body, default=_written)  # NaN as it is: the server explains it
        if content is not None and len(content) > MOST_BYTES:
            raise RefusedError(Problem("too_large", None, TOO_LARGE))
        return self._client.request(question.method, question.path, params=given, content=content, headers=headers)

    def _why(self, error: httpx.TransportError, question: _Question) -> str:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return f"no server answers at {self._url}: is the address right, and is it running?"
        whether = "" if question.may_be_asked_again else "; look whether it was done before you ask again"
        if isinstance(error, httpx.TimeoutException):
            return f"the server at {self._url} has not answered in time{whether}"
        return f"the connection to {self._url} broke off{whether}"

    def _require_dare(self, answer: httpx.Response) -> None:
        version = answer.headers.get(VERSION_HEADER)
        if version is None:
            raise ServerError(f"{self._url} is no DARE server: it answered {answer.status_code} to /api/v{VERSION}")
        if version != VERSION:
            raise ServerError(
                f"the server at {self._url} speaks version {version} of the API, this program version {VERSION}: "
                "bring the older one up to date"
            )

    def _read(self, shape: type[T], answer: httpx.Response) -> T:
        try:
            return TypeAdapter(shape).validate_json(answer.content)
        except ValidationError as error:
            raise ServerError(
                f"this program does not understand what {self._url} answered: bring the older of the two up to date"
            ) from error


def _written(value: object) -> str:
    """What JSON has no word for: base64, which pydantic gives as bytes, and dates, which YAML knows."""
    return value.decode() if isinstance(value, bytes) else str(value)


def _part(text: str) -> str:
    """One part of a path, whatever it holds."""
    return quote(text, safe="")


def _require_address(url: str, token: str | None) -> None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise SettingsError("the server's address must be http://HOST:PORT or https://HOST, without name or password")
    if token and parts.scheme == "http" and not is_loopback(parts.hostname):
        raise SettingsError(f"a token would travel to {parts.hostname} in the open: give an https:// address")
