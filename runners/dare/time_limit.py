"""A bound on the processor time of a piece of work in this process.

Processor time, so that a busy machine moves nothing and waiting for another process costs nothing. The kernel's timer
interrupts Python code and its regular expressions, in the main thread alone: elsewhere there is no bound.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class TooLongError(RuntimeError):
    """The work went over its limit and was stopped where it stood."""


@contextmanager
def stopwatch() -> Iterator[Callable[[float], None]]:
    """A function that sets the bound, in seconds from now, or with 0 takes it away. After it TooLongError is raised."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda _seconds: None
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise TooLongError("it went over its limit of processor time")

    def bound(seconds: float) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)

    before = signal.signal(signal.SIGVTALRM, stop)
    try:
        yield bound
    finally:
        bound(0)
        signal.signal(signal.SIGVTALRM, before)
