"""The platform's housekeeper: a list of chores, each again and again, none of which stops another.

Workers do the ones that runs depend on as well, so a stack without this process loses nothing but comfort, and two of
it do no harm: every chore is harmless when done twice, or at the same time.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType

from sqlalchemy import delete

from dare_platform import signs_of_life
from dare_platform.database import Database, now
from dare_platform.deliveries import send_deliveries
from dare_platform.lease import announce_again, reap
from dare_platform.models import Outbox
from dare_platform.outbox import Publisher, relay
from dare_platform.retention import purge
from dare_platform.settings import Settings
from dare_platform.snapshots import take_what_changed

SENT_IS_KEPT_SECONDS = 7 * 86400.0
"""So long a sent message stays, for whoever asks when a run was announced."""
STUCK_SECONDS = 900.0
"""A chore that has not come back for so long will not: the process no longer says that it lives."""
LOOK_SECONDS = 2.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Chore:
    """Something to do every so often. What it raises is logged, and it is tried again at its next time."""

    name: str
    every_seconds: float
    act: Callable[[], object]


def chores(settings: Settings, database: Database, publish: Publisher | None = None) -> tuple[Chore, ...]:
    """All there are. Without a broker nothing is announced: everybody polls."""

    def take_back() -> None:
        with database.write() as session:
            for run_id in reap(session, settings.lease_seconds):
                log.warning("run %s was lost by its worker and taken back", run_id, extra={"run_id": run_id})

    def ring_again() -> None:
        with database.write() as session:
            announce_again(session, settings.lease_seconds)

    seen: dict[tuple[str, str], float] = {}

    def keep_boards() -> None:
        with database.write() as session:
            take_what_changed(session, seen)

    own = [
        Chore("take back lost runs", settings.heartbeat_seconds, take_back),
        Chore("keep boards that changed", 60.0, keep_boards),
        Chore("forget sent messages", 3600.0, lambda: forget_sent(database)),
        Chore("tell people", 10.0, lambda: send_deliveries(settings, database)),
        Chore("remove what is old", 3600.0, lambda: purge(settings, database)),
    ]
    if publish is not None:
        own.append(Chore("send messages", settings.poll_seconds, lambda: relay(database, publish)))
        own.append(Chore("announce again", settings.heartbeat_seconds, ring_again))
    return tuple(own)


def forget_sent(database: Database) -> int:
    """Remove messages that were sent long ago; how many."""
    with database.write() as session:
        old = delete(Outbox).where(Outbox.published_at < now(session) - SENT_IS_KEPT_SECONDS)
        gone = session.execute(old.execution_options(synchronize_session=False))
        return int(getattr(gone, "rowcount", 0))


class Control:
    """Does chores until stopped, each in a thread of its own: one that waits for the network delays no other."""

    def __init__(self, chores: Sequence[Chore]) -> None:
        self._chores = tuple(chores)
        self._stops = threading.Event()
        self._begun = dict.fromkeys((chore.name for chore in self._chores), 0.0)
        """When each chore that is being done began; 0 for one that waits."""

    def stop(self) -> None:
        """End after what is being done."""
        self._stops.set()

    def stop_on_signals(self) -> None:
        """Let SIGTERM and Ctrl-C mean `stop`. Call from the main thread."""

        def asked(_number: int, _frame: FrameType | None) -> None:
            self.stop()

        signal.signal(signal.SIGTERM, asked)
        signal.signal(signal.SIGINT, asked)

    def run(self) -> None:
        """Until stopped."""
        threads = [
            threading.Thread(target=self._repeat, args=(one,), name=one.name, daemon=True) for one in self._chores
        ]
        for thread in threads:
            thread.start()
        while not self._stops.wait(LOOK_SECONDS):
            if not self.stuck() and all(thread.is_alive() for thread in threads):
                signs_of_life.show()
        for thread in threads:
            thread.join(LOOK_SECONDS)

    def stuck(self) -> list[str]:
        """Chores that have been at it for too long."""
        at = time.monotonic()
        return [name for name, begun in self._begun.items() if begun and at - begun > STUCK_SECONDS]

    def _repeat(self, chore: Chore) -> None:
        while True:
            self._begun[chore.name] = time.monotonic()
            try:
                chore.act()
            except Exception:  # whatever it is, it must not cost the next time, nor another chore
                log.exception("the chore %r failed", chore.name)
            self._begun[chore.name] = 0.0
            if self._stops.wait(chore.every_seconds):
                return
