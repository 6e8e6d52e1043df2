"""A score run: stored answers, the scorers that are asked, items and a result. No torch, no weights, no generation.

An evaluation is scored by the same `scored`. What cannot be scored here, because a program cannot be kept apart on this
machine, has no number and no items; its answers stay.
"""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from dare.diary.events import EventLog, Listener, device_seconds
from dare.job import Interrupted, JobError, artifact, machine, read_job, result_of, stop_on_signals, write_result
from dare.scoring import (
    SCORER,
    EvaluationError,
    ScoringError,
    judge,
    prompt_of,
    prompt_sha256,
    summarise,
    task_items,
    write_items,
)
from dare.spec import Cause, ItemOutcome, JobSpec, Prediction, Result, Score, ScoreSpec, TaskProtocol, Usage
from dare.tasks import Item, MissingDataError, NotScoredError, Task, UnknownSplitError, UnknownTaskError

FAILS_AS: Mapping[type[Exception], tuple[Cause, str]] = {
    MissingDataError: ("internal", "The job cannot be run here: {}."),
    UnknownTaskError: ("internal", "The job cannot be run here: {}."),
    UnknownSplitError: ("internal", "The job cannot be run here: {}."),
    EvaluationError: ("internal", "The job cannot be run here: {}."),
    ScoringError: ("scoring", "Scoring stopped: {}."),
    NotScoredError: ("scoring", "Nothing was scored: {}."),
}


@dataclass(frozen=True)
class Scored:
    """What became of one task. `why_not` is given where it has no score."""

    outcomes: Sequence[ItemOutcome]
    scores: Sequence[Score]
    why_not: str | None = None


def scored(
    protocol: TaskProtocol,
    task: Task,
    items: Sequence[Item],
    known: Mapping[tuple[str, int], Prediction],
    directory: Path,
    others: Sequence[ItemOutcome] = (),
    programs: Literal["here", "later"] = "here",
) -> Scored:
    """Judge the answers, put them beside what other scorers said, and write `items/<task>.jsonl`.

    Programs that are judged `later` are left alone: a score run is ordered behind this one. Raises ScoringError where a
    scorer fails on more than one answer in a hundred.
    """
    path = directory / "items" / f"{protocol.task}.jsonl"
    if task.kind == "code" and programs == "later":
        return Scored((), (), f"the programs in the answers to {task.name} are judged by a run of their own")
    try:
        own = judge(protocol, task, items, known)
    except NotScoredError as error:
        path.unlink(missing_ok=True)
        return Scored((), (), f"{task.name} is not scored here: {error}")
    outcomes = [*own, *others]
    write_items(path, outcomes)
    scores = [
        score
        for name in protocol.scorers
        for score in summarise(protocol, [outcome for outcome in outcomes if outcome.scorer == name])
    ]
    return Scored(outcomes, scores)


def run_score(directory: Path, listener: Listener | None = None, data: Path | None = None) -> Result:
    """Score what lies in `predictions/` by the job of `directory`. A finished directory answers with its result.

    Raises JobError for a directory that is no such job, KeyboardInterrupt when asked to stop; every other end is a
    Result.
    """
    job = read_job(directory)
    if job.score is None:
        raise JobError(f"{directory} holds a job of kind {job.kind!r}, no score run")
    done = result_of(directory, job)
    if done is not None:
        return done
    events = EventLog(directory, *([listener] if listener is not None else []))
    began = time.monotonic(), device_seconds()
    try:
        with stop_on_signals():
            result = _ended(job, job.score, directory, data, events, began)
        events.stage("finish", result.message)
        write_result(directory, result)
    except Interrupted:
        raise KeyboardInterrupt from None
    finally:
        events.close()
    return result


