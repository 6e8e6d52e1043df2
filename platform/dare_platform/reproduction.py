"""Doing a finished run again in a directory of one's own, and saying whether it came out the same."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from dare.spec import JobSpec
from dare_platform.answers import stored_answers
from dare_platform.artifact_store import artifact_store
from dare_platform.errors import JobDirectoryError, UnknownRunError
from dare_platform.job_directory import place_answers, weights_of
from dare_platform.models import AlgorithmVersion, Artifact, Attempt, Entry, Run
from dare_platform.outputs import read_outputs, read_result
from dare_platform.provenance import MACHINE, MODEL
from dare_platform.repetition import Part, Verdict, parts, worst
from dare_platform.results import items_of
from dare_platform.settings import Settings


@dataclass(frozen=True)
class Reproduction:
    """A run beside its repetition.

    equal: bit for bit. within noise: of no scorer's verdicts does the mean differ by more than three standard errors
    of the paired difference.
    """

    verdict: Verdict
    sentence: str
    parts: tuple[Part, ...] = ()
    """What was compared, in the order in which it came about: the first that differs says where the runs part."""
    machine: tuple[tuple[str, str, str], ...] = ()
    """What it ran on that is not what is recorded: name, recorded, now."""


def prepare(session: Session, settings: Settings, run_id: str, directory: Path, trained_in: Path | None = None) -> None:
    """Write the job directory of a finished run; JobDirectoryError when it exists or when weights are missing.

    `trained_in` is the directory in which the training was done again: its policy is evaluated, not the stored one.
    """
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
    if job.evaluate is not None and job.evaluate.trained and trained_in is not None:
        if not (trained_in / "model").is_dir():
            raise JobDirectoryError(f"{trained_in} holds no trained policy: there is no folder `model` in it")
        shutil.copytree(trained_in / "model", directory / "weights")
    elif job.evaluate is not None and job.evaluate.trained:
        weights, store = weights_of(session, run.depends_on) if run.depends_on else (), artifact_store(settings)
        for weight in weights:
            target = directory / "weights" / weight.path
            if not store.holds(weight.sha256):
                raise JobDirectoryError(
                    f"the weights of run {run.depends_on} are no longer kept{_since(session, weight.sha256)}: "
                    f"do it again with `dare reproduce {run.depends_on}`, then name that directory by --trained-in"
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
    """The stored outcome beside that of the directory; OutputError where that holds none that can be read."""
    run = _finished(session, run_id)
    job = JobSpec.model_validate_json(run.job_json)
    again = read_result(directory, job)
    machine = _machine(session, run_id, again.provenance)
    if again.outcome == "failed":
        return Reproduction("different", f"It failed this time: {again.message}", machine=machine)
    found = tuple(parts(session, run, directory, read_outputs(directory, job, again, items_of(session, job))))
    verdict = worst(found)
    sentence = " ".join(part.said for part in found if part.verdict == verdict)
    return Reproduction(verdict, sentence or "There was nothing to compare.", found, machine)


def _machine(session: Session, run_id: str, now: Mapping[str, str]) -> tuple[tuple[str, str, str], ...]:
    """Equal bits are promised on the same processor, libraries and thread count only."""
    said = session.execute(
        select(Attempt.versions_json).where(Attempt.run_id == run_id, Attempt.outcome == "succeeded")
    ).scalar_one()
    recorded: dict[str, str] = json.loads(said)
    names = [name for name in MACHINE + MODEL if name in recorded and name in now]
    return tuple((name, recorded[name], now[name]) for name in names if recorded[name] != now[name])


def _finished(session: Session, run_id: str) -> Run:
    run = session.get(Run, run_id)
    if run is None:
        raise UnknownRunError(f"there is no run {run_id!r}")
    if run.state != "succeeded":
        raise JobDirectoryError(f"run {run_id} is {run.state}; only one that has succeeded can be reproduced")
    return run
