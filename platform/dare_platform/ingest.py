"""Takes what a working run reports into the database while it works: progress, curves, alarms, samples, its output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import CursorResult, select, update
from sqlalchemy.orm import Session

from dare.spec import Event
from dare_platform.endings import tail
from dare_platform.inside import plain_text
from dare_platform.log_chunks import Piece, keep
from dare_platform.models import ACTIVE, Attempt, MetricPoint, Run, RunEvent
from dare_platform.results import insert_new
from dare_platform.states import record

METRICS_PER_STEP = 100
NOTES_PER_ATTEMPT = 200
"""Alarms and samples kept for one attempt; a run that sends more has told enough."""


def ingest(
    session: Session,
    run_id: str,
    token: int,
    events: Sequence[Event],
    log: str,
    *,
    actor: str,
    output: Sequence[Piece] = (),
) -> bool:
    """Write what a run reported since the last time. False when the token is old: nothing is written then.

    `log` is the end of its log as it is now, `output` what came to it.
    """
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
    keep(session, run_id, token, output)
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
    """Alarms and samples. One that another attempt has told of the same process is not told again."""
    watched = select(Attempt.job_token).where(Attempt.run_id == run_id, Attempt.token == token).scalar_subquery()
    told = session.execute(
        select(RunEvent.token, RunEvent.kind, RunEvent.detail_json)
        .join(Attempt, (Attempt.run_id == RunEvent.run_id) & (Attempt.token == RunEvent.token))
        .where(RunEvent.run_id == run_id, RunEvent.kind.in_(("alarm", "sample")), Attempt.job_token == watched)
    ).all()
    left = NOTES_PER_ATTEMPT - len(told)
    known = {(kind, detail) for by, kind, detail in told if by != token}
    for event in events:
        detail = event.model_dump(mode="json", exclude_none=True, exclude={"kind", "metrics"})
        if left > 0 and (event.kind, json.dumps(detail, sort_keys=True)) not in known:
            record(session, run_id, event.kind, actor=actor, token=token, detail=detail)
            left -= 1
