"""`python -m dare recipe`: what a run on a real backbone and task is set to, and where each value comes from."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from dare import recipe
from dare.catalog import BackboneRecord, algorithms, backbones
from dare.commands.terminal import console, refuse, say
from dare.source import read_source
from dare.spec import Hyperparameters

app = typer.Typer(no_args_is_help=True, help="Settings of a run on a real backbone and task, composed of differences.")


@app.command("list")
def list_recipes() -> None:
    """Tracks, backbones and tasks: any three of them are a recipe, for every algorithm that the backbone supports."""
    for title, rows in (
        ("track", {track: recipe.track_summary(track) for track in recipe.track_names()}),
        ("backbone", {backbone: recipe.checkpoint_of(backbone) for backbone in recipe.backbone_names()}),
        ("task", {task: recipe.task_title(task) for task in recipe.task_names()}),
    ):
        table = Table(title, "", box=None)
        for name, said in rows.items():
            table.add_row(name, said)
        console.print(table)
    console.print(f"algorithms: {', '.join(algorithms())}", highlight=False)


@app.command()
def show(
    track: Annotated[str, typer.Argument(help="published, matched")],
    backbone: Annotated[str, typer.Argument(help="llada-8b-instruct, dream-7b-instruct, ...")],
    task: Annotated[str, typer.Argument(help="gsm8k, math, countdown, sudoku, code")],
    algorithm: Annotated[str, typer.Argument(help="d1, bgpo, ...")],
) -> None:
    """The whole run as YAML on standard output, each value with the layer that it comes from.

    Example: `dare recipe show published llada-8b-instruct gsm8k d1`
    """
    try:
        composed = recipe.compose(f"{track}/{backbone}/{task}", algorithm)
    except recipe.RecipeError as error:
        refuse(error)
    typer.echo(recipe.as_yaml(composed), nl=False)
    if sentence := recipe.missing_task(composed):
        say(sentence)


@dataclass(frozen=True)
class Base:
    """What `dare train` starts from: a recipe, or a quick look at a tiny backbone."""

    data: str = "prompts:sudoku"
    settings: dict[str, Any] = field(default_factory=lambda: {"learning_rate": 3e-4, "inner_epochs": 2})
    sampling: dict[str, Any] | None = None
    """None is the backbone's own."""
    hyperparameters: Hyperparameters = field(default_factory=dict)
    budget: dict[str, Any] = field(default_factory=lambda: {"optimiser_steps": 30, "wall_seconds": 86_400})


def base_of(reference: str | None, algorithm: str) -> Base:
    """The recipe of a built-in algorithm or of a file, which has no settings of its own there."""
    if reference is None:
        return Base()
    file = Path(algorithm)
    source = read_source(file.read_bytes(), file.stem, file.name).algorithm if file.is_file() else None
    try:
        train = recipe.compose(reference, source or algorithm).train
    except recipe.RecipeError as error:
        refuse(error)
    return Base(
        data=train.data,
        settings=train.settings.model_dump(),
        sampling=train.sampling.model_dump(),
        hyperparameters=train.algorithm.hyperparameters,
        budget=train.budget.model_dump(),
    )


def backbone_of(reference: str | None, backbone: str | None) -> BackboneRecord:
    """The record of the backbone that is named, or that the recipe is for; a sentence says how to get it."""
    if backbone is None and reference is None:
        refuse("name a --backbone, or a --recipe, which has one")
    name = backbone or recipe.parse(reference or "")[1]
    if name not in backbones():
        if backbone is None:
            source = recipe.checkpoint_of(name)
            refuse(f"backbone {name!r} is not on this machine: dare backbone add {source} --name {name}")
        refuse(f"unknown backbone {name!r}; known: {', '.join(backbones())}")
    return backbones()[name]
