"""`dare check`: the algorithm contract on tiny backbones, rule by rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from dare.catalog import BackboneRecord, UnknownBackboneError, backbones, is_shipped
from dare.commands.terminal import console, pairs, refuse, say
from dare.commands.text import neutral
from dare.spec import AlgorithmSpec
from dare.support import not_recorded


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


def _record(name: str) -> BackboneRecord:
    try:
        return backbones()[name]
    except KeyError:
        refuse(UnknownBackboneError(f"unknown backbone {name!r}; known: {', '.join(backbones())}"))
