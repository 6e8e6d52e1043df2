"""Reads what a run left behind, trusting nothing: bounded, validated, hashed, and checked against the task's items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from dare.scoring import summarise
from dare.spec import Event, ItemOutcome, JobSpec, Prediction, Result, RunKind, Score, TaskProtocol
from dare.tasks import load_task, task_names
from dare.weights.headers import CheckpointError, read_open_header
from dare_platform.errors import OutputError
from dare_platform.inside import hash_declared, is_inside, lines_inside, open_inside, read_inside, relative_parts
from dare_platform.provenance import missing
from dare_platform.settings import MIB, Limits

RESULT_BYTES = 4 * MIB
LINE_BYTES = MIB
OUTPUT_FILE_BYTES = 512 * MIB
EVENT_LINE_BYTES = 256 * 1024
EVENTS_AT_ONCE_BYTES = MIB
EVENTS_BYTES = 256 * MIB
ARTIFACTS = 256
LONGEST_PATH = 200
LONGEST_MESSAGE = 2000
HEADER_BYTES = 16 * MIB
"""Of a file of weights. Sixteen thousand experts need two."""
LEFT_BY: Mapping[RunKind, tuple[frozenset[str], frozenset[str]]] = {
    "train": (frozenset({"model", "adapter"}), frozenset({".safetensors", ".json", ".txt", ".jinja", ".md"})),
    "evaluate": (frozenset({"predictions", "items"}), frozenset({".jsonl"})),
    "score": (frozenset({"items"}), frozenset({".jsonl"})),
    "check": (frozenset(), frozenset()),
}
"""Folders and kinds of files that a run of each kind leaves: no pickle, no program, nothing that somebody would run."""
POINTS = 1_000_000
"""Numbers of curves that one attempt may report; a training of 10,000 steps has a fifth of that."""
LARGEST_INTEGER = 2**31 - 1
SHORTEST_ID = 16
MOST_USED = 1e15
"""No clock and no counter of one run is larger."""
TOLERANCE = 1e-6
"""A runner's mean may be summed in another order than ours."""


@dataclass
class EventReader:
    """Follows `events.jsonl` while it grows. Lines that are no events are counted and left out."""

    directory: Path
    offset: int = 0
    refused: int = 0
    points: int = 0
    """Numbers of curves so far."""
    _half: bytes = field(default=b"", repr=False)
    _skips: bool = False

    def read(self) -> list[Event]:
        """The whole lines written since the last call; at most a megabyte of them."""
        try:
            with open_inside(self.directory, "events.jsonl") as file:
                file.seek(self.offset)
                fresh = file.read(EVENTS_AT_ONCE_BYTES) if self.offset < EVENTS_BYTES else b""
        except OutputError:  # not there yet, or no file: then there are no events
            return []
        self.offset += len(fresh)
        *whole, self._half = (self._half + fresh).split(b"\n")
        events = [event for line in whole if (event := self._parse(line)) is not None]
        if len(self._half) > EVENT_LINE_BYTES:
            self._half, self._skips = b"", True
        return events

    def _parse(self, line: bytes) -> Event | None:
        if self._skips:  # the end of a line that was too long
            self._skips = False
            self.refused += 1
            return None
        if not line.strip():
            return None
        try:
            event = Event.model_validate_json(line.decode("utf-8", "replace"))
        except ValidationError:
            self.refused += 1
            return None
        numbers = (event.step, event.of)
        if len(line) > EVENT_LINE_BYTES or any(n is not None and not 0 <= n <= LARGEST_INTEGER for n in numbers):
            self.refused += 1
            return None
        self.points += len(event.metrics)
        if self.points > POINTS and event.metrics:
            self.refused += 1
            return None
        return event


