"""What takes disk under DARE_HOME, and which job directories nothing needs any more."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

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
    database = [settings.home.glob("dare.sqlite*")] if settings.home.is_dir() else []
    parts = (
        _part("database", (path for found in database for path in found)),
        _part("kept files of runs", settings.artifacts.rglob("*")),
        _part("job directories of finished runs", (path for folder in removable for path in folder.rglob("*"))),
        _part(
            "other job directories",
            (path for folder in folders if folder.name not in finished for path in folder.rglob("*")),
        ),
    )
    return CleaningReport(parts, tuple(folder.name for folder in removable), parts[2].bytes)


def _part(name: str, paths: Iterable[Path]) -> Part:
    sizes = [path.lstat().st_size for path in paths if path.is_file() or path.is_symlink()]
    return Part(name, len(sizes), sum(sizes))


def remove(settings: Settings, report: CleaningReport) -> int:
    """Remove what may go; how many bytes that frees, files with a second name not counted."""
    freed = 0
    for name in report.removable:
        folder = settings.jobs / name
        freed += sum(p.lstat().st_size for p in folder.rglob("*") if p.is_file() and p.lstat().st_nlink == 1)
        for path in [folder, *folder.rglob("*")]:
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)  # an entry's source lies in a folder without write permission
        shutil.rmtree(folder)
    return freed
