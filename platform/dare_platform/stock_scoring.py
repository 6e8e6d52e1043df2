"""OpenCompass's own word on stored answers: its evaluators alone, as released, in a child process. It asks nothing.

Which of its configurations judges is the one that the answers were asked with, or its first one for the same items.
Programs are not among them: nothing keeps apart what its evaluators run.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from dare.job import machine, write_result
from dare.opencompass.configs import CONFIGS, PREFIX, StockConfig
from dare.opencompass.job import ChildJob, OpenCompassError, child_folder, command, environment, read_done, write_job
from dare.scoring import summarise
from dare.spec import JobSpec, Result, Score, TaskProtocol, Usage
from dare_platform.errors import OutputError
from dare_platform.outputs import complete_outcomes, protocols_of

NAME = "opencompass-"
LOG = "opencompass.log"


def scorer() -> str | None:
    """`opencompass-0.5.4`, by the version that is installed; None where there is none. Nothing is imported."""
    return f"{NAME}{metadata.version('opencompass')}" if find_spec("opencompass") is not None else None


def judged_by(protocol: TaskProtocol) -> str | None:
    """The protocol's prompt, or that of the first configuration that asks the same items; None where none can judge."""
    if protocol.prompt.startswith(PREFIX):
        asked = CONFIGS.get(protocol.prompt.removeprefix(PREFIX))
        return protocol.prompt if asked is not None and _can(asked, protocol) else None
    found = next((stock for stock in CONFIGS.values() if _can(stock, protocol)), None)
    return f"{PREFIX}{found.name}" if found is not None else None


def _can(stock: StockConfig, protocol: TaskProtocol) -> bool:
    """Its likelihoods are computed from texts of its own, so that only what it asked itself is of use to it."""
    own = protocol.prompt.startswith(PREFIX)
    if protocol.task not in stock.tasks or stock.runs_code or (stock.whole and protocol.limit is not None):
        return False
    return own or stock.kind == "generate"


def score(directory: Path, job: JobSpec, items: dict[str, tuple[str, ...]], data: Path | None) -> None:
    """Judge what lies in `predictions/` of a score job's directory, and write items and result as a runner does."""
    asked = ChildJob(
        directory=str(directory.resolve()),
        data=None if data is None else str(data.resolve()),
        protocols=protocols_of(job),
        phases=("score",),
        seed=job.seed,
    )
    began = time.monotonic()
    with (directory / LOG).open("wb") as log:
        subprocess.run(
            command(write_job(asked)), env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False
        )
    try:
        done = read_done(asked)
        scores = _take(directory, job, items)
        told = {f"opencompass/{t.task}": f"{t.config} {t.prompt_hash}; {t.evaluator}" for t in done.tasks}
        message = f"Scored {sum(t.items for t in done.tasks)} items."
        write_result(directory, _result(job, message, scores, told, time.monotonic() - began))
    except OpenCompassError as error:
        failed = {"outcome": "failed", "cause": "scoring", "message": str(error)[:2000]}
        write_result(directory, _result(job, "", (), {}).model_copy(update=failed))


def _take(directory: Path, job: JobSpec, items: dict[str, tuple[str, ...]]) -> Sequence[Score]:
    (directory / "items").mkdir()
    scores: list[Score] = []
    for protocol in protocols_of(job):
        told = child_folder(directory) / "items" / f"{protocol.task}.jsonl"
        if not told.is_file():
            raise OutputError(f"OpenCompass said nothing of {protocol.task}")
        told.rename(directory / "items" / told.name)
        scores += summarise(protocol, complete_outcomes(directory, protocol, items[protocol.task]))
    return scores


def _result(
    job: JobSpec, message: str, scores: Sequence[Score], provenance: dict[str, str], seconds: float = 0.0
) -> Result:
    return Result(
        job=job.digest(),
        kind="score",
        outcome="succeeded",
        message=message,
        scores=tuple(scores),
        usage=Usage(evaluate_seconds=seconds),
        provenance=machine() | provenance,
    )
