"""A launcher in another process, asked over HTTP. The worker that uses it has no way to the container engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, TypeVar

import httpx
from pydantic import TypeAdapter, ValidationError

from dare_platform.container_profile import ISOLATION
from dare_platform.errors import LaunchError
from dare_platform.launcher import Observed, Order, Owned
from dare_platform.settings import Settings

PATIENCE_SECONDS = 90.0
"""For a launcher that is away: longer than starting it anew takes."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 2.0
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 120.0
"""A stop waits for the run's grace, and a start for the engine."""
AWAY, NOT_HELD = (502, 503, 504), 403

T = TypeVar("T")
_OBSERVED = TypeAdapter(Observed)
_TEXT = TypeAdapter(dict[str, str])
_OWN = TypeAdapter(dict[str, list[Owned]])

log = logging.getLogger(__name__)


class NotHeldAnyMoreError(LaunchError):
    """The service says that somebody else holds the run."""


class RemoteLauncher:
    """Speaks for the runs that this worker holds: each by the lease token under which it was started or adopted."""

    def __init__(self, settings: Settings, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._patience_seconds = patience_seconds
        self._leases: dict[str, int] = {}
        secret = settings.launcher_secret
        self._client = httpx.Client(
            base_url=settings.launcher,
            headers={"Authorization": f"Bearer {secret}"} if secret else {},
            timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            trust_env=False,  # never through a proxy
        )

    @property
    def isolation(self) -> str:
        """See `Launcher`."""
        return ISOLATION

    def close(self) -> None:
        """Let connections go. Runs go on."""
        self._client.close()

    def start(self, order: Order) -> str:
        """See `Launcher`. Asked again where an answer was lost: a run that has started is not started again."""
        return self._take_on("/start", order)

    def adopt(self, order: Order) -> str:
        """See `Launcher`."""
        return self._take_on("/adopt", order)

    def state(self, name: str) -> Observed:
        """See `Launcher`."""
        return _read(_OBSERVED, self._ask("/state", self._named(name)))

    def logs(self, name: str) -> str:
        """See `Launcher`."""
        return _read(_TEXT, self._ask("/logs", self._named(name)))["text"]

    def output(self, name: str, offset: int) -> bytes:
        """See `Launcher`."""
        return self._ask("/output", {**self._named(name), "offset": offset}).content

    def stop(self, name: str) -> None:
        """See `Launcher`. What somebody else holds by now is left to them."""
        try:
            self._ask("/stop", self._named(name))
        except NotHeldAnyMoreError as error:
            log.warning("%s", error)

    def list_own(self) -> list[Owned]:
        """See `Launcher`."""
        return _read(_OWN, self._ask("/own", {}))["own"]

    def remove(self, name: str) -> None:
        """See `Launcher`. What somebody else holds by now is left to them."""
        try:
            self._ask("/remove", self._named(name))
        except NotHeldAnyMoreError as error:
            log.warning("%s", error)
        self._leases.pop(name, None)

    def _take_on(self, path: str, order: Order) -> str:
        self._leases[order.name] = order.lease_token
        self._ask(path, {"run_id": order.run_id, "lease_token": order.lease_token})
        return order.name

    def _named(self, name: str) -> dict[str, Any]:
        run_id, _, token = name.rpartition("-")
        return {"run_id": run_id, "token": int(token), "lease_token": self._leases.get(name)}

    def _ask(self, path: str, question: Mapping[str, Any]) -> httpx.Response:
        """The answer; LaunchError for a refusal, or when nobody answers for too long."""
        until = time.monotonic() + self._patience_seconds
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                answer = self._client.post(path, json=dict(question))
                why = None if answer.status_code not in AWAY else _sentence(answer)
            except httpx.TransportError as error:
                answer, why = None, str(error) or type(error).__name__
            if answer is not None and why is None:
                return _accepted(answer)
            if time.monotonic() + pause > until:
                raise LaunchError(
                    f"the launcher at {self._client.base_url} has not answered for {self._patience_seconds:g} s: {why}"
                )
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def _accepted(answer: httpx.Response) -> httpx.Response:
    if answer.status_code == NOT_HELD:
        raise NotHeldAnyMoreError(_sentence(answer))
    if answer.status_code != 200:
        raise LaunchError(_sentence(answer))
    return answer


def _sentence(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["sentence"])[:500]
    except (ValueError, KeyError, TypeError):
        return f"the launcher answered {answer.status_code}"


def _read(adapter: TypeAdapter[T], answer: httpx.Response) -> T:
    try:
        return adapter.validate_json(answer.content)
    except ValidationError as error:
        raise LaunchError("the launcher answered something else than was asked") from error