@dataclass(frozen=True)
class FoundArtifact:
    """A file that the run declares and that is what it declares."""

    path: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class Outputs:
    """Everything of a finished run that goes into the database."""

    result: Result
    predictions: Mapping[str, tuple[Prediction, ...]] = field(default_factory=dict)
    """By task."""
    outcomes: Mapping[str, tuple[ItemOutcome, ...]] = field(default_factory=dict)
    artifacts: tuple[FoundArtifact, ...] = ()


def read_result(directory: Path, job: JobSpec) -> Result:
    """`result.json`, if it is the answer to this job."""
    try:
        result = Result.model_validate_json(read_inside(directory, "result.json", RESULT_BYTES))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise OutputError(f"result.json is not valid: {where}: {first['msg']}") from error
    if result.job != job.digest() or result.kind != job.kind:
        raise OutputError(f"result.json answers another job ({result.kind} {result.job[:12]})")
    for name, used in result.usage.model_dump().items():
        if used is not None and not 0 <= used <= MOST_USED:
            raise OutputError(f"result.json is not valid: usage.{name} is {str(used)[:30]}, which no run can use")
    if len(result.message) > LONGEST_MESSAGE:
        raise OutputError(f"result.json has a message of {len(result.message)} characters; {LONGEST_MESSAGE} are taken")
    return result


def read_outputs(
    directory: Path,
    job: JobSpec,
    result: Result,
    items: Mapping[str, Sequence[str]],
    most_bytes: int = Limits().directory_bytes,
) -> Outputs:
    """The files beside a succeeded result. `items` are the item ids of each task in order; `most_bytes`, all artifacts.

    A task of programs may come out without a score: where nothing keeps programs apart they are not run, and its
    answers wait for a run that can. Every other task that is asked for is scored by its headline's scorer at least.
    """
    artifacts = _read_artifacts(directory, result, most_bytes)
    if job.kind == "train" and not any(artifact.path.startswith("model/") for artifact in artifacts):
        raise OutputError("the run says it succeeded but left no file under model/")
    protocols = protocols_of(job)
    predictions, outcomes = {}, {}
    for protocol in protocols:
        expected = _expected(protocol, items[protocol.task])
        if job.kind == "evaluate":
            predictions[protocol.task] = _read_predictions(directory, protocol.task, expected)
        if holds_programs(protocol.task) and not _scored(result, protocol.task):
            if is_inside(directory, f"items/{protocol.task}.jsonl"):
                raise OutputError(f"items/{protocol.task}.jsonl is there, but result.json has no score of it")
            continue
        outcomes[protocol.task] = _read_outcomes(directory, protocol, expected)
    _check_scores(protocols, result.scores, outcomes)
    if unsaid := missing(result):
        raise OutputError(f"result.json does not say {', '.join(unsaid)}: nobody could repeat the run")
    return Outputs(result, predictions, outcomes, artifacts)


def protocols_of(job: JobSpec) -> tuple[TaskProtocol, ...]:
    """Of the tasks that a job evaluates or scores."""
    part = job.evaluate or job.score
    return part.protocols if part is not None else ()


def holds_programs(task: str) -> bool:
    """Whether answers of this task are programs, which run in a container or a sandbox of their own or not at all."""
    return task in task_names() and load_task(task).kind == "code"


def _scored(result: Result, task: str) -> bool:
    return any(score.task == task for score in result.scores)


def _expected(protocol: TaskProtocol, items: Sequence[str]) -> frozenset[tuple[str, int]]:
    asked = items[: protocol.limit] if protocol.limit else items
    return frozenset((item, sample) for item in asked for sample in range(protocol.samples + 1))


