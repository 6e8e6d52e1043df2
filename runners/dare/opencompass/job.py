"""What the child process is told, what it tells while it works, and what it leaves behind. No opencompass here.

    <directory>/predictions/<task>.jsonl        `Prediction`, a line as soon as an answer is there
    <directory>/opencompass/items/<task>.jsonl  `ItemOutcome` by OpenCompass's own evaluator, all at once
    <directory>/opencompass/asked/<task>.jsonl  `Cost`, a line for each answer that was asked for
    <directory>/opencompass/done.json           `Done`, last and by rename

The child's exit code says nothing that `done.json` does not say better: `read_done` is how to learn what became of it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from dare.frozen import Frozen
from dare.opencompass.configs import CONFIGS, PREFIX, StockConfig, UnknownConfigError, stock_config
from dare.spec import TaskProtocol

FOLDER = "opencompass"
DONE = "done.json"
KEY = "DARE_API_KEY"
"""The variable that the endpoint's key comes in, never a file."""
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DATASET_SOURCE": "",
    "NO_PROXY": "*",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Variables of the child, which it sets itself too."""
Phase = Literal["generate", "score"]
FailureCause = Literal[
    "data",  # a file is missing or is another one
    "mismatch",  # OpenCompass's rows are not our items
    "endpoint",  # the server refused, failed or is gone
    "scoring",  # an evaluator failed, or its numbers do not add up
    "internal",
]


class OpenCompassError(RuntimeError):
    """The child did not do what it was asked for. `cause` is its own word for it, None when it left none.

    OpenCompassError
    └── ChildEndedError      it ended without `done.json`
    """

    def __init__(self, message: str, cause: FailureCause | None = None) -> None:
        super().__init__(message)
        self.cause = cause


class ChildEndedError(OpenCompassError):
    """It was killed, or crashed before it could say why."""


class ChildJob(Frozen):
    """One child's whole work. Nothing in it is code, a type's name or a path inside OpenCompass."""

    version: Literal[1] = 1
    directory: Annotated[str, Field(pattern="^/")]
    """Of the run; see the head of this file."""
    data: str | None = None
    """The data folder, as for `dare evaluate --data`."""
    url: Annotated[str, Field(pattern=r"^http://(127\.0\.0\.1|localhost|\[::1\]):\d{1,5}$")] | None = None
    """The server, on this machine's loopback. None where nothing is generated."""
    model: str | None = None
    """The name that the server has for the policy."""
    protocols: Annotated[tuple[TaskProtocol, ...], Field(min_length=1)]
    """`prompt` is `opencompass:` and a name of `configs.CONFIGS`, or one that the task writes itself."""
    phases: Annotated[tuple[Phase, ...], Field(min_length=1)] = ("generate", "score")
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    in_flight: Annotated[int, Field(gt=0, le=256)] = 32
    """Requests at once: as many as the server should batch, and some more."""
    request_seconds: Annotated[float, Field(gt=0)] = 3600.0
    """After which an answer is not waited for any longer."""
    score_runs: Annotated[int, Field(gt=0, le=20)] = 1
    """How often evaluators with a wall clock score; the items whose verdict moved are listed."""

    @model_validator(mode="after")
    def _can_be_done(self) -> Self:
        tasks = [protocol.task for protocol in self.protocols]
        twice = next((task for task in tasks if tasks.count(task) > 1), None)
        if twice is not None:
            raise ValueError(f"task {twice!r} is asked under two protocols: give each a job of its own")
        if "generate" in self.phases and (self.url is None or self.model is None):
            raise ValueError("there is something to generate, but no url and model to ask")
        for protocol in self.protocols:
            if (stock := config_of(protocol)) is not None:
                stock.check_task(protocol.task)
        return self


def config_of(protocol: TaskProtocol) -> StockConfig | None:
    """The configuration of OpenCompass that writes the prompts; None where the task writes its own.

    Raises UnknownConfigError, a ValueError, for one that is not in the allow-list.
    """
    return stock_config(protocol.prompt.removeprefix(PREFIX)) if protocol.prompt.startswith(PREFIX) else None


class Progress(Frozen):
    """A line of the child's standard output. Everything else that it prints goes to standard error."""

    phase: Literal["start", "prompts", "generate", "score"]
    task: str | None = None
    done: int = 0
    of: int = 0
    rate: float | None = None
    """Answers per second in this phase, those that were there before left out."""


