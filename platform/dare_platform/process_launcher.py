"""Runs as plain child processes: for laptops, tests and one's own code.

A process can be limited and killed, but hardly kept from reading.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dare.catalog import added_root
from dare_platform.errors import LaunchError
from dare_platform.isolation import isolate
from dare_platform.job_directory import DATA
from dare_platform.launcher import Observed, Order, Owned
from dare_platform.models import LOG_CHUNK_BYTES
from dare_platform.process_log import ProcessLog
from dare_platform.processes import MARKER, kill_all, marked, members
from dare_platform.settings import Settings
from dare_platform.supervisor import Supervisor

RUNNER = (sys.executable, "-m", "dare", "run")
LOG = "output.log"


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

    def adopt(self, order: Order) -> str:
        """See `Launcher`. The output of somebody else's child cannot be read."""
        raise LaunchError(f"run {order.name} is a child of another process and cannot be adopted")

    def logs(self, name: str) -> str:
        """See `Launcher`."""
        return self._runs[name].log.text()

    def output(self, name: str, offset: int) -> bytes:
        """See `Launcher`."""
        return self._runs[name].log.piece(offset, LOG_CHUNK_BYTES)

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
        if order.kind in ("train", "check"):  # it runs an entry's code, which shall find no test split
            environment["DARE_DATA"] = str(order.directory / DATA)
        elif self._settings.data is not None:
            environment["DARE_DATA"] = str(self._settings.data)
        return environment


def _without_core_files(pid: int) -> None:
    """A crash must not fill the disk."""
    try:
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
    except ProcessLookupError:
        time.sleep(0)  # it has ended already
