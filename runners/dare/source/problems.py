"""What a person can mend in something they hand in: one sentence each, all at once, in the order of the file."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SHOWN = 10


@dataclass(frozen=True)
class Problem:
    """Something to mend. `code` is stable for the CLI and an API; `text` is one Markdown sentence with its place."""

    code: str
    line: int | None
    text: str


def shown(problems: Sequence[Problem]) -> tuple[str, ...]:
    """The first ten sentences, then how many more there are."""
    more = len(problems) - SHOWN
    return tuple(problem.text for problem in problems[:SHOWN]) + ((f"and {more} more",) if more > 0 else ())


def in_file_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """By line, those of the whole file first; each sentence once."""
    return tuple(sorted(dict.fromkeys(problems), key=lambda problem: problem.line or 0))


def nearest(name: str, known: Iterable[str]) -> str:
    """` Did you mean ...?`, or all known names when none is near."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f" Did you mean `{close[0]}`?"
    return f" Known: {', '.join(f'`{known_name}`' for known_name in names)}." if names else " It has none."
