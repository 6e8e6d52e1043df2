"""The command `dare`. What needs torch runs as a child, `python -m dare`, so that `dare runs` stays instant.

Modules here import the database and numpy inside their functions only: `dare --help` answers at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from dare_platform.cli import (
    controlling,
    devices,
    following,
    keeping,
    launching,
    operating,
    people,
    reading,
    running,
    scoring,
    serving,
    submitting,
    telling,
    verifying,
)
from dare_platform.cli.output import SERVER, Sentences

app = typer.Typer(
    cls=Sentences,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="""Compare post-training algorithms for diffusion language models, fairly.

A first run, start to end:

    dare migrate
    dare submit untouched --backbone llada-tiny
    dare submit bgpo --backbone llada-tiny --set mc_samples=4
    dare worker --until-idle
    dare leaderboard --backbone llada-tiny

Your own method is one file: `dare check my_rule.py`, then `dare submit my_rule.py`.

Settings come from DARE_* variables; everything is kept under DARE_HOME (`.dare`).
Exit codes: 0 done, 1 failed, 2 the request makes no sense, 3 not found, 4 refused by a check.
""",
)


@app.callback()
def _everywhere(
    server: Annotated[
        str | None,
        typer.Option(
            envvar="DARE_SERVER",
            metavar="URL",
            help="Ask this server instead of this machine: entries, runs, boards. DARE_TOKEN, or DARE_TOKEN_FILE, is "
            "your token there.",
        ),
    ] = None,
) -> None:
    SERVER.set(server or None)


ENTRIES, RUNS, MACHINE = "Entries", "Runs", "This machine"
submitting.add_to(app, ENTRIES)
reading.add_to(app, ENTRIES, RUNS)
running.add_to(app, RUNS, MACHINE)
scoring.add_to(app, RUNS)
verifying.add_to(app, RUNS)
following.add_to(app, RUNS)
keeping.add_to(app, MACHINE)
telling.add_to(app, ENTRIES)
launching.add_to(app, MACHINE)
serving.add_to(app, MACHINE)
controlling.add_to(app, MACHINE)
devices.add_to(app, MACHINE)
operating.add_to(app, MACHINE)
people.add_to(app, MACHINE)


def main() -> None:
    """The console script."""
    app()
