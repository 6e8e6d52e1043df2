"""The thread that renews a lease while its run works, and tells when the run must stop.

A worker that cannot renew stops its own run at 75 % of the lease, before anybody else may start it again.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Literal

from sqlalchemy.exc import OperationalError

from dare_platform.database import Database
from dare_platform.errors import DatabaseLockedError
from dare_platform.lease import heartbeat
from dare_platform.settings import Settings

FENCE = 0.75


def steady_seconds() -> float:
    """Seconds that also pass while the machine sleeps or the process is stopped."""
    boot_clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot_clock is None else time.clock_gettime(boot_clock)


class Heartbeat:
    """Renews one lease in the background; ask `status` before every step."""

    def __init__(self, settings: Settings, run_id: str, token: int) -> None:
        self._settings = settings
        self._run_id = run_id
        self._token = token
        self._answer: Literal["held", "cancel", "lost"] = "held"
        self._renewed_at = steady_seconds()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"heartbeat-{run_id}", daemon=True)

    @property
    def status(self) -> Literal["held", "cancel", "lost"]:
        """`lost` as soon as the database says so, or when it has not answered for 75 % of the lease."""
        if self._is_fenced():
            self._answer = "lost"  # for good: the next holder may be at work
        return self._answer

    def _is_fenced(self) -> bool:
        return steady_seconds() - self._renewed_at > FENCE * self._settings.lease_seconds

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def _beat(self) -> None:
        with Database(self._settings.database_url, self._settings.heartbeat_seconds) as database:
            while not self._ended.wait(self._settings.heartbeat_seconds):
                if self._answer == "lost" or self._is_fenced():
                    return
                asked_at = steady_seconds()
                try:
                    with database.write() as session:
                        answer = heartbeat(session, self._run_id, self._token, self._settings.lease_seconds)
                except (DatabaseLockedError, OperationalError):
                    continue  # three more beats before the fence
                if self._is_fenced():  # the answer took too long: somebody may have asked meanwhile
                    return
                self._answer = answer
                self._renewed_at = asked_at
