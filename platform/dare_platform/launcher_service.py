"""The launcher as a service: the one process that has the container engine's socket, behind a few questions.

A caller names a run and the lease token that it holds it under; which image, which folders, which limits follow from
the database and this process's own settings. What cannot be verified there is refused with one sentence. Nothing of a
request reaches the engine.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy import select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from dare_platform.database import Database
from dare_platform.engine import EngineAwayError
from dare_platform.errors import DatabaseLockedError, LaunchError, SettingsError
from dare_platform.launcher import Launcher
from dare_platform.models import ACTIVE, Run
from dare_platform.orders import order_of
from dare_platform.settings import Settings

MOST_BYTES = 4096
"""Of a request."""

Run_ = Annotated[str, Field(pattern=r"^[a-z0-9]{1,64}$")]
Token = Annotated[int, Field(ge=1, lt=2**31)]
Asked = TypeVar("Asked", bound="Question")

log = logging.getLogger(__name__)


class NotHeldError(LaunchError):
    """Somebody else holds the run, or nobody knows it."""


class RequestError(LaunchError):
    """The request is not one of ours."""


class Question(BaseModel):
    """A request's body: these keys and no others."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Hold(Question):
    """A run, and the token under which the caller holds it."""

    run_id: Run_
    lease_token: Token


class Named(Question):
    """A container by its run and job token. `lease_token`: of the lease under which the caller watches it, if any."""

    run_id: Run_
    token: Token
    lease_token: Token | None = None

    @property
    def name(self) -> str:
        """As in `Order`."""
        return f"{self.run_id}-{self.token}"


class Part(Named):
    """The output from an offset on."""

    offset: Annotated[int, Field(ge=0, lt=2**53)]


class LauncherService:
    """Answers questions with a launcher and a database."""

    def __init__(self, settings: Settings, database: Database, launcher: Launcher) -> None:
        self._settings = settings
        self._database = database
        self._launcher = launcher

    def start(self, asked: Hold) -> Mapping[str, Any]:
        """Start the held run."""
        with self._database.read() as session:
            order = order_of(session, self._settings, asked.run_id, asked.lease_token)
        return {"name": self._launcher.start(order)}

    def adopt(self, asked: Hold) -> Mapping[str, Any]:
        """Go on with what another worker has started."""
        with self._database.read() as session:
            order = order_of(session, self._settings, asked.run_id, asked.lease_token)
        return {"name": self._launcher.adopt(order)}

    def state(self, asked: Named) -> Mapping[str, Any]:
        """How it stands."""
        self._require(asked)
        return asdict(self._launcher.state(asked.name))

    def logs(self, asked: Named) -> Mapping[str, Any]:
        """Its output, shortened."""
        self._require(asked)
        return {"text": self._launcher.logs(asked.name)}

    def output(self, asked: Part) -> bytes:
        """A piece of its output."""
        self._require(asked)
        return self._launcher.output(asked.name, asked.offset)

    def stop(self, asked: Named) -> Mapping[str, Any]:
        """End it in good order."""
        self._require(asked)
        self._launcher.stop(asked.name)
        return {}

    def remove(self, asked: Named) -> Mapping[str, Any]:
        """End and forget it."""
        self._require(asked)
        self._launcher.remove(asked.name)
        return {}

    def own(self, _asked: Question) -> Mapping[str, Any]:
        """All containers of this installation."""
        return {"own": [asdict(owned) for owned in self._launcher.list_own()]}

    def health(self) -> Mapping[str, Any]:
        """Answers while the engine does."""
        self._launcher.list_own()
        return {"status": "ok"}

    def _require(self, asked: Named) -> None:
        with self._database.read() as session:
            require_hold(session, asked.run_id, asked.token, asked.lease_token)


def require_hold(session: Session, run_id: str, token: int, lease_token: int | None) -> None:
    """NotHeldError when somebody holds the run with this very container under another token than the caller's.

    A container that no lease stands behind is nobody's, and whoever sweeps may end it.
    """
    query = select(Run.state, Run.lease_token, Run.job_token).where(Run.id == run_id)
    run = session.execute(query).one_or_none()
    if run is None:
        raise NotHeldError(f"run {run_id} is unknown here")
    if run.state in ACTIVE and run.job_token == token and run.lease_token != lease_token:
        raise NotHeldError(f"run {run_id} is held under another token than {lease_token}")


def parse(kind: type[Asked], body: bytes) -> Asked:
    """A request's body; RequestError for anything but the keys that are asked for, each once."""
    try:
        found = json.loads(body or b"{}", object_pairs_hook=_each_once, parse_constant=_no_number)
        return kind.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the request"
        raise RequestError(f"{where}: {first['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise RequestError("the request is no JSON object with each key once") from error


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands there twice")
    return found


def _no_number(text: str) -> Any:
    raise ValueError(text)


def launcher_app(service: LauncherService, secret: str | None) -> FastAPI:
    """The service over HTTP. Without a secret everybody may ask who can reach it: see `require_private`."""
    app = FastAPI(title="dare launcher", docs_url=None, redoc_url=None, openapi_url=None)
    wanted = f"Bearer {secret}".encode() if secret else None

    def answer(path: str, kind: type[Asked], work: Callable[[Asked], Mapping[str, Any] | bytes]) -> None:
        async def handle(request: Request) -> Response:
            given = request.headers.get("authorization", "").encode("utf-8", "replace")
            if wanted is not None and not hmac.compare_digest(given, wanted):
                return _refused(401, "the launcher wants another secret")
            try:
                body = await _body(request)
                found = await run_in_threadpool(work, parse(kind, body))
            except (LaunchError, OperationalError, DatabaseLockedError) as error:
                return _refused(*_as_status(error))
            if isinstance(found, bytes):
                return Response(found, media_type="application/octet-stream")
            return JSONResponse(dict(found))

        app.add_api_route(path, handle, methods=["POST"], response_model=None)

    answer("/start", Hold, service.start)
    answer("/adopt", Hold, service.adopt)
    answer("/state", Named, service.state)
    answer("/logs", Named, service.logs)
    answer("/output", Part, service.output)
    answer("/stop", Named, service.stop)
    answer("/remove", Named, service.remove)
    answer("/own", Question, service.own)

    async def health() -> Response:
        try:
            return JSONResponse(dict(await run_in_threadpool(service.health)))
        except LaunchError as error:
            return _refused(*_as_status(error))

    app.add_api_route("/health", health, methods=["GET"], response_model=None)
    return app


async def _body(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise RequestError(f"a request has at most {MOST_BYTES} bytes")
    return body


def _as_status(error: Exception) -> tuple[int, str]:
    if isinstance(error, RequestError):
        return 400, str(error)
    if isinstance(error, NotHeldError):
        return 403, str(error)
    if isinstance(error, EngineAwayError):
        return 503, str(error)
    if isinstance(error, LaunchError):
        return 409, str(error)
    log.warning("the database is away: %s", error)
    return 503, "the launcher waits for the database"


def _refused(status: int, sentence: str) -> Response:
    if status != 503:
        log.warning("refused with %d: %s", status, sentence)
    return JSONResponse({"sentence": sentence}, status_code=status)


def require_private(secret: str | None, host: str) -> None:
    """SettingsError for a service that anybody could ask."""
    if secret is not None:
        return
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise SettingsError(
            f"DARE_LAUNCHER_SECRET is not set, and {host} can be reached from elsewhere: set it, here and for workers"
        )
