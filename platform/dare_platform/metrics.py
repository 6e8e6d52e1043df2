"""What a Prometheus server asks for: how the installation is, read from the database.

Every query counts rows that are alive, or groups by a short closed set; none reads answers, scores or logs.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import case, func, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from dare_platform.database import Database, now
from dare_platform.errors import PlatformError
from dare_platform.models import ACTIVE, Artifact, Attempt, Delivery, Entry, GpuDevice, Outbox, Run, Worker
from dare_platform.settings import Settings

UNSERVED_SECONDS = 120.0
"""A run that could start and was claimed by nobody for so long is an alarm."""
ALIVE_LEASES = 1.5
"""A worker is alive while its last sign is younger than so many leases."""
STALE_SECONDS = 30.0
"""Figures that are older say nothing of now: the database has not answered since."""


class Metrics(Collector):
    """The figures that were read last; who asks for them, from whichever thread, waits for no database."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings, self._database = settings, database
        self._figures: tuple[Metric, ...] = ()
        self._answered_at = float("-inf")
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def read(self) -> None:
        """Read all of them. A database that is away is a figure, not an error: the disk is told all the same."""
        began = time.monotonic()
        found: tuple[Metric, ...] = ()
        try:
            with self._database.read() as session:
                found = tuple(_read(session, self._settings.lease_seconds))
            self._answered_at = began
        except (OperationalError, PlatformError):
            self._answered_at = float("-inf")
        up = GaugeMetricFamily("dare_database_up", "1 while the database answers.", value=bool(found))
        self._figures = (up, *found, *_disk(self._settings))

    @property
    def are_current(self) -> bool:
        """The database has answered lately."""
        return time.monotonic() - self._answered_at < STALE_SECONDS

    def describe(self) -> Iterable[Metric]:
        """Nothing: what there is depends on the rows."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """What was read last."""
        return self._figures

    def text(self) -> bytes:
        """Read, and write down as Prometheus wants it."""
        self.read()
        return generate_latest(self.registry)


def _disk(settings: Settings) -> Iterator[Metric]:
    existing = next(folder for folder in (settings.home, *settings.home.parents) if folder.is_dir())
    free = shutil.disk_usage(existing).free
    yield GaugeMetricFamily("dare_disk_free_bytes", "Free below DARE_HOME.", value=free)
    least = settings.limits.free_disk_bytes
    yield GaugeMetricFamily("dare_disk_least_bytes", "Below this no run starts.", value=least)


def _read(session: Session, lease_seconds: float) -> Iterator[Metric]:
    at = now(session)
    yield from _runs(session, at)
    yield from _workers(session, at, lease_seconds)
    health = select(GpuDevice.health, func.count()).group_by(GpuDevice.health)
    yield _by("dare_gpus", "GPUs that workers have seen.", ("health",), _rows(session, health))
    pending, oldest = session.execute(
        select(func.count(), func.min(Outbox.created_at)).where(Outbox.published_at.is_(None))
    ).one()
    yield GaugeMetricFamily("dare_outbox_pending", "Messages that the broker was not told of.", value=pending)
    age = 0.0 if oldest is None else max(0.0, at - oldest)
    yield GaugeMetricFamily("dare_outbox_oldest_seconds", "Age of the oldest of them.", value=age)
    states = select(Delivery.state, func.count()).group_by(Delivery.state)
    yield _by("dare_deliveries", "Messages to people, by what became of them.", ("state",), _rows(session, states))
    gates = select(Entry.gate, func.count()).group_by(Entry.gate)
    yield _by("dare_entries", "Entries.", ("gate",), _rows(session, gates))
    ends = select(Attempt.outcome, Attempt.cause, func.count()).group_by(Attempt.outcome, Attempt.cause)
    claims, closed = 0, CounterMetricFamily("dare_attempts_ended", "Attempts that ended.", labels=("outcome", "cause"))
    for outcome, cause, count in session.execute(ends):
        claims += count
        if outcome is not None:
            closed.add_metric((outcome, cause or ""), count)
    yield CounterMetricFamily("dare_claims", "Attempts that began.", value=claims)
    yield closed
    kept, size = session.execute(
        select(func.count(), func.coalesce(func.sum(Artifact.size_bytes), 0)).where(Artifact.purged_at.is_(None))
    ).one()
    yield GaugeMetricFamily("dare_artifacts", "Files that are kept.", value=kept)
    yield GaugeMetricFamily("dare_artifact_bytes", "Their bytes.", value=float(size))


@dataclass(frozen=True)
class Waiting:
    """The runs of one queue that could start now."""

    queue: str
    runs: int
    seconds: float
    """For how long the first of them could have started."""
    quiet_seconds: float
    """For how long that has been so without anybody taking a run of this queue."""

    @property
    def unserved(self) -> bool:
        """It looks as if nobody will."""
        return self.quiet_seconds > UNSERVED_SECONDS


def waiting_runs(session: Session, at: float) -> list[Waiting]:
    """By queue. A run that is tried again waits from the end of its back-off on."""
    began = select(Run.queue, func.max(Attempt.started_at).label("at")).join(Attempt, Attempt.run_id == Run.id)
    claimed = {row.queue: row.at for row in session.execute(began.group_by(Run.queue))}
    queued = func.coalesce(Run.enqueued_at, Run.created_at)
    since = func.min(case((Run.not_before > queued, Run.not_before), else_=queued))
    ready = select(Run.queue, func.count(), since).where(Run.state == "queued", Run.not_before <= at)
    return [
        Waiting(queue, runs, max(0.0, at - first), max(0.0, at - max(first, claimed.get(queue, 0.0))))
        for queue, runs, first in session.execute(ready.group_by(Run.queue).order_by(Run.queue))
    ]


def _runs(session: Session, at: float) -> Iterator[Metric]:
    counted = select(Run.state, Run.kind, Run.queue, func.count()).group_by(Run.state, Run.kind, Run.queue)
    runs = GaugeMetricFamily("dare_runs", "Runs.", labels=("state", "kind", "family"))
    for state, kind, queue, count in session.execute(counted):
        runs.add_metric((state, kind, _family(queue)), count)
    yield runs
    ready = GaugeMetricFamily("dare_queue_ready", "Queued runs that could start.", labels=("family",))
    oldest = GaugeMetricFamily("dare_queue_oldest_seconds", "How long the first has waited.", labels=("family",))
    unserved = GaugeMetricFamily(
        "dare_queue_unserved", "1: a run could start, and for two minutes nobody claimed from here.", labels=("family",)
    )
    for waiting in waiting_runs(session, at):
        family = (_family(waiting.queue),)
        ready.add_metric(family, waiting.runs)
        oldest.add_metric(family, waiting.seconds)
        unserved.add_metric(family, waiting.unserved)
    yield from (ready, oldest, unserved)
    held = select(func.count(), func.min(Run.lease_expires_at)).where(Run.state.in_(ACTIVE))
    count, first = session.execute(held).one()
    yield GaugeMetricFamily("dare_leases", "Runs that a worker holds.", value=count)
    overdue = 0.0 if first is None else max(0.0, at - first)
    yield GaugeMetricFamily("dare_lease_overdue_seconds", "How long ago the oldest lease ran out.", value=overdue)


def _workers(session: Session, at: float, lease_seconds: float) -> Iterator[Metric]:
    alive: dict[tuple[str, str], int] = {}
    seen = select(Worker.families, Worker.device, Worker.last_seen_at).where(Worker.state != "stopped")
    for families, device, last in session.execute(seen):
        for family in filter(None, families.split(",")):
            alive.setdefault((family, device), 0)
            alive[family, device] += at - last < ALIVE_LEASES * lease_seconds
    rows = ((*names, count) for names, count in alive.items())
    yield _by("dare_workers_alive", "Workers with a recent sign of life.", ("family", "device"), rows)


def _rows(session: Session, query: Any) -> Iterable[tuple[object, ...]]:
    return (tuple(row) for row in session.execute(query))


def _by(name: str, words: str, labels: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> GaugeMetricFamily:
    made = GaugeMetricFamily(name, words, labels=labels)
    for *names, count in rows:
        made.add_metric(tuple(map(str, names)), float(str(count)))
    return made


def _family(queue: str) -> str:
    return queue.removeprefix("family_")
