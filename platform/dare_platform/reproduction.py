"""Doing a finished run again in a directory of one's own, and saying whether it came out the same."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from dare.spec import JobSpec
from dare.spec import Result as Outcome
from dare_platform.answers import stored_answers
from dare_platform.artifact_store import artifact_store
from dare_platform.errors import JobDirectoryError, OutputError, UnknownRunError
from dare_platform.job_directory import place_answers, weights_of
from dare_platform.models import AlgorithmVersion, Artifact, Attempt, Entry, Result, Run, RunArtifact, TaskVersion
from dare_platform.outputs import holds_programs, protocols_of
from dare_platform.settings import Settings

STANDARD_ERRORS = 3.0


@dataclass(frozen=True)
class Reproduction:
    """equal: bit for bit. within noise: no score differs by more than three standard errors of the difference."""

    verdict: Literal["equal", "within noise", "different"]
    sentence: str


def prepare(session: Session, settings: Settings, run_id: str, directory: Path) -> None:
    """Write the job directory of a finished run; JobDirectoryError when it exists or when weights are missing."""
    run = _finished(session, run_id)
    job = JobSpec.model_validate_json(run.job_json)
    if directory.exists():
        raise JobDirectoryError(f"{directory} is there already: choose another --out or remove it")
    directory.mkdir(parents=True)
    (directory / "job.json").write_text(run.job_json, encoding="utf-8")
    part = job.train or job.check
    if part is not None and part.algorithm.source == "entry":
        source = session.execute(
            select(AlgorithmVersion.source)
            .join(Entry, Entry.algorithm_version_id == AlgorithmVersion.id)
            .where(Entry.id == run.entry_id)
        ).scalar_one()
        (directory / "entry").mkdir()
        (directory / "entry" / "algorithm.py").write_text(source, encoding="utf-8")
    if job.evaluate is not None and job.evaluate.trained:
        weights, store = weights_of(session, run.depends_on) if run.depends_on else (), artifact_store(settings)
        for weight in weights:
            target = directory / "weights" / weight.path
            if not store.holds(weight.sha256):
                raise JobDirectoryError(
                    f"the weights of run {run.depends_on} are no longer kept{_since(session, weight.sha256)}: "
                    "reproduce it first"
                )
            target.parent.mkdir(parents=True, exist_ok=True)
            store.place(weight.sha256, target)
    if job.score is not None and run.depends_on:
        of = run.depends_on
        place_answers(directory, {p.task: stored_answers(session, settings, of, p) for p in job.score.protocols})


def _since(session: Session, sha256: str) -> str:
    """When a file was purged, for a sentence; nothing when it is missing for another reason."""
    at = session.execute(select(Artifact.purged_at).where(Artifact.sha256 == sha256)).scalar_one_or_none()
    return "" if at is None else f" (purged on {datetime.fromtimestamp(at, UTC):%Y-%m-%d})"


def compare(session: Session, run_id: str, directory: Path) -> Reproduction:
    """The stored outcome beside that of the directory."""
    run = _finished(session, run_id)
    try:
        found = Outcome.model_validate(json.loads((directory / "result.json").read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise OutputError(f"{directory} holds no result that can be read: {error}") from error
    return _files(session, run_id, found) if run.kind == "train" else _scores(session, run, found)


def _finished(session: Session, run_id: str) -> Run:
    run = session.get(Run, run_id)
    if run is None:
        raise UnknownRunError(f"there is no run {run_id!r}")
    if run.state != "succeeded":
        raise JobDirectoryError(f"run {run_id} is {run.state}; only one that has succeeded can be reproduced")
    return run


def _files(session: Session, run_id: str, found: Outcome) -> Reproduction:
    """Of a training run: its weights, bit for bit. Whether other weights are as good, only an evaluation can say."""
    rows = session.execute(
        select(RunArtifact.role, Artifact.sha256)
        .join(Artifact, Artifact.id == RunArtifact.artifact_id)
        .join(Attempt, (Attempt.run_id == RunArtifact.run_id) & (Attempt.token == RunArtifact.token))
        .where(RunArtifact.run_id == run_id, Attempt.outcome == "succeeded", RunArtifact.role.endswith(".safetensors"))
    )
    stored = {row.role: row.sha256 for row in rows}
    again = {artifact.path: artifact.sha256 for artifact in found.artifacts if artifact.path in stored}
    differing = sorted(role for role in stored if again.get(role) != stored[role])
    if not differing:
        return Reproduction("equal", f"{len(stored)} files of weights have the recorded hashes.")
    text = f"{differing[0]} differs. Equal hashes are promised on the same processor, torch and thread count only."
    return Reproduction("different", text)


def _scores(session: Session, run: Run, found: Outcome) -> Reproduction:
    """By the scorers that the run itself was told to ask; what others said later is not its doing."""
    scorers = {p.task: p.scorers for p in protocols_of(JobSpec.model_validate_json(run.job_json))}
    given = Result.scored_by == run.id if run.kind == "score" else Result.run_id == run.id
    again = {f"{score.task} {score.metric} {score.decoding} {score.scorer}": score for score in found.scores}
    rows = session.execute(
        select(TaskVersion.task_slug, Result)
        .join(Result, Result.task_version_id == TaskVersion.id)
        .where(given)
        .order_by(TaskVersion.task_slug, Result.metric, Result.decoding)
    ).all()
    if run.kind == "evaluate":
        rows = [
            row
            for row in rows
            if row.Result.scorer in scorers.get(row.task_slug, ()) and not holds_programs(row.task_slug)
        ]
    worst, equal = 0.0, True
    for task, stored in rows:
        score = again.get(f"{task} {stored.metric} {stored.decoding} {stored.scorer}")
        name = f"{task} {stored.metric} ({stored.decoding})"
        if score is None:
            return Reproduction("different", f"{name} was not scored this time.")
        difference = abs(score.value - stored.value)
        equal = equal and difference == 0
        error = math.hypot(score.standard_error or 0.0, stored.standard_error or 0.0)
        worst = max(worst, difference)
        if difference > STANDARD_ERRORS * error:
            return Reproduction("different", f"{name} is {score.value:.4f}; recorded is {stored.value:.4f}.")
    if equal:
        return Reproduction("equal", f"{len(rows)} scores are the recorded ones.")
    return Reproduction("within noise", f"The largest difference of {len(rows)} scores is {worst:.4f}.")
