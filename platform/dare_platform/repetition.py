"""What a run left the first time beside what it left when it was done again: weights, curves, answers, verdicts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from dare.spec import Event, ItemOutcome, JobSpec, TaskProtocol
from dare.spec import Prediction as Answer
from dare_platform.answers import output_sha256
from dare_platform.models import Artifact, Attempt, Prediction, Run, RunArtifact, ScoreItem, TaskVersion
from dare_platform.outputs import EventReader, Outputs, protocols_of
from dare_platform.views.curves import series_of

Verdict = Literal["equal", "within noise", "different"]
WORST_FIRST: tuple[Verdict, ...] = ("different", "within noise", "equal")
STANDARD_ERRORS = 3.0
"""A difference of two means over the same items is noise up to so many of its own, paired, standard errors."""
NAMED = 3
"""Items that are named where they differ."""
Key = tuple[str, int]
"""Item and sample."""


@dataclass(frozen=True)
class Part:
    """One thing that was compared."""

    what: str
    verdict: Verdict
    sentence: str

    @property
    def said(self) -> str:
        """Both in one."""
        return f"{self.what}: {self.sentence}"


def parts(session: Session, run: Run, directory: Path, found: Outputs) -> Iterator[Part]:
    """Everything that can be compared of a run of this kind, in the order in which it came about."""
    job = JobSpec.model_validate_json(run.job_json)
    if run.kind == "train":
        yield from _curves(session, run.id, directory)
        yield _weights(session, run.id, found)
    for protocol in protocols_of(job):
        answered_by = str(run.depends_on) if run.kind == "score" else run.id
        if run.kind == "evaluate":
            yield _answers(session, run.id, protocol, found.predictions[protocol.task])
        yield from _verdicts(session, answered_by, protocol, found.outcomes.get(protocol.task, ()))


# --- of a training --------------------------------------------------------------------------------------------------


def _weights(session: Session, run_id: str, found: Outputs) -> Part:
    """Bit for bit. Whether other weights are as good, only an evaluation can say."""
    rows = session.execute(
        select(RunArtifact.role, Artifact.sha256)
        .join(Artifact, Artifact.id == RunArtifact.artifact_id)
        .join(Attempt, (Attempt.run_id == RunArtifact.run_id) & (Attempt.token == RunArtifact.token))
        .where(RunArtifact.run_id == run_id, Attempt.outcome == "succeeded", RunArtifact.role.endswith(".safetensors"))
    )
    stored = {row.role: row.sha256 for row in rows}
    again = {artifact.path: artifact.sha256 for artifact in found.artifacts}
    differing = sorted(role for role in stored if again.get(role) != stored[role])
    if not differing:
        count = f"{len(stored)} files of weights have" if len(stored) != 1 else "the file of weights has"
        return Part("Weights", "equal", f"{count} the recorded hash.")
    return Part("Weights", "different", f"{differing[0]} is another file than recorded.")


def _curves(session: Session, run_id: str, directory: Path) -> Iterator[Part]:
    """The first step at which the two runs parted; nothing where no curve was recorded."""
    recorded = {
        (point.step, line.name): point.value for line in series_of(session, run_id, most=None) for point in line.points
    }
    again = {
        (event.step, name): value
        for event in _events(directory)
        if event.kind == "step" and event.step is not None
        for name, value in event.metrics.items()
    }
    both = sorted(recorded.keys() & again.keys())
    if not both:
        return
    parted = next((key for key in both if recorded[key] != again[key]), None)
    if parted is None:
        yield Part("Curves", "equal", f"{len(both)} numbers of {len({step for step, _ in both})} steps are the same.")
        return
    step, name = parted
    values = f"{name} {recorded[parted]:.6g} recorded, {again[parted]:.6g} now"
    yield Part("Curves", "different", f"the runs part at step {step}: {values}.")


def _events(directory: Path) -> Iterator[Event]:
    reader = EventReader(directory)
    while events := reader.read():
        yield from events


# --- of an evaluation -----------------------------------------------------------------------------------------------


def _answers(session: Session, run_id: str, protocol: TaskProtocol, found: Sequence[Answer]) -> Part:
    """To the letter; whether other letters matter, their verdicts say."""
    rows = session.execute(
        select(Prediction.item_id, Prediction.sample, Prediction.prompt_sha256, Prediction.output_sha256)
        .join(TaskVersion, TaskVersion.id == Prediction.task_version_id)
        .where(Prediction.run_id == run_id, TaskVersion.task_slug == protocol.task)
    )
    recorded: dict[Key, tuple[str, str]] = {(item, sample): (prompt, text) for item, sample, prompt, text in rows}
    asked = {(one.item, one.sample): one.prompt_sha256 for one in found}
    what = f"Answers to {protocol.task}"
    if others := [key for key in sorted(asked) if recorded.get(key, ("",))[0] != asked[key]]:
        return Part(what, "different", f"{_named(others)} was asked in other words than recorded.")
    said = {(one.item, one.sample): output_sha256(one.output) for one in found}
    others = [key for key in sorted(said) if recorded[key][1] != said[key]]
    if not others:
        return Part(what, "equal", f"all {len(said)} are the same to the letter.")
    share = f"{len(others)} of {len(said)} are other texts: {_named(others)}"
    return Part(what, "within noise", f"{share}; what that means, their verdicts say.")


def _verdicts(session: Session, run_id: str, protocol: TaskProtocol, found: Sequence[ItemOutcome]) -> Iterator[Part]:
    """By scorer and way of decoding, paired item by item. Of programs that were not judged this time, nothing."""
    if not found:
        return
    rows = session.execute(
        select(ScoreItem)
        .join(TaskVersion, TaskVersion.id == ScoreItem.task_version_id)
        .where(ScoreItem.run_id == run_id, TaskVersion.task_slug == protocol.task)
    ).scalars()
    recorded = {(row.scorer, row.item_id, row.sample): row for row in rows}
    groups: dict[tuple[str, str], list[ItemOutcome]] = defaultdict(list)
    for one in found:
        if (one.scorer, one.item, one.sample) in recorded:
            groups[one.scorer, "greedy" if one.sample == 0 else "sampled"].append(one)
    for (scorer, decoding), outcomes in groups.items():
        what = f"Verdicts of {scorer} on {protocol.task}, {decoding}"
        before = [recorded[one.scorer, one.item, one.sample] for one in outcomes]
        pairs = list(zip(outcomes, before, strict=True))
        moved = {(now.item, now.sample): now.score - then.score for now, then in pairs}
        rewarded = {(now.item, now.sample): now.reward - then.reward for now, then in pairs}
        yield _paired(what, moved, rewarded)


def _paired(what: str, moved: Mapping[Key, float], rewarded: Mapping[Key, float]) -> Part:
    differing = sorted(key for key in moved if moved[key] != 0 or rewarded[key] != 0)
    if not differing:
        return Part(what, "equal", f"{len(moved)} verdicts are the recorded ones.")
    shifts = [_shift(values) for values in (moved, rewarded)]
    beyond = any(abs(mean) > STANDARD_ERRORS * error for mean, error in shifts)
    count = f"{len(differing)} of {len(moved)} verdicts differ: {_named(differing)}"
    share = f"solved by {100 * shifts[0][0]:+.2f} points".replace("-", "\u2212")
    return Part(what, "different" if beyond else "within noise", f"{count}; {share}.")


def _shift(values: Mapping[Key, float]) -> tuple[float, float]:
    """Mean and standard error over items of what changed; samples of one item are one draw."""
    by_item: dict[str, list[float]] = defaultdict(list)
    for (item, _), value in values.items():
        by_item[item].append(value)
    means = np.asarray([np.mean(found) for found in by_item.values()])
    error = float(means.std(ddof=1)) / math.sqrt(len(means)) if len(means) > 1 else math.inf
    return float(means.mean()), error


def _named(keys: Sequence[Key]) -> str:
    shown = [item if sample == 0 else f"{item} (sample {sample})" for item, sample in keys[:NAMED]]
    more = f" and {len(keys) - NAMED} more" if len(keys) > NAMED else ""
    return ", ".join(shown) + more


# --- all of it ------------------------------------------------------------------------------------------------------


def worst(found: Sequence[Part]) -> Verdict:
    """One word for all parts. Other letters whose every verdict is the recorded one are noise."""
    verdicts = {part.verdict for part in found}
    return next((verdict for verdict in WORST_FIRST if verdict in verdicts), "equal")
