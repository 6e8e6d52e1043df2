"""Instructions whose following can be checked by rule: the 25 kinds of IFEval, by the names of its data.

Each kind is a function of its arguments and the whole response. Two kinds are rules of our own where the published
checker uses a trained model: sentences are counted by punctuation, languages told by `dare.rewards.language`. All read
the response a bounded number of times, so the time is linear in its length, whatever the text.

    UnsupportedInstructionError(ValueError)    a kind, an argument or a value that cannot be checked here
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from dare.rewards.language import LANGUAGES, languages_of

Relation = Literal["less than", "at least"]
RELATIONS = ("less than", "at least")
ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_WORD = re.compile(r"\w+")
_CAPITALS = re.compile(r"[^\W_]+(?:[-'’.][^\W_]+)*")
_EMPHASIS = re.compile(r"\*\*([^\n*]*)\*\*|\*([^\n*]+)\*")
_STOP = re.compile(r"[.!?]{1,8}[\"'”’)\]*_]{0,4}(?=\s|$)|[。！？।؟۔]")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\"'])(?:[A-Za-z]|Mr|Mrs|Ms|Dr|Prof|St|vs|etc|e\.g|i\.e|Jr|Sr|No|[A-Z](?:\.[A-Z])+)$"
)
_LIST_NUMBER = re.compile(r"(?:^|\n)\s{0,8}[0-9]{1,3}$")
_FENCE = re.compile(r"```(?:json|Json|JSON)?")


class UnsupportedInstructionError(ValueError):
    """The instruction cannot be checked here. The message names it."""


def _related(count: int, relation: Relation, threshold: int) -> bool:
    return count < threshold if relation == "less than" else count >= threshold


def sentences(text: str) -> int:
    """Sentences by their final punctuation; an abbreviation, an initial and the number of a list item end none."""
    count, begins = 0, 0
    for stop in _STOP.finditer(text):
        before = text[max(begins, stop.start() - 12) : stop.start()]
        single = text[stop.start() : stop.end()] == "."
        if single and stop.end() < len(text) and (_ABBREVIATION.search(before) or _LIST_NUMBER.search(before)):
            continue
        count, begins = count + 1, stop.end()
    return count + bool(text[begins:].strip(" \n\t\"'”’)*_"))


def placeholders(text: str) -> int:
    """Pairs of square brackets on one line."""
    count = 0
    for line in text.split("\n"):
        start = line.find("[")
        while start >= 0 and (end := line.find("]", start)) >= 0:
            count += 1
            start = line.find("[", end)
    return count


def _bullet(line: str) -> bool:
    line = line.lstrip()
    return line.startswith("-") or (line.startswith("*") and line[1:2] not in ("*", ""))


def _parts(text: str, divider: str) -> list[str] | None:
    """What a divider separates; nothing before the first and after the last is no part, nothing between two is a
    mistake."""
    parts = [part.strip() for part in text.split(divider)]
    if parts and not parts[0]:
        parts = parts[1:]
    if parts and not parts[-1]:
        parts = parts[:-1]
    return parts if all(parts) else None


def _first_word(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    """Paragraphs are separated by an empty line; the word's case and the punctuation around it do not count."""
    paragraphs = text.split("\n\n")
    written = sum(bool(paragraph.strip()) for paragraph in paragraphs)
    if written != num_paragraphs or nth_paragraph > written:
        return False
    words = paragraphs[nth_paragraph - 1].split()
    found = re.split(r"[.,?!'\"]", words[0].lstrip("'\""), maxsplit=1)[0] if words else ""
    return found.lower() == first_word.lower()


def _postscript(text: str, postscript_marker: str) -> bool:
    marker = postscript_marker.strip()
    spaced = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}.get(marker, re.escape(marker.lower()))
    return re.search(spaced, text.lower()) is not None


def _json(text: str) -> bool:
    text = text.strip()
    if fence := _FENCE.match(text):
        text = text[fence.end() :]
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def _title(text: str) -> bool:
    for line in text.split("\n"):
        start, end = line.find("<<"), line.rfind(">>")
        if 0 <= start < end and line[start:end].strip("<> \t"):
            return True
    return False


def _two_responses(text: str) -> bool:
    parts = _parts(text, "******")
    return parts is not None and len(parts) == 2 and parts[0] != parts[1]


def _count(text: str, keyword: str) -> int:
    return text.lower().count(keyword.strip().lower())


