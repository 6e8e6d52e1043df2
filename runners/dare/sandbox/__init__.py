"""Runs generated programs with their tests, apart from this machine. Linux only; no third-party package.

A program gets a fresh interpreter in namespaces of its own: no network, no file of the host but Python's library, no
other process to see, an empty folder in memory, limits on everything, no child processes. Its tests run in another
process that it cannot reach and ask it through a channel for values, which are compared there. `passed` is said after
the last assertion and with the nonce of the question; neither output nor exit code is looked at.

SandboxError is the base of what can go wrong: NoSandboxError, this machine offers no isolation, so nothing is run.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

Status = Literal["passed", "failed", "timeout", "died", "error"]
"""`died`: its process ended before the tests did. `error`: nobody can say; the sandbox or the tests are at fault."""


class SandboxError(RuntimeError):
    """Base of what can go wrong here."""


class NoSandboxError(SandboxError):
    """This machine cannot keep a program apart. The message says which call failed."""


@dataclass(frozen=True)
class Limits:
    """Of one program, all of them enforced by the kernel. Processor time decides, so that a busy machine does not; the
    wall clock stands guard over programs that sleep."""

    cpu_seconds: int = 10
    wall_seconds: float = 60.0
    memory_bytes: int = 1 << 30
    file_bytes: int = 16 << 20
    """Of one file and of all files together, which live in memory."""


@dataclass(frozen=True)
class Program:
    """A program and what it is asked."""

    source: str
    tests: str
    """Run to its end when the program is right. Names that neither it nor `prefix` nor Python defines are the
    program's."""
    entry_point: str = ""
    """The one name that is the program's even where Python has it too."""
    prefix: str = ""
    """Known before the program is: run before the program, and before the tests in their own process."""
    preamble: Sequence[str] = ()
    """Run before the program alone, one after the other."""


class Outcome(NamedTuple):
    """How a program did. `why` is one line for people; the program may have written it."""

    status: Status
    why: str
    seconds: float
    cpu_seconds: float


_SOURCE = "def {name}(x):\n    return {factor} * x\n"
_TESTS = "assert {name}(2) == 4\nassert {name}(-3) == -6\nassert {name}('ab') == 'abab'\n"


def canaries(preamble: Sequence[str] = ()) -> tuple[tuple[Program, bool], ...]:
    """Programs whose verdict is known: right, wrong by a constant, wrong but claiming to be equal to everything."""
    name = "double"
    tests = _TESTS.format(name=name)
    liar = f"class Liar:\n    def __eq__(self, other):\n        return True\ndef {name}(x):\n    return Liar()\n"
    sources = ((_SOURCE.format(name=name, factor=2), True), (_SOURCE.format(name=name, factor=3), False), (liar, False))
    return tuple((Program(source, tests, preamble=preamble), right) for source, right in sources)


PROBE = """
import os, socket

def probe(here, port):
    held = []
    if os.getpid() == 1 and not os.path.exists("/proc/self"):
        held.append("no process to see")
    if not os.path.exists(here):
        held.append("no file of the host")
    try:
        open(os.path.join(os.path.dirname(os.__file__), "written"), "x").close()
        os.remove(os.path.join(os.path.dirname(os.__file__), "written"))
    except OSError:
        held.append("nothing to write to")
    try:
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
    except OSError:
        held.append("no network")
    try:
        os.waitpid(os.fork() or os._exit(0), 0)
    except OSError:
        held.append("no child")
    return held
"""
HELD = ["no process to see", "no file of the host", "nothing to write to", "no network", "no child"]
"""What `probe` finds where a program is apart. It is asked before the first program."""

CANARY_EVERY = 100
"""Programs asked one at a time after which the canaries are asked again. A batch has its own."""
_START_SECONDS = 60.0
_CANNOT = "this machine cannot keep a program apart, so none is run"
_ROOT = Path(__file__).resolve().parents[2]
_STARTED_WITH = "import sys; sys.path.insert(0, sys.argv.pop(1)); from dare.sandbox.supervisor import main; main()"


