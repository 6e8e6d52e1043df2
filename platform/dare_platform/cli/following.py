"""`dare logs`: the end of what a run printed, or all of it as it comes."""

from __future__ import annotations

import codecs
import re
import time
from typing import TYPE_CHECKING, Annotated

import typer

from dare_platform.cli.output import (
    FAILED,
    AsJson,
    plain,
    say,
    service,
    write,
    write_json,
)

if TYPE_CHECKING:
    from dare_platform.log_chunks import Place
    from dare_platform.service import Service

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
    with service() as asked:
        if follow and not as_json:
            _follow(asked, run)
            return
        view = asked.run(run, lines)
    if as_json:
        write_json({"run": run, "state": view.summary.state, "lines": list(view.log_tail)})
        return
    for line in view.log_tail:
        write(line)
    if not view.log_tail:
        say(f"No log yet: {view.summary.sentence}.")


def _follow(asked: Service, run: str) -> None:
    """From the first byte of the newest process on, each byte once, whoever watches it and whatever comes after it."""
    from sqlalchemy.exc import OperationalError

    from dare_platform.errors import DatabaseLockedError
    from dare_platform.service import AwayError

    asked.run(run)
    place: Place | None = None
    lines, shown, away = Lines(), False, False
    while True:
        try:
            piece = asked.log(run, place)
        except (DatabaseLockedError, OperationalError, AwayError) as error:  # the place is kept: nothing is missed
            if not away:
                say(f"[dim]The {'server' if isinstance(error, AwayError) else 'database'} is away; waiting.[/]")
            away = True
            time.sleep(FOLLOW_SECONDS)
            continue
        away = False
        place, shown = piece.place, shown or bool(piece.content)
        if piece.is_new:
            _write(lines.end())
            say("[dim]The run begins again in another process:[/]")
        if piece.content or piece.is_new:
            _write(lines.take(piece.content))
        elif piece.is_over:
            break
        else:
            time.sleep(FOLLOW_SECONDS)
    _write(lines.end())
    view = asked.run(run)
    if not shown:  # an attempt of an older version, or its log is purged: what is left is its end
        for line in view.log_tail:
            write(line)
    from dare_platform.verdict import unescaped

    say(unescaped(plain(view.headline)))
    if view.summary.state != "succeeded":
        raise typer.Exit(FAILED)


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
