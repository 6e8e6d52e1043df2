"""What all commands share: sentences on standard error, refusals, and values given as `name=value`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NoReturn

import typer
import yaml
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dare.commands.text import neutral

console = Console(stderr=True, soft_wrap=True)


def say(sentence: object) -> None:
    """One sentence on standard error; nothing in it is interpreted."""
    console.print(neutral(str(sentence)), highlight=False, markup=False)


def refuse(sentence: object) -> NoReturn:
    """End with one sentence on standard error and exit code 2."""
    console.print(f"[bold]dare:[/] {escape(neutral(str(sentence)))}", highlight=False)
    raise typer.Exit(2)


def at_least(smallest: int, **values: float | None) -> None:
    """Refuse a number below the smallest that makes sense; None is not given."""
    for name, value in values.items():
        if value is not None and not value >= smallest:
            refuse(f"--{name.replace('_', '-')} is {value}; it must be at least {smallest}")


def pairs(texts: Sequence[str], option: str = "--set") -> dict[str, Any]:
    """`name=value` texts of an option; values are read as YAML scalars."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            refuse(f"{option} {text!r} is not of the form name=value")
        try:
            found[name] = yaml.safe_load(value)
        except yaml.YAMLError:
            refuse(f"{option} {text!r}: the value cannot be read; put a text with signs in quotes")
    return found


class Counting:
    """A bar with rate and time left on a terminal; a line every few seconds where there is none."""

    LINE_SECONDS = 5.0

    def __init__(self, total: int, done: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._progress = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console)
        self._bar = self._progress.add_task("", total=total, completed=done)
        self._total, self._done, self._before = total, done, done
        self._started = self._told = time.monotonic()

    def __enter__(self) -> Counting:
        if console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def advance(self, count: int, words: str) -> None:
        """`count` more are done; `words` say how fast."""
        self._done += count
        self._progress.update(self._bar, completed=self._done, description=words)
        now = time.monotonic()
        if not console.is_terminal and now - self._told >= self.LINE_SECONDS:
            self._told = now
            left = (now - self._started) / (self._done - self._before) * (self._total - self._done)
            say(f"{self._done} of {self._total} · {words} · {left:,.0f} s left")
