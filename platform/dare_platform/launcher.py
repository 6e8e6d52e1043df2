"""A place where runs run: started there, watched, and ended. One narrow interface, whatever the place is.

What keeps a run apart is said in one sentence, `isolation`, which is stored with the attempt and shown with the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dare.spec import Cause, RunKind


@dataclass(frozen=True)
class Order:
    """What to start: an attempt's directory, and what its place has to know of it."""

    run_id: str
    token: int
    """Of the attempt that made the directory; names directory and process."""
    directory: Path
    wall_seconds: float
    kind: RunKind
    family: str
    lease_token: int
    """By which the run is held now: newer than `token` where a worker adopted what another one had started."""
    gpu_uuid: str | None = None
    backbone: str | None = None
    """Name of the one whose weights it needs."""

    @property
    def name(self) -> str:
        """Names the attempt in the process table and among containers."""
        return f"{self.run_id}-{self.token}"


@dataclass(frozen=True)
class Observed:
    """How a run stands."""

    running: bool
    exit_code: int | None = None
    """Negative for a signal. Set once it has ended."""
    cause: Cause | None = None
    """Why the launcher ended it; None when it ended by itself or was told to."""
    sentence: str | None = None
    peak_memory_bytes: int = 0
    image_id: str | None = None
    """Of its container."""


@dataclass(frozen=True)
class Owned:
    """A run found on this host, whoever started it: alive, or ended and not yet removed."""

    run_id: str
    token: int
    adoptable: bool = False
    """Another worker than the one that started it can watch it to its end."""

    @property
    def name(self) -> str:
        """As in `Order`."""
        return f"{self.run_id}-{self.token}"


class Launcher(Protocol):
    """What the worker needs to know of a place where runs run. LaunchError when it cannot do what it is asked."""

    @property
    def isolation(self) -> str:
        """What keeps a run apart from the host, in one sentence."""

    def start(self, order: Order) -> str:
        """Start a run and return its name. Started already: nothing happens."""

    def adopt(self, order: Order) -> str:
        """Go on with what another worker has started under `order.token`, and return its name."""

    def state(self, name: str) -> Observed:
        """How it stands; enforces nothing."""

    def logs(self, name: str) -> str:
        """Standard output and error so far, shortened in the middle."""

    def output(self, name: str, offset: int) -> bytes:
        """The next piece of standard output and error from a byte offset on; empty when there is none yet.

        Pieces fit together without gaps or repeats, whoever asks. What is beyond the log's limit is never returned.
        """

    def stop(self, name: str) -> None:
        """Ask it to end, wait a little, then kill everything of it. Afterwards nothing of it lives."""

    def list_own(self) -> list[Owned]:
        """Runs on this host, also those of workers that died."""

    def remove(self, name: str) -> None:
        """Kill what is left of a run at once, and forget it."""