def _ended(
    job: JobSpec, spec: ScoreSpec, directory: Path, data: Path | None, events: EventLog, began: tuple[float, float]
) -> Result:
    cause: Cause | None = None
    found: list[Scored] = []
    try:
        found = _score(spec, directory, data, events)
        message = evaluated_message(found)
        if not any(one.scores for one in found):
            cause, message = "scoring", f"Nothing was scored. {message}"
    except tuple(FAILS_AS) as error:
        cause, form = next(said for kind, said in FAILS_AS.items() if isinstance(error, kind))
        message = form.format(error)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        cause, message = "disk", "The disk is full. Free some space and retry."
    paths = sorted((directory / "items").glob("*.jsonl")) if cause is None else []
    return Result(
        job=job.digest(),
        kind="score",
        outcome="succeeded" if cause is None else "failed",
        cause=cause,
        message=message[:2000],
        scores=tuple(score for one in found for score in one.scores) if cause is None else (),
        usage=Usage(evaluate_seconds=time.monotonic() - began[0], device_seconds=device_seconds() - began[1]),
        artifacts=tuple(artifact(directory, path) for path in paths),
        provenance=machine(),
    )


def evaluated_message(found: Sequence[Scored]) -> str:
    """How many items were scored, the first task's headline, and what was not scored."""
    headlines = [
        next(score for score in one.scores if score.metric == "solved" and score.decoding == "greedy")
        for one in found
        if one.scores
    ]
    words = [f"{one.why_not}." for one in found if one.why_not]
    if headlines:
        first = headlines[0]
        scored_items = sum(score.n for score in headlines)
        words.insert(0, f"Scored {scored_items} items; {first.task} solved {first.value:.1%}.")
    return " ".join(words)


def _score(spec: ScoreSpec, directory: Path, data: Path | None, events: EventLog) -> list[Scored]:
    for protocol in spec.protocols:  # before anything is scored
        strange = [name for name in protocol.scorers if name != SCORER]
        if strange:
            raise EvaluationError(f"{strange[0]} scores what OpenCompass asks, and a score run asks nothing")
    loaded = [(protocol, *task_items(protocol, data)) for protocol in spec.protocols]
    answers = [stored(directory, protocol, task, items, data) for protocol, task, items in loaded]
    found, done, total = [], 0, sum(len(known) for known in answers)
    for (protocol, task, items), known in zip(loaded, answers, strict=True):
        events.stage("evaluate", task.title)
        found.append(scored(protocol, task, items, known, directory))
        done += len(known)
        events.progress(task.title, done, total)
    return found


def stored(
    directory: Path, protocol: TaskProtocol, task: Task, items: Sequence[Item], data: Path | None
) -> dict[tuple[str, int], Prediction]:
    """All answers that the protocol asks for; EvaluationError names the first that is missing, doubled or strange."""
    path = directory / "predictions" / f"{protocol.task}.jsonl"
    if not path.is_file():
        raise EvaluationError(f"{directory} has no stored answers of {protocol.task}")
    wanted = {(item.id, sample) for item in items for sample in range(protocol.samples + 1)}
    ours = not protocol.prompt.startswith("opencompass:")
    prompts = {item.id: prompt_sha256(prompt_of(protocol, task, item, data)) for item in items} if ours else {}
    known: dict[tuple[str, int], Prediction] = {}
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line:  # behind the last one
            continue
        try:
            prediction = Prediction.model_validate_json(line)
        except (ValidationError, json.JSONDecodeError) as error:
            raise EvaluationError(f"{path}, line {number} is no stored answer") from error
        place = prediction.item, prediction.sample
        if place not in wanted:
            raise EvaluationError(
                f"{path}, line {number} answers item {place[0]!r}, sample {place[1]}, which is not asked"
            )
        if place in known:
            raise EvaluationError(f"{path}, line {number} answers item {place[0]!r}, sample {place[1]} again")
        if prompts.get(place[0], prediction.prompt_sha256) != prediction.prompt_sha256:
            raise EvaluationError(f"{path}, line {number} answers another prompt than item {place[0]!r} has")
        known[place] = prediction
    absent = sorted(wanted - known.keys())
    if absent:
        raise EvaluationError(
            f"{path} lacks item {absent[0][0]!r}, sample {absent[0][1]}, and {len(absent) - 1} more: the evaluation is "
            "not finished"
        )
    return known
