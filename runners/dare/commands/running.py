"""A run in front of somebody: `dare run`, live progress, and how a run ends."""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dare.commands.terminal import console, refuse, say
from dare.diary.events import Listener
from dare.flags import Disagreement, Flag, disagreements, flags_of, interval
from dare.job import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, JobError, read_job
from dare.spec import Event, ItemOutcome, JobSpec, Result, Score, TaskProtocol
from dare.tasks import UnknownTaskError, load_task

Data = Annotated[Path | None, typer.Option(envvar="DARE_DATA", help="Folder of published benchmark data.")]


def run_directory(directory: Path, data: Data = None) -> None:
    """Run the job of DIRECTORY (its job.json) to its result.json. Killed runs continue when started again."""
    conclude(directory, data)


class Live:
    """Progress of a run on a terminal: stage, step, reward, rate, time left. Plain lines where there is no terminal."""

    LINE_SECONDS = 5.0

    def __init__(self) -> None:
        self._told = -self.LINE_SECONDS
        self._rate = Rate()
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
            words = " · ".join([event.detail or self._stage, *_few(event), *self._rate.words(event)])
            self._progress.update(self._task, description=words, completed=event.step, total=event.of)

    def _tell(self, event: Event) -> None:
        """A line per stage and alarm, and one every few seconds in between: for logs."""
        if event.kind == "stage":
            say(f"{event.stage}: {event.detail or ''}".rstrip(": "))
        elif event.kind == "alarm":
            say(f"alarm {event.stage}: {event.detail}")
        elif event.kind in ("step", "progress"):
            rate = self._rate.words(event, left=True)
            if time.monotonic() - self._told >= self.LINE_SECONDS:
                self._told = time.monotonic()
                place = f"{event.detail or 'step'} {event.step}" + (f" of {event.of}" if event.of else "")
                say(" · ".join([place, *_few(event), *rate]))


class Rate:
    """Items a second over the last half minute, by the runner's own clock: what was there before is no speed."""

    SECONDS = 30.0

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def words(self, event: Event, left: bool = False) -> list[str]:
        """`2.1 items/s`, and with `left` how long the rest takes; nothing while it is not known."""
        if event.kind != "progress" or event.step is None:
            return []
        if self._seen and event.step < self._seen[-1][1]:  # something else is counted now
            self._seen.clear()
        self._seen.append((event.at, event.step))
        while len(self._seen) > 2 and event.at - self._seen[0][0] > self.SECONDS:
            self._seen.popleft()
        (began, before), (now, done) = self._seen[0], self._seen[-1]
        if now <= began or done <= before:
            return []
        rate = (done - before) / (now - began)
        words = [f"{rate:.3g} items/s"]
        if left and event.of:
            words.append(f"{(event.of - done) / rate:,.0f} s left")
        return words


HEAD = ("task", "scorer", "solved", "95 %", "chance", "n", "no answer", "truncated", "undecoded", "errors")
SHOWN = ("reward", "solved", "margin", "prefers_chosen", "loss", "gradient_norm", "kl")
"""What a step is told by on a terminal; all of its metrics are in the diary and its copies."""


def _few(event: Event) -> list[str]:
    """The numbers of a step that fit into a line; one that was not finite is told too."""
    told = {name: event.metrics[name] for name in SHOWN if name in event.metrics}
    return [f"{name} {'not finite' if value is None else f'{value:.3g}'}" for name, value in told.items()]


def conclude(
    directory: Path, data: Path | None, tidy: bool = False, project: str | None = None, as_json: bool = False
) -> None:
    """Run a directory with live progress, print how it ended, and exit accordingly.

    Args:
        tidy: removes the checkpoint of a run that succeeded.
        project: of Weights & Biases, which then hears of every event too.
        as_json: prints the result as it is written, and no table.
    """
    try:
        run = _runner(directory)
        with _reported(project, directory) as report, Live() as live:

            def hear(event: Event) -> None:
                live.show(event)
                report(event)

            result = run(directory, hear, data)
        if tidy and result.outcome == "succeeded":
            shutil.rmtree(directory / "checkpoint", ignore_errors=True)
    except JobError as error:
        refuse(error)
    except KeyboardInterrupt:
        say("Interrupted. Run it again to continue from what is stored.")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if as_json:
        typer.echo(result.model_dump_json(indent=1))
    else:
        show(result, directory)
    raise typer.Exit(EXIT_OK if result.outcome == "succeeded" else EXIT_FAILED)


