"""The parts of a board that was kept: what it is, what changed since another one, and how it is cited."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from urllib.parse import urlencode

from dare_platform.board import Board
from dare_platform.snapshots import Change, Taken
from leaderboard import quantities
from leaderboard.plain_tables import Text, plain_table

LATEX = {
    "\\": r"\textbackslash{}", "{": r"\textbraceleft{}", "}": r"\textbraceright{}", "_": r"\_", "&": r"\&",
    "%": r"\%", "#": r"\#", "$": r"\$", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
}  # fmt: skip
"""BibTeX counts braces, escaped or not: none but pairs may stand in a field."""


def facts(taken: Taken) -> str:
    """Hash, numbers and runs behind it, and the command that checks them."""
    made = datetime.fromtimestamp(taken.board.made_at, UTC)
    parts = [
        f"{made:%Y-%m-%d %H:%M} UTC",
        _hash(taken.sha256),
        "immutable",
        f"numbers {_hash(taken.inputs_sha256)}",
        quantities.plural(len(taken.runs), "run"),
        escape(taken.board.scorer),
    ]
    return f'<div class="dare"><p class="second">{" · ".join(parts)}</p></div>'


def _hash(sha256: str) -> str:
    return f'<code title="{escape(sha256)}">{escape(quantities.short_hash(sha256))}</code>'


def permalink(sha256: str) -> str:
    """The way to a board that was just kept."""
    href = escape("snapshot?" + urlencode({"hash": sha256}))
    short = escape(quantities.short_hash(sha256))
    return f'<div class="dare"><p>Kept: <a href="{href}">the board of this moment, <code>{short}</code></a></p></div>'


def changes_table(found: Sequence[Change], before: Board, after: Board) -> str:
    """What became of each row."""
    titles = {column.task: column.title for column in (*before.columns, *after.columns)}
    rows = [
        (
            Text(change.name),
            Text(titles.get(change.what, change.what)),
            Text(_said(change.what, change.before), number=True),
            Text(_said(change.what, change.after), number=True),
            Text(change.why or "new numbers" if change.what not in ("entered", "left") else ""),
        )
        for change in found
    ]
    return plain_table(("Entry", "What", "Before", "After", "Why"), rows, "What changed")


def _said(what: str, value: object) -> str:
    if isinstance(value, tuple):
        return quantities.rank((value[0], value[1]))
    if isinstance(value, float):
        return quantities.fixed(100 * value, 1, signed=what == "gain")
    return "—"


def bibtex(board: Board, site: str | None) -> str:
    """An entry for a list of references, with the hash by which the board is found and checked."""
    made = datetime.fromtimestamp(board.made_at, UTC)
    address = f"  url = {{{site}/snapshot?hash={board.digest}}},\n" if site else ""
    title = f"DARE leaderboard, track {_latex(board.track)} {_latex(board.version)}, {_latex(board.backbone)}"
    return (
        f"@misc{{dare-{board.digest[:8]},\n"
        f"  title = {{{title}}},\n"
        f"  year = {{{made:%Y}}},\n"
        f"{address}"
        f"  note = {{Board of {made:%Y-%m-%d %H:%M} UTC, SHA-256 {board.digest}; check it with dare verify}}\n"
        "}"
    )


def _latex(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in text)
