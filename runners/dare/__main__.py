"""`python -m dare`: run a job directory, and the daily loop without platform or database.

Exit codes: 0 succeeded, 1 the run failed (its result says why), 2 the request makes no sense, 130 interrupted.
"""

from __future__ import annotations

import filecmp
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
import yaml
from pydantic import ValidationError
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from dare import answering, backbone_commands, memory_command
from dare.catalog import UnknownAlgorithmError, UnknownBackboneError, backbones, is_shipped, load_source
from dare.source import check_hyperparameters, read_source
from dare.spec import (
    AlgorithmSpec,
    Budget,
    EvaluateSpec,
    Event,
    Hyperparameters,
    JobSpec,
    Result,
    SamplingConfig,
    TaskProtocol,
    TrainSettings,
    TrainSpec,
)
from dare.terminal import at_least, console, pairs, refuse, say
from dare.terminal_text import neutral
from dare.versions import VersionError, require_declared

app = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False
)
Data = Annotated[Path | None, typer.Option(envvar="DARE_DATA", help="Folder of published benchmark data.")]


@app.callback()
def gate() -> None:
    """Run a job directory, and the daily loop without platform or database."""
    try:
        require_declared()
    except VersionError as error:
        refuse(error)


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
            words = [event.detail or self._stage]
            for name in ("reward", "loss"):
                if event.metrics.get(name) is not None:
                    words.append(f"{name} {event.metrics[name]:.3f}")
            self._progress.update(self._task, description=" · ".join(words), completed=event.step, total=event.of)

    def _tell(self, event: Event) -> None:
        """A line per stage and alarm, and one every few seconds in between: for logs."""
        if event.kind == "stage":
            say(f"{event.stage}: {event.detail or ''}".rstrip(": "))
        elif event.kind == "alarm":
            say(f"alarm {event.stage}: {event.detail}")
        elif event.kind in ("step", "progress") and time.monotonic() - self._told >= self.LINE_SECONDS:
            self._told = time.monotonic()
            numbers = [f"{name} {value:.3g}" for name, value in event.metrics.items() if value is not None]
            place = f"{event.detail or 'step'} {event.step}" + (f" of {event.of}" if event.of else "")
            say(" · ".join([place, *numbers]))


def conclude(directory: Path, data: Path | None, tidy: bool = False) -> None:
    """Run a directory with live progress, print how it ended, and exit accordingly. `tidy` removes the checkpoint."""
    from dare.run import EXIT_INTERRUPTED, JobError, run

    try:
        with Live() as live:
            result = run(directory, live.show, data)
        if tidy and result.outcome == "succeeded":
            shutil.rmtree(directory / "checkpoint", ignore_errors=True)
    except JobError as error:
        refuse(error)
    except KeyboardInterrupt:
        say("Interrupted. Run it again to continue from the last checkpoint.")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    show(result)
    raise typer.Exit(0 if result.outcome == "succeeded" else 1)


def show(result: Result) -> None:
    """How a run ended, and its scores."""
    say(result.message)
    if result.scores:
        table = Table("task", "metric", "decoding", "value", "± item s.e.", "n", box=None)
        for score in result.scores:
            error = "" if score.standard_error is None else f"{score.standard_error:.3f}"
            table.add_row(score.task, score.metric, score.decoding, f"{score.value:.3f}", error, str(score.n))
        console.print(table)


@app.command("run")
def run_directory(directory: Path, data: Data = None) -> None:
    """Run the job of DIRECTORY (its job.json) to its result.json. Killed runs continue when started again."""
    conclude(directory, data)


