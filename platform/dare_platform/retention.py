"""Removes what is large and old, and keeps what was found: models, job directories and printed output go, records stay.

Nothing goes without a wish (`DARE_KEEP_*_DAYS`). Answers are records. What an unfinished run needs is never touched.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Select, and_, delete, func, or_, select, update
from sqlalchemy.orm import Session, aliased

from dare_platform import trees
from dare_platform.artifact_store import artifact_store
from dare_platform.database import Database, now
from dare_platform.job_directory import MODEL
from dare_platform.models import FINISHED, Artifact, LogChunk, Run, RunArtifact
from dare_platform.settings import Settings

DAY = 86400.0
AT_ONCE = 200
"""Runs whose output goes in one transaction."""


@dataclass(frozen=True)
class Purge:
    """What goes, or what went, of one kind."""

    kind: str
    count: int
    bytes: int


def purge(settings: Settings, database: Database, *, dry_run: bool = False) -> tuple[Purge, ...]:
    """Everything that is older than it is kept for."""
    return (
        _models(settings, database, dry_run),
        _job_directories(settings, database, dry_run),
        _printed(settings, database, dry_run),
    )


def _models(settings: Settings, database: Database, dry_run: bool) -> Purge:
    days, count, size = settings.retention.models_days, 0, 0
    with database.read() as session:
        found = session.execute(_old_models(now(session), days)).all()
    if dry_run:
        return Purge("models", len(found), sum(row.size_bytes for row in found))
    store = artifact_store(settings)
    for row in found:
        # The row is locked while its file goes: whoever leaves the same content now waits, and looks at `purged_at`.
        with database.write() as session:
            locked = _old_models(now(session), days).where(Artifact.id == row.id).with_for_update(of=Artifact)
            if session.execute(locked).first() is None:
                continue
            store.delete(row.sha256)
            session.execute(update(Artifact).where(Artifact.id == row.id).values(purged_at=now(session)))
        count, size = count + 1, size + row.size_bytes
    return Purge("models", count, size)


def _old_models(at: float, days: float | None) -> Select[str, str, int]:
    """Files that are part of a model only, of runs that ended long ago and that no unfinished run builds on.

    `expires_at` comes before the general rule: a file may be given a time of its own.
    """
    maker, dependant = aliased(Run), aliased(Run)
    left = RunArtifact.artifact_id == Artifact.id
    something_else = select(RunArtifact.run_id).where(left, ~RunArtifact.role.startswith(MODEL)).exists()
    unfinished = (
        select(RunArtifact.run_id)
        .join(maker, maker.id == RunArtifact.run_id)
        .outerjoin(dependant, dependant.depends_on == maker.id)
        .where(left, or_(maker.state.not_in(FINISHED), dependant.state.not_in(FINISHED)))
        .exists()
    )
    newest = (
        select(func.max(maker.finished_at))
        .join(RunArtifact, RunArtifact.run_id == maker.id)
        .where(left)
        .scalar_subquery()
    )
    old: ColumnElement[bool] = Artifact.expires_at <= at
    if days is not None:
        old = or_(old, and_(Artifact.expires_at.is_(None), newest <= at - days * DAY))
    return select(Artifact.id, Artifact.sha256, Artifact.size_bytes).where(
        Artifact.purged_at.is_(None), select(RunArtifact.run_id).where(left).exists(), ~something_else, ~unfinished, old
    )


def _job_directories(settings: Settings, database: Database, dry_run: bool) -> Purge:
    """With what is in them: checkpoints too."""
    days, count, size = settings.retention.job_directories_days, 0, 0
    if days is None:
        return Purge("job directories", 0, 0)
    folders = {one.name: one for one in settings.jobs.glob("*") if one.is_dir() and not one.is_symlink()}
    with database.read() as session:
        ended = _ended(now(session) - days * DAY)
        old = list(session.execute(ended.where(Run.id.in_(folders)).order_by(Run.id)).scalars())
    for name in old:
        size += sum(one.st_size for one in trees.sizes_below(folders[name]) if one.st_nlink == 1)
        count += 1
        if not dry_run:
            trees.remove(folders[name])
    return Purge("job directories", count, size)


def _printed(settings: Settings, database: Database, dry_run: bool) -> Purge:
    """The end of every attempt's log stays in its record."""
    days, count, size = settings.retention.logs_days, 0, 0
    if days is None:
        return Purge("output of runs", 0, 0)
    with database.read() as session:
        chunks = select(LogChunk.run_id).where(LogChunk.run_id == Run.id).exists()
        old = list(session.execute(_ended(now(session) - days * DAY).where(chunks).order_by(Run.id)).scalars())
    for start in range(0, len(old), AT_ONCE):
        runs = LogChunk.run_id.in_(old[start : start + AT_ONCE])
        with database.write() as session:
            of_these = select(func.count(), func.coalesce(func.sum(func.length(LogChunk.content)), 0)).where(runs)
            chunks_there, bytes_there = session.execute(of_these).one()
            count, size = count + chunks_there, size + bytes_there
            if not dry_run:
                session.execute(delete(LogChunk).where(runs).execution_options(synchronize_session=False))
    return Purge("output of runs", count, size)


def _ended(before: float) -> Select[str]:
    """Runs that ended before then, and that no unfinished run builds on."""
    dependant = aliased(Run)
    builds = select(dependant.id).where(dependant.depends_on == Run.id, dependant.state.not_in(FINISHED)).exists()
    return select(Run.id).where(Run.state.in_(FINISHED), Run.finished_at <= before, ~builds)


def purged_at(session: Session, sha256: str) -> float | None:
    """When a file was purged; None for one that is kept, or was never here."""
    return session.execute(select(Artifact.purged_at).where(Artifact.sha256 == sha256)).scalar_one_or_none()
