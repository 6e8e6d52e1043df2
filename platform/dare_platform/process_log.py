"""What a run prints: read by a thread, the first and the last part kept, however much comes."""

from __future__ import annotations

import os
import threading
from collections import deque
from pathlib import Path
from typing import IO

CHUNK = 65536


class ProcessLog:
    """Reads a pipe to its end. The file gets the first half of the limit at once and the last half at the end."""

    def __init__(self, pipe: IO[bytes], file: Path, limit_bytes: int) -> None:
        self._pipe = pipe
        self._half = max(1, limit_bytes // 2)
        self._first = bytearray()
        self._last: deque[bytes] = deque()
        self._last_bytes = 0
        self._lock = threading.Lock()
        # our own file from the start: the run cannot put a link in its place
        self._descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        self.total_bytes = 0
        self._thread = threading.Thread(target=self._read, name=f"log-{file.parent.name}", daemon=True)
        self._thread.start()

    def text(self) -> str:
        """The kept parts, with a line that says how much is left out."""
        return self._kept().decode("utf-8", "replace")

    def piece(self, offset: int, most: int) -> bytes:
        """Bytes from `offset` on, at most `most`, of the first part that is kept."""
        with self._lock:
            return bytes(self._first[offset : offset + most])

    def close(self, seconds: float = 5.0) -> None:
        """Wait for the end of the pipe, then complete the file. Call when every writer is dead."""
        self._thread.join(seconds)
        with self._lock:
            if self._descriptor >= 0:
                written = len(self._first)
                os.write(self._descriptor, self._kept_unlocked()[written:])
                os.close(self._descriptor)
                self._descriptor = -1
        if not self._thread.is_alive():
            self._pipe.close()

    def _read(self) -> None:
        while chunk := os.read(self._pipe.fileno(), CHUNK):
            with self._lock:
                self._keep(chunk)

    def _keep(self, chunk: bytes) -> None:
        self.total_bytes += len(chunk)
        room = self._half - len(self._first)
        if room > 0:
            head, chunk = chunk[:room], chunk[room:]
            self._first += head
            if self._descriptor >= 0:
                os.write(self._descriptor, head)
        if not chunk:
            return
        self._last.append(chunk)
        self._last_bytes += len(chunk)
        while self._last and self._last_bytes - len(self._last[0]) >= self._half:
            self._last_bytes -= len(self._last.popleft())

    def _kept(self) -> bytes:
        with self._lock:
            return self._kept_unlocked()

    def _kept_unlocked(self) -> bytes:
        last = b"".join(self._last)[-self._half :]
        left_out = self.total_bytes - len(self._first) - len(last)
        note = f"\n[... {left_out} bytes left out ...]\n".encode() if left_out else b""
        return bytes(self._first) + note + last
