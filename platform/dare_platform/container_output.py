"""What a container prints, read from its engine: each byte once and in order, however often the connection ends.

A reader counts from the first byte of the engine's own log, and takes what nobody has taken before. So a connection
that was quiet for too long, was cut, or belongs to a launcher that was started again costs neither a gap nor a repeat.
The first half of the limit is written to a file beside the job directory as it comes, where the run cannot reach it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dare_platform.errors import LaunchError
from dare_platform.kept_output import KeptOutput
from dare_platform.settings import MIB

RECORD_BYTES = 64
"""At most what the engine adds to each line that it keeps."""
AGAIN_SECONDS = 0.5
CLOSING_READS = 5
DRAIN_SECONDS = 10.0
"""For what an ended container has printed and nobody has read yet."""

log = logging.getLogger(__name__)

Frames = Callable[[bool], Iterator[bytes]]
"""All that the engine has of a container's output, from its beginning; True: and what comes, until the container ends.

LaunchError when the connection fails or nothing comes for too long.
"""


def engine_log_bytes(limit_bytes: int) -> int:
    """How much the engine keeps before it drops the oldest: more than a run within its limit can print."""
    return max(8 * MIB, 8 * limit_bytes)


class ContainerOutput:
    """Follows one container in a thread of its own."""

    def __init__(self, frames: Frames, file: Path, limit_bytes: int) -> None:
        self._frames = frames
        self._limit_bytes = limit_bytes
        # whoever else follows the same container writes the same bytes to the same places
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        self._kept = KeptOutput(limit_bytes, os.pread(self._descriptor, max(1, limit_bytes // 2), 0))
        self._engine_bytes = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._until = float("inf")
        self._thread = threading.Thread(target=self._follow, name=f"output-{file.parent.name}", daemon=True)
        self._thread.start()

    @property
    def is_flood(self) -> bool:
        """More than is allowed was printed, or so many short lines that the engine's log cannot hold them."""
        with self._lock:
            too_many = self._engine_bytes > engine_log_bytes(self._limit_bytes)
            return too_many or self._kept.total_bytes > self._limit_bytes

    def text(self) -> str:
        """The kept parts, with a line that says how much is left out."""
        with self._lock:
            return self._kept.text()

    def piece(self, offset: int, most: int) -> bytes:
        """Bytes from `offset` on, at most `most`, of the first part that is kept."""
        with self._lock:
            return bytes(self._kept.first[offset : offset + most])

    def close(self) -> None:
        """Take what is still to be had and complete the file, in seconds. Call when the container has ended."""
        self._until = time.monotonic() + DRAIN_SECONDS
        self._ended.set()
        self._thread.join(DRAIN_SECONDS)  # it may wait for a connection that says nothing more
        for _ in range(0 if self.is_flood else CLOSING_READS):
            try:
                self._read(follow=False)
                break
            except LaunchError:  # in the end what has been read is what there is
                time.sleep(AGAIN_SECONDS)
        with self._lock:
            if self._descriptor < 0:
                return
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, len(self._kept.first))
            self._write(self._kept.rest(), len(self._kept.first))
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def _write(self, content: bytes, place: int) -> None:
        """On a full disk the file ends where it is, without a hole: nobody needs it but the next launcher."""
        if self._descriptor < 0:
            return
        try:
            if os.pwrite(self._descriptor, content, place) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            log.warning("a run's output is kept in memory only: %s", error)
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, place)
            os.close(self._descriptor)
            self._descriptor = -1

    def _follow(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(LaunchError):  # from the beginning once more
                self._read(follow=True)
            self._ended.wait(AGAIN_SECONDS)

    def _read(self, follow: bool) -> None:
        position = records = 0
        for frame in self._frames(follow):
            records += RECORD_BYTES
            with self._lock:
                self._engine_bytes = max(self._engine_bytes, position + len(frame) + records)
                fresh = frame[max(0, self._kept.total_bytes - position) :]
                place = len(self._kept.first)
                head = self._kept.add(fresh)
                if head:
                    self._write(head, place)
            position += len(frame)
            if time.monotonic() > self._until:
                return