def _runner(directory: Path) -> Callable[[Path, Listener | None, Path | None], Result]:
    """What runs a job of this kind: stored answers are scored without a model, hence without its libraries."""
    if read_job(directory).kind == "score":
        from dare.scoring_run import run_score

        return run_score
    from dare.run import run

    return run


@contextmanager
def _reported(project: str | None, directory: Path) -> Iterator[Listener]:
    """Who else hears of every event of the run: Weights & Biases, or nobody."""
    if project is None:
        yield lambda _: None
        return
    from dare.diary.weights_and_biases import WandbError, WeightsAndBiases

    try:
        with WeightsAndBiases(project, directory, read_job(directory)) as listener:
            yield listener
    except WandbError as error:
        refuse(error)


def show(result: Result, directory: Path) -> None:
    """How a run ended, and its scores: what was solved with its interval, and what must be said beside it."""
    say(result.message)
    if not result.scores:
        return
    protocols = {protocol.digest(): protocol for protocol in _protocols(read_job(directory))}
    headlines = [score for score in result.scores if (score.metric, score.decoding) == ("solved", "greedy")]
    rows: list[Sequence[str]] = [HEAD]
    for score in headlines:
        counts = (score.n, score.n_no_answer, score.n_truncated, score.n_undecoded, score.n_error)
        words = (score.task, score.scorer, f"{score.value:.1%}", _bounds(score), _floor(score.task))
        rows.append((*words, *map(str, counts)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:  # on one line however narrow the terminal: no number is cut
        say("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    say("95 %: Wilson over items, greedy answers. It says nothing of seeds.")
    for score in headlines:
        for flag in flags_in(result, score, protocols.get(score.protocol), directory):
            say(f"flag {score.task} · {score.scorer} · {flag.name}: {flag.sentence}")
    for score in result.scores:
        if score not in headlines:
            error = "" if score.standard_error is None else f" ± {score.standard_error:.3f}"
            what = f"{score.task} · {score.scorer} · {score.metric}, {score.decoding}"
            say(f"{what}: {score.value:.3f}{error} (n {score.n})")


def flags_in(result: Result, score: Score, protocol: TaskProtocol | None, directory: Path) -> list[Flag]:
    """What must be said beside one headline of a result."""
    reward = next(
        (
            one
            for one in result.scores
            if (one.task, one.scorer, one.metric, one.decoding) == (score.task, score.scorer, "reward", "greedy")
        ),
        None,
    )
    others: list[Disagreement] = []
    if protocol is not None and score.scorer == protocol.scorer:
        others = disagreements(read_outcomes(directory / "items" / f"{score.task}.jsonl"), score.scorer)
    return flags_of(
        score,
        load_task(score.task).chance_floor,
        reward=reward,
        others=others,
        limited=protocol is not None and protocol.limit is not None,
    )


def read_outcomes(path: Path) -> list[ItemOutcome]:
    """The lines of an items file; none where there is none."""
    if not path.is_file():
        return []
    return [ItemOutcome.model_validate_json(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def _protocols(job: JobSpec) -> Sequence[TaskProtocol]:
    part = job.evaluate or job.score
    return () if part is None else part.protocols


def _bounds(score: Score) -> str:
    bounds = interval(score)
    return "" if bounds is None else f"{bounds.low:.1%} to {bounds.high:.1%}"


def _floor(task: str) -> str:
    try:
        return f"{load_task(task).chance_floor:.1%}"
    except UnknownTaskError:
        return ""


def write_job(directory: Path, job: JobSpec, otherwise: str) -> None:
    """Write job.json; refuse with `otherwise` where the directory has another one."""
    path = directory / "job.json"
    if path.exists() and path.read_text() != job.model_dump_json(indent=1):
        refuse(otherwise)
    path.write_text(job.model_dump_json(indent=1))
