"""Whether a completion keeps to the form `<reasoning>…</reasoning><answer>…</answer>`: parts of a composed reward.

The public rewards of the d1 lineage have three defects, each mended here. Their two patterns let no dot match a line
break, so that reasoning of two lines earns nothing: here it may have any number of lines. Their two layouts exclude
one another: here whoever keeps the strict one keeps the other too. Their count of tags subtracts a thousandth for
each character after the end, and takes the whole text for that where the last line break is missing: here length costs
nothing. A bare number, which earned their `int` and `correctness` without a single tag, earns no part of this file.
`legacy` gives what theirs give, to understand published numbers; no run can be trained on it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from dare.rewards import number
from dare.rewards.answer import extract

TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")


def layout(text: str) -> float:
    """1 where the text is reasoning and then an answer, each in its tags and not empty, with nothing but white space
    around them; 0 otherwise."""
    return float(_parts(text.strip()) is not None)


def strict(text: str) -> float:
    """`layout` with every tag on a line of its own and no empty lines outside the tags. One line break may end it."""
    parts = _parts(text.removesuffix("\n"))
    if parts is None:
        return 0.0
    reasoning, between, answer = parts
    own_lines = all(part.startswith("\n") and part.endswith("\n") and len(part) > 2 for part in (reasoning, answer))
    return float(own_lines and between == "\n")


def tags(text: str) -> float:
    """Share of the four tags that occur exactly once, wherever they stand: credit on the way to `layout`."""
    return sum(text.count(tag) == 1 for tag in TAGS) / len(TAGS)


def is_number(text: str) -> float:
    """1 where the last closed `<answer>` tag holds a number and nothing else; the number may be wrong."""
    answer = extract(text, tags="required")
    return float(answer is not None and number.exact(answer) is not None)


PARTS: dict[str, Callable[[str], float]] = {
    "format": layout,
    "strict_format": strict,
    "tags": tags,
    "number": is_number,
}
"""By the name that a run gives them; each from 0 to 1."""


def _parts(text: str) -> tuple[str, str, str] | None:
    """Reasoning, what stands between, and answer; None where a tag is missing, doubled or in the wrong place."""
    if any(text.count(tag) != 1 for tag in TAGS):
        return None
    places = [text.index(tag) for tag in TAGS]
    ends = [place + len(tag) for place, tag in zip(places, TAGS, strict=True)]
    if places != sorted(places) or places[0] != 0 or ends[3] != len(text):
        return None
    reasoning, between, answer = (text[ends[i] : places[i + 1]] for i in range(3))
    return (reasoning, between, answer) if reasoning.strip() and answer.strip() and not between.strip() else None


class LegacyParts(NamedTuple):
    """What the public GSM8K reward of the d1 lineage gives, part by part; the sum is at most 3.5."""

    xmlcount: float
    soft: float
    strict: float
    integer: float
    correctness: float


_SOFT = re.compile(r"<reasoning>.*?</reasoning>\s*<answer>.*?</answer>")
_STRICT = re.compile(r"<reasoning>\n.*?\n</reasoning>\n<answer>\n.*?\n</answer>\n$")


def legacy(text: str, gold: str) -> LegacyParts:
    """The published values, defects included, for comparison with published numbers only."""
    end, closing = "\n</answer>\n", "\n</answer>"
    xmlcount = 0.125 * sum(
        text.count(tag) == 1 for tag in ("<reasoning>\n", "\n</reasoning>\n", "\n<answer>\n", closing)
    )
    if text.count("\n<answer>\n") == 1:
        xmlcount -= 0.001 * len(text.split(end)[-1])
    if text.count(closing) == 1:
        xmlcount -= 0.001 * (len(text.split(closing)[-1]) - 1)
    answer = text.split("<answer>")[-1].split("</answer>")[0].strip()
    return LegacyParts(
        xmlcount=xmlcount,
        soft=0.5 * bool(_SOFT.match(text)),
        strict=0.5 * bool(_STRICT.match(text)),
        integer=0.5 * answer.isdigit(),
        correctness=2.0 * (answer == gold),
    )
