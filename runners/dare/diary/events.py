"""The run's diary: `events.jsonl`, one flushed line per event, and clocks that survive a resumed run."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from dare.spec import Event, Sample

Listener = Callable[[Event], None]
EVENTS = "events.jsonl"


def finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Metrics as they may be written: a number that is not finite becomes None, which pages show as a gap."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


def numbers(event: Event) -> dict[str, float]:
    """What a step may be plotted with: its metrics that are numbers, and what it has cost so far."""
    cost = {"cost/forwards": event.forwards, "cost/device_seconds": event.device_seconds}
    return {name: value for name, value in {**event.metrics, **cost}.items() if value is not None}


def read_events(directory: Path) -> list[Event]:
    """The diary as if the run had never been interrupted: what a resumed run did again is there once.

    Every start of the run writes a stage `prepare`; the first step after it puts away what was noted of that step and
    of later ones before. Lines that a kill tore are left out.
    """
    path = directory / EVENTS
    told: list[Event] = []
    started = False
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            event = Event.model_validate_json(line)
        except ValidationError:
            continue
        started = started or (event.kind == "stage" and event.stage == "prepare")
        if started and is_of_a_step(event):
            told, started = before(told, event.step or 0), False
        if not is_repeated(event, told):
            told.append(event)
    return told


def before(events: Sequence[Event], step: int) -> list[Event]:
    """Those that a run which goes on with `step` does not write again."""
    return [event for event in events if not is_of_a_step(event) or (event.step or 0) < step]


def is_of_a_step(event: Event) -> bool:
    """Whether a run that goes back to an earlier step writes the event again."""
    return event.kind in ("step", "sample", "alarm") and (event.step or 0) > 0


def is_repeated(event: Event, told: Sequence[Event]) -> bool:
    """Whether it is an alarm about the data, which every start of a run gives at step 0, and was given before."""
    if event.kind != "alarm" or is_of_a_step(event):
        return False
    return any((one.kind, one.stage, one.detail) == (event.kind, event.stage, event.detail) for one in told)


class EventLog:
    """Appends events; each is one write of one line, so that a killed run leaves at most one torn line at the end."""

    def __init__(self, directory: Path, *listeners: Listener) -> None:
        self._file = (directory / EVENTS).open("ab", buffering=0)
        self._listeners = listeners
        if self._file.tell():  # a line torn by a kill must not swallow the next one
            self._file.write(b"\n")

    def write(self, event: Event) -> None:
        """Append one event and tell the listeners."""
        self._file.write(event.model_dump_json(exclude_defaults=True).encode() + b"\n")
        for listener in self._listeners:
            listener(event)

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
