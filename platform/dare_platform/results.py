"""Commits the end of a run: its numbers, items, cost, files, state and message together, or nothing of it.

Guarded by the lease's token. A replay, a late holder or a race with a cancellation changes no row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Table, func, select, update
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.orm import Session

from dare.spec import Cause, JobSpec
from dare.spec import Usage as Measured
from dare_platform.answers import output_sha256
from dare_platform.artifact_store import artifact_store, storage_key
from dare_platform.checks import conclude_check
from dare_platform.database import now
from dare_platform.endings import close_attempt, end_cancelled, fail, release_dependants, tail
from dare_platform.errors import RegistryError
from dare_platform.ids import new_id
from dare_platform.inside import plain_text
from dare_platform.models import (
    Artifact,
    Attempt,
    Prediction,
    Run,
    RunArtifact,
    RunEvent,
    TaskItem,
    TaskVersion,
    Usage,
)
from dare_platform.outputs import FoundArtifact, Outputs, protocols_of
from dare_platform.quotas import charge_attempt
from dare_platform.scores import Answered, insert_rows, parts, take_scores
from dare_platform.settings import Settings
from dare_platform.states import CAUSES, move

Ending = Literal["succeeded", "queued", "failed", "cancelled"]


@dataclass(frozen=True)
class ProcessReport:
    """What the platform itself saw of the attempt's process."""

    exit_code: int | None = None
    peak_memory_bytes: int | None = None
    log: str = ""


def store_artifacts(settings: Settings, directory: Path, artifacts: Sequence[FoundArtifact]) -> None:
    """Keep a run's files by content, outside its directory. Before `finish`, outside any transaction."""
    store = artifact_store(settings)
    for artifact in artifacts:
        store.keep(directory, artifact.path, artifact.sha256, artifact.size_bytes)


def items_of(session: Session, job: JobSpec) -> dict[str, tuple[str, ...]]:
    """Item ids of each task that a job evaluates or scores, in order; RegistryError for one that is not recorded."""
    found = {}
    for task, version in _task_versions(session, job).items():
        query = select(TaskItem.item_id).where(TaskItem.task_version_id == version).order_by(TaskItem.position)
        found[task] = tuple(session.execute(query).scalars())
    return found


def _task_versions(session: Session, job: JobSpec) -> dict[str, str]:
    ids = {}
    for protocol in protocols_of(job):
        key = {"task_slug": protocol.task, "version": protocol.task_version, "split": protocol.split}
        found = session.execute(select(TaskVersion.id).filter_by(**key)).scalar_one_or_none()
        if found is None:
            raise RegistryError(
                f"task {protocol.task} version {protocol.task_version} ({protocol.split}) is not registered: "
                "its track was not registered with the data at hand"
            )
        ids[protocol.task] = found
    return ids


def finish(
    session: Session, run_id: str, token: int, outputs: Outputs, report: ProcessReport, *, actor: str
) -> Literal["succeeded", "cancelled"] | None:
    """Commit a success. None: the token is old or the run has ended, and everything is discarded."""
    locked = select(Run).where(Run.id == run_id).with_for_update().execution_options(populate_existing=True)
    run = session.execute(locked).scalar_one()
    if run.lease_token != token or run.state != "finalizing":
        return None
    if run.cancel_requested_at is not None:  # the wish was recorded first
        end_cancelled(session, run_id, token, actor)
        return "cancelled"
    job = JobSpec.model_validate_json(run.job_json)
    charged = job.kind != "check"
    said = plain_text(outputs.result.message)
    explained = {"cause": None, "sentence": said, "next_step": None, "charged": charged}
    if not move(session, run_id, "succeeded", actor=actor, token=token, expected="finalizing", changes=explained):
        return None
    _write_attempt(session, run_id, token, report, outputs.result.provenance)
    close_attempt(session, run_id, token, "succeeded", sentence=said)
    _write_usage(session, run_id, token, outputs.result.usage, charged=charged)
    _write_outputs(session, run_id, token, job, outputs)
    if job.kind == "check":
        conclude_check(session, run_id, passed=True, message=said, log=tail(report.log))
    release_dependants(session, run_id)
    return "succeeded"


def finish_badly(
    session: Session,
    run_id: str,
    token: int,
    cause: Cause,
    sentence: str | None,
    report: ProcessReport,
    *,
    actor: str,
    usage: Measured | None = None,
    provenance: Mapping[str, str] | None = None,
) -> Literal["queued", "failed", "cancelled"] | None:
    """Commit a failure: again in the queue, or the end. None: the token is old, and everything is discarded."""
    said = plain_text(sentence) if sentence else None
    kind = session.execute(select(Run.kind).where(Run.id == run_id)).scalar_one()
    ended = fail(session, run_id, cause, said, actor=actor, token=token)
    if ended is None:
        return None
    _write_attempt(session, run_id, token, report, provenance or {})
    _write_usage(session, run_id, token, usage or Measured(), charged=CAUSES[cause].charged and kind != "check")
    if kind == "check" and ended == "failed" and CAUSES[cause].charged:  # the author's fault, not ours
        message = said or CAUSES[cause].sentence
        conclude_check(session, run_id, passed=False, message=message, log=tail(report.log))
    return ended


