"""`dare pretrain`: a tiny backbone made again from its recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dare.commands.terminal import console, refuse, say


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