Tell = Callable[[Progress], None]


class Cost(Frozen):
    """One answer's price, beside its `Prediction`."""

    item: str
    sample: int
    prompt_sha256: str
    settings: str
    """Hash of model, decoding, template and seed: an answer is taken again only under the same."""
    seconds: float
    """From the request to its answer, the wait in the server's queue included."""
    prompt_tokens: int | None
    attempts: int


class TaskDone(Frozen):
    """What became of one task."""

    task: str
    config: str | None
    status: Literal["generated", "scored", "not_scored"]
    why: str = ""
    """Of `not_scored`, one sentence."""
    kind: Literal["generate", "likelihood"]
    evaluator: str
    """OpenCompass's class, or ours by import path."""
    postprocessor: str | None
    prompt_hash: str
    """The "version" of OpenCompass's tables; of several datasets, the hash of theirs."""
    wall_clock: bool
    """Whether the evaluator's verdicts depend on the machine's speed."""
    items: int
    dropped: tuple[str, ...] = ()
    """Items that OpenCompass leaves out; they have no prediction and no outcome."""
    asked: int = 0
    resumed: int = 0
    """Answers that were there already, for the same prompt."""
    metric: str | None = None
    headlines: tuple[float, ...] = ()
    """OpenCompass's own number in per cent, of sample 0, 1, ...; equal to the mean of the items, or the child fails."""
    errors: int = 0
    """Answers for which the evaluator gave no verdict."""
    moved: tuple[str, ...] = ()
    """Items whose verdict was not the same in all `score_runs`."""
    score_seconds: float = 0.0


class Done(Frozen):
    """The child's last word."""

    job: str
    """Digest of the ChildJob."""
    outcome: Literal["succeeded", "failed"]
    cause: FailureCause | None = None
    message: str = ""
    opencompass: str | None = None
    """Version of the package; the scorer is `opencompass-<version>`."""
    tasks: tuple[TaskDone, ...] = ()
    start_seconds: float = 0.0
    """Until OpenCompass was imported: paid once."""
    prompt_seconds: float = 0.0
    """For writing all prompts."""
    generate_seconds: float = 0.0
    score_seconds: float = 0.0


def child_folder(directory: Path) -> Path:
    """Where the child keeps its own files."""
    return directory / FOLDER


def write_job(job: ChildJob) -> Path:
    """The job's file in its place, and no `done.json` of an earlier start beside it."""
    folder = child_folder(Path(job.directory))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DONE).unlink(missing_ok=True)
    path = folder / "job.json"
    path.write_text(job.model_dump_json(indent=1), encoding="utf-8")
    return path


def command(job_file: Path) -> Sequence[str]:
    """How the child is started. Start it in a session of its own, so that the whole group can be ended."""
    return [sys.executable, "-m", "dare.opencompass", str(job_file)]


def environment(api_key: str | None = None, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """The child's variables: nothing of ours but the key; no hub, no proxy, one thread."""
    kept = {
        "PATH",
        "HOME",
        "LANG",
        "LC_ALL",
        "TMPDIR",
        "TZ",
        "VIRTUAL_ENV",
        "PYTHONPATH",
        "LD_LIBRARY_PATH",
        "SYSTEMROOT",
    }
    variables = {name: value for name, value in (os.environ if given is None else given).items() if name in kept}
    variables |= OFFLINE
    return variables if api_key is None else {**variables, KEY: api_key}


def read_done(job: ChildJob) -> Done:
    """What the child left behind. Raises OpenCompassError when it failed, ended early or answered another job."""
    path = child_folder(Path(job.directory)) / DONE
    try:
        done = Done.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ChildEndedError(f"OpenCompass's process ended without a result: there is no {path}") from None
    except ValidationError as error:
        raise ChildEndedError(f"{path} is no result: {error.errors()[0]['msg']}") from error
    if done.job != job.digest():
        raise ChildEndedError(f"{path} answers job {done.job[:12]}, not {job.digest()[:12]}")
    if done.outcome == "failed":
        raise OpenCompassError(done.message, done.cause)
    return done


__all__ = [
    "CONFIGS",
    "ChildEndedError",
    "ChildJob",
    "Cost",
    "Done",
    "OpenCompassError",
    "Progress",
    "TaskDone",
    "Tell",
    "UnknownConfigError",
    "child_folder",
    "command",
    "config_of",
    "environment",
    "read_done",
    "write_job",
]  # fmt: skip
