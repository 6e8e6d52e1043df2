"""A worker whose messages reach Redis, but for a tenth that is lost, one that is doubled and one that is late:
`python lossy_worker.py HOME URL LOG`."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import cycle
from pathlib import Path

PLATFORM = Path(__file__).resolve().parents[1]
FATES = ("sent", "dropped", "sent", "doubled", "sent", "late", "sent", "sent", "sent", "sent")
if __name__ == "__main__":
    from celery import Celery

    from dare_platform import broker
    from dare_platform.process_launcher import ProcessLauncher
    from dare_platform.settings import Limits, Settings

    home, url, log = sys.argv[1:]
    fates = cycle(FATES)
    settings = Settings.from_environment({"DARE_HOME": home, "DARE_BROKER_URL": url})
    settings = replace(settings, poll_seconds=0.5, lease_seconds=4.0, limits=Limits(free_disk_bytes=1, grace_seconds=1))

    class Lossy(broker.CeleryPublisher):
        """Says what became of each message."""

        def __init__(self, app: Celery) -> None:
            super().__init__(app)
            self._late: list[tuple[str, str]] = []

        def __call__(self, run_id: str, queue: str) -> None:
            fate = next(fates)
            if fate == "late":
                self._late.append((run_id, queue))
            elif fate != "dropped":
                for _ in range(2 if fate == "doubled" else 1):
                    super().__call__(run_id, queue)
                while self._late:
                    super().__call__(*self._late.pop())
            with Path(log).open("a") as file:
                file.write(f"{fate}\n")

    broker.CeleryPublisher = Lossy  # type: ignore[misc]
    toy = ProcessLauncher(settings, (sys.executable, str(PLATFORM / "toy_runner.py"), "good"))
    broker.serve(settings, ["llada"], launcher=toy)
