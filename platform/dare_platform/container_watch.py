"""Watches one run's container and ends it: at a limit, on request, or when its program has ended.

What it decides is written beside the job directory before it acts, so that a launcher which is started again says the
same of a container that it finds dead.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from dare.spec import Cause
from dare_platform.container_output import ContainerOutput
from dare_platform.container_profile import BOOT, DEADLINE, WALL
from dare_platform.engine import Container, DockerEngine, EngineAwayError
from dare_platform.errors import LaunchError
from dare_platform.launcher import Observed
from dare_platform.settings import MIB, Limits
from dare_platform.supervisor import Verdict, disk_verdict

SAMPLE_SECONDS = 0.2
SLOW_SAMPLE_SECONDS = 1.0
"""Between two looks at a run that is older than a few seconds, and between measures of its directory and its memory."""
YOUNG_SECONDS = 10.0
KILL_SECONDS = 20.0
MOST_SECONDS = 5.0
"""Between two measures of a large directory."""
IDLE_SHARE = 20.0
"""Rest so many times as long as a measure took."""
FULL_MEMORY = 0.97
_SIGNALS = frozenset(
    int(one)
    for one in (
        signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGHUP, signal.SIGILL, signal.SIGKILL, signal.SIGSEGV,
        signal.SIGSYS, signal.SIGTERM, signal.SIGTRAP,
    )
)  # fmt: skip

log = logging.getLogger(__name__)


def boot_clock() -> float:
    """Seconds since this machine started, whatever happens to its clock; the same in all containers."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def boot_id() -> str:
    """Of this start of the machine."""
    file = Path("/proc/sys/kernel/random/boot_id")
    return file.read_text().strip() if file.is_file() else ""


def deadline_labels(wall_seconds: float) -> dict[str, str]:
    """When a run that starts now must have ended."""
    return {DEADLINE: f"{boot_clock() + wall_seconds:.3f}", WALL: f"{wall_seconds:g}", BOOT: boot_id()}


def deadline_of(labels: Mapping[str, str]) -> float:
    """On the boot clock. What was started before the machine was, or by nobody knows whom, is over."""
    try:
        return float(labels[DEADLINE]) if labels.get(BOOT) == boot_id() else 0.0
    except (KeyError, ValueError):
        return 0.0


@dataclass(frozen=True)
class Watched:
    """Which container, and what belongs to it."""

    name: str
    """As in `Order`."""
    container: Container
    directory: Path

    @property
    def deadline(self) -> float:
        """On the boot clock."""
        return deadline_of(self.container.labels)

    @property
    def ending(self) -> Path:
        """Where is written why it was ended."""
        return self.directory.with_name(f"{self.directory.name}.end")


