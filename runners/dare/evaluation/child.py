"""A program of ours that works beside this process: its lines, its log, and its end, which is never later than ours."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

LOG_TAIL_BYTES = 2000
LINE_BYTES = 1 << 20
"""A longer line is no message of ours and is cut."""
GRACE_SECONDS = 5.0


class Child:
    """A module in a process group of its own; its standard output comes line by line, its errors go into a file."""

    def __init__(self, what: str, module: str, words: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.what = what
        self.log = log
        self._lines: queue.Queue[str | None] = queue.Queue()
        reading, tether = os.pipe()
        self._tether: int | None = tether
        command = [sys.executable, "-m", "dare.tether", str(reading), module, *words]
        try:
            with log.open("ab") as errors:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env=dict(environment),
                    pass_fds=(reading,),
                    start_new_session=True,
                )
        except BaseException:
            os.close(tether)
            raise
        finally:
            os.close(reading)
        threading.Thread(target=self._read, name=f"{what} lines", daemon=True).start()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    @property
    def exit_code(self) -> int | None:
        """None while it works."""
        return self._process.poll()

    def line(self, seconds: float) -> str | None:
        """Its next line, or None when there is none within the seconds, or never will be."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            return None
        if line is None:
            self._lines.put(None)  # for whoever asks again
        return line

    def lines(self, watch: float = 0.2) -> Iterator[str | None]:
        """Its lines until it has closed its output; None now and then in between, so that others can be looked at."""
        while True:
            try:
                line = self._lines.get(timeout=watch)
            except queue.Empty:
                yield None
                continue
            if line is None:
                return
            yield line

    def wait(self, seconds: float) -> int | None:
        """Its exit code; None when it still works after the seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def tail(self) -> str:
        """The end of its log, on one line."""
        try:
            text = self.log.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace")
        except OSError:
            return ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return " | ".join(lines[-4:])

    def end(self) -> None:
        """Ask it to stop, then kill its whole group; afterwards nothing of it lives."""
        if self._process.poll() is None:
            self._signal(signal.SIGTERM)
            deadline = time.monotonic() + GRACE_SECONDS
            while self._process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.02)
        self._signal(signal.SIGKILL)  # also what it has left behind
        self._process.wait()
        if self._tether is not None:
            os.close(self._tether)
            self._tether = None

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            while line := stream.readline(LINE_BYTES):
                self._lines.put(line.decode("utf-8", "replace").rstrip("\n"))
        self._lines.put(None)
