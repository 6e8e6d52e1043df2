"""The answers that a run stored, as they were given: what every later scorer reads, and never a text that has changed.

They are rows of the database. A text that the databases cannot hold to the letter, one with a NUL in it, is taken from
the file that the run left.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from dare.spec import Prediction as Answer
from dare.spec import TaskProtocol
from dare_platform.artifact_store import ArtifactStoreError, artifact_store
from dare_platform.errors import JobDirectoryError
from dare_platform.models import Artifact, Attempt, Prediction, RunArtifact, TaskItem, TaskVersion
from dare_platform.settings import Settings


def stored_answers(session: Session, settings: Settings, run_id: str, protocol: TaskProtocol) -> tuple[Answer, ...]:
    """All answers of a run to one task, in the order of its items; JobDirectoryError for one that is not the stored."""
    rows = session.execute(
        select(Prediction)
        .join(TaskVersion, TaskVersion.id == Prediction.task_version_id)
        .join(
            TaskItem,
            (TaskItem.task_version_id == Prediction.task_version_id) & (TaskItem.item_id == Prediction.item_id),
        )
        .where(
            Prediction.run_id == run_id,
            TaskVersion.task_slug == protocol.task,
            TaskVersion.version == protocol.task_version,
            TaskVersion.split == protocol.split,
        )
        .order_by(TaskItem.position, Prediction.sample)
    ).scalars()
    answers = [_answer(row) for row in rows]
    if not answers:
        raise JobDirectoryError(f"run {run_id} has no stored answers to task {protocol.task} {protocol.task_version}")
    altered = [place for place, (answer, sha256) in enumerate(answers) if output_sha256(answer.output) != sha256]
    kept = _kept(session, settings, run_id, protocol.task) if altered else {}
    for place in altered:
        answer, sha256 = answers[place]
        original = kept.get((answer.item, answer.sample), answer.output)
        if output_sha256(original) != sha256:
            raise JobDirectoryError(
                f"the answer of run {run_id} to item {answer.item!r} of {protocol.task}, sample {answer.sample}, "
                f"is not the one that was stored: its SHA-256 is {output_sha256(original)[:12]}, "
                f"recorded was {sha256[:12]}"
            )
        answers[place] = (answer.model_copy(update={"output": original}), sha256)
    return tuple(answer for answer, _ in answers)


def output_sha256(text: str) -> str:
    """By which an answer is known."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def write_answers(directory: Path, task: str, answers: Sequence[Answer]) -> None:
    """`predictions/<task>.jsonl` as a runner writes it, read-only."""
    path = directory / "predictions" / f"{task}.jsonl"
    path.write_text("".join(answer.model_dump_json() + "\n" for answer in answers), encoding="utf-8")
    path.chmod(0o444)


def _answer(row: Prediction) -> tuple[Answer, str]:
    answer = Answer(
        item=row.item_id,
        sample=row.sample,
        prompt_sha256=row.prompt_sha256,
        output=row.output,
        tokens=row.tokens,
        nfe=row.nfe,
        truncated=row.truncated,
    )
    return answer, row.output_sha256


def _kept(session: Session, settings: Settings, run_id: str, task: str) -> dict[tuple[str, int], str]:
    """Texts of the file that the run left, if it is still what it was."""
    found = session.execute(
        select(Artifact.sha256)
        .join(RunArtifact, RunArtifact.artifact_id == Artifact.id)
        .join(Attempt, (Attempt.run_id == RunArtifact.run_id) & (Attempt.token == RunArtifact.token))
        .where(
            RunArtifact.run_id == run_id,
            RunArtifact.role == f"predictions/{task}.jsonl",
            Attempt.outcome == "succeeded",
        )
    ).scalar_one_or_none()
    store = artifact_store(settings)
    if found is None or not store.holds(found):
        return {}
    try:
        kept = b"".join(store.chunks(found))
    except ArtifactStoreError:
        return {}
    texts = {}
    for line in kept.split(b"\n"):
        try:
            answer = Answer.model_validate_json(line.decode("utf-8", "replace"))
        except (ValidationError, json.JSONDecodeError):
            continue
        texts[answer.item, answer.sample] = answer.output
    return texts
