"""Watches one run's processes and ends them all: at a limit, on request, or when the first one has ended."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from dare.spec import Cause
from dare_platform import trees
from dare_platform.inside import plain_text
from dare_platform.process_log import ProcessLog
from dare_platform.processes import family, kill_all, members, resident_bytes
from dare_platform.settings import MIB, Limits

SAMPLE_SECONDS = 0.1
SLOW_SAMPLE_SECONDS = 1.0
"""Between walks through the directory and the environments of all processes, which cost more."""
IDLE_SHARE = 15.0
"""Rest so many times as long as a sample computed: watching costs a few percent of a core, however full the host."""


@dataclass(frozen=True)
class Verdict:
    """Why a run was ended from outside."""

    cause: Cause
    sentence: str


class Supervisor:
    """A thread that lives as long as the run does, and a little longer: until nothing of it is left."""

    def __init__(
        self, name: str, process: subprocess.Popen[bytes], directory: Path, limits: Limits, log: ProcessLog
    ) -> None:
        self._name = name
        self._process = process
        self._directory = directory
        self._limits = limits
        self._log = log
        self._started = time.monotonic()
        self._next_slow_sample = 0.0
        self._wish: float | None = None
        self._woken = threading.Event()
        self.verdict: Verdict | None = None
        self.peak_memory_bytes = 0
        self._thread = threading.Thread(target=self._watch, name=f"supervisor-{name}", daemon=True)

    @property
    def is_watching(self) -> bool:
        """Something of the run may be alive."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def end(self, grace_seconds: float) -> None:
        """Ask the run to end, kill it after the grace, and return when nothing of it is left."""
        self._wish = grace_seconds
        self._woken.set()
        self._thread.join()

    def _watch(self) -> None:
        while self._process.poll() is None:
            if self._wish is not None:
                self._ask_and_wait(self._wish)
                break
            began = time.thread_time()
            self.verdict = self._exceeded()
            if self.verdict is not None:
                break
            self._rest(IDLE_SHARE * (time.thread_time() - began))
        kill_all(lambda: members(self._name, self._process.pid))
        self._process.wait()
        self._log.close()
        if self.verdict is None and self._log.total_bytes > self._limits.log_bytes:
            self.verdict = self._flooded()  # it printed too much and ended between two samples

    def _rest(self, seconds: float) -> None:
        """At least one sample's length; shorter when the run ends or shall end."""
        until = time.monotonic() + seconds
        while not self._woken.wait(SAMPLE_SECONDS) and self._process.poll() is None and time.monotonic() < until:
            pass

    def _ask_and_wait(self, grace_seconds: float) -> None:
        if grace_seconds <= 0:
            return
        try:
            os.killpg(self._process.pid, signal.SIGTERM)
        except ProcessLookupError:
            return
        try:
            self._process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            return

    def _exceeded(self) -> Verdict | None:
        limits = self._limits
        if time.monotonic() - self._started > limits.wall_seconds:
            return Verdict("timeout", f"The run was still working after {limits.wall_seconds:g} s, its limit.")
        if self._log.total_bytes > limits.log_bytes:
            return self._flooded()
        slow = time.monotonic() >= self._next_slow_sample
        processes = members(self._name, self._process.pid) if slow else family(self._process.pid)
        verdict = self._too_many_or_too_large(processes)
        if verdict is None and slow:
            verdict = self._disk()
            self._next_slow_sample = time.monotonic() + SLOW_SAMPLE_SECONDS
        return verdict

    def _flooded(self) -> Verdict:
        return Verdict("limit", f"The run printed more than {self._limits.log_bytes} bytes, its limit.")

    def _too_many_or_too_large(self, processes: list[psutil.Process]) -> Verdict | None:
        if len(processes) > self._limits.processes:
            return Verdict("limit", f"The run had {len(processes)} processes; {self._limits.processes} are allowed.")
        resident = resident_bytes(processes, self._limits.memory_bytes)
        self.peak_memory_bytes = max(self.peak_memory_bytes, resident)
        if resident > self._limits.memory_bytes:
            used, allowed = resident // MIB, self._limits.memory_bytes // MIB
            return Verdict("oom_host", f"The run used {used} MiB of memory; {allowed} MiB are allowed.")
        return None

    def _disk(self) -> Verdict | None:
        return disk_verdict(self._directory, self._limits)


def disk_verdict(directory: Path, limits: Limits) -> Verdict | None:
    """Whether a run's directory is too large, too full, or made so that nobody can tell; or the host's disk is full."""
    taken = trees.measure(directory, limits.directory_files)
    if taken.bytes > limits.directory_bytes:
        allowed = limits.directory_bytes // MIB
        return Verdict("limit", f"The run wrote {taken.bytes // MIB} MiB of files; {allowed} MiB are allowed.")
    if taken.files > limits.directory_files:
        return Verdict("limit", f"The run made more than {limits.directory_files} files and folders, its limit.")
    if taken.hidden is not None:
        return Verdict("limit", f"The run made a folder that cannot be measured: {plain_text(taken.hidden)[-200:]}.")
    free = shutil.disk_usage(directory).free
    if free < limits.free_disk_bytes:
        return Verdict("disk", f"The worker's disk has only {free // MIB} MiB left.")
    return None