class Sandbox:
    """One supervisor with its programs, started when first asked. Any thread may ask; one batch at a time runs."""

    def __init__(self, limits: Limits | None = None, workers: int | None = None) -> None:
        self.limits = limits or Limits()
        self.workers = workers or math.ceil(2 * _cores())  # some of it is waiting for the kernel
        self._reset()

    def _reset(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pending = b""
        self._since: dict[tuple[str, ...], int] = {}

    def run(
        self,
        programs: Sequence[Program],
        *,
        seconds: float | None = None,
        on_each: Callable[[Outcome], None] | None = None,
    ) -> list[Outcome]:
        """The outcome of each program, in order; NoSandboxError before anything is run where there is no isolation.

        The canaries of every preamble run with a batch. When one comes out wrong, or the batch takes longer than
        `seconds` (by default, what its programs may take together), the outcomes are `error`.
        """
        if os.getpid() != self._owner:  # after a fork: the supervisor is the parent's
            self._reset()
        with self._lock:
            self._start()
            known = [pair for preamble in self._due(programs) for pair in canaries(preamble)]
            asked = [*(program for program, _ in known), *programs]
            limit = seconds or self.limits.wall_seconds * (2 + len(asked) / self.workers)
            outcomes = self._ask(asked, time.monotonic() + limit, on_each)
        wrong = [
            outcome
            for (_, right), outcome in zip(known, outcomes, strict=False)
            if right != (outcome.status == "passed")
        ]
        if wrong:
            self.close()
            why = f"a program whose verdict is known came out {wrong[0].status} {wrong[0].why}".strip()
            return [outcome._replace(status="error", why=why) for outcome in outcomes[len(known) :]]
        return outcomes[len(known) :]

    def _due(self, programs: Sequence[Program]) -> list[tuple[str, ...]]:
        due = []
        for preamble in dict.fromkeys(tuple(program.preamble) for program in programs):
            count = sum(tuple(program.preamble) == preamble for program in programs)
            if count > 1 or self._since.get(preamble, CANARY_EVERY) >= CANARY_EVERY:
                due.append(preamble)
                self._since[preamble] = 0
            self._since[preamble] += count
        return due

    def _start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self._end()
        if not sys.platform.startswith("linux"):
            raise NoSandboxError(f"programs are kept apart by Linux namespaces, and this is {sys.platform}")
        settings = json.dumps({"limits": asdict(self.limits), "workers": self.workers})
        self._process = subprocess.Popen(
            (sys.executable, "-s", "-S", "-P", "-B", "-c", _STARTED_WITH, str(_ROOT), settings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PYTHONHASHSEED": "0"},
            start_new_session=True,  # an interrupt at the terminal is ours to handle
            bufsize=0,
        )
        try:
            said = self._hear(time.monotonic() + _START_SECONDS)
        except TimeoutError:
            said = None
        if not said or not said["ready"]:
            self._end()
            why = said["why"] if said else "its supervisor did not start"
            raise NoSandboxError(f"{_CANNOT}: {why}")
        with socket.socket() as host:
            with contextlib.suppress(OSError):  # no loopback here, so nothing to be kept from
                host.bind(("127.0.0.1", 0))
                host.listen()
            tests = f"found = probe({__file__!r}, {host.getsockname()[1] or 9})\nassert found == {HELD!r}, found\n"
            (probed,) = self._ask([Program(PROBE, tests, "probe")], time.monotonic() + _START_SECONDS, None)
        if probed.status != "passed":
            self._end()
            raise NoSandboxError(f"{_CANNOT}: of {', '.join(HELD)} it found {probed.status} {probed.why}")

    def _ask(
        self, programs: Sequence[Program], deadline: float, on_each: Callable[[Outcome], None] | None
    ) -> list[Outcome]:
        nonces = [secrets.token_hex(16) for _ in programs]
        outcomes: dict[int, Outcome] = {}
        sent = 0
        why = "the sandbox ended before its batch did"
        while len(outcomes) < len(programs):
            try:
                while sent < len(programs) and sent - len(outcomes) < 2 * self.workers:
                    self._tell({"id": sent, "nonce": nonces[sent], **asdict(programs[sent])}, deadline)
                    sent += 1
                said = self._hear(deadline)
            except TimeoutError:
                said, why = None, "the batch went over its time"
            except BaseException:
                self._end()
                raise
            if said is None:
                self._end()
                break
            honest = said["status"] != "passed" or said["nonce"] == nonces[said["id"]]
            outcome = Outcome(
                said["status"] if honest else "error", said["why"], said["seconds"], said["cpu_seconds"]
            )  # fmt: skip
            outcomes[said["id"]] = outcome
            if on_each is not None:
                on_each(outcome)
        lost = Outcome("error", why, 0.0, 0.0)
        return [outcomes.get(index, lost) for index in range(len(programs))]

    def _tell(self, message: Any, deadline: float) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        data = memoryview(json.dumps(message).encode() + b"\n")
        while data:
            if not select.select([], [self._process.stdin], [], max(0.0, deadline - time.monotonic()))[1]:
                raise TimeoutError
            try:
                data = data[os.write(self._process.stdin.fileno(), data[: select.PIPE_BUF]) :]
            except BrokenPipeError:
                return  # `_hear` says that it ended

    def _hear(self, deadline: float) -> Any:
        """The next line; None when the supervisor ended, TimeoutError when nothing came."""
        assert self._process is not None
        assert self._process.stdout is not None
        while b"\n" not in self._pending:
            if not select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError
            read = os.read(self._process.stdout.fileno(), 1 << 16)
            if not read:
                return None
            self._pending += read
        line, _, self._pending = self._pending.partition(b"\n")
        return json.loads(line)

    def _end(self) -> None:
        process, self._process, self._pending, self._since = self._process, None, b"", {}
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(0.5)  # its input ended: it goes by itself, and everything in its namespace with it
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def close(self) -> None:
        """Ends the supervisor; no process of it is left. It can be asked again afterwards."""
        if os.getpid() == self._owner:
            with self._lock:
                self._end()


def _cores() -> float:
    """What this process may use at once: of many cores, a container often gets two."""
    cores = float(len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else 1.0
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = " ".join(Path("/sys/fs/cgroup", file).read_text() for file in files).split()
        except (OSError, ValueError):
            continue
        if quota not in ("max", "-1"):
            cores = min(cores, int(quota) / int(period))
    return cores


@cache
def shared(limits: Limits | None = None) -> Sandbox:
    """The one of this program, for each set of limits."""
    sandbox = Sandbox(limits)
    atexit.register(sandbox.close)
    return sandbox