def _write_attempt(
    session: Session, run_id: str, token: int, report: ProcessReport, provenance: Mapping[str, str]
) -> None:
    said = {plain_text(str(key))[:100]: plain_text(str(value))[:2000] for key, value in list(provenance.items())[:100]}
    session.execute(
        update(Attempt)
        .where(Attempt.run_id == run_id, Attempt.token == token)
        .values(
            exit_code=report.exit_code,
            peak_memory_bytes=report.peak_memory_bytes,
            log_tail=tail(report.log),
            versions_json=json.dumps(said, sort_keys=True),
        )
        .execution_options(synchronize_session=False)
    )


def _write_usage(session: Session, run_id: str, token: int, measured: Measured, charged: bool) -> None:
    started = session.execute(
        select(Attempt.started_at).where(Attempt.run_id == run_id, Attempt.token == token)
    ).scalar_one()
    wall = max(0.0, now(session) - started)
    cost = Usage(run_id=run_id, token=token, wall_seconds=wall, charged=charged, **measured.model_dump())
    session.add(cost)
    session.flush()
    charge_attempt(session, cost)


def _write_outputs(session: Session, run_id: str, token: int, job: JobSpec, outputs: Outputs) -> None:
    versions = _task_versions(session, job)
    for task, predictions in outputs.predictions.items():
        rows = (
            {
                "run_id": run_id,
                "token": token,
                "task_version_id": versions[task],
                "item_id": p.item,
                "sample": p.sample,
                "prompt_sha256": p.prompt_sha256,
                "output": plain_text(p.output),
                "output_sha256": output_sha256(p.output),
                "tokens": p.tokens,
                "nfe": p.nfe,
                "truncated": p.truncated,
            }
            for p in predictions
        )
        insert_rows(session, Prediction.__table__, rows)
    answered = _answered(session, run_id, token, job, versions)
    elsewhere = _scored_elsewhere(session, run_id)
    for task, outcomes in outputs.outcomes.items():
        if task not in elsewhere:
            scored_by = run_id if job.kind == "score" else None
            take_scores(session, answered[task], outcomes, outputs.result.scores, scored_by)
    _write_artifacts(session, run_id, token, outputs.artifacts)
    session.flush()


def _answered(
    session: Session, run_id: str, token: int, job: JobSpec, versions: Mapping[str, str]
) -> dict[str, Answered]:
    """By task, whose answers the scores are about: this run's own, or those of the evaluation that it scores."""
    if job.kind == "score":
        evaluation = session.execute(select(Run.depends_on).where(Run.id == run_id)).scalar_one()
        return answers_of(session, str(evaluation))
    return {
        protocol.task: Answered(run_id, token, protocol.task, versions[protocol.task], protocol.digest())
        for protocol in protocols_of(job)
    }


def answers_of(session: Session, run_id: str) -> dict[str, Answered]:
    """By task, what a succeeded evaluation has answered."""
    job = JobSpec.model_validate_json(session.execute(select(Run.job_json).where(Run.id == run_id)).scalar_one())
    token = session.execute(
        select(Attempt.token).where(Attempt.run_id == run_id, Attempt.outcome == "succeeded")
    ).scalar_one()
    return _answered(session, run_id, token, job, _task_versions(session, job))


def _scored_elsewhere(session: Session, run_id: str) -> frozenset[str]:
    """Tasks whose word comes from a score run behind this one: programs are judged once, where only they run."""
    jobs = session.execute(select(Run.job_json).where(Run.depends_on == run_id, Run.kind == "score")).scalars()
    return frozenset(p.task for job in jobs for p in protocols_of(JobSpec.model_validate_json(job)))


def _write_artifacts(session: Session, run_id: str, token: int, artifacts: Sequence[FoundArtifact]) -> None:
    stored_since = session.execute(
        select(func.max(RunEvent.at)).where(RunEvent.run_id == run_id, RunEvent.to_state == "finalizing")
    ).scalar_one()
    for artifact in artifacts:
        row = {
            "id": new_id(),
            "sha256": artifact.sha256,
            "size_bytes": artifact.size_bytes,
            "storage_key": storage_key(artifact.sha256),
        }
        insert_new(session, Artifact.__table__, [row])  # two runs may leave the same file at once
        known = session.execute(
            select(Artifact).where(Artifact.sha256 == artifact.sha256).with_for_update()
        ).scalar_one()
        if known.purged_at is not None and known.purged_at < stored_since:  # kept anew, not removed in the meantime
            known.purged_at = known.expires_at = None
        session.add(RunArtifact(run_id=run_id, token=token, role=artifact.path, artifact_id=known.id))


def insert_new(session: Session, table: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows and leave alone those that are there already, so that a replay changes nothing."""
    assert isinstance(table, Table)
    dialect = session.get_bind().dialect.name
    for part in parts(iter(rows)):
        if dialect == "postgresql":
            session.execute(postgresql_insert(table).values(part).on_conflict_do_nothing())
        else:
            session.execute(sqlite_insert(table).values(part).on_conflict_do_nothing())