@app.command()
def train(
    algorithm: Annotated[str, typer.Option(help="A built-in algorithm, or a file with one Algorithm subclass.")],
    backbone: Annotated[str, typer.Option(help="A backbone of the catalog, for example llada-tiny.")],
    out: Annotated[Path, typer.Option(help="Job directory to make, or to continue.")],
    data: Annotated[
        str, typer.Option(help="prompts:TASK, corpus:TASK/NAME, preferences:TASK, mix:NAME or file:PATH (JSONL).")
    ] = "prompts:sudoku",
    seed: int = 0,
    steps: Annotated[int, typer.Option(help="Optimiser batches at most.")] = 30,
    settings: Annotated[
        Path | None, typer.Option(help="YAML with hyperparameters, training settings and sampling.")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="hyperparameter=value, repeatable.")] = None,
) -> None:
    """Train one policy and leave it in OUT/model. The same executor as the platform's; resumable.

    Example: `dare train --algorithm bgpo --backbone llada-tiny --out runs/bgpo --set mc_samples=2`
    """
    given = _yaml(settings)
    unknown = sorted(set(given) - {"hyperparameters", "settings", "sampling"})
    if unknown:
        refuse(f"{settings}: unknown part {unknown[0]!r}; known: hyperparameters, settings, sampling")
    parts = {
        name: _mapping(settings, name, given.get(name) or {}) for name in ("hyperparameters", "settings", "sampling")
    }
    hyperparameters: Hyperparameters = {**parts["hyperparameters"], **pairs(set_ or [])}
    record = _record(backbone)
    file = Path(algorithm)
    source: Literal["builtin", "entry"] = "entry" if file.suffix == ".py" else "builtin"
    _check_hyperparameters(file if source == "entry" else None, algorithm, hyperparameters)
    rows = Path(data.removeprefix("file:")) if data.startswith("file:") else None
    if rows is not None and not rows.is_file():
        refuse(f"there is no data file {rows}")
    try:
        job = JobSpec(
            kind="train",
            seed=seed,
            backbone=record.ref,
            train=TrainSpec(
                algorithm=AlgorithmSpec(name=file.stem, source=source, hyperparameters=hyperparameters),
                data="file:train.jsonl" if rows else data,
                settings=TrainSettings(**{"learning_rate": 3e-4, "inner_epochs": 2, **parts["settings"]}),
                sampling=SamplingConfig(**{**record.sampling.model_dump(), **parts["sampling"]}),
                budget=Budget(optimiser_steps=steps, wall_seconds=86_400),
            ),
        )
    except ValidationError as error:
        first = error.errors()[0]
        refuse(f"{'.'.join(str(part) for part in first['loc'])} is {first['input']!r}: {first['msg']}")
    out.mkdir(parents=True, exist_ok=True)
    if rows is not None:
        shutil.copy(rows, out / "train.jsonl")
    if source == "entry":
        (out / "entry").mkdir(exist_ok=True)
        shutil.copy(file, out / "entry" / "algorithm.py")
    _write_job(out, job, f"{out} already holds another job; choose another --out or remove it")
    conclude(out, None, tidy=True)