def _read_artifacts(directory: Path, result: Result, most_bytes: int) -> tuple[FoundArtifact, ...]:
    if len(result.artifacts) > ARTIFACTS:
        raise OutputError(f"the run declares {len(result.artifacts)} artifacts; {ARTIFACTS} are allowed")
    total = sum(max(0, artifact.bytes) for artifact in result.artifacts)
    if total > most_bytes:  # said before anything is read: a file of a terabyte need not take any disk
        raise OutputError(
            f"the run declares artifacts of {str(total // MIB)[:30]} MiB; {most_bytes // MIB} MiB are allowed"
        )
    found = []
    for artifact in result.artifacts:
        path = "/".join(relative_parts(artifact.path))
        _is_left_by(result.kind, path)
        sha256 = hash_declared(directory, path, artifact.bytes)
        if sha256 != artifact.sha256:
            raise OutputError(f"the artifact {path} is not the file that result.json declares")
        if path.endswith(".safetensors"):
            _holds_tensors(directory, path, artifact.bytes)
        found.append(FoundArtifact(path, sha256, artifact.bytes))
    if len({artifact.path for artifact in found}) != len(found):
        raise OutputError("result.json declares an artifact twice")
    return tuple(found)


def _is_left_by(kind: RunKind, path: str) -> None:
    folders, suffixes = LEFT_BY[kind]
    if len(path) > LONGEST_PATH or not path.isprintable():
        raise OutputError(f"result.json declares an artifact of the name {path[:LONGEST_PATH]!r}, which is not taken")
    folder, _, name = path.partition("/")
    if folder not in folders or not name or Path(path).suffix not in suffixes:
        taken = f"{' and '.join(sorted(folders))} with {', '.join(sorted(suffixes))}" if folders else "nothing"
        raise OutputError(f"a {kind} run leaves {taken}; {path!r} is not taken")


def _holds_tensors(directory: Path, path: str, size: int) -> None:
    """The header is whole and describes every byte behind it; the numbers themselves may be anything."""
    with open_inside(directory, path) as file:
        try:
            read_open_header(file, size, Path(path), HEADER_BYTES)
        except CheckpointError as error:
            raise OutputError(str(error)) from error


def _read_predictions(directory: Path, task: str, expected: frozenset[tuple[str, int]]) -> tuple[Prediction, ...]:
    name = f"predictions/{task}.jsonl"
    rows = []
    for number, line in enumerate(lines_inside(directory, name, OUTPUT_FILE_BYTES, LINE_BYTES), start=1):
        try:
            row = Prediction.model_validate_json(line.decode("utf-8", "replace"))
        except ValidationError as error:
            raise OutputError(f"{name}, line {number}: {error.errors(include_input=False)[0]['msg']}") from error
        if not (0 <= row.tokens <= LARGEST_INTEGER and 0 <= row.nfe <= LARGEST_INTEGER):
            raise OutputError(f"{name}, line {number}: tokens or nfe is out of range")
        rows.append(row)
        _bound(name, rows, expected)
    _same_items(name, [(row.item, row.sample) for row in rows], expected)
    return tuple(rows)


def complete_outcomes(directory: Path, protocol: TaskProtocol, items: Sequence[str]) -> tuple[ItemOutcome, ...]:
    """What the scorers of a protocol say of all its items; OutputError where one is missing or strange."""
    return _read_outcomes(directory, protocol, _expected(protocol, items))


def _read_outcomes(
    directory: Path, protocol: TaskProtocol, expected: frozenset[tuple[str, int]]
) -> tuple[ItemOutcome, ...]:
    """What every scorer says. One that was asked and said nothing at all is absent, unless it is the headline's."""
    name = f"items/{protocol.task}.jsonl"
    rows: dict[str, list[ItemOutcome]] = {scorer: [] for scorer in protocol.scorers}
    for number, line in enumerate(lines_inside(directory, name, OUTPUT_FILE_BYTES, LINE_BYTES), start=1):
        try:
            row = ItemOutcome.model_validate_json(line.decode("utf-8", "replace"))
        except ValidationError as error:
            raise OutputError(f"{name}, line {number}: {error.errors(include_input=False)[0]['msg']}") from error
        if row.scorer not in rows:
            asked = " and ".join(map(repr, protocol.scorers))
            raise OutputError(f"{name}, line {number}: scored by {row.scorer!r}, asked was {asked}")
        if not (0 <= row.score <= 1 and 0 <= row.reward <= 1):
            raise OutputError(f"{name}, line {number}: score or reward is outside [0, 1]")
        rows[row.scorer].append(row)
        _bound(f"{name} by {row.scorer}", rows[row.scorer], expected)
    for scorer, found in rows.items():
        if found or scorer == protocol.scorer:
            _same_items(f"{name} by {scorer}", [(row.item, row.sample) for row in found], expected)
    return tuple(row for found in rows.values() for row in found)


