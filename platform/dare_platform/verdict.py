"""The sentence above the board: what the ranking allows to say, and its doubt. Never written by hand."""

from __future__ import annotations

from collections.abc import Sequence

from dare_platform.board import Estimate, Row
from dare_platform.statistics import excludes_zero, in_words, written

WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


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
        return _nothing_ranked(backbone, running, expected)
    first = ranked[0]
    assert first.gain is not None
    if len(ranked) == 1:
        gains = _gains(first.gain)
        return f"**Only {first.name} is complete on {backbone}.** It {gains}. A ranking needs a second one."
    harm = _harm(ranked)
    if not any(row.gain is not None and excludes_zero(row.gain) and row.gain.value > 0 for row in ranked):
        gains = _gains(first.gain, against="")
        text = f"**No method provably beats the untouched model** on {backbone}. The highest, {first.name}, {gains}."
        return text + harm
    second = ranked[1]
    assert second.gain is not None
    on = f"On {backbone} it {_gains(first.gain)}"
    if first.rank == (1, 1) and lead is not None:
        ahead, _ = written(first.gain.value - second.gain.value)
        low, high = (written(end, signed=end < 0)[0] for end in lead)
        between = f"95 % interval {low} to {high}"
        return f"**{first.name} leads.** {on}, {ahead} more than {second.name} ({between}).{harm}"
    seeds = min(first.seeds, second.seeds)
    apart = f"cannot be told apart from it with {seeds} {'seed' if seeds == 1 else 'seeds'}"
    return f"**{first.name} leads, but not provably.** {on}; {second.name} ({in_words(second.gain)}) {apart}.{harm}"


def _gains(gain: Estimate, against: str = "the untouched model") -> str:
    over, under = (f" over {against}", f" against {against}") if against else ("", "")
    if gain.value < 0:
        lost = Estimate(-gain.value, gain.half_width, gain.seeds)
        return f"loses {in_words(lost)} points{under}"
    return f"gains {in_words(gain)} points{over}"


def _nothing_ranked(backbone: str, running: int, expected: str | None) -> str:
    finding = f"**Nothing is ranked yet on {backbone}.**"
    if not running:
        return f"{finding} No entry is running."
    entries = "1 entry is" if running == 1 else f"{running} entries are"
    when = f"; the first complete one is expected in {expected}" if expected else ""
    return f"{finding} {entries} running{when}."


def _harm(ranked: Sequence[Row]) -> str:
    worse = sum(row.gain is not None and excludes_zero(row.gain) and row.gain.value < 0 for row in ranked)
    if not worse:
        return ""
    makes = "makes" if worse == 1 else "make"
    return f" {_word(worse).capitalize()} of {_word(len(ranked))} ranked methods {makes} the model worse."


def _word(number: int) -> str:
    return WORDS[number] if number < len(WORDS) else str(number)
