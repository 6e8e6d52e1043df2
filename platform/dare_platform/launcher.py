"""Starts a run somewhere, watches it, and ends it. One narrow interface; this one uses plain processes.

For laptops, tests and one's own code: a process can be limited and killed, but hardly kept from reading. What kept it
apart is said in one sentence, `isolation`, which is stored with the attempt and shown with the run.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from dare.catalog import added_root
from dare.spec import Cause
from dare_platform.errors import LaunchError
from dare_platform.isolation import isolate
from dare_platform.process_log import ProcessLog
from dare_platform.processes import MARKER, kill_all, marked, members
from dare_platform.settings import Settings
from dare_platform.supervisor import Supervisor

RUNNER = (sys.executable, "-m", "dare", "run")
LOG = "output.log"


@dataclass(frozen=True)
class Order:
    """What to start: an attempt's directory and how long it may take."""

    run_id: str
    token: int
    directory: Path
    wall_seconds: float

    @property
    def name(self) -> str:
        """Names the attempt in the process table."""
        return f"{self.run_id}-{self.token}"


@dataclass(frozen=True)
class Observed:
    """How a run stands."""

    running: bool
    exit_code: int | None = None
    """Negative for a signal. Set once it has ended."""
    cause: Cause | None = None
    """Why the launcher ended it; None when it ended by itself or was told to."""
    sentence: str | None = None
    peak_memory_bytes: int = 0


@dataclass(frozen=True)
class Owned:
    """A run found alive on this host, whoever started it."""

    run_id: str
    token: int

    @property
    def name(self) -> str:
        """As in `Order`."""
        return f"{self.run_id}-{self.token}"


class Launcher(Protocol):
    """What the worker needs to know of a place where runs run."""

    @property
    def isolation(self) -> str:
        """What keeps a run apart from the host, in one sentence."""

    def start(self, order: Order) -> str:
        """Start a run and return its name."""

    def state(self, name: str) -> Observed:
        """How it stands; enforces nothing."""

    def logs(self, name: str) -> str:
        """Standard output and error so far, shortened in the middle."""

    def stop(self, name: str) -> None:
        """Ask it to end, wait a little, then kill everything of it. Afterwards nothing of it lives."""

    def list_own(self) -> list[Owned]:
        """Runs alive on this host, also those of workers that died."""

    def remove(self, name: str) -> None:
        """Kill what is left of a run at once, and forget it."""


@dataclass
class _Started:
    order: Order
    process: subprocess.Popen[bytes]
    log: ProcessLog
    supervisor: Supervisor


class ProcessLauncher:
    """Runs as child processes, each a session of its own with a clean environment and a supervisor thread."""

    def __init__(self, settings: Settings, command: Sequence[str] = RUNNER, isolated: bool = True) -> None:
        self._settings = settings
        self._command = tuple(command)
        self._isolate = isolate(settings, isolated)
        self._runs: dict[str, _Started] = {}

    @property
    def isolation(self) -> str:
        """See `Launcher`."""
        return self._isolate.sentence

    def start(self, order: Order) -> str:
        """See `Launcher`."""
        limits = replace(self._settings.limits, wall_seconds=order.wall_seconds)
        command = self._isolate.wrap((*self._command, str(order.directory)), order.directory)
        try:
            process = subprocess.Popen(
                command,
                cwd=order.directory,
                env=self._environment(order),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchError(f"the run's program {command[0]} could not be started: {error.strerror}") from error
        if hasattr(resource, "prlimit"):
            _without_core_files(process.pid)
        assert process.stdout is not None
        log = ProcessLog(process.stdout, order.directory / LOG, limits.log_bytes)
        supervisor = Supervisor(order.name, process, order.directory, limits, log)
        self._runs[order.name] = _Started(order, process, log, supervisor)
        supervisor.start()
        return order.name

    def state(self, name: str) -> Observed:
        """See `Launcher`."""
        started = self._runs[name]
        verdict = started.supervisor.verdict
        running = started.supervisor.is_watching
        return Observed(
            running=running,
            exit_code=None if running else started.process.returncode,
            cause=verdict.cause if verdict else None,
            sentence=verdict.sentence if verdict else None,
            peak_memory_bytes=started.supervisor.peak_memory_bytes,
        )

    def logs(self, name: str) -> str:
        """See `Launcher`."""
        return self._runs[name].log.text()

    def stop(self, name: str) -> None:
        """See `Launcher`."""
        started = self._runs.get(name)
        if started is None:
            self.remove(name)
            return
        started.supervisor.end(self._settings.limits.grace_seconds)

    def list_own(self) -> list[Owned]:
        """See `Launcher`. Found by the marker in their environment."""
        found = {}
        for process, marker in marked():
            run_id, _, token = marker.rpartition("-")
            if run_id and token.isdigit():
                found[marker] = Owned(run_id, int(token))
            del process
        return list(found.values())

    def remove(self, name: str) -> None:
        """See `Launcher`."""
        started = self._runs.pop(name, None)
        if started is not None:
            started.supervisor.end(0.0)
            started.log.close()
        survivors = kill_all(lambda: members(name, None))
        if survivors:
            raise LaunchError(f"run {name} has {len(survivors)} processes that do not die")

    def _environment(self, order: Order) -> dict[str, str]:
        """Nothing of ours but where to find programs and data: no secret can leak from what is not there."""
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(order.directory / "home"),
            "TMPDIR": str(order.directory / "tmp"),
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            MARKER: order.name,
            "DARE_BACKBONES": str(added_root()),
        }
        if self._settings.data is not None:
            environment["DARE_DATA"] = str(self._settings.data)
        return environment


def _without_core_files(pid: int) -> None:
    """A crash must not fill the disk."""
    try:
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
    except ProcessLookupError:
        time.sleep(0)  # it has ended already
