"""Writes the directory that is a run's whole world: order, submitted source, weights or answers, the data that it may
train on, last checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from dare.data.training_files import write_training_files
from dare.spec import Prediction as Answer
from dare.spec import RunKind
from dare.tasks import MissingDataError
from dare_platform import trees
from dare_platform.answers import stored_answers, write_answers
from dare_platform.artifact_store import artifact_store
from dare_platform.errors import JobDirectoryError
from dare_platform.inside import relative_parts
from dare_platform.lease import Claim
from dare_platform.models import Artifact, Attempt, Run, RunArtifact
from dare_platform.settings import Settings

MODEL = "model/"
"""Train runs leave their weights here; evaluate runs find them in `weights/`."""
CHECKPOINT = "checkpoint"
WHOLE_CHECKPOINTS = (CHECKPOINT, f".{CHECKPOINT}.old")
"""Names under which a runner leaves a whole checkpoint: the second, when it was killed while it replaced the first."""
DATA = "data"
"""Stands for the folder of published data where a run executes an entry's code."""
RESUMED: Mapping[RunKind, tuple[str, tuple[str, ...]]] = {
    "train": (CHECKPOINT, WHOLE_CHECKPOINTS),
    "evaluate": ("predictions", ("predictions",)),  # line by line: a runner leaves out what a kill tore
}
"""What a further attempt goes on from, and the names under which an earlier one may have left it."""


@dataclass(frozen=True)
class Weight:
    """One file of a trained policy."""

    path: str
    """Relative to `weights/`."""
    sha256: str


def weights_of(session: Session, train_run_id: str) -> tuple[Weight, ...]:
    """The files that a succeeded train run left under `model/`."""
    rows = session.execute(
        select(RunArtifact.role, Artifact.sha256)
        .join(Artifact, Artifact.id == RunArtifact.artifact_id)
        .join(Attempt, (Attempt.run_id == RunArtifact.run_id) & (Attempt.token == RunArtifact.token))
        .where(RunArtifact.run_id == train_run_id, RunArtifact.role.startswith(MODEL), Attempt.outcome == "succeeded")
        .order_by(RunArtifact.role)
    )
    return tuple(Weight(role.removeprefix(MODEL), sha256) for role, sha256 in rows)


def weights_for(session: Session, claim: Claim) -> tuple[Weight, ...]:
    """The weights that a claimed run needs: those of the train run it depends on, if it evaluates a trained policy."""
    if claim.job.evaluate is None or not claim.job.evaluate.trained:
        return ()
    parent = session.execute(select(Run.depends_on).where(Run.id == claim.run_id)).scalar_one()
    found = weights_of(session, parent) if parent else ()
    if not found:
        raise JobDirectoryError(f"run {claim.run_id} evaluates a trained policy, but no train run left one")
    return found


def answers_for(session: Session, settings: Settings, claim: Claim) -> dict[str, tuple[Answer, ...]]:
    """By task, the stored answers that a claimed score run judges: those of the evaluation it depends on."""
    if claim.job.score is None:
        return {}
    if claim.depends_on is None:
        raise JobDirectoryError(f"run {claim.run_id} scores stored answers, but no evaluation left some")
    return {
        protocol.task: stored_answers(session, settings, claim.depends_on, protocol)
        for protocol in claim.job.score.protocols
    }


def directory_of(settings: Settings, run_id: str, job_token: int) -> Path:
    """Private to one process of a run, whoever watches it."""
    return settings.jobs / run_id / str(job_token)


def write_job_directory(
    settings: Settings,
    claim: Claim,
    weights: tuple[Weight, ...],
    answers: Mapping[str, Sequence[Answer]] | None = None,
) -> Path:
    """Make the directory of an attempt, ready to be run."""
    directory = directory_of(settings, claim.run_id, claim.job_token)
    directory.mkdir(parents=True)
    (directory / "job.json").write_text(claim.job_json, encoding="utf-8")
    for folder in ("home", "tmp"):
        (directory / folder).mkdir()
    if claim.source is not None:
        source = directory / "entry" / "algorithm.py"
        source.parent.mkdir()
        source.write_text(claim.source, encoding="utf-8")
        source.chmod(0o444)
        source.parent.chmod(0o555)
    for weight in weights:
        _place_weight(settings, directory, weight)
    if claim.job.kind in ("train", "check"):
        _place_training_data(settings, claim, directory / DATA)
    if answers:
        place_answers(directory, answers)
    if claim.job.kind in RESUMED:
        _bring_earlier_work(settings, claim, directory, *RESUMED[claim.job.kind])
    return directory


def _place_training_data(settings: Settings, claim: Claim, folder: Path) -> None:
    """A contract check trains on generated toys, and gets none."""
    folder.mkdir()
    if claim.job.train is None:
        return
    try:
        write_training_files(claim.job.train.data, settings.data, folder)
    except MissingDataError as error:
        raise JobDirectoryError(f"the run cannot be given its training data: {error}") from error


def place_answers(directory: Path, answers: Mapping[str, Sequence[Answer]]) -> None:
    """`predictions/` of a score run, which nothing may change."""
    (directory / "predictions").mkdir()
    for task, given in answers.items():
        write_answers(directory, task, given)
    (directory / "predictions").chmod(0o555)


def _place_weight(settings: Settings, directory: Path, weight: Weight) -> None:
    """A hard link where possible: no entry's code runs beside it. Checked byte for byte either way."""
    target = directory.joinpath("weights", *relative_parts(weight.path))
    target.parent.mkdir(parents=True, exist_ok=True)
    artifact_store(settings).place(weight.sha256, target)


def _bring_earlier_work(settings: Settings, claim: Claim, directory: Path, target: str, names: Sequence[str]) -> None:
    """Copy what the newest earlier process left under one of the names to `target`, in place by rename."""
    made = (int(folder.name) for folder in directory.parent.iterdir() if folder.name.isdigit())
    before = sorted((token for token in made if token < claim.job_token), reverse=True)
    for token, name in product(before, names):
        earlier = directory_of(settings, claim.run_id, token) / name
        if not earlier.is_dir() or earlier.is_symlink():
            continue
        unfinished, limits = directory / f"{target}.part", settings.limits
        if trees.copy_plain(earlier, unfinished, limits.directory_bytes, limits.directory_files):
            unfinished.rename(directory / target)
            return
