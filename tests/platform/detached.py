"""Runs that outlive their worker, as containers do, without an engine; and a worker over them, or over containers of an
installation: `python detached.py HOME MODE LEASE_SECONDS DATABASE_URL [INSTALLATION]`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from dare_platform import endings
from dare_platform.errors import LaunchError
from dare_platform.launcher import Launcher, Observed, Order, Owned
from dare_platform.models import LOG_CHUNK_BYTES
from dare_platform.processes import MARKER, kill_all, marked, members
from dare_platform.settings import Containers, Limits, Settings
from dare_platform.worker import Worker

TOY = Path(__file__).with_name("toy_runner.py")
IMAGE = "python:3.11-slim-bookworm"


class DetachedLauncher:
    """Processes that print into a file beside their directory and leave their exit code in another."""

    isolation = "Detached processes, for tests."

    def __init__(self, settings: Settings, mode: str) -> None:
        self._jobs = settings.jobs
        self._grace = settings.limits.grace_seconds
        self._command = (sys.executable, str(TOY), mode)
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def _file(self, name: str, what: str) -> Path:
        run_id, _, token = name.rpartition("-")
        return self._jobs / run_id / f"{token}.{what}"

    def start(self, order: Order) -> str:
        shell = '"$@"; code=$?; echo $code > "$0.part"; mv "$0.part" "$0"'
        with self._file(order.name, "out").open("wb") as output:
            self._children[order.name] = subprocess.Popen(
                ["/bin/sh", "-c", shell, str(self._file(order.name, "exit")), *self._command, str(order.directory)],
                cwd=order.directory,
                env={"PATH": os.environ["PATH"], MARKER: order.name},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return order.name

    def adopt(self, order: Order) -> str:
        if not self._file(order.name, "out").exists():
            raise LaunchError(f"there is no process {order.name}")
        return order.name

    def state(self, name: str) -> Observed:
        left = self._file(name, "exit")
        if left.exists():
            return Observed(False, int(left.read_text()))
        return Observed(True) if members(name, None) else Observed(False, -9)

    def logs(self, name: str) -> str:
        return self._file(name, "out").read_text(errors="replace")

    def output(self, name: str, offset: int) -> bytes:
        with self._file(name, "out").open("rb") as file:
            file.seek(offset)
            return file.read(LOG_CHUNK_BYTES)

    def stop(self, name: str) -> None:
        for process in members(name, None):
            process.send_signal(signal.SIGTERM)
        until = time.monotonic() + self._grace
        while members(name, None) and time.monotonic() < until:
            time.sleep(0.05)
        kill_all(lambda: members(name, None))

    def list_own(self) -> list[Owned]:
        names = {marker for _, marker in marked()} | {
            f"{file.parent.name}-{file.stem}" for file in self._jobs.glob("*/*.exit")
        }
        found = (name.rpartition("-") for name in names)
        return [Owned(run, int(token), adoptable=True) for run, _, token in found if (self._jobs / run).is_dir()]

    def remove(self, name: str) -> None:
        kill_all(lambda: members(name, None))
        if name in self._children:
            self._children.pop(name).wait()
        for what in ("exit", "out"):
            self._file(name, what).unlink(missing_ok=True)


def in_containers(settings: Settings, mode: str, installation: str) -> Launcher:
    """The same toy in containers of an installation of its own."""
    from dare_platform.docker_launcher import DockerLauncher

    containers = Containers(installation=installation, images={"llada": IMAGE})
    return DockerLauncher(replace(settings, containers=containers), ["python", "-c", TOY.read_text(), mode])


if __name__ == "__main__":
    home, mode, lease, url, *installation = sys.argv[1:]
    endings.FIRST_BACK_OFF_SECONDS = 0.1
    settings = Settings.from_environment({"DARE_HOME": home, "DARE_DATABASE_URL": url})
    limits = Limits(free_disk_bytes=1, grace_seconds=1)
    settings = replace(settings, lease_seconds=float(lease), poll_seconds=0.1, limits=limits)
    launcher: Launcher = DetachedLauncher(settings, mode)
    if installation:
        launcher = in_containers(settings, mode, installation[0])
    worker = Worker(settings, ["llada"], launcher=launcher)
    worker.stop_on_signals()
    worker.run(until_idle=True)
