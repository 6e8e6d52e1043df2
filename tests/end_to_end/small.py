"""The tiny track made small, entries for it, and what must hold of a home when everything has ended."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sqlalchemy import select

from dare.source import read_source
from dare.spec import Budget
from dare_platform import cleaning, entries
from dare_platform.database import Database, migrate, open_database
from dare_platform.models import Run
from dare_platform.processes import marked
from dare_platform.registry import register_track
from dare_platform.settings import Settings
from dare_platform.tracks import Track, load_track
from dare_platform.uploads import Submission, UploadReport, read_builtin, read_upload
from dare_platform.viewer import LOCAL

REPOSITORY = Path(__file__).resolve().parents[2]
ARTEFACTS = REPOSITORY / "artefacts"
EXAMPLE = REPOSITORY / "examples" / "submission"
BACKBONE = "sdar-tiny"
COMPLETIONS = 8
"""Of a training step on the small track; a contract check has larger batches."""


def small_track(steps: int = 2, items: int = 8, wall_seconds: float = 600.0, name: str = "small") -> Track:
    """The tiny track with one backbone, one seed, a few steps and a few items; it still goes the whole way."""
    whole = load_track("tiny")
    rules = whole.rules_of(BACKBONE)
    settings = rules.prompts.settings.model_copy(update={"prompts_per_step": 2, "group_size": COMPLETIONS // 2})
    budget = Budget(optimiser_steps=steps, wall_seconds=wall_seconds)
    prompts = rules.prompts.model_copy(update={"settings": settings, "budget": budget})
    changes = {
        "track": name,
        "seeds": (0,),
        "seeds_required": 1,
        "tasks": [task.model_copy(update={"limit": items}) for task in whole.tasks if task.role != "transfer"],
        "backbones": {BACKBONE: rules.model_copy(update={"samples": 1, "prompts": prompts})},
    }
    return Track.model_validate({**whole.model_dump(), **changes})


def home_with(home: Path, *tracks: Track) -> Settings:
    """A migrated database that knows these tracks."""
    settings = replace(Settings.from_environment({"DARE_HOME": str(home)}), poll_seconds=0.2)
    migrate(settings)
    with open_database(settings) as database, database.write() as session:
        for track in tracks:
            register_track(session, track)
    return settings


def built_in(track: Track, name: str) -> Submission:
    return _accepted(read_builtin(name, None, track, [BACKBONE]))


def uploaded(track: Track, name: str = "gentle-d1", **assignments: float) -> Submission:
    """The entry of `examples/submission`, with its settings unless others are given."""
    settings = (EXAMPLE / "hyperparameters.yaml").read_text()
    content = (EXAMPLE / "algorithm.py").read_bytes()
    return _accepted(
        read_upload("algorithm.py", content, settings, track, [BACKBONE], name=name, assignments=assignments)
    )


def unread(track: Track, name: str, source: str) -> Submission:
    """An entry whose text got past the rules that intake reads for: they are no security boundary."""
    found = read_source(source.encode(), name).algorithm
    assert found is not None
    return replace(uploaded(track, name), source=found, hyperparameters=found.settled({}))


def _accepted(report: UploadReport) -> Submission:
    assert report.submission is not None, report.problems
    return report.submission


def submit(database: Database, submission: Submission, key: str | None = None) -> entries.Submitted:
    with database.write() as session:
        return entries.submit(session, LOCAL, submission, key or submission.name)


def runs_of(database: Database, entry_id: str | None = None) -> list[Run]:
    """All runs, or those of one entry, in the order in which they were asked for."""
    query = select(Run).order_by(Run.created_at, Run.id)
    with database.read() as session:
        return list(session.execute(query if entry_id is None else query.where(Run.entry_id == entry_id)).scalars())


def run_of(database: Database, entry_id: str, kind: str) -> Run:
    (found,) = (run for run in runs_of(database, entry_id) if run.kind == kind)
    return found


def alive(run_ids: Sequence[str]) -> list[int]:
    """Processes of these runs on this host."""
    return [process.pid for process, marker in marked() if marker.rpartition("-")[0] in run_ids]


def leftovers(settings: Settings, database: Database) -> list[str]:
    """Files under a home that nothing accounts for, once the job directories of ended runs are cleaned away."""
    with database.read() as session:
        report = cleaning.survey(session, settings)
    cleaning.remove(settings, report)
    files = [path.relative_to(settings.home) for path in settings.home.rglob("*") if path.is_file()]
    return [
        str(path)
        for path in files
        if not path.name.startswith(("dare.sqlite", "worker"))
        and not (path.parts[0] == "artifacts" and len(path.name) == 64)
    ] + [folder.name for folder in settings.home.glob(".*")]


def worker_environment(settings: Settings, **more: str) -> dict[str, str]:
    """For a worker process of its own that polls often."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DARE_")}
    return {**clean, "DARE_HOME": str(settings.home), "DARE_POLL_SECONDS": "0.2", **more}