@app.command()
def evaluate(
    directory: Annotated[Path, typer.Argument(help="A directory that `dare train` finished.")],
    task: Annotated[list[str] | None, typer.Option(help="Task, repeatable; sudoku and countdown by default.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first n items: a quick look, never a score.")] = None,
    samples: Annotated[int, typer.Option(help="Sampled completions per item besides the greedy one.")] = 4,
    data: Data = None,
) -> None:
    """Score the policy of DIRECTORY on tasks; results go to DIRECTORY/evaluation."""
    from dare.run import JobError, read_job
    from dare.tasks import UnknownTaskError, load_task

    at_least(1, limit=limit)
    at_least(0, samples=samples)
    if not directory.is_dir():
        refuse(f"there is no directory {directory}")
    if data is not None and not data.is_dir():
        refuse(f"there is no folder of data {data}")
    try:
        trained = read_job(directory)
        tasks = [load_task(name) for name in dict.fromkeys(task or ["sudoku", "countdown"])]
    except (JobError, UnknownTaskError) as error:
        refuse(error)
    except OSError as error:
        refuse(f"{directory / 'job.json'} cannot be read: {error.strerror}")
    if trained.train is None:
        refuse(f"{directory} holds a job of kind {trained.kind!r}; give the directory of a `dare train`")
    if not (directory / "model" / "model.safetensors").is_file():
        refuse(f"{directory} holds no trained policy yet: let `dare train --out {directory} ...` finish first")
    block = trained.train.sampling.block_length
    sampling = trained.train.sampling.model_copy(update={"temperature": 0.0, "steps_per_block": block})
    protocols = tuple(
        TaskProtocol(
            task=t.name,
            task_version=t.version,
            limit=limit,
            sampling=sampling,
            samples=samples,
            sample_steps_per_block=trained.train.sampling.steps_per_block,
        )
        for t in tasks
    )
    job = JobSpec(
        kind="evaluate",
        seed=trained.seed,
        backbone=trained.backbone,
        evaluate=EvaluateSpec(protocols=protocols, trained=True),
    )
    out = directory / "evaluation"
    stored = out / "weights" / "model.safetensors"
    if stored.is_file() and not filecmp.cmp(stored, directory / "model" / "model.safetensors", shallow=False):
        refuse(f"{out} evaluates another policy than {directory / 'model'} holds now; remove it to evaluate this one")
    out.mkdir(exist_ok=True)
    _write_job(out, job, f"{out} holds an evaluation with other tasks, limit or samples; remove it to evaluate anew")
    shutil.copytree(directory / "model", out / "weights", dirs_exist_ok=True)
    conclude(out, data)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="A Python file with one Algorithm subclass.")],
    backbone: Annotated[list[str] | None, typer.Option(help="Tiny backbones to check on; all by default.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="hyperparameter=value, repeatable.")] = None,
    seed: int = 0,
    json_: Annotated[bool, typer.Option("--json", help="One JSON object per rule on stdout.")] = False,
) -> None:
    """Run the algorithm contract on tiny backbones. Executes FILE: use it on your own code."""
    from dare.algorithm import AlgorithmError, load_algorithm
    from dare.catalog import backbone_directory
    from dare.check import contract
    from dare.family import load_family

    if not file.is_file():
        refuse(f"there is no file {file}")
    spec = AlgorithmSpec(name=file.stem, source="entry", hyperparameters=pairs(set_ or []))
    try:
        algorithm = load_algorithm(spec, file)
    except (AlgorithmError, TypeError, ValueError, SyntaxError, ImportError) as error:
        refuse(f"{file}: {error}")
    failed = 0
    for name in backbone or [n for n, r in backbones().items() if r.tiny and is_shipped(n)]:
        loaded = load_family(_record(name).family).load(backbone_directory(name))
        missing = algorithm.record - loaded.records
        if missing:
            say(f"{name}: not applicable, its sampler does not record {', '.join(sorted(missing))}")
            continue
        for outcome in contract(algorithm, loaded, seed):
            failed += not outcome.passed
            if json_:
                typer.echo(
                    json.dumps(
                        {"backbone": name, "rule": outcome.name, "passed": outcome.passed, "sentence": outcome.sentence}
                    )
                )
            else:
                mark = "[green]✓[/]" if outcome.passed else "[red]✗[/]"
                console.print(f"{mark} {name} {outcome.name}: {escape(neutral(outcome.sentence))}", highlight=False)
    raise typer.Exit(1 if failed else 0)


@app.command()
def pretrain(
    name: Annotated[str, typer.Argument(help="A tiny backbone, for example dream-tiny.")],
    out: Annotated[Path | None, typer.Option(help="Where to put it; the catalog's folder by default.")] = None,
    steps: Annotated[int | None, typer.Option(help="Fewer steps than the recipe, for a trial.")] = None,
) -> None:
    """Make a tiny backbone again from its recipe: minutes on one CPU core."""
    import dare
    from dare.pretrain import UnknownRecipeError, pretrain

    target = out or Path(dare.__file__).parent / "backbones" / name
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=console) as progress:
            bar = progress.add_task(name, total=None)

            def step(done: int, of: int, loss: float) -> None:
                progress.update(bar, completed=done, total=of, description=f"{name} · loss {loss:.3f}")

            record = pretrain(name, target, step, steps)
    except UnknownRecipeError as error:
        refuse(error)
    say(f"{target}: {record.parameters:,} parameters, sha256 {record.weights_sha256[:16]}")


def _record(name: str) -> Any:
    try:
        return backbones()[name]
    except KeyError:
        refuse(UnknownBackboneError(f"unknown backbone {name!r}; known: {', '.join(backbones())}"))


def _yaml(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        refuse(f"{path}: {error}")
    if not isinstance(given, dict):
        refuse(f"{path} must be a mapping")
    return given


def _mapping(path: Path | None, name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        refuse(f"{path}: {name} is {value!r}; it must be a mapping of names to values")
    return value


def _check_hyperparameters(file: Path | None, name: str, given: Hyperparameters) -> None:
    """Refuse a file that cannot be read as an algorithm, an unknown algorithm, and settings that it does not have."""
    if file is not None and not file.is_file():
        refuse(f"there is no file {file}")
    try:
        reading = read_source(file.read_bytes(), file.stem, file.name) if file is not None else None
        source = load_source(name) if reading is None else reading.algorithm
    except UnknownAlgorithmError as error:
        refuse(error)
    problems = reading.problems if reading is not None else ()
    if source is not None and not problems:
        problems = check_hyperparameters(source, given, {})
    if problems:
        refuse(problems[0].text)


def _write_job(directory: Path, job: JobSpec, otherwise: str) -> None:
    """Write job.json; refuse with `otherwise` where the directory has another one."""
    path = directory / "job.json"
    if path.exists() and path.read_text() != job.model_dump_json(indent=1):
        refuse(otherwise)
    path.write_text(job.model_dump_json(indent=1))


answering.add_to(app)
app.add_typer(backbone_commands.app, name="backbone")
app.command()(memory_command.memory)

if __name__ == "__main__":
    app()
    sys.exit(0)
