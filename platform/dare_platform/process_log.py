"""What a run prints: read by a thread, the first and the last part kept, however much comes."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import IO

from dare_platform.kept_output import KeptOutput

CHUNK = 65536


class ProcessLog:
    """Reads a pipe to its end. The file gets the first half of the limit at once and the last half at the end."""

    def __init__(self, pipe: IO[bytes], file: Path, limit_bytes: int) -> None:
        self._pipe = pipe
        self._kept = KeptOutput(limit_bytes)
        self._lock = threading.Lock()
        # our own file from the start: the run cannot put a link in its place
        self._descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        self._thread = threading.Thread(target=self._read, name=f"log-{file.parent.name}", daemon=True)
        self._thread.start()

    @property
    def total_bytes(self) -> int:
        """Printed so far."""
        return self._kept.total_bytes

    def text(self) -> str:
        """The kept parts, with a line that says how much is left out."""
        with self._lock:
            return self._kept.text()

    def piece(self, offset: int, most: int) -> bytes:
        """Bytes from `offset` on, at most `most`, of the first part that is kept."""
        with self._lock:
            return bytes(self._kept.first[offset : offset + most])

    def close(self, seconds: float = 5.0) -> None:
        """Wait for the end of the pipe, then complete the file. Call when every writer is dead."""
        self._thread.join(seconds)
        with self._lock:
            if self._descriptor >= 0:
                os.write(self._descriptor, self._kept.rest())
                os.close(self._descriptor)
                self._descriptor = -1
        if not self._thread.is_alive():
            self._pipe.close()

    def _read(self) -> None:
        while chunk := os.read(self._pipe.fileno(), CHUNK):
            with self._lock:
                head = self._kept.add(chunk)
                if head and self._descriptor >= 0:
                    os.write(self._descriptor, head)
