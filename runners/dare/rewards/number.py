r"""The number that an answer to a word problem comes to: where it stands in the text, and its exact value.

Where: in the last closed `<answer>` tag, or in the whole text when none is closed. There the last complete marker
counts, of `#### 18`, `\boxed{18}` and `the answer is 18`; without a marker the last number does, unless a box was
opened and never closed: its number may be half written. A protocol can ask for the first marker, or for none but one.
What the number is: thousands commas, currency, units, a percent sign and emphasis are typography; decimals and
fractions are exact rationals, and no floating point is used.
Every step reads the text a bounded number of times, so the time is linear in its length, whatever the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from dare.rewards.answer import extract

MAX_DIGITS = 40
"""Longest numeral with a value. Python refuses to convert very long ones, and no task has such numbers."""
REACH = 100
"""Characters after a marker among which its number must begin, and a chain such as `10 + 8 = 18` must end."""

_ONE_CHARACTER = str.maketrans(
    "−‒–﹣－０１２３４５６７８９，．＄％＝\u00a0\u2007\u2009\u202f", "-----0123456789,.$%=    "
)
_TYPOGRAPHY = (
    (re.compile(r"\\!|(?<=[0-9])\\,(?=[0-9]{3}(?![0-9]))"), ""),  # thin spaces between groups of digits
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\(?=[$%#&])"), ""),
    (re.compile(r"\\[,;: ]"), " "),
    (re.compile(r"\\(?:sqrt|pm|mp|binom|log|ln)(?![A-Za-z])\s?"), "^"),  # what follows is no number by itself
    (re.compile(r"\\(?!(?:[dt]?frac|boxed|fbox|framebox)(?![A-Za-z]))[A-Za-z]+"), " "),  # \text, \times, \left, …
)

_WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
_DECIMAL = rf"(?:{_WHOLE}(?:\.[0-9]+)?|(?<!\.)\.[0-9]+)(?![0-9]|\.[0-9]|[eE][-+]?[0-9]|\ ?\^)"
_FRAC = r"\\[dt]?frac"
_NUMBER = re.compile(
    rf"""(?<![0-9A-Za-z^])(?<![0-9]\.)(?<!\^\{{)
    (?: (?P<whole>{_WHOLE}) (?: \ (?P<over>[0-9]+)/(?P<under>[0-9]+)(?![0-9])
                              | \ ?{_FRAC}\{{(?P<over2>[0-9]+)\}}\{{(?P<under2>[0-9]+)\}} )
      | {_FRAC}\ ?\{{\ ?(?P<top>-?{_DECIMAL})\ ?\}}\ ?\{{\ ?(?P<bottom>{_DECIMAL})\ ?\}}
      | {_FRAC}\ ?(?P<top1>[0-9])(?P<bottom1>[0-9])
      | (?P<decimal>{_DECIMAL})(?:\ ?/\ ?(?P<divisor>{_DECIMAL}))?
    )
    (?:\ ?(?P<scale>thousand|million|billion|trillion)\b)?""",
    re.VERBOSE | re.IGNORECASE,
)
_SCALE = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_BOX_PART = re.compile(r"(?P<box>\\(?:boxed|fbox|framebox)\s*\{)|[{}]")
_INK = re.compile(r"\S")
_DECORATION = r"[ \t$€£¥₹*_`({]"
_HASHES = re.compile(rf"\#\#\#\#{_DECORATION}{{0,8}}(?:-{_DECORATION}{{0,8}})?", re.VERBOSE)
_PHRASE = re.compile(r"\banswers?[*_]{0,2}\s{0,3}(?:is|are|equals|[:=])", re.IGNORECASE)
_UNFINISHED = re.compile(r"\+|[A-Za-z]\s?-\s?[0-9]")
"""An expression that is not worked out, such as `x + 5`."""
_OPERATOR = re.compile(rf"{_DECORATION}{{0,4}}[%}})]?{_DECORATION}{{0,4}}([-+*/x×÷=])[ \t$€£¥₹]{{0,4}}")


@dataclass(frozen=True)
class Reading:
    """An answer as it stands in the text. No `value`: it is no single number, so it equals nothing."""

    text: str
    value: Fraction | None


@dataclass(frozen=True)
class _Marked:
    start: int
    reading: Reading


def read(
    text: str, *, which: Literal["last", "first"] = "last", unmarked: Literal["last_number", "none"] = "last_number"
) -> Reading | None:
    """The answer of a completion, or None where it has none. Never raises.

    `which="first"` and `unmarked="none"` exist to compare with published scorers that read the first tag and marker, or
    nothing that is not marked.
    """
    answer = extract(text, tags="optional", which=which)
    if answer is None:
        return None
    answer = answer.translate(_ONE_CHARACTER)
    for pattern, instead in _TYPOGRAPHY:
        answer = pattern.sub(instead, answer)
    box, unclosed = _box(answer, which)
    marked = [m for m in (box, _after(_HASHES, answer, which), _after(_PHRASE, answer, which)) if m]
    if marked:
        return (max if which == "last" else min)(marked, key=lambda m: m.start).reading
    if unclosed or unmarked == "none":
        return None
    last = max(_NUMBER.finditer(answer), key=lambda number: number.start(), default=None)
    return _reading(answer, last, apart=False) if last else None


def exact(text: str) -> Fraction | None:
    """The value of a text that is one number and nothing else, such as a gold answer; None for any other."""
    written = text.strip()
    number = _NUMBER.fullmatch(written, 1 if written.startswith("-") else 0)
    return _reading(written, number, apart=True).value if number else None


def _box(text: str, which: Literal["last", "first"]) -> tuple[_Marked | None, bool]:
    """The closed box that opens last (of nested ones the innermost) or first, and whether one was never closed."""
    open_braces: list[int | None] = []  # where a box's content starts, None for a brace that is no box
    boxes: list[tuple[int, int]] = []
    for part in _BOX_PART.finditer(text):
        if part.group() != "}":
            open_braces.append(part.end() if part["box"] else None)
        elif open_braces:
            start = open_braces.pop()
            if start is not None and _INK.search(text, start, part.start()):
                boxes.append((start, part.start()))
    unclosed = any(start is not None for start in open_braces)
    if not boxes:
        return None, unclosed
    start, end = max(boxes) if which == "last" else min(boxes)
    content = text[start:end].strip()
    side = content.rpartition("=")[2]
    numbers = list(_NUMBER.finditer(side))
    single = len(numbers) == 1 and not _UNFINISHED.search(side)
    only = _reading(side, numbers[0], apart=True) if single else Reading(content, None)
    return _Marked(start, only), unclosed


def _after(marker: re.Pattern[str], text: str, which: Literal["last", "first"]) -> _Marked | None:
    """The last or first marker that a number follows: at once after `####`, on its line or the next after words."""
    markers = list(marker.finditer(text))
    for found in reversed(markers) if which == "last" else markers:
        reach = found.end() + REACH
        if marker is _HASHES:
            number = _NUMBER.match(text, found.end())
        else:
            number = _NUMBER.search(text, found.end(), reach)
            if number and "\n" in text[found.end() : number.start()].strip():
                number = None
        number = number and _NUMBER.match(text, number.start())  # whole, also where it goes on behind the reach
        if number:
            return _Marked(found.start(), _chained(text, number, reach))
    return None


def _chained(text: str, first: re.Match[str], reach: int) -> Reading:
    """The number, or what stands after the last `=` of a calculation that begins with it."""
    last = result = first
    calculation = False
    for symbol, last in _chain(text, first, reach):
        result, calculation = (last, False) if symbol == "=" else (result, True)
    if calculation:
        return Reading(text[first.start() : last.end()], None)
    return _reading(text, result, apart=True)


def _chain(text: str, number: re.Match[str], reach: int) -> Iterator[tuple[str, re.Match[str]]]:
    while operator := _OPERATOR.match(text, number.end(), reach):
        following = _NUMBER.match(text, operator.end())
        if following is None:
            return
        number = following
        yield operator[1], number


def _reading(text: str, number: re.Match[str], apart: bool) -> Reading:
    """The number with its sign. A minus between two numbers or after a letter is none; one with a space behind it is
    a sign only where `apart`, after a marker: elsewhere it begins the item of a list."""
    before = text[max(0, number.start() - 2 * REACH) : number.start()]
    touching = before.rstrip("$€£¥₹*_`({ \t" if apart else "$€£¥₹{(")
    at_once, left = touching[-2:-1], touching[:-1].rstrip(" ")[-1:]
    negative = touching.endswith("-") and not (at_once.isalpha() or left.isdecimal() or left in (")", "}", "%", "-"))
    value = _value(number)
    written = number.group()
    if not negative:
        return Reading(written, value)
    return Reading(f"-{written}", None if value is None else -value)


def _value(number: re.Match[str]) -> Fraction | None:
    parts = {name: text.replace(",", "") for name, text in number.groupdict().items() if text}
    if any(len(text) > MAX_DIGITS for text in parts.values()):
        return None
    whole = Fraction(parts.get("whole", "0"))
    over = next((parts[name] for name in ("over", "over2", "top", "top1", "decimal") if name in parts), "0")
    under = next((parts[name] for name in ("under", "under2", "bottom", "bottom1", "divisor") if name in parts), "1")
    if not Fraction(under):
        return None
    return (whole + Fraction(over) / Fraction(under)) * _SCALE.get(parts.get("scale", "").lower(), 1)
