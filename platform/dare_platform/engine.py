"""The Docker engine behind its socket: the few calls that a launcher makes, and what they answer in plain values.

LaunchError, the base of what it raises
└── EngineAwayError   it does not answer now; it may later
"""

from __future__ import annotations

import socket as sockets
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import docker
import httpx
import requests
from docker.errors import APIError, DockerException, NotFound

from dare_platform.errors import LaunchError

CALL_SECONDS = 60.0
SUBPATH_API = (1, 45)
"""From which on a container can be given a part of a volume: engine 26."""
_HEADER = struct.Struct(">BxxxL")


class EngineAwayError(LaunchError):
    """The engine did not answer."""


class StartError(LaunchError):
    """The engine has refused to start a container; the message is its own."""


class NameTakenError(LaunchError):
    """There is a container of that name."""


class NoImageError(LaunchError):
    """The image is not there."""


@dataclass(frozen=True)
class Container:
    """One container as it stands."""

    id: str
    name: str
    image_id: str
    labels: Mapping[str, str]
    status: str
    """`created`, `running`, `paused`, `exited`, `dead`, and words in between."""
    exit_code: int
    oom_killed: bool

    @property
    def is_alive(self) -> bool:
        """A process of it may run."""
        return self.status in ("running", "paused", "restarting", "removing")


@dataclass(frozen=True)
class Usage:
    """What a container uses now."""

    memory_bytes: int
    processes: int
    processes_limit: int | None


class DockerEngine:
    """One engine. Safe to use from several threads."""

    def __init__(self, socket: str, quiet_seconds: float = CALL_SECONDS) -> None:
        """`quiet_seconds`: after which a stream that says nothing is taken for dead and asked for again."""
        self._socket = socket
        self._quiet_seconds = quiet_seconds
        with _answers():
            _knock(socket)
            self._client = docker.DockerClient(base_url=socket, version="auto", timeout=int(CALL_SECONDS))
            self._api: Any = self._client.api  # only some of its methods are typed
            self._info: Mapping[str, Any] = self._client.info()
        self.api_version = tuple(int(part) for part in self._api.api_version.split("."))
        self.version = str(self._info.get("ServerVersion", ""))

    @property
    def cores(self) -> float:
        """Processors that a container can have."""
        return float(self._info.get("NCPU") or 1)

    @property
    def log_drivers(self) -> tuple[str, ...]:
        """Names."""
        return tuple((self._info.get("Plugins") or {}).get("Log") or ())

    @property
    def has_apparmor(self) -> bool:
        """Containers are confined by AppArmor."""
        return any("name=apparmor" in option for option in self._info.get("SecurityOptions") or ())

    def close(self) -> None:
        """Let connections go."""
        self._client.close()

    def image_id(self, name: str) -> str | None:
        """Of an image that is there; nothing is ever fetched."""
        with _answers():
            try:
                return str(self._api.inspect_image(name)["Id"])
            except NotFound:
                return None

    def create(self, name: str, request: Mapping[str, Any]) -> str:
        """Id of a new container, not started."""
        with _answers():
            try:
                return str(self._api.create_container_from_config(dict(request), name)["Id"])
            except NotFound as error:
                raise NoImageError(_said(error)) from error
            except APIError as error:
                if error.status_code == 409:
                    raise NameTakenError(f"there is a container {name} already") from error
                raise

    def start(self, container_id: str) -> None:
        """Start what was created."""
        with _answers():
            try:
                self._api.start(container_id)
            except APIError as error:
                raise StartError(_said(error)) from error

    def find(self, name_or_id: str) -> Container | None:
        """None: there is none."""
        with _answers():
            try:
                found = self._api.inspect_container(name_or_id)
            except NotFound:
                return None
        state, config = found["State"], found["Config"]
        return Container(
            id=found["Id"],
            name=found["Name"].removeprefix("/"),
            image_id=found["Image"],
            labels=config.get("Labels") or {},
            status=state["Status"],
            exit_code=state["ExitCode"],
            oom_killed=bool(state.get("OOMKilled")),
        )

    def labels_of_all(self, labels: Mapping[str, str]) -> list[tuple[str, Mapping[str, str]]]:
        """Id and labels of every container that has all of `labels`, in whatever state."""
        wanted = [f"{key}={value}" for key, value in labels.items()]
        with _answers():
            found = self._api.containers(all=True, filters={"label": wanted})
        return [(one["Id"], one.get("Labels") or {}) for one in found]

    def signal(self, container_id: str, name: str) -> None:
        """Send a signal; one that has ended does not mind."""
        with _answers():
            try:
                self._api.kill(container_id, name)
            except NotFound:
                return
            except APIError as error:
                if error.status_code != 409:
                    raise
                if "paused" in str(error):
                    self._api.unpause(container_id)
                    self._api.kill(container_id, name)

    def remove(self, container_id: str) -> None:
        """Kill and forget a container and its anonymous volumes."""
        with _answers():
            try:
                self._api.remove_container(container_id, force=True, v=True)
            except NotFound:
                return
            except APIError as error:
                if error.status_code != 409:  # its removal is in progress
                    raise

    def usage(self, container_id: str) -> Usage | None:
        """None: it has ended."""
        with _answers():
            try:
                found = self._api.stats(container_id, stream=False, one_shot=True)
            except NotFound:
                return None
        memory, processes = found.get("memory_stats") or {}, found.get("pids_stats") or {}
        if "usage" not in memory:
            return None
        details = memory.get("stats") or {}
        cache = details.get("total_inactive_file", details.get("inactive_file", 0))  # given back when it is needed
        limit = processes.get("limit")
        return Usage(
            memory_bytes=max(0, memory["usage"] - cache),
            processes=processes.get("current", 0),
            processes_limit=limit if limit and limit < 2**31 else None,
        )

    def output(self, container_id: str, follow: bool) -> Iterator[bytes]:
        """Standard output and error from their beginning. `follow`: until the container ends."""
        asked = {"stdout": "1", "stderr": "1", "follow": "1" if follow else "0"}
        timeout = httpx.Timeout(CALL_SECONDS, read=self._quiet_seconds)
        transport, base = _transport(self._socket)
        path = f"/v{'.'.join(map(str, self.api_version))}/containers/{container_id}/logs"
        with (
            _answers(),
            httpx.Client(transport=transport, base_url=base, timeout=timeout, trust_env=False) as client,
            client.stream("GET", path, params=asked) as response,
        ):
            if response.status_code != 200:
                raise LaunchError(f"the engine has no output of {container_id[:12]}")
            yield from _frames(response.iter_raw())


