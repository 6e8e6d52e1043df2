"""The program in an answer, and whether it passes its tests: one rule for training rewards and evaluation scores.

Nothing here reads the answer as Python: whatever runs or parses it does so in `dare.sandbox`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from dare.rewards.answer import CLOSING, OPENING, extract
from dare.sandbox import Outcome, Program, Sandbox, shared

POLICIES = {
    "fence": ("commonmark", "lenient"),
    "preamble": ("none", "common_imports"),
}
"""What published scorers disagree about; the first value is the default.

`fence`: CommonMark knows no code on the line of a fence. `preamble`: what is imported before the program; `none` means
what the question itself imports and no more.
"""
PREAMBLES = {
    "none": (),
    "common_imports": (
        "import collections, copy, datetime, functools, heapq, itertools, math, operator, random, re, string, sys\n"
        "from collections import *\nfrom functools import *\nfrom heapq import *\nfrom itertools import *\n"
        "from math import *\nfrom typing import *\n",
    ),
}
"""The recorded imports of each policy. Every module comes with Python: a missing one would fail every program."""
LONGEST = 200_000
"""Characters of an answer. A longer one is not run: no answer."""
_END = re.compile(r"<\|(?:endoftext|eot_id|im_end|end_of_text|end|EOT|eom_id|eos)\|>|</s>\s*\Z")
_MASK = re.compile(r"<\|(?:mdm_)?mask\|>", re.IGNORECASE)
_FENCE = re.compile(r"( {0,3})(`{3,}|~{3,})(.*)\Z")
_MARKER = re.compile(r"^\[(BEGIN|DONE)\]", re.MULTILINE)
_INDENTED = re.compile(r"(?: {2,}|\t)\S")
_QUOTED = re.compile(r"""\n* ?(['"]?)(?=(?:def|class|import|from|async)\b|@)""")
_CODE_BEHIND_FENCE = re.compile(
    r"^( {0,3}`{3,})[ \t]*(?=(?:def|class|import|from|async|@)\b|@)", re.MULTILINE
)  # fmt: skip
_FENCE_BEHIND_CODE = re.compile(r"(?<=[^\s`])[ \t]*(`{3,})[ \t]*$", re.MULTILINE)


class Extracted(NamedTuple):
    """The program that an answer gives."""

    source: str
    truncated: bool
    """Its fence or its marker is never closed: the window ended before the answer did."""
    undecoded: bool
    """Mask tokens are left in the answer: the decoder failed."""


class _Block(NamedTuple):
    source: str
    closed: bool


def program_in(
    text: str, entry_point: str, prompt: str, *, fence: Literal["commonmark", "lenient"] = "commonmark"
) -> Extracted | None:
    """The last block that defines the entry point; None when the answer holds no code.

    A block that begins indented is the body: the prompt goes before it, and its indentation stays. An answer without a
    fence is looked for between `[BEGIN]` and `[DONE]` at the beginning of a line, then in answer tags, then taken whole
    if it defines the entry point or is a body.
    """
    if len(text) > LONGEST:
        return None
    undecoded = bool(_MASK.search(text))
    text = _END.split(text, maxsplit=1)[0].replace("\r\n", "\n").replace("\r", "\n")
    text, closed = _between_markers(text)
    if fence == "lenient":
        text = _FENCE_BEHIND_CODE.sub(r"\n\1", _CODE_BEHIND_FENCE.sub(r"\1\n", text))
    blocks = [block for block in _blocks(text) if block.source.strip()]
    if not blocks and OPENING in text and CLOSING in text:
        text = extract(text, tags="optional") or ""
        blocks = [block for block in _blocks(text) if block.source.strip()]
    defines = _definition(entry_point)
    fitting = [block for block in blocks if defines.search(block.source)] or [
        block for block in blocks if _is_body(block.source)
    ]
    if not blocks:
        whole = _unquoted(text)
        if defines.search(whole) or _is_body(whole):
            fitting = [_Block(whole, True)]
    if not fitting:
        fitting = blocks
    if not fitting:
        return None
    chosen = fitting[-1]
    source = chosen.source
    if not defines.search(source) and _is_body(source):
        source = (prompt if prompt.endswith("\n") else prompt + "\n") + source
    return Extracted(source, not (chosen.closed and closed), undecoded)


def _definition(name: str) -> re.Pattern[str]:
    """A line that binds the name at the outermost level: a function, a class, an assignment, an import."""
    escaped = re.escape(name)
    return re.compile(
        rf"^(?:(?:async[ \t]+)?def[ \t]+{escaped}\b|class[ \t]+{escaped}\b|{escaped}[ \t]*(?::[^=\n]*)?=(?!=)"
        rf"|(?:from|import)\b[^\n]*\b{escaped}\b)",
        re.MULTILINE,
    )


def _is_body(source: str) -> bool:
    return bool(_INDENTED.match(source.lstrip("\n")))


def _unquoted(text: str) -> str:
    """The text without the quotation marks and the single space that a published few-shot prompt of MBPP shows around
    every program."""
    found = _QUOTED.match(text)
    if not found:
        return text.strip("\n")
    return text[found.end() :].rstrip().removesuffix(found[1]) if found[1] else text[found.end() :]


def _between_markers(text: str) -> tuple[str, bool]:
    """What stands from the first `[BEGIN]` to the next `[DONE]`, and whether that is there when it has to be."""
    start, begun = 0, False
    for marker in _MARKER.finditer(text):
        if marker[1] == "DONE":
            return text[start : marker.start()], True
        if not begun:
            start, begun = marker.end(), True
    return text[start:], not begun


def _blocks(text: str) -> Iterator[_Block]:
    """Fenced code blocks as CommonMark has them: the closing fence is of the same character and no shorter."""
    indent, fence, lines = 0, "", list[str]()
    for line in text.split("\n"):
        found = _FENCE.match(line)
        if not fence:
            if found and not (found[2][0] == "`" and "`" in found[3]):
                indent, fence, lines = len(found[1]), found[2], []
        elif found and found[2].startswith(fence) and not found[3].strip():
            yield _Block("\n".join(lines), True)
            fence = ""
        else:
            spaces = len(line) - len(line.lstrip(" "))
            lines.append(line[min(indent, spaces) :])
    if fence:
        yield _Block("\n".join(lines), False)


@dataclass(frozen=True)
class Question:
    """What a program is asked for and tested with."""

    prompt: str
    """The text that a body continues; may be empty."""
    entry_point: str
    tests: str

    @property
    def prefix(self) -> str:
        """What the prompt says before the entry point: imports and helpers, which a whole function may rely on."""
        found = list(
            re.finditer(rf"^(?:async[ \t]+)?def[ \t]+{re.escape(self.entry_point)}\b", self.prompt, re.MULTILINE)
        )
        return self.prompt[: found[-1].start()] if found else ""


class Judged(NamedTuple):
    """What is said of one answer; `status` is that of `dare.spec.ItemStatus`."""

    solved: bool
    status: Literal["ok", "no_answer", "truncated", "undecoded", "error"]
    source: str | None
    outcome: Outcome | None
    """None when nothing was run."""


def judge_all(
    answers: Sequence[tuple[Question, str]],
    policies: Mapping[str, str],
    *,
    sandbox: Sandbox | None = None,
    seconds: float | None = None,
) -> list[Judged]:
    """Every program with its tests, in order. NoSandboxError where this machine cannot keep one apart."""
    fence: Any = policies.get("fence", POLICIES["fence"][0])
    preamble = PREAMBLES[policies.get("preamble", POLICIES["preamble"][0])]
    found = [program_in(text, question.entry_point, question.prompt, fence=fence) for question, text in answers]
    programs = {
        index: Program(extracted.source, question.tests, question.entry_point, question.prefix, preamble)
        for index, ((question, _), extracted) in enumerate(zip(answers, found, strict=True))
        if extracted is not None and not extracted.undecoded
    }
    outcomes = (sandbox or shared()).run(list(programs.values()), seconds=seconds) if programs else []
    by_index = dict(zip(programs, outcomes, strict=True))
    return [_judged(extracted, by_index.get(index)) for index, extracted in enumerate(found)]


def _judged(extracted: Extracted | None, outcome: Outcome | None) -> Judged:
    if extracted is None:
        return Judged(False, "no_answer", None, None)
    if outcome is None:
        return Judged(False, "undecoded", extracted.source, None)
    if outcome.status == "error":
        return Judged(False, "error", extracted.source, outcome)
    return Judged(outcome.status == "passed", "truncated" if extracted.truncated else "ok", extracted.source, outcome)
