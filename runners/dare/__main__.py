"""`python -m dare`: run a job directory, and the daily loop without platform or database.

Exit codes: 0 succeeded, 1 the run failed (its result says why), 2 the request makes no sense, 130 interrupted.
"""

from __future__ import annotations

import filecmp
import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

import typer
import yaml
from pydantic import ValidationError
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from dare import (
    answering,
    backbone_commands,
    data_command,
    diagnose_command,
    memory_command,
    new_command,
    package_command,
    recipe_commands,
)
from dare.catalog import UnknownAlgorithmError, UnknownBackboneError, backbones, is_shipped, load_source
from dare.data_files import DataError, local_data
from dare.metrics import Listener
from dare.own_reward import RewardError, keep
from dare.reward import declared
from dare.source import check_hyperparameters, read_source
from dare.spec import (
    STOP_ON,
    AlarmName,
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
from dare.support import not_recorded
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
    from dare.run import EXIT_INTERRUPTED, JobError, run
    from dare.weights_and_biases import WandbError

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
    from dare.run import read_job
    from dare.weights_and_biases import WeightsAndBiases

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


@app.command("run")
def run_directory(directory: Path, data: Data = None) -> None:
    """Run the job of DIRECTORY (its job.json) to its result.json. Killed runs continue when started again."""
    conclude(directory, data)


@app.command()
def train(
    algorithm: Annotated[str, typer.Option(help="A built-in algorithm, or a file with one Algorithm subclass.")],
    out: Annotated[Path, typer.Option(help="Job directory to make, or to continue.")],
    backbone: Annotated[
        str | None, typer.Option(help="A backbone of the catalog, for example llada-tiny; the recipe's by default.")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="TRACK/BACKBONE/TASK of `dare recipe list`; what is given beside it wins.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="prompts:TASK, corpus:TASK/NAME, preferences:TASK, mix:NAME, file:PATH or hub:ID@COMMIT/SPLIT."
        ),
    ] = None,
    seed: int = 0,
    steps: Annotated[int | None, typer.Option(help="Optimiser batches at most; 30 without a recipe.")] = None,
    settings: Annotated[
        Path | None, typer.Option(help="YAML with hyperparameters, training settings and sampling.")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="hyperparameter=value, repeatable.")] = None,
    stop_on: Annotated[
        list[str] | None,
        typer.Option(
            help="Alarm that ends the run when it lasts, repeatable; `none` only warns. Default: collapse, gradient."
        ),
    ] = None,
    reward: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART[=WEIGHT]",
            help="Part of the reward, repeatable: correct, task, format, ..., ./file.py:function. Default: the task's.",
        ),
    ] = None,
    reward_sum: Annotated[
        bool, typer.Option(help="Add the weighted parts up without dividing by the weights.")
    ] = False,
    data_folder: Annotated[
        Path | None, typer.Option(envvar="DARE_DATA", help="Folder of published benchmark data, for prompts:gsm8k.")
    ] = None,
    wandb: Annotated[
        str | None, typer.Option(metavar="PROJECT", help="Report to Weights & Biases too; WANDB_MODE=offline keeps it.")
    ] = None,
) -> None:
    """Train one policy and leave it in OUT/model. The same executor as the platform's; resumable.

    Curves are in OUT/tensorboard: `tensorboard --logdir OUT`.

    Example: `dare train --algorithm bgpo --backbone llada-tiny --out runs/bgpo --set mc_samples=2`
    """
    given = _yaml(settings)
    unknown = sorted(set(given) - {"hyperparameters", "settings", "sampling"})
    if unknown:
        refuse(f"{settings}: unknown part {unknown[0]!r}; known: hyperparameters, settings, sampling")
    parts = {
        name: _mapping(settings, name, given.get(name) or {}) for name in ("hyperparameters", "settings", "sampling")
    }
    base = recipe_commands.base_of(recipe, algorithm)
    data = data or base.data
    hyperparameters: Hyperparameters = {**base.hyperparameters, **parts["hyperparameters"], **pairs(set_ or [])}
    record = recipe_commands.backbone_of(recipe, backbone)
    file = Path(algorithm)
    source: Literal["builtin", "entry"] = "entry" if file.suffix == ".py" else "builtin"
    _check_hyperparameters(file if source == "entry" else None, algorithm, hyperparameters)
    try:
        rows = local_data(data)
        rewarded = declared(reward or [], normalised=not reward_sum)
    except (DataError, RewardError) as error:
        refuse(error)
    try:
        job = JobSpec(
            kind="train",
            seed=seed,
            backbone=record.ref,
            train=TrainSpec(
                algorithm=AlgorithmSpec(name=file.stem, source=source, hyperparameters=hyperparameters),
                data=rows.reference if rows is not None else data,
                settings=TrainSettings(**{**base.settings, **parts["settings"]}),
                sampling=SamplingConfig(**{**(base.sampling or record.sampling.model_dump()), **parts["sampling"]}),
                budget=Budget(**{**base.budget, **({} if steps is None else {"optimiser_steps": steps})}),
                stop_on=_alarms(stop_on),
                reward=rewarded,
            ),
        )
    except ValidationError as error:
        first = error.errors()[0]
        refuse(f"{'.'.join(str(part) for part in first['loc'])} is {first['input']!r}: {first['msg']}")
    if wandb is not None:
        _require_wandb()
    out.mkdir(parents=True, exist_ok=True)
    if rows is not None:
        rows.copy_to(out)
    try:
        for reference in reward or []:
            keep(reference.rpartition("=")[0] or reference, out)
    except RewardError as error:
        refuse(error)
    if source == "entry":
        (out / "entry").mkdir(exist_ok=True)
        shutil.copy(file, out / "entry" / "algorithm.py")
    _write_job(out, job, f"{out} already holds another job; choose another --out or remove it")
    conclude(out, data_folder, tidy=True, project=wandb)


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
        if reason := not_recorded(algorithm.record, loaded.records):
            say(f"{name}: not applicable, {file.name} {reason}")
            continue
        told: set[str] = set()
        for outcome in contract(algorithm, loaded, seed):
            failed += not outcome.passed
            if json_:
                row = {"rule": outcome.name, "passed": outcome.passed, "sentence": outcome.sentence}
                typer.echo(json.dumps({"backbone": name, **row, "hint": outcome.hint}))
            elif outcome.passed:
                console.print(f"[green]✓[/] {name} {outcome.name}", highlight=False)
            elif outcome.sentence in told:
                console.print(f"[red]✗[/] {name} {outcome.name}: for the same reason", highlight=False)
            else:
                told.add(outcome.sentence)
                said = escape(neutral(outcome.sentence))
                console.print(f"[red]✗[/] {name} {outcome.name}: {said}", highlight=False)
                console.print(f"    {escape(outcome.hint)}", highlight=False)
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


def _require_wandb() -> None:
    """Refuse before anything is written, not when the run begins."""
    from dare.weights_and_biases import WandbError, library

    try:
        library()
    except WandbError as error:
        refuse(error)


def _alarms(names: list[str] | None) -> tuple[AlarmName, ...]:
    """What --stop-on says."""
    if names is None:
        return STOP_ON
    if names == ["none"]:
        return ()
    known = get_args(AlarmName)
    for name in names:
        if name not in known:
            refuse(f"--stop-on {name}: there is no such alarm; known: {', '.join(known)}, or none alone")
    return tuple(cast(list[AlarmName], sorted(set(names))))


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
app.add_typer(data_command.app, name="data")
app.add_typer(recipe_commands.app, name="recipe")
app.command()(memory_command.memory)
app.command()(diagnose_command.diagnose)
app.command()(new_command.new)
app.command()(package_command.package)

if __name__ == "__main__":
    app()
    sys.exit(0)
