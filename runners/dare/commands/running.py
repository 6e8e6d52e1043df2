"""A run in front of somebody: `dare run`, live progress, and how a run ends."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from dare.commands.terminal import console, refuse, say
from dare.diary.events import Listener
from dare.spec import Event, JobSpec, Result

Data = Annotated[Path | None, typer.Option(envvar="DARE_DATA", help="Folder of published benchmark data.")]


def run_directory(directory: Path, data: Data = None) -> None:
    """Run the job of DIRECTORY (its job.json) to its result.json. Killed runs continue when started again."""
    conclude(directory, data)


class Live:
    """Progress of a run on a terminal: stage, step, reward, time left. Plain lines where there is no terminal."""

    LINE_SECONDS = 5.0

    def __init__(self) -> None:
        self._told = -self.LINE_SECONDS
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._progress = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console)
        self._task = self._progress.add_task("prepare", total=None)
        self._stage = "prepare"

    def __enter__(self) -> Live:
        if console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, event: Event) -> None:
        """Show one event."""
        if not console.is_terminal:
            self._tell(event)
            return
        if event.kind == "stage":
            self._stage = event.stage or ""
            self._progress.update(self._task, description=f"{self._stage} {event.detail or ''}".strip())
        elif event.kind == "alarm":
            say(f"alarm {event.stage}: {event.detail}")
        elif event.kind in ("step", "progress"):
            words = " · ".join([event.detail or self._stage, *_few(event)])
            self._progress.update(self._task, description=words, completed=event.step, total=event.of)

    def _tell(self, event: Event) -> None:
        """A line per stage and alarm, and one every few seconds in between: for logs."""
        if event.kind == "stage":
            say(f"{event.stage}: {event.detail or ''}".rstrip(": "))
        elif event.kind == "alarm":
            say(f"alarm {event.stage}: {event.detail}")
        elif event.kind in ("step", "progress") and time.monotonic() - self._told >= self.LINE_SECONDS:
            self._told = time.monotonic()
            place = f"{event.detail or 'step'} {event.step}" + (f" of {event.of}" if event.of else "")
            say(" · ".join([place, *_few(event)]))


SHOWN = ("reward", "solved", "margin", "prefers_chosen", "loss", "gradient_norm", "kl")
"""What a step is told by on a terminal; all of its metrics are in the diary and its copies."""


def _few(event: Event) -> list[str]:
    """The numbers of a step that fit into a line; one that was not finite is told too."""
    told = {name: event.metrics[name] for name in SHOWN if name in event.metrics}
    return [f"{name} {'not finite' if value is None else f'{value:.3g}'}" for name, value in told.items()]


def conclude(directory: Path, data: Path | None, tidy: bool = False, project: str | None = None) -> None:
    """Run a directory with live progress, print how it ended, and exit accordingly.

    Args:
        tidy: removes the checkpoint of a run that succeeded.
        project: of Weights & Biases, which then hears of every event too.
    """
    from dare.diary.weights_and_biases import WandbError
    from dare.run import EXIT_INTERRUPTED, JobError, run

    try:
        with _reported(project, directory) as report, Live() as live:

            def hear(event: Event) -> None:
                live.show(event)
                report(event)

            result = run(directory, hear, data)
        if tidy and result.outcome == "succeeded":
            shutil.rmtree(directory / "checkpoint", ignore_errors=True)
    except (JobError, WandbError) as error:
        refuse(error)
    except KeyboardInterrupt:
        say("Interrupted. Run it again to continue from the last checkpoint.")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    show(result)
    raise typer.Exit(0 if result.outcome == "succeeded" else 1)


@contextmanager
def _reported(project: str | None, directory: Path) -> Iterator[Listener]:
    """Who else hears of every event of the run: Weights & Biases, or nobody."""
    if project is None:
        yield lambda _: None
        return
    from dare.diary.weights_and_biases import WeightsAndBiases
    from dare.run import read_job

    with WeightsAndBiases(project, directory, read_job(directory)) as listener:
        yield listener


def show(result: Result) -> None:
    """How a run ended, and its scores."""
    say(result.message)
    if result.scores:
        table = Table("task", "metric", "decoding", "value", "± item s.e.", "n", box=None)
        for score in result.scores:
            error = "" if score.standard_error is None else f"{score.standard_error:.3f}"
            table.add_row(score.task, score.metric, score.decoding, f"{score.value:.3f}", error, str(score.n))
        console.print(table)


def write_job(directory: Path, job: JobSpec, otherwise: str) -> None:
    """Write job.json; refuse with `otherwise` where the directory has another one."""
    path = directory / "job.json"
    if path.exists() and path.read_text() != job.model_dump_json(indent=1):
        refuse(otherwise)
    path.write_text(job.model_dump_json(indent=1))
