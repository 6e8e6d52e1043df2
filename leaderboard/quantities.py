"""How numbers are written: as many digits as their interval justifies, with units, signs and a real minus."""

from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo
from typing import NamedTuple

from dare_platform.board import Cost, Estimate
from dare_platform.statistics import MINUS, decimals, written
from dare_platform.views import words

THIN = "\u202f"
"""A thin space that does not break, between a number and its unit."""


class Written(NamedTuple):
    """A value and what stands behind it: `±0.9`, or how few seeds there are."""

    value: str
    spread: str

    def __str__(self) -> str:
        return f"{self.value} {self.spread}".strip()


def fixed(value: float, digits: int, signed: bool = False) -> str:
    """A decimal number with the true minus sign, and no sign on a zero."""
    text = f"{abs(value):.{digits}f}"
    if float(text) == 0:
        return text
    return (MINUS if value < 0 else "+" if signed else "") + text


def _written(estimate: Estimate, signed: bool, most: int) -> Written:
    """An estimate of shares, in per cent or points, by the platform's rule of digits."""
    if estimate.half_width is None or estimate.seeds < 3:
        seeds = "1 seed" if estimate.seeds == 1 else f"n={estimate.seeds}"
        return Written(written(estimate.value, signed=signed, most=min(1, most))[0], seeds if estimate.seeds else "")
    value, half = written(estimate.value, estimate.half_width, signed=signed, most=most)
    return Written(value, f"±{half}")


def score(estimate: Estimate, most: int = 1) -> Written:
    """A share in percent, without a sign."""
    return _written(estimate, signed=False, most=most)


def gain(estimate: Estimate, most: int = 1) -> Written:
    """A difference in points, with a sign."""
    return _written(estimate, signed=True, most=most)


def interval(estimate: Estimate, signed: bool = False) -> str:
    """`82.7 to 84.5`, or an empty text where three seeds are missing."""
    if estimate.half_width is None or estimate.seeds < 3:
        return ""
    value, half = 100 * estimate.value, 100 * estimate.half_width
    digits = decimals(half)
    return f"{fixed(value - half, digits, signed)} to {fixed(value + half, digits, signed)}"


def share(value: float) -> str:
    """A share in per cent with one decimal; a small one is not written as zero."""
    return "< 0.1" if 0 < value < 0.0005 else fixed(100 * value, 1)


def count(number: float) -> str:
    """An integer in groups: `1,319`."""
    return f"{number:,.0f}"


def plural(number: int, noun: str) -> str:
    """`1 seed`, `3 seeds`, `2 entries`."""
    if number == 1:
        return f"1 {noun}"
    return f"{count(number)} {noun[:-1] + 'ies' if noun.endswith('ry') else noun + 's'}"


def rank(span: tuple[int, int] | None) -> str:
    """`1–2`, alone `7`, unranked `—`."""
    if span is None:
        return "—"
    first, last = span
    return str(first) if first == last else f"{first}–{last}"


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3 h 05 min`, `2 days`, as everywhere, with thin spaces before the units."""
    return re.sub(r"(?<=\d) (?=[a-z])", THIN, words.duration(seconds))


def moment(at: float, zone: tzinfo = UTC, time_only: bool = False) -> str:
    """`30 Nov 2026, 14:02`."""
    when = datetime.fromtimestamp(at, zone)
    return f"{when:%H:%M}" if time_only else f"{when.day} {when:%b %Y, %H:%M}"


def cost_unit(device: str, long: bool) -> str:
    """Unit of a cost column: `CPU-min`, `GPU-h`. One unit for a whole column."""
    return f"{'CPU' if 'cpu' in device.lower() else 'GPU'}-{'h' if long else 'min'}"


def cost(spent: Cost, long: bool) -> str:
    """Device time of training, in hours or minutes, with at most two significant digits below 10."""
    amount = spent.train_device_seconds / (3600 if long else 60)
    return fixed(amount, 0 if amount >= 10 or amount == 0 else 1)


def size(number: int) -> str:
    """`4.1 kB`."""
    if number < 1000:
        return f"{number}{THIN}B"
    if number < 1_000_000:
        return f"{number / 1000:.1f}{THIN}kB"
    return f"{number / 1_000_000:.1f}{THIN}MB"


def short_hash(digest: str) -> str:
    """The first eight characters."""
    return digest[:8]
