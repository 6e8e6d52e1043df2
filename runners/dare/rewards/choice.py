r"""The letter that an answer to a multiple-choice question picks, or that it picks none, or more than one.

The answer stands in the last closed `<answer>` tag, or in the whole text when none is closed. There the last complete
marker counts, of `\boxed{B}`, `Answer: b`, `the answer is B` and a last line that is a letter alone. A marker is also
complete when an option's content stands behind it, and that of no other option. Without a marker the text is the
answer: a letter alone or a label in front (`B`, `(B)`, `B. 42`), else the one letter that it mentions, else the one
option whose content it is. Two letters without a marker, or two behind it (`A or B`), are ambiguous: no answer.
`A` as an article and `I` as a pronoun are words. Emphasis, `\text{}` and brackets are typography.
Every step reads the text a bounded number of times, so the time is linear in its length, whatever the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from dare.rewards.answer import extract

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
REACH = 300
"""Characters behind a marker that are read."""

_FULL_WIDTH = str.maketrans("（）．：" + "".join(chr(ord("Ａ") + i) for i in range(len(LETTERS))), "().:" + LETTERS)
_TYPOGRAPHY = re.compile(
    r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mbox|bf|rm|left|right)(?![A-Za-z])|[*`$\u200b]|__"
)
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s{0,3}(?:\{((?:[^{}]|\{[^{}]{0,300}\}){0,300})\}|([A-Z])\b)")
_OPEN_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s{0,3}\{")
_PHRASE = re.compile(r"\b(?:answers?|options?|choices?)\s{0,3}(?:is|are|equals|[:=])\s{0,3}", re.IGNORECASE)
_NAMED = re.compile(
    r"\A\s{0,3}(?:the\s)?(?:(?:correct\s)?(?:answer|option|choice|letter)\s{0,3}[:=]?\s{0,3})?", re.IGNORECASE
)


@dataclass(frozen=True)
class Choice:
    """What a text picks. Without a letter it is no answer, and `ambiguous` says whether it named more than one."""

    letter: str | None
    ambiguous: bool = False


NONE, AMBIGUOUS = Choice(None), Choice(None, ambiguous=True)


@dataclass(frozen=True)
class _Patterns:
    """Regular expressions over the letters that a question has."""

    alone: re.Pattern[str]
    label: re.Pattern[str]
    front: re.Pattern[str]
    another: re.Pattern[str]
    mention: re.Pattern[str]


@cache
def _patterns(count: int) -> _Patterns:
    upper, both = f"[A-{LETTERS[count - 1]}]", f"[A-{LETTERS[count - 1]}a-{LETTERS[count - 1].lower()}]"
    end = r"(?![A-Za-z0-9'’])"
    # an article or a pronoun goes on with a word in lower case, but no article stands before `is` or `or`
    word = r"(?!(?<=[AI])\ (?!(?:is|was|or|nor|and|but|because|since)\b)[a-z]|(?<=I)['’])"
    joined = r"\s{0,3}(?:,|/|&|\bor\b|\band\b|,\s{0,3}or\b)\s{0,3}(?:maybe\s|perhaps\s|possibly\s|also\s)?"
    return _Patterns(
        alone=re.compile(rf"[\s(\[{{]{{0,8}}({both})[\s)\]}}.,:;!]{{0,8}}"),
        label=re.compile(rf"(?<![A-Za-z0-9'’])(?:[(\[]({upper})[)\]]|({upper})[).:](?![A-Za-z0-9]))"),
        front=re.compile(
            rf"[(\[{{]{{0,3}}(?:({upper}){end}{word}|({both})(?:\s{{0,3}}[)\]}}.,:;!]|\s{{0,3}}$|\s{{0,3}}\n))"
        ),
        another=re.compile(rf"[)\]}}]{{0,3}}{joined}[(\[{{]{{0,3}}({upper}){end}{word}"),
        mention=re.compile(rf"(?<![A-Za-z0-9'’\\])({upper}){end}{word}"),
    )


def read(text: str, options: Sequence[str]) -> Choice:
    """The letter that a text picks among as many options as are given, whose contents are compared. Never raises."""
    answer = extract(text, tags="optional")
    if answer is None or not options:
        return NONE
    letters = _patterns(min(len(options), len(LETTERS)))
    contents = [_plain(option) for option in options[: len(LETTERS)]]
    answer = _TYPOGRAPHY.sub("", answer.translate(_FULL_WIDTH)).strip()
    found = max(
        (m for m in (_boxed(answer, letters, contents), _said(answer, letters, contents), _last(answer, letters)) if m),
        key=lambda marked: marked[0],
        default=None,
    )
    if found is not None:
        return found[1]
    if len(_OPEN_BOX.findall(answer)) > len(_BOX.findall(answer)):
        return NONE  # a box that was never closed may be half written
    return _whole(answer, letters, contents)


def _boxed(text: str, letters: _Patterns, contents: Sequence[str]) -> tuple[int, Choice] | None:
    """The last box that holds a letter or an option."""
    for box in reversed(list(_BOX.finditer(text))):
        choice = Choice(box[2]) if box[2] else _whole(box[1].strip(), letters, contents)
        if choice != NONE and (choice.letter is None or LETTERS.index(choice.letter) < len(contents)):
            return box.start(), choice
    return None


def _said(text: str, letters: _Patterns, contents: Sequence[str]) -> tuple[int, Choice] | None:
    """The last phrase such as `the answer is` that a letter or an option follows at once."""
    for phrase in reversed(list(_PHRASE.finditer(text))):
        behind = text[phrase.end() : phrase.end() + REACH]
        if (by_content := _option(behind.partition("\n")[0], contents)) is not None:
            return phrase.start(), Choice(by_content)
        behind = _NAMED.sub("", behind, count=1)
        if front := letters.front.match(behind):
            first = (front[1] or front[2]).upper()
            second = letters.another.match(behind, front.end(1) if front[1] else front.end(2))
            return phrase.start(), AMBIGUOUS if second and second[1] != first else Choice(first)
    return None


def _last(text: str, letters: _Patterns) -> tuple[int, Choice] | None:
    """A last line that is a letter alone, unless other lines are other letters alone."""
    start = text.rfind("\n") + 1
    alone = letters.alone.fullmatch(text, start)
    if alone is None or start == 0:
        return None
    lines = {line[1].upper() for line in map(letters.alone.fullmatch, text.split("\n")) if line}
    return start, Choice(alone[1].upper()) if len(lines) == 1 else AMBIGUOUS


def _whole(text: str, letters: _Patterns, contents: Sequence[str]) -> Choice:
    """What a text without a marker picks."""
    if alone := letters.alone.fullmatch(text):
        return Choice(alone[1].upper())
    if (by_content := _option(text, contents)) is not None:
        return Choice(by_content)
    if labelled := letters.label.match(text):
        letter = labelled[1] or labelled[2]
        if _plain(text[labelled.end() :]) == _plain(contents[LETTERS.index(letter)]):
            return Choice(letter)
    labels = list(letters.label.finditer(text))
    if labels and not text[: labels[0].start()].strip() and len({label[1] or label[2] for label in labels}) == 1:
        return Choice(labels[0][1] or labels[0][2])
    mentioned = {mention[1] for mention in letters.mention.finditer(text)}
    if len(mentioned) == 1:
        return Choice(mentioned.pop())
    return AMBIGUOUS if mentioned else NONE


def _option(text: str, contents: Sequence[str]) -> str | None:
    """The letter of the one option whose content this is."""
    plain = _plain(text)
    for same in (str.__str__, str.casefold):  # options may differ in nothing but case
        equal = [number for number, content in enumerate(contents) if content and same(content) == same(plain)]
        if equal:
            return LETTERS[equal[0]] if len(equal) == 1 else None
    return None


def _plain(text: str) -> str:
    """A content as it is compared: without typography, white space and a full stop at the end."""
    return " ".join(_TYPOGRAPHY.sub("", text).split()).rstrip(".").strip()
