"""`dare migrate`, `backbone`, `doctor`, `clean`: what keeps a machine in order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from dare_platform.cli.output import (
    FAILED,
    INTERRUPTED,
    AsJson,
    Sentences,
    reading,
    say,
    settings,
    show,
    table,
    write_json,
    writing,
)
from dare_platform.cli.running import PASSED_ON, child

backbone = typer.Typer(
    cls=Sentences,
    no_args_is_help=True,
    help="List, add, verify and merge the backbones of this machine, or make a tiny one.",
)
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without this it is only shown.")]


def add_to(app: typer.Typer, panel: str) -> None:
    """Register the commands."""
    for command in (demo, down, migrate, doctor, clean):
        app.command(rich_help_panel=panel)(command)
    app.add_typer(backbone, name="backbone", rich_help_panel=panel)


def demo(
    quick: Annotated[bool, typer.Option("--quick", help="One seed instead of three; the control stays.")] = False,
    data: Annotated[Path | None, typer.Option(envvar="DARE_DATA", help="Folder of published benchmark data.")] = None,
) -> None:
    """The whole way once: submit, train, evaluate and rank on this machine's CPU, with the site running.

    Interrupt it and start it again: it goes on. What it started stays until `dare down`.
    """
    from rich.console import Console

    from dare_platform import demo as whole_way

    console = Console()
    try:
        code = whole_way.run(replace(settings(), data=data), quick=quick, console=console)
    except KeyboardInterrupt:
        say("Interrupted. The workers go on; `dare demo` shows them again, `dare down` stops them.")
        raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(code)


def down() -> None:
    """Stop the site and the workers that `dare demo` started. A run in progress goes back into the queue."""
    from dare_platform.keeper import Keeper

    stopped = Keeper(settings().home).stop_all()
    say(f"Stopped {', '.join(stopped)}." if stopped else "Nothing was running.")


def migrate() -> None:
    """Make or update the database, and register the tracks, tasks and backbones of this version.

    Safe to run twice, and by two at once.
    """
    from dare_platform import database
    from dare_platform.errors import RegistryError
    from dare_platform.registry import register_track
    from dare_platform.tracks import tracks

    current = settings()
    database.migrate(current)
    for track in tracks().values():
        try:
            with writing() as session:
                register_track(session, track, current.data)
        except RegistryError as error:
            say(f"[bold]dare:[/] track {track.name} is not registered: {error}")
            raise typer.Exit(FAILED) from None
        say(f"Track {track.name} is registered.")
    say(f"The database is up to date: {current.home}")


@backbone.command("list")
def backbone_list(as_json: AsJson = False) -> None:
    """List the backbones that are on this machine, with what they are."""
    from dare.catalog import backbones, is_shipped

    records = list(backbones().values())
    if as_json:
        write_json([record.model_dump(mode="json") for record in records])
    elif not records:
        say("No backbone yet. Make a tiny one: dare backbone pretrain llada-tiny. Add one: dare backbone add FOLDER")
    else:
        rows = [
            (
                r.name,
                r.family,
                f"{r.parameters:,}",
                "tiny" if r.tiny else "",
                r.revision,
                r.weights_sha256[:12],
                r.licence,
                "shipped" if is_shipped(r.name) else r.origin or str(r.directory),
            )
            for r in records
        ]
        show(table("name", "family", "parameters:", "size", "revision", "weights", "licence", "from", rows=rows))


@backbone.command("pretrain", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def backbone_pretrain(
    context: typer.Context, name: Annotated[str, typer.Argument(help="A tiny backbone, for example dream-tiny.")]
) -> None:
    """Make a tiny backbone again from its recipe: minutes on one CPU core."""
    raise typer.Exit(child("pretrain", name, *context.args))


@backbone.command("add", context_settings=PASSED_ON)
def backbone_add(context: typer.Context) -> None:
    """Add a checkpoint: a folder, or a hub id with a revision. All options: `dare backbone add --help`.

    `dare backbone add checkpoints/LLaDA-8B-Instruct` · `dare backbone add GSAI-ML/LLaDA-8B-Instruct --revision main`
    """
    raise typer.Exit(child("backbone", "add", *context.args))


@backbone.command("verify", context_settings=PASSED_ON)
def backbone_verify(context: typer.Context) -> None:
    """Hash the files of a backbone again and compare with its record. `dare backbone verify NAME`."""
    raise typer.Exit(child("backbone", "verify", *context.args))


@backbone.command("merge", context_settings=PASSED_ON)
def backbone_merge(context: typer.Context) -> None:
    """Write a checkpoint with trained adapters in its weights. `dare backbone merge NAME ADAPTER OUT`."""
    raise typer.Exit(child("backbone", "merge", *context.args))


def doctor(as_json: AsJson = False) -> None:
    """Look at everything a run needs, and say how to mend what is missing. Exit code 1 if something must be mended."""
    from dare_platform.diagnosis import diagnose

    findings = diagnose(settings())
    if as_json:
        write_json(findings)
    else:
        mark = {"ok": "✓", "note": "·", "bad": "✗"}
        rows = [(mark[f.state], f.subject, f"{f.finding}; {f.remedy}" if f.remedy else f.finding) for f in findings]
        show(table("", "what", "finding", rows=rows))
    raise typer.Exit(FAILED if any(finding.state == "bad" for finding in findings) else 0)


def clean(yes: Yes = False, as_json: AsJson = False) -> None:
    """Show what takes disk under DARE_HOME, and remove job directories that nothing needs any more.

    Results, logs and kept files live elsewhere and stay. Without `--yes` nothing is removed.
    """
    from dare_platform import cleaning

    current = settings()
    with reading() as session:
        report = cleaning.survey(session, current)
    freed = cleaning.remove(current, report) if yes else 0
    if as_json:
        write_json({"report": report, "removed_bytes": freed})
        return
    rows = [(part.name, part.files, _size(part.bytes)) for part in report.parts]
    show(table("what", "files:", "size:", rows=rows))
    if not report.removable:
        say("Nothing can go.")
    elif yes:
        say(f"Job directories of finished runs removed: {len(report.removable)}, {_size(freed)} freed.")
    else:
        size = _size(report.removable_bytes)
        say(f"Job directories of finished runs that can go: {len(report.removable)}, {size}. Do it: dare clean --yes")


def _size(number: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= factor:
            return f"{number / factor:.1f} {unit}"
    return f"{number} B"
