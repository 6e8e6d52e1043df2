"""Weights & Biases' copy of the diary, for whoever asks for it with `--wandb PROJECT`.

Its own variables say where it goes and as whom (`WANDB_API_KEY`, `WANDB_BASE_URL`); with `WANDB_MODE=offline` the run
is kept in the job directory until `wandb sync`. The library is an extra and is imported here alone.
"""

from __future__ import annotations

import hashlib
import html
import os
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from dare.diary.events import numbers
from dare.diary.tensorboard import as_markdown
from dare.spec import Event, JobSpec, Result


class WandbError(RuntimeError):
    """The run cannot be reported to Weights & Biases. One sentence."""


def library() -> Any:
    """The package `wandb`; WandbError where it is not installed."""
    try:
        return import_module("wandb")
    except ImportError as error:
        raise WandbError("--wandb needs the package wandb; install it with: pip install 'dare[wandb]'") from error


class WeightsAndBiases:
    """A listener of the diary. A run that is started again reports under the id that it had."""

    def __init__(self, project: str, directory: Path, job: JobSpec) -> None:
        wandb = library()
        self._directory = directory
        offline = os.environ.get("WANDB_MODE") in ("offline", "dryrun")
        try:
            self._run = wandb.init(
                project=project,
                name=directory.resolve().name,
                id=run_id(directory, job),
                resume=None if offline else "allow",  # without a server there is nothing to ask for an earlier part
                dir=directory,
                config=job.model_dump(mode="json"),
                settings=wandb.Settings(console="off"),
            )
        except wandb.Error as error:
            raise WandbError(f"Weights & Biases does not take the run: {str(error).rstrip('.')}") from error
        self._html = wandb.Html

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        done = self._directory / "result.json"
        succeeded = done.is_file() and Result.model_validate_json(done.read_text()).outcome == "succeeded"
        self._run.finish(exit_code=0 if succeeded else 1)

    def __call__(self, event: Event) -> None:
        """Report one event."""
        if event.kind == "step":
            self._run.log(numbers(event), step=event.step)
        elif event.kind == "alarm":
            self._run.alert(title=f"{event.stage} at step {event.step}", text=event.detail or "")
        elif event.sample is not None:
            self._run.log(
                {"sample": self._html(f"<pre>{html.escape(as_markdown(event.sample))}</pre>")}, step=event.step
            )


def run_id(directory: Path, job: JobSpec) -> str:
    """The same for the same job in the same folder."""
    return hashlib.sha256(f"{job.digest()} {directory.resolve()}".encode()).hexdigest()[:16]
