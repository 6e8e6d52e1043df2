"""What takes disk under DARE_HOME, and which job directories nothing needs any more."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from dare_platform import trees
from dare_platform.models import FINISHED, Run
from dare_platform.settings import Settings


@dataclass(frozen=True)
class Part:
    """One part of DARE_HOME."""

    name: str
    files: int
    bytes: int


@dataclass(frozen=True)
class CleaningReport:
    """What is there, and what may go: job directories of finished runs, relative to `jobs`."""

    parts: tuple[Part, ...]
    removable: tuple[str, ...]
    removable_bytes: int


def survey(session: Session, settings: Settings) -> CleaningReport:
    """Measure DARE_HOME. Files that a run left behind are kept by content, outside its directory."""
    folders = sorted(folder for folder in settings.jobs.glob("*") if folder.is_dir() and not folder.is_symlink())
    finished = set(
        session.execute(select(Run.id).where(Run.id.in_([f.name for f in folders]), Run.state.in_(FINISHED))).scalars()
    )
    removable = [folder for folder in folders if folder.name in finished]
    database = settings.home.glob("dare.sqlite*") if settings.home.is_dir() else iter(())
    others = [folder for folder in folders if folder.name not in finished]
    parts = (
        _part("database", (path.lstat() for path in database)),
        _part("kept files of runs", trees.sizes_below(settings.artifacts)),
        _part("job directories of finished runs", (one for folder in removable for one in trees.sizes_below(folder))),
        _part("other job directories", (one for folder in others for one in trees.sizes_below(folder))),
    )
    return CleaningReport(parts, tuple(folder.name for folder in removable), parts[2].bytes)


def _part(name: str, found: Iterable[os.stat_result]) -> Part:
    sizes = [one.st_size for one in found]
    return Part(name, len(sizes), sum(sizes))


def remove(settings: Settings, report: CleaningReport) -> int:
    """Remove what may go; how many bytes that frees, files with a second name not counted."""
    freed = 0
    for name in report.removable:
        folder = settings.jobs / name
        freed += sum(found.st_size for found in trees.sizes_below(folder) if found.st_nlink == 1)
        trees.remove(folder)
    return freed
