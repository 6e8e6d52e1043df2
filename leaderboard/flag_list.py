"""Flags as a reader meets them: a mark beside a name, and below the table what each means and where it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from dare_platform.board import Board
from dare_platform.board_flags import EXPLANATIONS, Flag, FlagCode
from leaderboard import links

WORDS: Mapping[FlagCode, str] = {
    "exactly_0": "exactly 0",
    "at_or_below_chance": "≤ chance",
    "format_credit": "format credit",
    "larger_sibling": "below a smaller sibling",
    "other_hardware": "other device",
    "other_scorer": "other scorer",
    "contaminated": "contaminated",
    "zero_advantage": "no signal",
    "collapse": "collapse",
}
IN_THE_CELL: frozenset[FlagCode] = frozenset({"exactly_0", "at_or_below_chance"})
"""Said where the number stands; not again beside the name."""


def marks(flags: Iterable[Flag], entry_id: str) -> list[tuple[str, str]]:
    """Word and sentences of each flag of one row that its cells do not say."""
    found: dict[FlagCode, list[str]] = {}
    for flag in flags:
        if flag.where.entry_id == entry_id and flag.code not in IN_THE_CELL:
            found.setdefault(flag.code, []).append(flag.sentence)
    return [(WORDS[code], " ".join(sentences)) for code, sentences in found.items()]


def legend(flags: Sequence[Flag], board: Board) -> str:
    """Every flag of a board under what it means; an empty text where there is none."""
    names = {row.entry_id: board.backbone if row.kind == "reference" else row.name for row in board.rows}
    titles = {column.task: column.title for column in board.columns}
    parts = []
    for code, meaning in EXPLANATIONS.items():
        places = [flag for flag in flags if flag.code == code]
        if not places:
            continue
        rows = "".join(
            f'<li><a href="{escape(links.entry_link(flag.where.entry_id))}"><bdi>'
            f"{escape(names.get(flag.where.entry_id, ''))}</bdi></a>"
            f"{escape(_on(titles, flag.where.task))}: {escape(flag.sentence)}</li>"
            for flag in places
        )
        parts.append(f"<dt><b>{escape(WORDS[code])}</b> {escape(meaning)}</dt><dd><ul>{rows}</ul></dd>")
    return f'<div class="dare prose"><dl class="flags">{"".join(parts)}</dl></div>' if parts else ""


def _on(titles: Mapping[str, str], task: str | None) -> str:
    return f", {titles.get(task, task)}" if task else ""


def heading(flags: Sequence[Flag]) -> str:
    """The label of the list: how many, and which."""
    words = list(dict.fromkeys(WORDS[flag.code] for flag in flags))
    return f"Flags ({len(flags)}): {', '.join(words)}"
