"""`python -m dare.opencompass JOB.json`: the child. `dare.opencompass.job` says what it is told and leaves behind."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

from pydantic import ValidationError

from dare.opencompass.alignment import MismatchError
from dare.opencompass.asking import EndpointError
from dare.opencompass.job import DONE, KEY, OFFLINE, ChildJob, Done, FailureCause, Progress, Tell, child_folder
from dare.opencompass.verdicts import EvaluatorError
from dare.scoring import EvaluationError
from dare.tasks import MissingDataError

USAGE = "usage: python -m dare.opencompass JOB.json"
CAUSES: dict[type[Exception], FailureCause] = {
    MissingDataError: "data",
    MismatchError: "mismatch",
    EvaluationError: "mismatch",
    EndpointError: "endpoint",
    EvaluatorError: "scoring",
}


def main(words: list[str]) -> int:
    """0 when everything that was asked for is there. `done.json` says more."""
    began = time.monotonic()
    if len(words) != 1:
        sys.stderr.write(f"{USAGE}\n")
        return 2
    try:
        job = ChildJob.model_validate_json(Path(words[0]).read_text(encoding="utf-8"))
    except (OSError, ValidationError) as error:
        sys.stderr.write(f"{words[0]} is no job: {error}\n")
        return 2
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # OpenCompass prints what it likes; its lines are not ours

    def tell(progress: Progress) -> None:
        lines.write(f"{progress.model_dump_json()}\n")

    tell(Progress(phase="start"))
    api_key = os.environ.pop(KEY, None)  # not for evaluators, which start processes
    try:
        done = _work(job, api_key, tell, began)
    except tuple(CAUSES) as error:
        cause = next(cause for known, cause in CAUSES.items() if isinstance(error, known))
        done = Done(job=job.digest(), outcome="failed", cause=cause, message=str(error))
    except Exception as error:  # the parent has nothing but what is written here
        traceback.print_exc()
        done = Done(
            job=job.digest(), outcome="failed", cause="internal", message=f"{type(error).__name__}: {error}"[:2000]
        )
    _write(job, done)
    if done.outcome == "failed":
        sys.stderr.write(f"{done.message}\n")
    return 0 if done.outcome == "succeeded" else 1


def _work(job: ChildJob, api_key: str | None, tell: Tell, began: float) -> Done:
    scratch = child_folder(Path(job.directory)) / "work"
    shutil.rmtree(scratch, ignore_errors=True)  # of a start that was killed
    scratch.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=scratch, prefix="start-", ignore_cleanup_errors=True) as name:
        os.environ |= OFFLINE | {"HF_HOME": name, "TMPDIR": name}
        tempfile.tempdir = name
        os.chdir(name)  # some of its parts write where they are
        from dare.opencompass.child import work

        return work(job, api_key, tell, Path(name), time.monotonic() - began)


def _write(job: ChildJob, done: Done) -> None:
    path = child_folder(Path(job.directory)) / DONE
    scratch = path.with_suffix(".new")
    scratch.write_text(done.model_dump_json(indent=1), encoding="utf-8")
    scratch.replace(path)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # threads may still wait for a server that is gone
