"""Math-verify in processes that can be killed: its answer, or word that a pair went over its limit.

A process is started when it is first needed, kept for the following pairs and replaced when it dies, hangs or asks for
too much memory. The limit of a pair is processor time, which the kernel counts and enforces: a busy machine does not
move it, so the same pair always ends the same way. The wall clock only stands guard over a process that stopped
answering, and that is a failure of the scorer. Any thread may ask; at the end of the program no process is left.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

Answer = Literal["equal", "different", "unreadable", "limit"]
"""`unreadable`: not both are formulas. `limit`: not shown to be equal within the time and memory of a pair."""

CHILD = Path(__file__).with_name("mathverify_child.py")
SECONDS = 5.0
"""Processor time of a pair."""
WALL_SECONDS = 120.0
"""Without any answer: the process or the machine is stuck."""
MEMORY = 1 << 30
PROCESSES = 2


class MathVerifyError(RuntimeError):
    """Math-verify said nothing about a pair. The scorer failed, whatever the answer is."""


class MissingMathVerifyError(RuntimeError):
    """Math-verify is not installed here."""


@cache
def require() -> None:
    """MissingMathVerifyError where math-verify is not installed; nothing is imported to find out."""
    if any(importlib.util.find_spec(name) is None for name in ("math_verify", "sympy")):
        raise MissingMathVerifyError(
            "mathematical answers are judged with math-verify, which is not installed here: "
            "install dare with its extra `runner`"
        )


class _DeadError(Exception):
    """The process ended before it answered."""


class _Process:
    """One child with its pipes."""

    def __init__(self, command: list[str], wall_seconds: float) -> None:
        self.wall_seconds = wall_seconds
        self.popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,  # an interrupt at the terminal is the parent's to handle
            env={name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
            | {"PYTHONHASHSEED": "0"},
        )
        self.pending = b""

    def ask(self, message: Any = None) -> Mapping[str, Any]:
        """The next line, after `message` if there is one. _DeadError, or MathVerifyError when nothing comes."""
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        try:
            if message is not None:
                self.popen.stdin.write(json.dumps(message).encode() + b"\n")
            deadline = time.monotonic() + self.wall_seconds
            ready = select.poll()  # not select: a server may have more than 1024 files open
            ready.register(self.popen.stdout, select.POLLIN)
            while b"\n" not in self.pending:
                left = deadline - time.monotonic()
                if left <= 0 or not ready.poll(1000 * left):
                    raise MathVerifyError(f"math-verify did not answer within {self.wall_seconds:g} seconds")
                read = os.read(self.popen.stdout.fileno(), 1 << 16)
                if not read:
                    raise _DeadError
                self.pending += read
        except BrokenPipeError as error:
            raise _DeadError from error
        line, _, self.pending = self.pending.partition(b"\n")
        answer: Mapping[str, Any] = json.loads(line)
        return answer

    def end(self) -> int:
        """Kills it and takes its exit status, so that no zombie stays. Negative: the signal that ended it."""
        if self.popen.poll() is None:
            try:
                code = self.popen.wait(0.05)  # it may be dying of its own limit
            except subprocess.TimeoutExpired:
                self.popen.kill()
                code = self.popen.wait()
        else:
            code = self.popen.returncode
        self.close_pipes()
        return code

    def close_pipes(self) -> None:
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                pipe.close()


class MathVerify:
    """A few processes, asked by any number of threads."""

    def __init__(
        self,
        *,
        seconds: float = SECONDS,
        wall_seconds: float = WALL_SECONDS,
        memory: int = MEMORY,
        processes: int = PROCESSES,
        child: Path = CHILD,
    ) -> None:
        self.command = [sys.executable, "-P", str(child), str(seconds), str(memory)]
        self.wall_seconds, self.processes = wall_seconds, processes
        self._reset()

    def _reset(self) -> None:
        self._owner = os.getpid()
        self._free = threading.BoundedSemaphore(self.processes)
        self._lock = threading.Lock()
        self._idle: list[_Process] = []

    def ask(self, gold: str, prediction: str) -> Answer:
        """What it says of a pair. MathVerifyError where it failed on the pair, twice if its process died."""
        if os.getpid() != self._owner:  # after a fork: the processes and the locks are the parent's
            for process in self._idle:
                process.close_pipes()
                process.popen.returncode = 0  # not ours to wait for
            self._reset()
        with self._free:
            for _ in range(2):
                try:
                    return self._ask(gold, prediction)
                except _DeadError:
                    continue
        raise MathVerifyError("the process of math-verify died twice on one pair")

    def _ask(self, gold: str, prediction: str) -> Answer:
        with self._lock:
            process = self._idle.pop() if self._idle else None
        if process is None:
            process = _Process(self.command, self.wall_seconds)
            try:
                process.ask()
            except BaseException:
                process.end()
                raise
        try:
            said = process.ask((gold, prediction))
        except _DeadError:
            if process.end() == -signal.SIGPROF:
                return "limit"
            raise
        except BaseException:
            process.end()
            raise
        if said["last"]:
            process.end()
        else:
            with self._lock:
                self._idle.append(process)
        return _answer(said)

    def close(self) -> None:
        """Ends the idle processes. It can be asked again afterwards."""
        if os.getpid() == self._owner:
            with self._lock:
                idle, self._idle = self._idle, []
            for process in idle:
                process.end()


def _answer(said: Mapping[str, Any]) -> Answer:
    verdict = said["verdict"]
    if verdict == "failed":
        raise MathVerifyError(f"math-verify failed: {said['why']}")
    answer: Answer = "limit" if verdict == "memory" else verdict
    return answer


@cache
def shared() -> MathVerify:
    """The one of this program."""
    asked = MathVerify()
    atexit.register(asked.close)
    return asked
