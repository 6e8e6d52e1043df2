"""A job directory as whoever runs it sees it: the order, what stops it, and the result, which comes last. No torch."""

from __future__ import annotations

import hashlib
import os
import platform
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from pydantic import ValidationError

import dare
from dare.spec import Artifact, JobSpec, Result

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130
RESULT = "result.json"


class JobError(ValueError):
    """The job directory cannot be run at all; nothing was written. One sentence."""


class Interrupted(BaseException):
    """SIGTERM or Ctrl-C: stop at the next safe place, leave what can be gone on from and no result."""


def read_job(directory: Path) -> JobSpec:
    """The job of a directory; JobError says what is wrong with it."""
    path = directory / "job.json"
    if not path.is_file():
        raise JobError(f"{directory} has no job.json")
    try:
        return JobSpec.model_validate_json(path.read_text(encoding="utf-8"))
    except (ValidationError, UnicodeDecodeError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise JobError(f"{path}: {where}: {first['msg']}") from error


def result_of(directory: Path, job: JobSpec) -> Result | None:
    """The result that the directory has of this job already; None: none yet, or one of another job."""
    finished = directory / RESULT
    if not finished.exists():
        return None
    done = Result.model_validate_json(finished.read_text(encoding="utf-8"))
    return done if done.job == job.digest() else None


def write_result(directory: Path, result: Result) -> None:
    """By rename, and safe on disk: a directory that has a result is finished."""
    scratch = directory / f".{RESULT}.new"
    with scratch.open("w", encoding="utf-8") as file:
        file.write(result.model_dump_json(indent=1))
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(directory / RESULT)


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """SIGTERM and SIGINT end the run without a result; what it has stored stays."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise Interrupted

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def artifact(directory: Path, path: Path) -> Artifact:
    """A file of the job directory with its hash."""
    content = path.read_bytes()
    return Artifact(
        path=path.relative_to(directory).as_posix(), sha256=hashlib.sha256(content).hexdigest(), bytes=len(content)
    )


def machine() -> dict[str, str]:
    """Versions and machine of work that needs no model."""
    return {
        "dare": dare.__version__,
        "source_revision": os.environ.get("DARE_SOURCE_REVISION") or "unknown",
        "python": platform.python_version(),
        "processor": _processor(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
