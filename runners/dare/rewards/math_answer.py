r"""Where the final answer stands in the solution of a mathematics problem; `equivalence` says what it is worth.

In the last closed `<answer>` tag, or in the whole text when none is closed. There the last complete box counts:
`\boxed{...}`, `\boxed {...}`, `\fbox{...}`, `\framebox{...}`, `boxed{...}` that lost its backslash, of nested ones the
innermost, and `\boxed 18` without braces up to the next white space. Escaped braces are no braces. A box that is opened
and never closed is no answer, where no other is complete: it may be half written. Without any box what follows the last
`####` or `the answer is` counts, and then a tag's content or a text of one line that is an answer by itself; a protocol
can ask for the box alone. Where a tag holds no answer a box beside it counts. The last number of a text is no answer
here: the answers are formulas, and any formula has numbers.
Every step reads the text a bounded number of times, so the time is linear in its length, whatever the text.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from dare.rewards.answer import extract

REACH = 300
"""Characters after a marker among which its answer must begin and end."""
ALONE = 100
"""Longest line that can be an answer by itself."""

_PART = re.compile(
    r"\\{1,2}(?P<box>boxed|fbox|framebox)(?![A-Za-z])[ \t]{0,8}(?P<open>\{)?|(?<![\\A-Za-z])(?P<lost>boxed\{)"
    r"|\\[\\{}]|(?P<opened>\{)|(?P<closed>\})"
)
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)|boxed\{")
_BARE = re.compile(r"[^\s$]{1,200}")
_INK = re.compile(r"[^\W_]|[\\∞∅]")
"""What a box must have: one of dots alone repeats the form of the prompt."""
_MARKER = re.compile(r"\#\#\#\#|\banswers?[*_]{0,2}\s{0,3}(?:is|are|equals|[:=])", re.IGNORECASE)
_FILLER = re.compile(r"(?:\s|:|[*_]{1,3}(?=\s)|(?:therefore|thus|simply|then|equal to|given by)\b,?)+", re.IGNORECASE)
_MARKED = re.compile(
    r"(?P<mark>\*{1,3}|_{1,3}|`{1,3}|\$\$?)(?P<inside>(?:\\.|[^\n\\])+?)(?P=mark)|\\\((.+?)\\\)|\\\[(.+?)\\\]"
)
_END = re.compile(r"\n|(?<!\\)[.!?](?:\s|$)|[*_`]+$|\s(?:because|since|which|as|when|so|I hope)\s|\s\((?=[A-Za-z]{2})")
_EMPHASIS = re.compile(r"(?P<mark>\*{1,3}|_{1,3}|`{1,3}|\$\$?)(?P<inside>.+)(?P=mark)[.,;:!]?", re.DOTALL)
_SENTENCE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}(?:\s+[A-Za-z]+){3}")
"""Four words in a row: prose, and no answer by itself."""


class Found(NamedTuple):
    """An answer as it stands in the text, and by what it was found."""

    text: str
    by: Literal["box", "marker", "alone"]


def read(
    text: str, *, which: Literal["last", "first"] = "last", without_box: Literal["marker", "none"] = "marker"
) -> Found | None:
    """The answer of a completion, or None where it has none. Never raises.

    `which="first"` exists to compare with published scorers that read the first tag and box; `without_box="none"` with
    those that read nothing but a box.
    """
    answer = extract(text, tags="optional", which=which)
    if answer is None:
        return None
    boxes, unclosed = _boxes(answer)
    if boxes:
        return _box(answer, boxes, which)
    if unclosed:
        return None
    if without_box == "marker" and (found := _without_box(answer, which)):
        return found
    boxes, _ = _boxes(text)
    return _box(text, boxes, which) if boxes else None


def _box(text: str, boxes: list[tuple[int, int]], which: Literal["last", "first"]) -> Found:
    start, end = max(boxes) if which == "last" else min(boxes)
    return Found(plain(text[start:end]) or text[start:end].strip(), "box")


def _without_box(answer: str, which: Literal["last", "first"]) -> Found | None:
    markers = list(_MARKER.finditer(answer))
    for marker in reversed(markers) if which == "last" else markers:
        if content := _after(answer[marker.end() : marker.end() + REACH]):
            return Found(content, "marker")
    if markers or len(answer) > ALONE or "\n" in answer or _SENTENCE.search(answer) or _BOX.search(answer):
        return None
    alone = plain(answer)
    return Found(alone, "alone") if alone else None


def plain(text: str) -> str:
    """A text without the emphasis, the mathematics signs and the full stop around it."""
    text = text.strip()
    for _ in range(4):
        if found := _EMPHASIS.fullmatch(text):
            text = found["inside"].strip()
    return text if text.endswith("..") else text.rstrip(". \t\n")


def _boxes(text: str) -> tuple[list[tuple[int, int]], bool]:
    """Where the contents of the complete boxes are that are not empty, and whether another is open."""
    found: list[tuple[int, int]] = []
    open_braces: list[int | None] = []  # where a box's content starts, None for a brace that is no box
    for part in _PART.finditer(text):
        if part["lost"] or (part["box"] and part["open"]):
            open_braces.append(part.end())
        elif part["box"]:
            if (bare := _BARE.match(text, part.end())) and _INK.search(bare.group()):
                found.append((part.end(), part.end() + len(bare.group().rstrip(".,;"))))
        elif part["opened"]:
            open_braces.append(None)
        elif part["closed"] and open_braces:
            start = open_braces.pop()
            if start is not None and _INK.search(text, start, part.start()):
                found.append((start, part.start()))
    return [(start, end) for start, end in found if start < end], any(start is not None for start in open_braces)


def _after(reach: str) -> str:
    """What a marker announces: the formula or the emphasised words that follow at once, or the rest of its sentence."""
    filler = _FILLER.match(reach)
    rest = reach[filler.end() :] if filler else reach
    marked = _MARKED.match(rest)
    if marked:
        inside = next(inside for inside in (marked["inside"], marked[3], marked[4]) if inside)
        if not _END.search(inside.rstrip(" .")):
            return plain(inside)
    end = _END.search(rest)
    return plain(rest[: end.start()] if end else rest).rstrip(",;:")
