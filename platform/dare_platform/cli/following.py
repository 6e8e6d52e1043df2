"""`dare logs`: the end of what a run printed, or all of it as it comes."""

from __future__ import annotations

import codecs
import re
import time
from typing import TYPE_CHECKING, Annotated

import typer

from dare_platform.cli.output import (
    FAILED,
    NOT_FOUND,
    AsJson,
    opened,
    plain,
    reading,
    refuse,
    say,
    write,
    write_json,
)

if TYPE_CHECKING:
    from dare_platform.database import Database
    from dare_platform.log_chunks import Place
    from dare_platform.views import RunView

FOLLOW_SECONDS = 0.5
LONGEST_WAIT = 65536
"""Characters after which a line is shown though its end has not come."""


def add_to(app: typer.Typer, runs_panel: str) -> None:
    """Register the command."""
    app.command(rich_help_panel=runs_panel)(logs)


def logs(
    run: Annotated[str, typer.Argument(help="The run's id.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="All of it, and on until the run ends.")] = False,
    lines: Annotated[int, typer.Option(help="How many, without `-f`.")] = 200,
    as_json: AsJson = False,
) -> None:
    """Print the end of a run's log; `-f` prints all and follows until the run ends.

    `-f` goes on with the next attempt where one is lost, and ends with 0 if the run succeeded, 1 if not.
    """
    if follow and not as_json:
        with opened() as database:
            _follow(database, run)
        return
    from dare_platform import views
    from dare_platform.viewer import LOCAL

    with reading() as session:
        view = views.run_view(session, run, lines, LOCAL)
    if view is None:
        refuse(f"there is no run {run!r}", NOT_FOUND)
    if as_json:
        write_json({"run": run, "state": view.summary.state, "lines": list(view.log_tail)})
        return
    for line in view.log_tail:
        write(line)
    if not view.log_tail:
        say(f"No log yet: {view.summary.sentence}.")


def _follow(database: Database, run: str) -> None:
    """From the first byte of the newest process on, each byte once, whoever watches it and whatever comes after it."""
    from sqlalchemy.exc import OperationalError

    from dare_platform import log_chunks
    from dare_platform.errors import DatabaseLockedError

    _view(database, run)
    place: Place | None = None
    lines, shown, away = Lines(), False, False
    while True:
        try:
            with database.read() as session:
                is_over = log_chunks.is_over(session, run)
                if place is None:
                    place = log_chunks.newest(session, run)
                read = log_chunks.read_on(session, run, place) if place is not None else None
        except (DatabaseLockedError, OperationalError):  # the place is kept: nothing is missed
            if not away:
                say("[dim]The database is away; waiting.[/]")
            away = True
            time.sleep(FOLLOW_SECONDS)
            continue
        away = False
        if read is not None:
            place, shown = read.place, shown or bool(read.content)
            if read.is_new:
                _write(lines.end())
                say("[dim]The run begins again in another process:[/]")
            _write(lines.take(read.content))
        elif is_over:
            break
        else:
            time.sleep(FOLLOW_SECONDS)
    _write(lines.end())
    view = _view(database, run)
    if not shown:  # an attempt of an older version, or its log is purged: what is left is its end
        for line in view.log_tail:
            write(line)
    from dare_platform.verdict import unescaped

    say(unescaped(plain(view.headline)))
    if view.summary.state != "succeeded":
        raise typer.Exit(FAILED)


def _view(database: Database, run: str) -> RunView:
    from dare_platform import views
    from dare_platform.viewer import LOCAL

    with database.read() as session:
        view = views.run_view(session, run, viewer=LOCAL)
    if view is None:
        refuse(f"there is no run {run!r}", NOT_FOUND)
    return view


def _write(text: str) -> None:
    if text:
        write(text)


class Lines:
    """Whole lines out of pieces of bytes that end anywhere, without codes that a terminal would obey."""

    _CODES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = ""

    def take(self, content: bytes) -> str:
        """The lines that are whole now."""
        text = self._begun + self._decoder.decode(content)
        whole, newline, self._begun = text.rpartition("\n")
        if len(self._begun) > LONGEST_WAIT:
            whole, newline, self._begun = text, "", ""
        return self._plain(whole + newline)

    def end(self) -> str:
        """What is left: nothing more comes."""
        text, self._begun = self._begun + self._decoder.decode(b"", final=True), ""
        self._decoder.reset()
        return self._plain(text)

    def _plain(self, text: str) -> str:
        lines = self._CODES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
        return "".join(one for one in lines if one in "\n\t" or one.isprintable())
