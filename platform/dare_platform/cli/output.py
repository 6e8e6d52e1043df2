"""What all commands share: exit codes, one sentence for a mistake, tables for people and JSON for programs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.core import TyperGroup

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from dare_platform.database import Database
    from dare_platform.service import Service
    from dare_platform.settings import Settings

FAILED, USAGE, NOT_FOUND, REFUSED, INTERRUPTED = 1, 2, 3, 4, 130

SERVER: ContextVar[str | None] = ContextVar("SERVER", default=None)
"""The address of `--server`; None where this machine is asked."""
AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output, for programs.")]


class Sentences(TyperGroup):
    """A person's mistake, or an absent database, is one sentence on standard error; a mistake of ours is a trace."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            code = exit_code(error)
            if code is None:
                raise
            refuse(getattr(error, "orig", None) or error, code)


def exit_code(error: Exception) -> int | None:
    """What an error that a person can mend ends with; None for any other. Imported here: most commands end well."""
    from sqlalchemy.exc import OperationalError

    from dare.catalog import UnknownAlgorithmError, UnknownBackboneError
    from dare.tasks import MissingDataError
    from dare_platform.accounts import UnknownAccountError
    from dare_platform.entries import RefusedError, UnknownEntryError
    from dare_platform.errors import PlatformError, RescoringError, UnknownRunError
    from dare_platform.gpu import UnknownGpuError
    from dare_platform.snapshots import UnknownSnapshotError
    from dare_platform.tokens import UnknownTokenError
    from dare_platform.tracks import TrackFileError, UnknownTrackError

    unknown = (
        UnknownEntryError,
        UnknownRunError,
        UnknownTrackError,
        UnknownBackboneError,
        UnknownAlgorithmError,
        UnknownGpuError,
        UnknownSnapshotError,
        UnknownTokenError,
        UnknownAccountError,
    )
    if isinstance(error, RefusedError):
        return REFUSED
    if isinstance(error, RescoringError):
        return USAGE
    if isinstance(error, unknown):
        return NOT_FOUND
    return FAILED if isinstance(error, PlatformError | TrackFileError | MissingDataError | OperationalError) else None


def refuse(sentence: object, code: int) -> NoReturn:
    """One sentence on standard error, and the end."""
    say(f"[bold]dare:[/] {escape(plain(str(sentence)))}")
    raise typer.Exit(code)


def say(markup: str) -> None:
    """A line for people, on standard error."""
    Console(stderr=True, soft_wrap=True).print(markup, highlight=False)


def show(table: Table) -> None:
    """A table for people, on standard output."""
    Console().print(table)


def show_for_people(table: Table) -> None:
    """A table for people, on standard error, where standard output is for programs."""
    Console(stderr=True).print(table)


def write(text: str) -> None:
    """Text on standard output as it is: may be piped."""
    typer.echo(text, nl=not text.endswith("\n"))


def write_json(value: Any) -> None:
    """Plain data on standard output."""
    write(json.dumps(_plain_data(value), indent=2, ensure_ascii=False, sort_keys=False))


def _plain_data(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, dict):
        return {key: _plain_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_data(item) for item in value]
    return value


def plain(markdown: str) -> str:
    """A sentence of the pages for a terminal: without its stars."""
    return markdown.replace("**", "")


def table(*columns: str, rows: Sequence[Sequence[object]]) -> Table:
    """A table without frames; a column whose name ends in `:` is aligned to the right."""
    made = Table(box=None, header_style="bold", pad_edge=False)
    for name in columns:
        side: Literal["left", "right"] = "right" if name.endswith(":") else "left"
        whole = name in ("id", "name", "run")  # for copying
        made.add_column(name.rstrip(":"), justify=side, overflow="fold", no_wrap=whole)
    for row in rows:
        made.add_row(*(escape("" if cell is None else str(cell)) for cell in row))
    return made


@contextmanager
def service() -> Iterator[Service]:
    """Whom people's commands ask: this machine's database, or the server of `--server`."""
    address = SERVER.get()
    if address is None:
        from dare_platform.local_service import LocalService
        from dare_platform.viewer import LOCAL

        with _database() as database:
            yield LocalService(settings(), database, LOCAL)
        return
    from dare_platform.remote_service import RemoteService
    from dare_platform.settings import with_files

    with RemoteService(address, with_files(os.environ).get("DARE_TOKEN") or None) as remote:
        yield remote


def settings() -> Settings:
    """Settings of this process, for what is done on this machine."""
    from dare_platform.settings import Settings

    if SERVER.get() is not None:
        refuse("this command is about this machine: leave out --server, and DARE_SERVER", USAGE)
    return Settings.from_environment()


@contextmanager
def reading() -> Iterator[Session]:
    """A reading session of the configured database."""
    with _database() as database, database.read() as session:
        yield session


@contextmanager
def writing() -> Iterator[Session]:
    """A writing session, committed at the end of the block."""
    with _database() as database, database.write() as session:
        yield session


@contextmanager
def opened() -> Iterator[Database]:
    """The configured database itself, for what asks it again and again."""
    with _database() as database:
        yield database


def _database() -> Database:
    """The configured database; a question never makes an empty one in the folder where it was asked."""
    from dare_platform.database import open_database

    current = settings()
    if current.database_url.startswith("sqlite:///"):
        file = Path(current.database_url.removeprefix("sqlite:///"))
        if not file.is_file():
            refuse(f"there is no database at {file} yet: run `dare migrate`, or set DARE_HOME", FAILED)
    return open_database(current)


def track_of(name: str) -> Any:
    """A track by `tiny`, `tiny 1.0` or `tiny@1.0`."""
    from dare_platform.tracks import track_named

    return track_named(name)
