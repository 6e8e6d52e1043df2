"""`dare train`: one policy by one method, from what is said on the command line."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

import typer
import yaml
from pydantic import ValidationError

from dare.catalog import UnknownAlgorithmError, load_source
from dare.commands.recipe import backbone_of, base_of
from dare.commands.running import conclude, write_job
from dare.commands.terminal import pairs, refuse
from dare.rewards.own import RewardError, keep
from dare.rewards.weighted import declared
from dare.sampling_config import SamplingConfig
from dare.source import check_hyperparameters, read_source
from dare.spec import STOP_ON, AlarmName, AlgorithmSpec, Budget, Hyperparameters, JobSpec, TrainSettings, TrainSpec


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
    from dare.data.files import DataError, local_data

    given = _yaml(settings)
    unknown = sorted(set(given) - {"hyperparameters", "settings", "sampling"})
    if unknown:
        refuse(f"{settings}: unknown part {unknown[0]!r}; known: hyperparameters, settings, sampling")
    parts = {
        name: _mapping(settings, name, given.get(name) or {}) for name in ("hyperparameters", "settings", "sampling")
    }
    base = base_of(recipe, algorithm)
    data = data or base.data
    hyperparameters: Hyperparameters = {**base.hyperparameters, **parts["hyperparameters"], **pairs(set_ or [])}
    record = backbone_of(recipe, backbone)
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
    write_job(out, job, f"{out} already holds another job; choose another --out or remove it")
    conclude(out, data_folder, tidy=True, project=wandb)


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
    from dare.diary.weights_and_biases import WandbError, library

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