_KINDS: dict[str, Callable[..., bool]] = {
    "keywords:existence": lambda text, keywords: all(_count(text, keyword) for keyword in keywords),
    "keywords:frequency": lambda text, keyword, frequency, relation: _related(
        _count(text, keyword), relation, frequency
    ),
    "keywords:forbidden_words": lambda text, forbidden_words: (
        not any(re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) for word in forbidden_words)
    ),
    "keywords:letter_frequency": lambda text, letter, let_frequency, let_relation: _related(
        text.lower().count(letter.lower()), let_relation, let_frequency
    ),
    "language:response_language": lambda text, language: language in languages_of(text),
    "length_constraints:number_sentences": lambda text, num_sentences, relation: _related(
        sentences(text), relation, num_sentences
    ),
    "length_constraints:number_paragraphs": lambda text, num_paragraphs: (
        len(_parts(text, "***") or ()) == num_paragraphs
    ),
    "length_constraints:number_words": lambda text, num_words, relation: _related(
        sum(1 for _ in _WORD.finditer(text)), relation, num_words
    ),
    "length_constraints:nth_paragraph_first_word": _first_word,
    "detectable_content:number_placeholders": lambda text, num_placeholders: placeholders(text) >= num_placeholders,
    "detectable_content:postscript": _postscript,
    "detectable_format:number_bullet_lists": lambda text, num_bullets: (
        sum(map(_bullet, text.split("\n"))) == num_bullets
    ),
    "detectable_format:constrained_response": lambda text: any(answer in text for answer in ANSWERS),
    "detectable_format:number_highlighted_sections": lambda text, num_highlights: (
        sum(bool((part[1] or part[2] or "").strip()) for part in _EMPHASIS.finditer(text)) >= num_highlights
    ),
    "detectable_format:multiple_sections": lambda text, section_spliter, num_sections: (
        len(re.findall(rf"{re.escape(section_spliter.strip())}\s?[0-9]+", text)) >= num_sections
    ),
    "detectable_format:json_format": _json,
    "detectable_format:title": _title,
    "combination:two_responses": _two_responses,
    "combination:repeat_prompt": lambda text, prompt_to_repeat: (
        text.strip().lower().startswith(prompt_to_repeat.strip().lower())
    ),
    "startend:end_checker": lambda text, end_phrase: (
        text.strip().strip('"').lower().endswith(end_phrase.strip().lower())
    ),
    "startend:quotation": lambda text: len(text.strip()) > 1 and text.strip()[0] == text.strip()[-1] == '"',
    "change_case:capital_word_frequency": lambda text, capital_frequency, capital_relation: _related(
        sum(word[0].isupper() for word in _CAPITALS.finditer(text)), capital_relation, capital_frequency
    ),
    "change_case:english_capital": lambda text: text.isupper() and "en" in languages_of(text),
    "change_case:english_lowercase": lambda text: text.islower() and "en" in languages_of(text),
    "punctuation:no_comma": lambda text: "," not in text,
}
ARGUMENTS: dict[str, tuple[str, ...]] = {
    kind: check.__code__.co_varnames[1 : check.__code__.co_argcount] for kind, check in _KINDS.items()
}
"""Every kind that can be checked, and the arguments that it needs, by their published names."""


def require_supported(kind: str, arguments: Mapping[str, Any]) -> None:
    """UnsupportedInstructionError for an instruction that cannot be checked."""
    if kind not in ARGUMENTS:
        raise UnsupportedInstructionError(f"instruction {kind!r} cannot be checked; known: {', '.join(ARGUMENTS)}")
    if missing := [name for name in ARGUMENTS[kind] if arguments.get(name) is None]:
        raise UnsupportedInstructionError(f"instruction {kind!r} has no {', '.join(missing)}")
    for name in ARGUMENTS[kind]:
        if name.endswith("relation") and arguments[name] not in RELATIONS:
            raise UnsupportedInstructionError(f"instruction {kind!r} has the relation {arguments[name]!r}")
    if "language" in ARGUMENTS[kind] and arguments["language"] not in LANGUAGES:
        raise UnsupportedInstructionError(f"instruction {kind!r} asks for language {arguments['language']!r}")


def follows(text: str, kind: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a response follows one instruction. An empty one follows none."""
    return bool(text.strip()) and _KINDS[kind](text, **{name: arguments[name] for name in ARGUMENTS[kind]})
