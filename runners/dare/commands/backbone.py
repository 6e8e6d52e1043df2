"""`python -m dare backbone`: add a checkpoint to this machine, hash one again, merge adapters into one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from dare.catalog import BackboneRecord, UnknownBackboneError
from dare.commands.terminal import console, refuse, say

FAILED = 1

app = typer.Typer(
    no_args_is_help=True, help="Add a checkpoint to the backbones of this machine, verify one, merge adapters into one."
)


@app.command()
def add(
    source: Annotated[str, typer.Argument(help="A folder, or a hub id like GSAI-ML/LLaDA-8B-Instruct.")],
    revision: Annotated[
        str | None, typer.Option(help="Commit of a hub id; of a branch or tag, the commit is recorded.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What to call it; the folder's or repository's name by default.")
    ] = None,
    licence: Annotated[str | None, typer.Option(help="Of the weights; the hub's card by default.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="The record on stdout.")] = False,
) -> None:
    """Look at a checkpoint without loading it, hash its files, and make it a backbone of this machine.

    A folder stays where it is and needs no network. Configuration, names, shapes, bytes and tokenizer are checked
    first; code and pickles are never fetched. Records lie in DARE_BACKBONES, by default DARE_HOME/backbones.
    """
    from dare.weights.add import Request, add
    from dare.weights.files import BackboneError
    from dare.weights.hub import HubError

    try:
        with _hashing() as bar:
            record = add(Request(source, revision, name, licence), bar.total, bar.advance)
    except (BackboneError, HubError) as error:
        refuse(error)
    if json_:
        typer.echo(record.model_dump_json(indent=2))
    else:
        _show(record)


@app.command()
def verify(
    name: Annotated[str, typer.Argument(help="A backbone of this machine.")],
) -> None:
    """Hash the files of a backbone again and compare with its record. Exit code 1 when they differ."""
    from dare.weights.add import verify
    from dare.weights.headers import CheckpointError

    try:
        with _hashing() as bar:
            problems = verify(name, bar.total, bar.advance)
    except (UnknownBackboneError, CheckpointError) as error:
        refuse(error)
    for problem in problems:
        say(f"{name}: {problem}")
    if problems:
        raise typer.Exit(FAILED)
    say(f"{name} is what its record says.")


@app.command()
def merge(
    name: Annotated[str, typer.Argument(help="The backbone that the adapters were trained on.")],
    adapter: Annotated[Path, typer.Argument(help="A folder with adapters: `adapter/` of a training run, or peft's.")],
    out: Annotated[Path, typer.Argument(help="Where the merged checkpoint goes; must not exist.")],
    prompt: Annotated[
        list[str] | None, typer.Option(help="Text to compare logits on, repeatable; digits by default.")
    ] = None,
) -> None:
    """Write a checkpoint with the adapters in its weights, after comparing logits with the adapted model.

    A merge that computes what the base computes is refused, and so is one that loads as something else.
    """
    from dare.catalog import backbone_directory, backbones
    from dare.family import load_family
    from dare.lora import LoraError, load_adapter
    from dare.tokenizer import TokenizerError
    from dare.weights.merge import export, logits_on, probe_of

    if out.exists():
        refuse(f"{out} exists already; name a folder that does not")
    scratch = out.with_name(f".{out.name}.new")
    try:
        directory = backbone_directory(name)
        family = load_family(backbones()[name].family)
        backbone = family.load(directory)
        adapters = load_adapter(backbone.model, adapter, backbones()[name].ref)
        probe = probe_of(backbone, prompt or ["0123456789"])
        merged = export(adapters, backbone, probe, scratch)
        merged.check(logits_on(probe, family.load(scratch)))
    except (UnknownBackboneError, LoraError, TokenizerError) as error:
        shutil.rmtree(scratch, ignore_errors=True)
        refuse(error)
    scratch.rename(out)
    say(f"{out} is {name} with {len(adapters.layers)} adapters merged; it loads with the logits of the adapted model.")


def _show(record: BackboneRecord) -> None:
    say(record.summary)
    say(f"{record.parameters:,} parameters of family {record.family}, weights {record.weights_sha256[:12]}.")
    say(f"Added as {record.name}, revision {record.revision}, licence {record.licence}.")


class _Bar:
    """How much is hashed."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self.progress = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
        self._task = self.progress.add_task("hashing", total=None)

    def total(self, size: int) -> None:
        self.progress.update(self._task, total=size)
        if console.is_terminal:
            self.progress.start()

    def advance(self, size: int) -> None:
        self.progress.advance(self._task, size)


@contextmanager
def _hashing() -> Iterator[_Bar]:
    bar = _Bar()
    try:
        yield bar
    finally:
        if bar.progress.live.is_started:  # stopping one that was not started writes an empty line
            bar.progress.stop()