def _knock(socket: str) -> None:
    """OSError where nobody listens: the client library would leave its socket open, and say less."""
    if socket.startswith("unix://"):
        with sockets.socket(sockets.AF_UNIX) as one:
            one.settimeout(CALL_SECONDS)
            one.connect(socket.removeprefix("unix://"))


def _transport(socket: str) -> tuple[httpx.HTTPTransport, str]:
    if socket.startswith("unix://"):
        return httpx.HTTPTransport(uds=socket.removeprefix("unix://")), "http://engine"
    return httpx.HTTPTransport(), socket.replace("tcp://", "http://", 1)


def _frames(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The content of the engine's frames: eight bytes that say how long, then as many."""
    pending = bytearray()
    for chunk in chunks:
        pending += chunk
        at = 0
        while len(pending) - at >= _HEADER.size:
            _, length = _HEADER.unpack_from(pending, at)
            if len(pending) - at - _HEADER.size < length:
                break
            at += _HEADER.size
            if length:
                yield bytes(pending[at : at + length])
            at += length
        del pending[:at]


def _said(error: APIError) -> str:
    return str(error.explanation or error)


@contextmanager
def _answers() -> Iterator[None]:
    """Whatever a client library raises, as one of ours."""
    try:
        yield
    except APIError as error:
        raise LaunchError(f"the container engine refused: {_said(error)}") from error
    except (requests.exceptions.RequestException, httpx.HTTPError, DockerException, OSError) as error:
        reason = str(error).split("\n", 1)[0][:200]
        raise EngineAwayError(f"the container engine does not answer: {reason}") from error
