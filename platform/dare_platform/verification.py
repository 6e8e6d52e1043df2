"""Checks what is stored against its own hashes: answers, verdicts, numbers, files, boards. Reads only, trusts nothing.

A number on a board is the mean of stored verdicts; a verdict is about a stored answer, known by its hash; a file is
known by its content. Whoever changed one of them changed it in one place only, and is found out here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from dare.scoring import summarise
from dare.spec import ItemOutcome, JobSpec
from dare_platform.answers import stored_answers
from dare_platform.artifact_store import ArtifactStoreError, artifact_store
from dare_platform.errors import JobDirectoryError, UnknownRunError
from dare_platform.models import Artifact, Attempt, Result, Run, RunArtifact, ScoreItem, Snapshot, TaskVersion
from dare_platform.outputs import TOLERANCE, holds_programs, protocols_of
from dare_platform.settings import Settings
from dare_platform.snapshots import Taken, find, inputs_of


@dataclass(frozen=True)
class Finding:
    """One thing that was checked."""

    subject: str
    """Of whom: a run, or a snapshot."""
    what: str
    problem: str | None = None
    """None: it is what it was."""


def verify(session: Session, settings: Settings, name: str) -> Iterator[Finding]:
    """A snapshot by the beginning of its hash, a run by its id, or all of both for an empty name."""
    if name:
        if session.get(Run, name) is not None:
            yield from verify_run(session, settings, name)
        else:
            yield from verify_snapshot(session, settings, find(session, name))
        return
    for sha256 in session.execute(select(Snapshot.sha256).order_by(Snapshot.made_at)).scalars().all():
        yield from verify_board(session, find(session, sha256))
    done = select(Run.id).where(Run.state == "succeeded").order_by(Run.id)
    for run_id in session.execute(done).scalars().all():
        yield from verify_run(session, settings, run_id)


def verify_run(session: Session, settings: Settings, run_id: str) -> Iterator[Finding]:
    """Everything that a run left. UnknownRunError for one that there is not."""
    run = session.get(Run, run_id)
    if run is None:
        raise UnknownRunError(f"there is no run {run_id!r}")
    job = JobSpec.model_validate_json(run.job_json)
    yield Finding(run_id, "job", None if job.digest() == run.job_sha256 else "its text has not the recorded hash")
    if run.kind == "evaluate" and run.state == "succeeded":
        for protocol in protocols_of(job):
            try:
                stored_answers(session, settings, run_id, protocol)
                yield Finding(run_id, f"answers to {protocol.task}")
            except JobDirectoryError as error:
                yield Finding(run_id, f"answers to {protocol.task}", str(error))
        yield from _numbers(session, run_id, job)
    yield from _files(session, settings, run_id)


def _numbers(session: Session, run_id: str, job: JobSpec) -> Iterator[Finding]:
    """Each number again from the verdicts that it is the mean of."""
    verdicts: dict[tuple[str, str], list[ItemOutcome]] = defaultdict(list)
    query = (
        select(TaskVersion.task_slug, ScoreItem)
        .join(TaskVersion, TaskVersion.id == ScoreItem.task_version_id)
        .where(ScoreItem.run_id == run_id)
    )
    for task, said in session.execute(query):
        outcome = ItemOutcome(
            item=said.item_id, sample=said.sample, score=said.score, reward=said.reward, status=said.status,
            answer=said.answer, scorer=said.scorer,
        )  # fmt: skip
        verdicts[task, said.scorer].append(outcome)
    protocols = {protocol.task: protocol for protocol in protocols_of(job)}
    results = session.execute(
        select(TaskVersion.task_slug, Result)
        .join(TaskVersion, TaskVersion.id == Result.task_version_id)
        .where(Result.run_id == run_id)
    ).all()
    for task, row in results:
        what = f"{task} {row.metric}, {row.decoding}, by {row.scorer}"
        means = summarise(protocols[task], verdicts[task, row.scorer])
        again = next((o.value for o in means if (o.metric, o.decoding) == (row.metric, row.decoding)), None)
        if again is None:
            yield Finding(run_id, what, "there is no verdict that it could be the mean of")
        elif abs(again - row.value) > TOLERANCE:
            yield Finding(run_id, what, f"recorded is {row.value:.6f}, its verdicts say {again:.6f}")
        else:
            yield Finding(run_id, what)
    counted = {task for task, _ in results}
    for task in protocols:
        if task not in counted and not holds_programs(task):
            yield Finding(run_id, task, "it was asked and has no number")


def _files(session: Session, settings: Settings, run_id: str) -> Iterator[Finding]:
    rows = session.execute(
        select(RunArtifact.role, Artifact.sha256, Artifact.purged_at)
        .join(Artifact, Artifact.id == RunArtifact.artifact_id)
        .join(Attempt, (Attempt.run_id == RunArtifact.run_id) & (Attempt.token == RunArtifact.token))
        .where(RunArtifact.run_id == run_id, Attempt.outcome == "succeeded")
        .order_by(RunArtifact.role)
    )
    store = artifact_store(settings)
    for role, sha256, purged_at in rows.all():
        if purged_at is not None:
            continue
        try:
            for _ in store.chunks(sha256):
                pass
            yield Finding(run_id, role)
        except ArtifactStoreError as error:
            yield Finding(run_id, role, str(error))


def verify_snapshot(session: Session, settings: Settings, taken: Taken) -> Iterator[Finding]:
    """A board, the numbers that it was made of, and every run behind them."""
    yield from verify_board(session, taken)
    for run_id in taken.runs:
        yield from verify_run(session, settings, run_id)


def verify_board(session: Session, taken: Taken) -> Iterator[Finding]:
    """A board, and the numbers that it was made of."""
    name = taken.sha256[:8]
    yield Finding(name, "content", None if taken.is_intact else "it does not match its hash and must not be cited")
    inputs = inputs_of(session, taken.runs, taken.board.scorer, taken.board.made_at)
    changed = f"the numbers of its {len(taken.runs)} runs are not those it was made of"
    yield Finding(name, "numbers", None if inputs == taken.inputs_sha256 else changed)