def _bound(name: str, rows: Sequence[object], expected: frozenset[tuple[str, int]]) -> None:
    if len(rows) > len(expected):
        raise OutputError(f"{name} has more than the {len(expected)} lines that the protocol asks for")


def _same_items(name: str, found: Sequence[tuple[str, int]], expected: frozenset[tuple[str, int]]) -> None:
    strange = sorted(set(found) - expected)
    if strange:
        raise OutputError(f"{name} answers item {strange[0][0]!r}, sample {strange[0][1]}, which was not asked")
    absent = sorted(expected - set(found))
    if absent:
        raise OutputError(f"{name} lacks item {absent[0][0]!r}, sample {absent[0][1]}, and {len(absent) - 1} more")


def is_id_of(given: str, protocol: TaskProtocol) -> bool:
    """A runner may shorten a protocol's digest."""
    return len(given) >= SHORTEST_ID and protocol.digest().startswith(given)


def _check_scores(
    protocols: Sequence[TaskProtocol], scores: Sequence[Score], outcomes: Mapping[str, Sequence[ItemOutcome]]
) -> None:
    """A number on the board is the mean of stored items, and what it counts is counted in them, or it is refused."""
    by_task = {protocol.task: protocol for protocol in protocols}
    given = {(score.task, score.scorer, score.metric, score.decoding): score for score in scores}
    if len(given) != len(scores):
        raise OutputError("result.json gives one score twice")
    for task, rows in outcomes.items():
        for scorer in dict.fromkeys(row.scorer for row in rows):
            if not any(key[:2] == (task, scorer) and key[3] == "greedy" for key in given):
                raise OutputError(f"result.json has no greedy score for task {task!r} by {scorer!r}")
    for score in scores:
        protocol = by_task.get(score.task)
        if protocol is None or not is_id_of(score.protocol, protocol) or score.scorer not in protocol.scorers:
            raise OutputError(f"result.json scores {score.task!r} under a protocol or scorer that was not asked")
        if score.metric not in ("solved", "reward"):
            raise OutputError(f"result.json has the metric {score.metric!r}; known: solved, reward")
        rows = [row for row in outcomes.get(score.task, ()) if row.scorer == score.scorer]
        _is_mean_of(score, protocol, rows)


def _is_mean_of(score: Score, protocol: TaskProtocol, rows: Sequence[ItemOutcome]) -> None:
    name = f"{score.metric} of {score.task!r} ({score.decoding}, {score.scorer})"
    again = {(one.metric, one.decoding): one for one in summarise(protocol, rows)}.get((score.metric, score.decoding))
    if again is None:
        raise OutputError(f"result.json gives {name} without any item")
    if not abs(again.value - score.value) <= TOLERANCE:  # said so that a NaN is no mean of anything
        raise OutputError(f"result.json says {name} is {score.value}, its items say {again.value}")
    for count in ("n", "n_no_answer", "n_truncated", "n_undecoded", "n_error"):
        said, counted = getattr(score, count), getattr(again, count)
        if said != counted:
            raise OutputError(f"result.json says {count} of {name} is {said}, its items say {counted}")
    if score.standard_error is not None and score.standard_error < 0:
        raise OutputError(f"result.json says the standard error of {name} is {score.standard_error}")
