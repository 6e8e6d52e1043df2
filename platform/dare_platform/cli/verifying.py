"""`dare snapshot`, `verify`: boards that never change, and whether what is stored is what was stored."""

from __future__ import annotations

from typing import Annotated

import typer

from dare_platform.cli.output import (
    FAILED,
    AsJson,
    reading,
    say,
    settings,
    show,
    table,
    track_of,
    write,
    write_json,
    writing,
)


def add_to(app: typer.Typer, panel: str) -> None:
    """Register the commands."""
    for command in (snapshot, verify):
        app.command(rich_help_panel=panel)(command)


def snapshot(
    track: Annotated[str, typer.Option(help="`tiny`, or `tiny@1.0` for a version.")] = "tiny",
    backbone: Annotated[list[str] | None, typer.Option("--backbone", "-b", help="All of the track by default.")] = None,
) -> None:
    """Keep boards as they are now, to cite and to check. Prints their hashes; an unchanged board keeps its own.

    `dare snapshot` · `dare snapshot -b llada-tiny` · then `dare verify HASH`
    """
    from dare_platform import snapshots

    rules = track_of(track)
    for name in backbone or rules.backbones:
        with writing() as session:
            sha256 = snapshots.take(session, rules, name)
        say(f"{rules.name}, {name}:")
        write(sha256)


def verify(
    what: Annotated[
        list[str] | None, typer.Argument(help="Hashes of snapshots, ids of runs; every run and snapshot by default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check answers, verdicts, numbers, files and boards against their hashes. Ends with 1 when one does not match.

    `dare verify 9f3c01ab` · `dare verify RUN` · `dare verify`
    """
    from dare_platform import verification

    current = settings()
    with reading() as session:
        found = [one for name in what or [""] for one in verification.verify(session, current, name)]
    problems = [one for one in found if one.problem]
    if as_json:
        write_json({"checked": len(found), "problems": problems})
    else:
        if problems:
            show(table("of", "what", "found", rows=[(one.subject, one.what, one.problem) for one in problems]))
        subjects = len({one.subject for one in found})
        say(f"{len(found)} hashes and numbers of {subjects} runs and boards checked, {len(problems)} do not match.")
    raise typer.Exit(FAILED if problems else 0)