class ContainerWatch:
    """A thread that lives as long as the container does, and until it has said how it ended."""

    def __init__(self, engine: DockerEngine, watched: Watched, limits: Limits, output: ContainerOutput) -> None:
        self._engine = engine
        self._watched = watched
        self._limits = limits
        self.output = output
        self._began = time.monotonic()
        self._next_measure = 0.0
        self._wish: float | None = None
        self._woken = threading.Event()
        self._verdict = _read_verdict(watched.ending)
        self._oom = False
        self._ended: Observed | None = None
        self._peak = 0
        self._thread = threading.Thread(target=self._watch, name=f"watch-{watched.name}", daemon=True)
        self._thread.start()

    @property
    def observed(self) -> Observed:
        """How it stands."""
        if self._ended is not None:
            return self._ended
        return Observed(running=True, peak_memory_bytes=self._peak, image_id=self._watched.container.image_id)

    def end(self, grace_seconds: float) -> None:
        """Ask it to end, kill it after the grace, and return when nothing of it is left."""
        self._wish = grace_seconds if self._wish is None else min(self._wish, grace_seconds)
        self._woken.set()
        self._thread.join(grace_seconds + KILL_SECONDS)
        if self._thread.is_alive():
            raise LaunchError(f"the container of run {self._watched.name} does not die")

    def _watch(self) -> None:
        try:
            last = self._until_it_ends()
            self._ended = self._conclude(last)
        except Exception as error:  # a thread has nobody to raise to, and who asks must get an answer
            log.exception("the watch over run %s failed", self._watched.name)
            sentence = f"The watch over the run's container failed: {error}."
            self._ended = Observed(running=False, cause="internal", sentence=sentence)

    def _until_it_ends(self) -> Container | None:
        """How it was last seen; None when somebody removed it."""
        asked_at: float | None = None
        while True:
            try:
                found = self._engine.find(self._watched.container.id)
                if found is None or not found.is_alive:
                    return found
                if self._verdict is None and self._wish is None:
                    self._verdict = self._exceeded(found)
                    if self._verdict is not None:
                        _write_verdict(self._watched.ending, self._verdict)
                if self._verdict is not None:
                    self._engine.signal(found.id, "SIGKILL")
                elif self._wish is not None:
                    if asked_at is None:
                        asked_at = time.monotonic()
                        if self._wish > 0:
                            self._engine.signal(found.id, "SIGTERM")
                    if time.monotonic() - asked_at >= self._wish:
                        self._engine.signal(found.id, "SIGKILL")
            except EngineAwayError as error:
                log.warning("run %s: %s", self._watched.name, error)
            except LaunchError as error:
                log.error("run %s: %s", self._watched.name, error)
            self._rest()

    def _rest(self) -> None:
        if self._wish is not None or self._verdict is not None:
            time.sleep(SAMPLE_SECONDS / 4)
            return
        young = time.monotonic() - self._began < YOUNG_SECONDS
        left = self._watched.deadline - boot_clock()
        self._woken.wait(max(0.01, min(SAMPLE_SECONDS if young else SLOW_SAMPLE_SECONDS, left)))

    def _exceeded(self, found: Container) -> Verdict | None:
        if boot_clock() > self._watched.deadline:
            return self._too_late()
        if self.output.is_flood:
            return self._flooded()
        verdict = self._too_many(found.id)
        if verdict is not None or time.monotonic() < self._next_measure:
            return verdict
        began = time.thread_time()
        verdict = disk_verdict(self._watched.directory, self._limits)
        rest = min(MOST_SECONDS, IDLE_SHARE * (time.thread_time() - began))
        self._next_measure = time.monotonic() + max(SLOW_SAMPLE_SECONDS, rest)
        return verdict

    def _too_late(self) -> Verdict:
        wall = self._watched.container.labels.get(WALL, "?")
        return Verdict("timeout", f"The run was still working after {wall} s, its limit.")

    def _flooded(self) -> Verdict:
        return Verdict("limit", f"The run printed more than {self._limits.log_bytes} bytes, its limit.")

    def _too_large(self) -> Verdict:
        allowed = self._limits.memory_bytes // MIB
        return Verdict("oom_host", f"The run needed more memory than the {allowed} MiB that are allowed.")

    def _too_many(self, container_id: str) -> Verdict | None:
        usage = self._engine.usage(container_id)
        if usage is None:
            return None
        self._peak = max(self._peak, usage.memory_bytes)
        self._oom = self._oom or _kernel_killed(container_id)
        if usage.processes_limit is not None and usage.processes >= usage.processes_limit:
            said = f"The run had {usage.processes} processes and threads, all that are allowed."
            return Verdict("limit", said)
        return None

    def _conclude(self, last: Container | None) -> Observed:
        self.output.close()
        code = None if last is None else _as_signal(last.exit_code)
        verdict = self._verdict
        if verdict is None and self._wish is None:  # another launcher may have ended it, and has then written why
            verdict = _read_verdict(self._watched.ending) or self._why(last, code)
        seen = Observed(
            running=False,
            exit_code=code,
            peak_memory_bytes=self._peak,
            image_id=self._watched.container.image_id,
        )
        return seen if verdict is None else replace(seen, cause=verdict.cause, sentence=verdict.sentence)

    def _why(self, last: Container | None, code: int | None) -> Verdict | None:
        """What ended it, where it was not its program."""
        if last is None:
            return Verdict("lost_worker", "The run's container was removed by somebody else.")
        if self.output.is_flood:
            return self._flooded()
        killed_for_memory = last.oom_killed or self._oom
        if code == -signal.SIGKILL and self._peak >= FULL_MEMORY * self._limits.memory_bytes:
            killed_for_memory = True  # the engine does not always hear of it
        if killed_for_memory and code != 0:
            return self._too_large()
        if code != 0:  # it may have died of what it wrote between two measures
            return disk_verdict(self._watched.directory, self._limits)
        return None


def _as_signal(code: int) -> int:
    """The first process passes on how the program ended: 128 and a number is a signal."""
    return -(code - 128) if code - 128 in _SIGNALS else code


def _kernel_killed(container_id: str) -> bool:
    """The kernel has killed a process of it for memory: asked where this process can see the control group."""
    for file in (
        Path(f"/sys/fs/cgroup/system.slice/docker-{container_id}.scope/memory.events"),
        Path(f"/sys/fs/cgroup/docker/{container_id}/memory.events"),
        Path(f"/sys/fs/cgroup/memory/docker/{container_id}/memory.oom_control"),
    ):
        try:
            words = dict(line.split(None, 1) for line in file.read_text().splitlines() if " " in line)
        except OSError:
            continue
        return int(words.get("oom_kill", 0)) > 0
    return False


def _read_verdict(file: Path) -> Verdict | None:
    try:
        found = json.loads(file.read_bytes())
        cause, sentence = found["cause"], found["sentence"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Verdict(cause, sentence) if cause in get_args(Cause) else None


def _write_verdict(file: Path, verdict: Verdict) -> None:
    fresh = file.with_name(f"{file.name}.new")
    try:
        fresh.write_text(json.dumps({"cause": verdict.cause, "sentence": verdict.sentence}))
        os.replace(fresh, file)  # noqa: PTH105
    except OSError as error:  # a full disk keeps nobody from ending the run
        log.error("why a run ended cannot be written: %s", error)
