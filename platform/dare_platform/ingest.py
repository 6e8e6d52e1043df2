"""Takes a working run's events into the database while it works: progress, curves, alarms and samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import CursorResult, func, select, update
from sqlalchemy.orm import Session

from dare.spec import Event
from dare_platform.endings import tail
from dare_platform.inside import plain_text
from dare_platform.models import ACTIVE, Attempt, MetricPoint, Run, RunEvent
from dare_platform.results import insert_new
from dare_platform.states import record

METRICS_PER_STEP = 100
NOTES_PER_ATTEMPT = 200
"""Alarms and samples kept for one attempt; a run that sends more has told enough."""


def ingest(session: Session, run_id: str, token: int, events: Sequence[Event], log: str, *, actor: str) -> bool:
    """Write what a run reported since the last time. False when the token is old: nothing is written then."""
    progress: dict[str, Any] = {}
    for event in events:
        progress.update(_progress(event))
    held = update(Run).where(Run.id == run_id, Run.lease_token == token, Run.state.in_(ACTIVE))
    # an update even without progress: it locks the row and asks whether we still hold it
    updated = session.execute(
        held.values(progress or {"lease_token": token}).execution_options(synchronize_session=False)
    )
    if not isinstance(updated, CursorResult) or updated.rowcount != 1:
        return False
    session.execute(
        update(Attempt)
        .where(Attempt.run_id == run_id, Attempt.token == token)
        .values(log_tail=tail(log))
        .execution_options(synchronize_session=False)
    )
    insert_new(session, MetricPoint.__table__, [point for event in events for point in _points(run_id, token, event)])
    notes = [event for event in events if event.kind in ("alarm", "sample")]
    if notes:
        _note(session, run_id, token, notes, actor)
    return True


def _progress(event: Event) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if event.kind == "stage" and event.stage is not None:
        found["stage"] = plain_text(event.stage)[:100]
    if event.kind in ("step", "progress"):
        found |= {"step": event.step, "of": event.of}
    reward = event.metrics.get("reward")
    if reward is not None and abs(reward) < 1e300:
        found["reward"] = reward
    return found


def _points(run_id: str, token: int, event: Event) -> list[dict[str, Any]]:
    if event.kind != "step" or event.step is None:
        return []
    at = {"device_seconds": _amount(event.device_seconds), "forwards": _amount(event.forwards)}
    return [
        {"run_id": run_id, "token": token, "name": plain_text(name)[:100], "step": event.step, "value": value, **at}
        for name, value in sorted(event.metrics.items())[:METRICS_PER_STEP]
        if value is not None and abs(value) < 1e300
    ]


def _amount(value: float | None) -> float | None:
    return value if value is not None and 0 <= value < 1e300 else None


def _note(session: Session, run_id: str, token: int, events: Sequence[Event], actor: str) -> None:
    kept = session.execute(
        select(func.count()).where(
            RunEvent.run_id == run_id, RunEvent.token == token, RunEvent.kind.in_(("alarm", "sample"))
        )
    ).scalar_one()
    for event in events[: max(0, NOTES_PER_ATTEMPT - kept)]:
        detail = event.model_dump(mode="json", exclude_none=True, exclude={"kind", "metrics"})
        record(session, run_id, event.kind, actor=actor, token=token, detail=detail)
