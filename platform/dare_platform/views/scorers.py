"""Two scorers over the same stored answers, item by item: where they agree, and every answer that they judge apart."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session, aliased

from dare.spec import JobSpec
from dare_platform.models import Entry, Prediction, Run, ScoreItem, TaskItem, TaskVersion
from dare_platform.outputs import protocols_of
from dare_platform.viewer import NOBODY, Viewer
from dare_platform.views.shapes import MovedAnswer, ScorerDifference, Word
from dare_platform.views.sight import sees_run

SHOWN_MOVED = 5
"""Answers that a page lists for each pair of scorers; `dare scores diff` lists all."""


def scorers_of(session: Session, run_id: str, viewer: Viewer = NOBODY) -> dict[str, tuple[str, ...]]:
    """By task, who has judged the answers of a run: the headline's scorer first, then by name."""
    if not sees_run(session, viewer, run_id):
        return {}
    rows = session.execute(
        select(TaskVersion.task_slug, ScoreItem.scorer)
        .join(TaskVersion, TaskVersion.id == ScoreItem.task_version_id)
        .where(ScoreItem.run_id == run_id)
        .distinct()
        .order_by(TaskVersion.task_slug, ScoreItem.scorer)
    ).all()
    heads = headlines(session, run_id)
    found: dict[str, list[str]] = {}
    for task, scorer in rows:
        found.setdefault(task, []).append(scorer)
    return {task: tuple(sorted(names, key=lambda name: name != heads.get(task))) for task, names in found.items()}


def headlines(session: Session, run_id: str) -> dict[str, str]:
    """By task, whose word is the headline by the run's own order."""
    job = session.execute(select(Run.job_json).where(Run.id == run_id)).scalar_one_or_none()
    return {p.task: p.scorer for p in protocols_of(JobSpec.model_validate_json(job))} if job else {}


def difference(
    session: Session, run_id: str, task: str, a: str, b: str, most: int | None = None, viewer: Viewer = NOBODY
) -> ScorerDifference:
    """Two scorers over the answers to one task; at most `most` of the moved ones are listed."""
    first, second = aliased(ScoreItem), aliased(ScoreItem)
    same_answer = (
        (second.run_id == first.run_id)
        & (second.task_version_id == first.task_version_id)
        & (second.item_id == first.item_id)
        & (second.sample == first.sample)
    )
    rows = session.execute(
        select(first, second, Prediction.output)
        .join(second, same_answer)
        .join(TaskVersion, TaskVersion.id == first.task_version_id)
        .join(TaskItem, (TaskItem.task_version_id == first.task_version_id) & (TaskItem.item_id == first.item_id))
        .join(
            Prediction,
            (Prediction.run_id == first.run_id)
            & (Prediction.task_version_id == first.task_version_id)
            & (Prediction.item_id == first.item_id)
            & (Prediction.sample == first.sample),
        )
        .join(Run, Run.id == first.run_id)
        .join(Entry, Entry.id == Run.entry_id)
        .where(
            first.run_id == run_id,
            TaskVersion.task_slug == task,
            first.scorer == a,
            second.scorer == b,
            viewer.sees(),
        )
        .order_by(TaskItem.position, first.sample)
    ).all()
    moved: list[MovedAnswer] = []
    only_a = only_b = failed = 0
    for one, other, output in rows:
        if "error" in (one.status, other.status):
            failed += 1
            continue
        if (one.score > 0.5) == (other.score > 0.5):
            continue
        only_a += one.score > 0.5
        only_b += other.score > 0.5
        if most is None or len(moved) < most:
            moved.append(MovedAnswer(one.item_id, one.sample, _word(one), _word(other), output))
    return ScorerDifference(
        task=task,
        a=a,
        b=b,
        answers=len(rows),
        equal=len(rows) - failed - only_a - only_b,
        only_a=only_a,
        only_b=only_b,
        failed=failed,
        moved=tuple(moved),
    )


def _word(said: ScoreItem) -> Word:
    return Word(solved=said.score > 0.5, status=said.status, answer=said.answer)


def differences(
    session: Session, run_id: str, most: int = SHOWN_MOVED, viewer: Viewer = NOBODY
) -> tuple[ScorerDifference, ...]:
    """The headline's scorer beside every other one, task by task."""
    return tuple(
        difference(session, run_id, task, first, other, most, viewer)
        for task, (first, *others) in scorers_of(session, run_id, viewer).items()
        for other in others
    )
