"""The life of a run, and the only function that moves one along.

    blocked ──► queued ──► leased ──► preparing ──► working ──► finalizing ──► succeeded
       │         ▲  │         └───────────┴────┬───────┴────────────┘
       ▼         │  ▼                          │
     failed,     │ cancelled                   ├──► failed(cause), cancelled
     cancelled   └─────────────────────────────┘    infrastructure fault, or an orderly stop

A move is one guarded UPDATE together with its event and, where others wait for it, its message: all or nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import CursorResult, func, select, update
from sqlalchemy.orm import Session

from dare.spec import Cause
from dare_platform.database import now
from dare_platform.errors import IllegalMoveError, UnknownRunError
from dare_platform.models import ACTIVE, FINISHED, Outbox, Run, RunEvent, State

_ENDS: frozenset[State] = frozenset({"queued", "failed", "cancelled"})

MOVES: dict[State, frozenset[State]] = {
    "blocked": frozenset({"queued", "failed", "cancelled"}),
    "queued": frozenset({"leased", "failed", "cancelled"}),
    "leased": _ENDS | {"preparing"},
    "preparing": _ENDS | {"working"},
    "working": _ENDS | {"finalizing"},
    "finalizing": _ENDS | {"succeeded"},
    "succeeded": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}


@dataclass(frozen=True)
class Rule:
    """What a cause means for the run and for the person who waits for it."""

    retried: bool
    charged: bool
    sentence: str
    next_step: str


CAUSES: dict[Cause, Rule] = {
    "user_error": Rule(
        retried=False,
        charged=True,
        sentence="The algorithm raised an error or ended the process.",
        next_step="Read the end of the log, mend the file, check it with `dare check`, and submit again.",
    ),
    "diverged": Rule(
        retried=False,
        charged=True,
        sentence="Training diverged: a number was not finite, or a collapse rule fired.",
        next_step="Look at the curves before the alarm; smaller coefficients or tighter clipping usually help.",
    ),
    "budget_exhausted": Rule(
        retried=False,
        charged=True,
        sentence="The run went past the hard guard of its budget.",
        next_step="Make a step cheaper; reaching the budget itself is a normal end, going past it is not.",
    ),
    "timeout": Rule(
        retried=False,
        charged=True,
        sentence="The run was still working at its wall-clock limit.",
        next_step="Make a step faster; the limit stands in the track's rules.",
    ),
    "oom_host": Rule(
        retried=False,
        charged=True,
        sentence="The run used more memory than it may.",
        next_step="Keep fewer tensors alive between steps, then submit again.",
    ),
    "oom_gpu": Rule(
        retried=False,
        charged=True,
        sentence="The device ran out of memory.",
        next_step="Use fewer views at a time, then submit again.",
    ),
    "limit": Rule(
        retried=False,
        charged=True,
        sentence="The entry exceeded its limit of disk, log, output or processes.",
        next_step="Write and print less, start no processes, then submit again.",
    ),
    "image": Rule(
        retried=True,
        charged=False,
        sentence="The software environment of the run could not be started.",
        next_step="Nothing is needed from you; an operator should look at the worker's image.",
    ),
    "gpu_fault": Rule(
        retried=True,
        charged=False,
        sentence="The GPU failed.",
        next_step="Nothing is needed from you; an operator should look at the device.",
    ),
    "disk": Rule(
        retried=True,
        charged=False,
        sentence="The worker's disk is nearly full.",
        next_step="Nothing is needed from you; an operator must free space on the worker.",
    ),
    "lost_worker": Rule(
        retried=True,
        charged=False,
        sentence="The worker stopped answering while it held the run.",
        next_step="Nothing is needed from you; if it was the last attempt, ask for the run again.",
    ),
    "scoring": Rule(
        retried=False,
        charged=False,
        sentence="Our scorer failed on the outputs of this run.",
        next_step="Nothing is needed from you; the outputs are kept and will be scored when the scorer is mended.",
    ),
    "dependency": Rule(
        retried=False,
        charged=False,
        sentence="The run that this one needs has failed.",
        next_step="Look at that run; this one cannot start without it.",
    ),
    "internal": Rule(
        retried=True,
        charged=False,
        sentence="The platform or the runner made a mistake.",
        next_step="Nothing is needed from you; please report it with the end of the log.",
    ),
}


def move(
    session: Session,
    run_id: str,
    to: State,
    *,
    actor: str,
    token: int | None = None,
    expected: State | None = None,
    changes: Mapping[str, Any] | None = None,
    detail: Mapping[str, Any] | None = None,
) -> bool:
    """Move a run to `to`, or change nothing and return False when the caller's view of it is out of date.

    Out of date means: the lease has another token than `token`, or the run is no longer in `expected`. With an
    up-to-date view, a move that the table does not hold raises IllegalMoveError: that is a mistake of the caller.

    Args:
        actor: who moves it, for the event: `worker <id>`, `reaper`, `account <id>`.
        changes: further columns of `run`, set by the same UPDATE.
        detail: what the event says beside the states.
    """
    seen = session.execute(
        select(Run.state, Run.lease_token, Run.queue).where(Run.id == run_id).with_for_update()
    ).one_or_none()
    if seen is None:
        raise UnknownRunError(f"there is no run {run_id!r}")
    if token not in (None, seen.lease_token) or expected not in (None, seen.state):
        return False
    if token is not None and seen.state not in ACTIVE:
        return False
    if to not in MOVES[seen.state]:
        allowed = ", ".join(sorted(MOVES[seen.state])) or "nothing"
        raise IllegalMoveError(f"run {run_id} is {seen.state}: it can become {allowed}, not {to}")
    at = now(session)
    values = {"state": to, **_columns_of(to, at), **(changes or {})}
    if to == "queued" and seen.state in ACTIVE:
        values["lease_token"] = seen.lease_token + 1  # whoever held it can write no more
    guarded = update(Run).where(Run.id == run_id, Run.state == seen.state, Run.lease_token == seen.lease_token)
    moved = session.execute(guarded.values(**values).execution_options(synchronize_session=False))
    if not isinstance(moved, CursorResult) or moved.rowcount != 1:
        return False
    record(session, run_id, "state", actor=actor, token=token, at=at, moved=(seen.state, to), detail=detail)
    if to == "queued":
        announce(session, "queued", {"run_id": run_id, "queue": seen.queue}, at)
    elif to in FINISHED:
        announce(session, "finished", {"run_id": run_id, "queue": "control"}, at)
    return True


def _columns_of(state: State, at: float) -> dict[str, Any]:
    """Columns that follow from the state alone."""
    if state == "queued":
        return {"lease_owner": None, "lease_expires_at": None, "enqueued_at": at, "announced_at": at}
    if state in FINISHED:
        return {"lease_owner": None, "lease_expires_at": None, "finished_at": at}
    return {}


def record(
    session: Session,
    run_id: str,
    kind: str,
    *,
    actor: str,
    token: int | None = None,
    at: float | None = None,
    moved: tuple[State | None, State | None] = (None, None),
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Append an event to a run. The run's row must be locked by an update or a `for update` of the same transaction."""
    last = session.execute(select(func.max(RunEvent.seq)).where(RunEvent.run_id == run_id)).scalar_one()
    session.add(
        RunEvent(
            run_id=run_id,
            seq=(last or 0) + 1,
            at=now(session) if at is None else at,
            actor=actor,
            token=token,
            from_state=moved[0],
            to_state=moved[1],
            kind=kind,
            detail_json=json.dumps(detail or {}, sort_keys=True),
        )
    )
    session.flush()


def announce(session: Session, topic: str, payload: Mapping[str, Any], at: float) -> None:
    """Write a message beside the change that it is about; the relay sends it later."""
    session.add(Outbox(topic=topic, payload_json=json.dumps(payload, sort_keys=True), created_at=at, tries=0))
