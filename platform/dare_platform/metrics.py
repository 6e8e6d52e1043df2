"""What a Prometheus server asks for: how the installation is, read from the database at every question.

Every query counts rows that are alive, or groups by a short closed set; none reads answers, scores or logs.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import func, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from dare_platform.database import Database, now
from dare_platform.errors import PlatformError
from dare_platform.models import ACTIVE, Artifact, Attempt, Delivery, Entry, GpuDevice, Outbox, Run, Worker
from dare_platform.settings import Settings

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
UNSERVED_SECONDS = 120.0
"""A run that could start and was claimed by nobody for so long is an alarm."""
ALIVE_LEASES = 1.5
"""A worker is alive while its last sign is younger than so many leases."""
REMEMBERED_SECONDS = 5.0
"""Two questions within this time get one answer: asking often costs the database nothing."""


class Metrics:
    """Answers questions, from any number of threads."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Installation(settings, database))
        self._lock, self._said, self._said_at = threading.Lock(), b"", float("-inf")

    def text(self) -> bytes:
        """The text that Prometheus reads."""
        with self._lock:
            if time.monotonic() - self._said_at > REMEMBERED_SECONDS:
                self._said, self._said_at = generate_latest(self._registry), time.monotonic()
            return self._said


class _Installation(Collector):
    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings, self._database = settings, database

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not ask the database."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All of it. A database that is away is a gauge, not an error: the disk is told all the same."""
        found: list[Metric] = []
        try:
            with self._database.read() as session:
                found.extend(_read(session, self._settings.lease_seconds))
            up = 1
        except (OperationalError, PlatformError):
            found, up = [], 0
        yield GaugeMetricFamily("dare_database_up", "1 while the database answers.", value=up)
        yield from found
        existing = next(folder for folder in (self._settings.home, *self._settings.home.parents) if folder.is_dir())
        free = shutil.disk_usage(existing).free
        yield GaugeMetricFamily("dare_disk_free_bytes", "Free below DARE_HOME.", value=free)
        least = self._settings.limits.free_disk_bytes
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


def claimed_last(session: Session) -> dict[str, float]:
    """When somebody last took a run of each queue."""
    began = select(Run.queue, func.max(Attempt.started_at).label("at")).join(Attempt, Attempt.run_id == Run.id)
    return {row.queue: row.at for row in session.execute(began.group_by(Run.queue))}


def _runs(session: Session, at: float) -> Iterator[Metric]:
    counted = select(Run.state, Run.kind, Run.queue, func.count()).group_by(Run.state, Run.kind, Run.queue)
    runs = GaugeMetricFamily("dare_runs", "Runs.", labels=("state", "kind", "family"))
    for state, kind, queue, count in session.execute(counted):
        runs.add_metric((state, kind, _family(queue)), count)
    yield runs
    ready = (Run.state == "queued", Run.not_before <= at)
    waits = select(Run.queue, func.count(), func.min(func.coalesce(Run.enqueued_at, Run.created_at)))
    waiting = GaugeMetricFamily("dare_queue_ready", "Queued runs that could start.", labels=("family",))
    oldest = GaugeMetricFamily("dare_queue_oldest_seconds", "How long the first has waited.", labels=("family",))
    unserved = GaugeMetricFamily(
        "dare_queue_unserved", "1: a run could start, and for two minutes nobody claimed from here.", labels=("family",)
    )
    last = claimed_last(session)
    for queue, count, since in session.execute(waits.where(*ready).group_by(Run.queue)):
        waiting.add_metric((_family(queue),), count)
        oldest.add_metric((_family(queue),), max(0.0, at - since))
        quiet = min(at - since, at - last.get(queue, 0.0))
        unserved.add_metric((_family(queue),), int(quiet > UNSERVED_SECONDS))
    yield from (waiting, oldest, unserved)
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
