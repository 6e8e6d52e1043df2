"""The run's diary: `events.jsonl`, one flushed line per event, and clocks that survive a resumed run."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from dare.spec import Event, Sample

Listener = Callable[[Event], None]


def finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Metrics as they may be written: a number that is not finite becomes None, which pages show as a gap."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


class EventLog:
    """Appends events; each is one write of one line, so that a killed run leaves at most one torn line at the end."""

    def __init__(self, directory: Path, listener: Listener | None = None) -> None:
        self._file = (directory / "events.jsonl").open("ab", buffering=0)
        self._listener = listener
        if self._file.tell():  # a line torn by a kill must not swallow the next one
            self._file.write(b"\n")

    def write(self, event: Event) -> None:
        """Append one event and tell the listener."""
        self._file.write(event.model_dump_json(exclude_defaults=True).encode() + b"\n")
        if self._listener is not None:
            self._listener(event)

    def stage(self, stage: str, detail: str | None = None) -> None:
        """A new stage of the run begins."""
        self.write(Event(at=time.time(), kind="stage", stage=stage, detail=detail))

    def step(self, step: int, of: int, metrics: Mapping[str, float], forwards: float, device_seconds: float) -> None:
        """One optimiser batch is done. `of` is the expected total, by budget."""
        self.write(
            Event(
                at=time.time(),
                kind="step",
                step=step,
                of=of,
                metrics=finite(metrics),
                forwards=forwards,
                device_seconds=device_seconds,
            )
        )

    def progress(self, detail: str, done: int, of: int) -> None:
        """Items of an evaluation."""
        self.write(Event(at=time.time(), kind="progress", detail=detail, step=done, of=of))

    def alarm(self, step: int, name: str, sentence: str) -> None:
        """Something that a person should know about this run."""
        self.write(Event(at=time.time(), kind="alarm", step=step, stage=name, detail=sentence))

    def sample(self, step: int, sample: Sample) -> None:
        """A rollout to look at."""
        self.write(Event(at=time.time(), kind="sample", step=step, sample=sample))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def device_seconds() -> float:
    """CPU seconds of this process, children excluded: what a CPU run costs whoever shares the machine."""
    used = os.times()
    return used.user + used.system
