"""What must hold when everything has ended: one result each, closed books, nothing alive and nothing half-written."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from chaos import Ground, left_behind
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from dare_platform import cleaning
from dare_platform.database import Database
from dare_platform.models import Attempt, GpuLease, Prediction, Result, Run, RunArtifact, ScoreItem, Usage

EXPECTED = {"train": {RunArtifact: 1}, "evaluate": {Result: 2, Prediction: 8, ScoreItem: 8}}
"""Rows that one result of the toy has."""


@dataclass(frozen=True)
class Aftermath:
    """How many ended how; `wrong` is what may not be, in words."""

    succeeded: int
    failed: Counter[str]
    """By their sentence's beginning: a run may fail when what it was given was used up, and must say so."""
    attempts: Counter[str]
    wrong: tuple[str, ...]


def look(ground: Ground) -> Aftermath:
    """Read the database, the process table, the engine and the disk."""
    with Database(ground.settings.database_url) as database, database.read() as session:
        runs = session.execute(select(Run).where(Run.id.in_(ground.runs))).scalars().all()
        attempts = session.execute(select(Attempt).order_by(Attempt.number)).scalars().all()
        wrong = [*_wrong_runs(session, runs, attempts), *_wrong_files(ground, session)]
        open_leases = select(func.count()).select_from(GpuLease).where(GpuLease.released_at.is_(None))
        if session.execute(open_leases).scalar_one():
            wrong.append("a GPU is still leased")
    wrong += [f"{name} is alive" for name in left_behind(ground)]
    failed = Counter(f"{run.cause}: {_reason(run)}" for run in runs if run.state == "failed")
    return Aftermath(
        sum(run.state == "succeeded" for run in runs),
        failed,
        Counter(str(one.outcome) for one in attempts),
        tuple(wrong),
    )


def _reason(run: Run) -> str:
    if run.cause == "dependency":
        return "its training failed"
    if "workers stopped answering" in str(run.sentence):
        return "three workers died under it"
    return f"{run.attempts} attempts used up" if run.attempts == run.max_attempts else str(run.sentence)


def _wrong_runs(session: Session, runs: list[Run], attempts: list[Attempt]) -> Iterator[str]:
    rows = {
        table: Counter(session.execute(select(table.run_id)).scalars())
        for table in (Result, Prediction, ScoreItem, RunArtifact)
    }
    used = Counter((one.run_id, one.token) for one in session.execute(select(Usage)).scalars())
    charged = Counter(session.execute(select(Usage.run_id).where(Usage.charged)).scalars())
    for run in runs:
        mine = [one for one in attempts if one.run_id == run.id]
        outcomes = [one.outcome for one in mine]
        done = run.state == "succeeded"
        expected = EXPECTED[run.kind] if done else {}
        if any(rows[table][run.id] != expected.get(table, 0) for table in rows):
            yield f"{run.id}: rows of its result are missing or doubled"
        if run.state not in ("succeeded", "failed"):
            yield f"{run.id} is {run.state}"
        if run.state == "failed" and (not run.cause or _reason(run) == run.sentence or run.charged):
            yield f"{run.id} failed without need: {run.cause}, {run.sentence}"
        if run.lease_owner is not None or run.lease_expires_at is not None:
            yield f"{run.id} is still leased"
        if None in outcomes or outcomes.count("succeeded") != done:
            yield f"{run.id}: its attempts ended as {outcomes}"
        if done and next(one.token for one in mine if one.outcome == "succeeded") != run.lease_token:
            yield f"{run.id}: the attempt that succeeded did not hold the run"
        if [one.number for one in mine] != list(range(1, len(mine) + 1)):
            yield f"{run.id}: attempts are missing"
        if sorted({one.token for one in mine}) != [one.token for one in mine]:
            yield f"{run.id}: tokens do not grow"
        if any(used[run.id, one.token] > 1 for one in mine) or charged[run.id] != done:
            yield f"{run.id} was charged {charged[run.id]} times"


def _wrong_files(ground: Ground, session: Session) -> Iterator[str]:
    for file in ground.settings.artifacts.rglob("*"):
        if file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() != file.name:
            yield f"{file.name} is not what its name says"
    cleaning.remove(ground.settings, cleaning.survey(session, ground.settings))
    for left in ground.settings.jobs.iterdir():
        yield f"{left.name} is left of the job directories"
