"""The sentence above the board: what the ranking allows to say, and its doubt. Never written by hand."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dare_platform.board import Estimate, Row
from dare_platform.statistics import excludes_zero, in_words, written

WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_MARKUP = re.compile(r"([\\`*_{}\[\]()#+!|<>~$:^-])")
_LINK = re.compile(r"www(?=\.)|:(?=//)|@", re.IGNORECASE)
_JOINER = "\u2060"
"""Has no width and is not a space; what looked like an address is none with it."""


def verdict(
    rows: Sequence[Row],
    backbone: str,
    *,
    override: str | None = None,
    lead: tuple[float, float] | None = None,
    running: int = 0,
    expected: str | None = None,
) -> str:
    """Markdown: the finding in bold, then the doubt.

    Args:
        rows: in the order of the board.
        override: the sentence of a track that cannot rank; it stands instead of every finding.
        lead: 95 % interval of the difference between the first two ranked entries.
        running: how many entries are at work or wait.
        expected: when the first complete one is expected, `about 5 h`.
    """
    if override:
        return override.strip()
    ranked = [row for row in rows if row.rank is not None and row.gain is not None]
    if not ranked:
        return _nothing_ranked(rows, backbone, running, expected)
    first = ranked[0]
    assert first.gain is not None
    if len(ranked) == 1:
        gains = _gains(first.gain)
        return f"**Only {escaped(first.name)} is complete on {backbone}.** It {gains}. A ranking needs a second one."
    harm = _harm(ranked)
    if not any(row.gain is not None and excludes_zero(row.gain) and row.gain.value > 0 for row in ranked):
        gains = _gains(first.gain, against="")
        highest = f"The highest, {escaped(first.name)}, {gains}."
        return f"**No method provably beats the untouched model** on {backbone}. {highest}{harm}"
    second = ranked[1]
    assert second.gain is not None
    on = f"On {backbone} it {_gains(first.gain)}"
    if first.rank == (1, 1) and lead is not None:
        ahead, _ = written(first.gain.value - second.gain.value)
        low, high = (written(end, signed=end < 0)[0] for end in lead)
        between = f"95 % interval {low} to {high}"
        return f"**{escaped(first.name)} leads.** {on}, {ahead} more than {escaped(second.name)} ({between}).{harm}"
    seeds = min(first.seeds, second.seeds)
    apart = f"cannot be told apart from it with {seeds} {'seed' if seeds == 1 else 'seeds'}"
    beside = f"{escaped(second.name)} ({in_words(second.gain)}) {apart}"
    return f"**{escaped(first.name)} leads, but not provably.** {on}; {beside}.{harm}"


def escaped(text: str) -> str:
    """Text of a person inside Markdown: shown as it was typed, on one line, without links, styles or directives."""
    return _inert(" ".join(text.split()))


def escaped_prose(text: str) -> str:
    """The same for a sentence whose words in backquotes are code."""
    pieces = " ".join(text.split()).split("`")
    if len(pieces) % 2 == 0:
        return escaped(text)
    return "`".join(piece if place % 2 else _inert(piece) for place, piece in enumerate(pieces))


def _inert(text: str) -> str:
    return _MARKUP.sub(r"\\\1", _LINK.sub(lambda found: found[0] + _JOINER, text))


def unescaped(markdown: str) -> str:
    """For a terminal: what `escaped` added is taken away again."""
    return re.sub(r"\\([\\`*_{}\[\]()#+!|<>~$:^-])", r"\1", markdown).replace(_JOINER, "")


def _gains(gain: Estimate, against: str = "the untouched model") -> str:
    over, under = (f" over {against}", f" against {against}") if against else ("", "")
    if gain.value < 0:
        lost = Estimate(-gain.value, gain.half_width, gain.seeds)
        return f"loses {in_words(lost)} points{under}"
    return f"gains {in_words(gain)} points{over}"


def _nothing_ranked(rows: Sequence[Row], backbone: str, running: int, expected: str | None) -> str:
    finding = f"**Nothing is ranked yet on {backbone}.**"
    if not running:
        return f"{finding} No entry is running.{_too_few_seeds(rows)}"
    entries = "1 entry is" if running == 1 else f"{running} entries are"
    when = f"; the first complete one is expected in {expected}" if expected else ""
    return f"{finding} {entries} running{when}."


def _too_few_seeds(rows: Sequence[Row]) -> str:
    begun = [row for row in rows if row.kind == "method" and any(cell.is_preliminary for cell in row.cells.values())]
    if not begun:
        return ""
    required = max(cell.seeds_required for row in begun for cell in row.cells.values())
    has = "1 entry has" if len(begun) == 1 else f"{len(begun)} entries have"
    return f" {has} fewer than the {required} seeds that a rank needs."


def _harm(ranked: Sequence[Row]) -> str:
    worse = sum(row.gain is not None and excludes_zero(row.gain) and row.gain.value < 0 for row in ranked)
    if not worse:
        return ""
    makes = "makes" if worse == 1 else "make"
    return f" {_word(worse).capitalize()} of {_word(len(ranked))} ranked methods {makes} the model worse."


def _word(number: int) -> str:
    return WORDS[number] if number < len(WORDS) else str(number)
