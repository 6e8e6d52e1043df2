"""The queue before the model: bounded, in order, compatible rows together, one thread that touches torch."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from time import monotonic

from dare.policy import Policy, RequestError, one_line
from dare.sampling.engines import EngineError
from dare.server.metrics import Metrics
from dare.server.rows import DecodedRow, ScoredPairs, decode, score

log = logging.getLogger(__name__)
Work = DecodedRow | ScoredPairs


class QueueFullError(RuntimeError):
    """As many rows wait as may; the message says how many."""


class StoppingError(RuntimeError):
    """The server is being stopped and takes nothing new."""


class FailedError(RuntimeError):
    """The model failed on a batch, through no fault of the request."""


class Waiting:
    """Work for one model. Rows that wait together and are decoded alike go together, at most `batch` at once.

    The longest waiting row always goes first, so no kind of work can keep another from its turn.
    """

    def __init__(self, policy: Policy, batch: int, capacity: int, metrics: Metrics) -> None:
        self._policy, self._batch, self._capacity, self._metrics = policy, batch, capacity, metrics
        self._waiting: deque[Work] = deque()
        self._running: list[Work] = []
        self._change = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)

    def start(self) -> None:
        """Start the model's thread."""
        self._thread.start()

    def stop(self) -> None:
        """Refuse what waits, abandon what runs, and return when the thread has ended."""
        with self._change:
            self._stopping = True
            for work in self._waiting:
                if work.future.set_running_or_notify_cancel():
                    work.future.set_exception(StoppingError("the server is stopping"))
            self._waiting.clear()
            for work in self._running:
                work.abandoned = True
            self._change.notify()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether work will be done."""
        return self._thread.is_alive() and not self._stopping

    @property
    def length(self) -> int:
        """Rows that wait."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Rows that the model works on."""
        return len(self._running)

    def add(self, works: Sequence[Work]) -> None:
        """Let all of them wait, or none: QueueFullError when they do not fit."""
        with self._change:
            if self._stopping:
                raise StoppingError("the server is stopping")
            if len(self._waiting) + len(works) > self._capacity:
                raise QueueFullError(
                    f"{len(self._waiting)} rows wait already and the queue holds {self._capacity}; try again later"
                )
            self._waiting.extend(works)
            self._change.notify()

    def abandon(self, works: Sequence[Work]) -> None:
        """Nobody waits for them any longer."""
        with self._change:
            for work in works:
                work.abandoned = True
            self._waiting = deque(work for work in self._waiting if not work.abandoned)

    def _work(self) -> None:
        while (works := self._take()) is not None:
            began = monotonic()
            forwards: int | None = 0
            try:
                first = works[0]
                if isinstance(first, ScoredPairs):
                    forwards = score(self._policy, first, self._batch)
                else:
                    forwards = decode(self._policy, [work for work in works if isinstance(work, DecodedRow)])
            except Exception as error:  # whatever it is, it ends this batch and not the server
                self._fail(works, error)
            for work in works:
                if not work.future.done():  # abandoned; should anybody wait all the same, he is told
                    work.future.set_exception(StoppingError("the answer was abandoned: the server is stopping"))
            self._metrics.batch(len(works), forwards, monotonic() - began)
            with self._change:
                self._running = []

    def _take(self) -> list[Work] | None:
        """The next rows to work on together; waits for some. None when the server stops."""
        with self._change:
            while not self._running:
                while not self._waiting:
                    if self._stopping:
                        return None
                    self._change.wait()
                kind = self._waiting[0].kind
                taken = [work for work in self._waiting if work.kind == kind][: self._batch]
                self._waiting = deque(work for work in self._waiting if work not in taken)
                self._running = [work for work in taken if work.future.set_running_or_notify_cancel()]
            return self._running

    def _fail(self, works: Sequence[Work], error: Exception) -> None:
        told: Exception
        if isinstance(error, ValueError):  # settings or prompts that the sampler refuses: the same for the whole kind
            told = RequestError(one_line(error))
        elif isinstance(error, EngineError):  # its sentence says where the engine is: for the log
            log.error("a batch of %d failed: %s", len(works), one_line(error))
            told = FailedError(
                f"the engine failed on this request ({type(error).__name__}); the server's log says more"
            )
        else:
            log.exception("a batch of %d failed", len(works))
            told = FailedError(f"the model failed on this request ({type(error).__name__}); the server's log says more")
        for work in works:
            if not work.future.done():
                work.future.set_exception(told)
