"""The part of an endless output that is kept: its first and its last half of a limit, and how much lay between."""

from __future__ import annotations

from collections import deque


class KeptOutput:
    """Takes bytes as they come. Whoever shares it between threads locks it."""

    def __init__(self, limit_bytes: int, first: bytes = b"") -> None:
        """`first`: what an earlier reader has kept of the beginning."""
        self.half = max(1, limit_bytes // 2)
        self.first = bytearray(first[: self.half])
        self._last: deque[bytes] = deque()
        self._last_bytes = 0
        self.total_bytes = len(self.first)

    def add(self, chunk: bytes) -> bytes:
        """Take the next bytes; returns those of them that belong to the first half."""
        self.total_bytes += len(chunk)
        room = self.half - len(self.first)
        head, rest = (chunk[:room], chunk[room:]) if room > 0 else (b"", chunk)
        self.first += head
        if rest:
            self._last.append(rest)
            self._last_bytes += len(rest)
            while self._last and self._last_bytes - len(self._last[0]) >= self.half:
                self._last_bytes -= len(self._last.popleft())
        return head

    def rest(self) -> bytes:
        """What follows the first half: a line that says how much is left out, and the last half."""
        last = b"".join(self._last)[-self.half :]
        left_out = self.total_bytes - len(self.first) - len(last)
        note = f"\n[... {left_out} bytes left out ...]\n".encode() if left_out else b""
        return note + last

    def text(self) -> str:
        """All that is kept."""
        return (bytes(self.first) + self.rest()).decode("utf-8", "replace")
