"""Processes that `dare demo` leaves running: started once, found again, stopped by `dare down`."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

STOP_SECONDS = 15.0


@dataclass(frozen=True)
class Kept:
    """One process. `created` tells it from a later process with the same number."""

    name: str
    pid: int
    created: float
    port: int | None = None

    def alive(self) -> bool:
        """Whether this very process still runs."""
        try:
            process = psutil.Process(self.pid)
            return process.create_time() == self.created and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


@dataclass(frozen=True)
class Keeper:
    """The processes of one DARE_HOME."""

    home: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to that of this process."""

    def kept(self) -> list[Kept]:
        """Those that are alive."""
        file = self.home / "processes.json"
        if not file.exists():
            return []
        return [kept for row in json.loads(file.read_text()) if (kept := Kept(**row)).alive()]

    def ensure(self, name: str, command: Sequence[str], port: int | None = None) -> Kept:
        """The process of that name, started if it does not run; its output goes to `logs/<name>.log`."""
        running = {kept.name: kept for kept in self.kept()}
        if name in running:
            return running[name]
        logs = self.home / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        output = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        pid = os.posix_spawn(  # nobody waits for it: it is meant to outlive this process
            command[0],
            list(command),
            {**os.environ, **self.environment, "PYTHONUNBUFFERED": "1"},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self.log(name)), output, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
        started = Kept(name, pid, psutil.Process(pid).create_time(), port)
        self._write([*running.values(), started])
        return started

    def stop_all(self) -> list[str]:
        """End all of them in good order, then by force; their names."""
        kept = self.kept()
        for one in kept:
            os.kill(one.pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while any(one.alive() for one in kept) and time.monotonic() < deadline:
            time.sleep(0.1)
        for one in kept:
            if one.alive():
                os.killpg(one.pid, signal.SIGKILL)
        self._write([])
        return [one.name for one in kept]

    def log(self, name: str) -> Path:
        """Where a process writes."""
        return self.home / "logs" / f"{name}.log"

    def _write(self, kept: Sequence[Kept]) -> None:
        file = self.home / "processes.json"
        scratch = file.with_suffix(".new")
        scratch.write_text(json.dumps([asdict(one) for one in kept]))
        scratch.replace(file)


def free_port(first: int, address: str = "127.0.0.1") -> int:
    """The first port from `first` on that nobody listens on."""
    for port in range(first, first + 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port between {first} and {first + 99} on {address}")
