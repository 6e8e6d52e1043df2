"""Do training prompts give test items away? Exact after normalisation, by shared 13-grams, or by the same question.

A text is its words: runs of letters and digits in lower case, and arithmetic signs, which mean something; other
punctuation and white space do not count. Words that all items of a task begin or end with are its form, as are those of
all training prompts: two prompts are equal when they are so without. 13 words in a row that a training prompt shares
with a test item are evidence (as in GPT-3's report), unless more than ten different prompts on one of the two sides
have them: an instruction is not an item. `containment` is the share of an item's evidence that was found.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from dare.frozen import Frozen
from dare.tasks import Item, MissingDataError, Task, load_task, task_names, text_of

NAME = "overlap.json"
NGRAM = 13
FORM = 10
"""More different prompts than this with one n-gram make it a form."""
SHOWN_ROWS = 10
_WORD = re.compile(r"[^\W_]+|[+*/^=<>]|-(?=\s*[\d(])|(?<=[\d)])\s*-")

Match = Literal["exact", "question", "ngram"]
Words = tuple[str, ...]


@dataclass(frozen=True)
class Asked:
    """One training prompt: its id, its text, and, for judged prompts, task and gold."""

    id: str
    text: str
    task: str | None = None
    gold: Mapping[str, Any] | None = None


class Contaminated(Frozen):
    """A test item that training prompts give away, by the strongest match."""

    task: str
    item: str
    match: Match
    containment: float
    """Share of the item's evidence, in [0, 1]; 1 for an exact match."""
    rows: tuple[str, ...]
    """Ids of the training rows, the first ten."""
    row_count: int


class Compared(Frozen):
    """How one task fared."""

    task: str
    items: int
    contaminated: int


class Report(Frozen):
    """`overlap.json`."""

    version: Literal[1] = 1
    ngram: int
    form: int
    training_rows: int
    compared: tuple[Compared, ...]
    absent: tuple[str, ...]
    """Tasks that were not compared, because their test items are not on this machine."""
    contaminated: tuple[Contaminated, ...]
    dropped: int = 0
    """Training rows left out under the policy `drop`."""


@dataclass(frozen=True)
class Overlap:
    """What was found: the report, and the numbers of the training rows that give something away."""

    report: Report
    rows: frozenset[int]


def words(text: str) -> Words:
    """A text as it is compared."""
    return tuple(word.strip() for word in _WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


def without_form(texts: Collection[Words]) -> dict[Words, Words]:
    """Each text without the words that all begin with and those that all end with; one text has no form."""
    if len(texts) < 2:
        return {text: text for text in texts}
    first, last = _common(texts), _common([text[::-1] for text in texts])
    return {text: text[first : max(first, len(text) - last)] or text for text in texts}


def _common(texts: Collection[Words]) -> int:
    """How many words all begin with."""
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*texts, strict=False)))


def ngrams(text: Words, n: int) -> Iterator[Words]:
    """All runs of n words; a shorter text has none."""
    return zip(*(text[start:] for start in range(n)), strict=False)


def question_of(task: str, gold: Mapping[str, Any]) -> str | None:
    """The question itself, however it is worded, for the tasks whose gold holds it.

    Countdown: the numbers in any order, and the target. Sudoku: the grid with its holes.
    """
    if task.startswith("countdown"):
        return f"countdown {sorted(gold['numbers'])} {gold['target']}"
    return f"sudoku {gold['puzzle']}" if task.startswith("sudoku") else None


def held_out(data: Path | None) -> tuple[list[tuple[Task, Sequence[Item]]], list[str]]:
    """Every task whose test items can be had here, and the names of the others."""
    found, absent = [], []
    for task in map(load_task, task_names()):
        try:
            found.append((task, task.items("test", data)))
        except MissingDataError:
            absent.append(task.name)
    return found, absent


def compare(
    training: Sequence[Asked],
    tests: Sequence[tuple[Task, Sequence[Item]]],
    absent: Sequence[str] = (),
    n: int = NGRAM,
    form: int = FORM,
) -> Overlap:
    """All test items against all training prompts, in time that grows with the text and not with the pairs."""
    rows_of_text: dict[Words, list[int]] = defaultdict(list)
    rows_of_core: dict[Words, list[int]] = defaultdict(list)
    rows_of_question: dict[str, list[int]] = defaultdict(list)
    for number, asked in enumerate(training):
        rows_of_text[words(asked.text)].append(number)
        if asked.task is not None and (question := question_of(asked.task, asked.gold or {})) is not None:
            rows_of_question[question].append(number)
    for text, core in without_form(rows_of_text).items():
        rows_of_core[core] += rows_of_text[text]
    every = []
    for task, items in tests:
        texts = {item.id: words(text_of(item.prompt)) for item in items}
        cores = without_form(set(texts.values()))
        every += [(task, item, texts[item.id], cores[texts[item.id]]) for item in items]
    rows_of_ngram = _shared(rows_of_text, {text for _, _, text, _ in every}, n, form)
    contaminated, hit = [], set[int]()
    for task, item, text, core in every:
        evidence = {gram for gram in ngrams(text, n) if gram in rows_of_ngram}
        by_ngram = {row for gram in evidence for row in rows_of_ngram[gram]}
        question = question_of(task.name, item.gold)
        by_question = rows_of_question.get(question, []) if question is not None else []
        exact = [*rows_of_text.get(text, []), *rows_of_core.get(core, [])] if text else []
        rows = sorted({*exact, *by_question, *by_ngram})
        if not rows:
            continue
        share = sum(bool(rows_of_ngram[gram]) for gram in evidence) / max(len(evidence), 1)
        contaminated.append(
            Contaminated(
                task=task.name,
                item=item.id,
                match="exact" if exact else "question" if by_question else "ngram",
                containment=1.0 if exact else share,
                rows=tuple(training[row].id for row in rows[:SHOWN_ROWS]),
                row_count=len(rows),
            )
        )
        hit.update(rows)
    counts = Counter(one.task for one in contaminated)
    report = Report(
        ngram=n,
        form=form,
        training_rows=len(training),
        compared=tuple(Compared(task=t.name, items=len(i), contaminated=counts[t.name]) for t, i in tests),
        absent=tuple(absent),
        contaminated=tuple(contaminated),
    )
    return Overlap(report, frozenset(hit))


def _shared(
    training: Mapping[Words, Sequence[int]], tests: set[Words], n: int, form: int
) -> dict[Words, tuple[int, ...]]:
    """The n-grams of the test items that are evidence, with the training rows that have them."""
    in_tests = Counter(gram for text in tests for gram in set(ngrams(text, n)))
    texts_with: dict[Words, list[Words]] = {gram: [] for gram, count in in_tests.items() if count <= form}
    for text in training:
        for gram in texts_with.keys() & set(ngrams(text, n)):
            texts_with[gram].append(text)
    return {
        gram: tuple(row for text in texts for row in training[text])
        for gram, texts in texts_with.items()
        if len(texts) <= form
    }


def sentence(report: Report, sample: int = 3) -> str:
    """One line for the log."""
    if not report.contaminated:
        total = sum(one.items for one in report.compared)
        return f"none of {total:,} test items is given away by {report.training_rows:,} training prompts"
    parts = [f"{one.contaminated} of {one.items} of {one.task}" for one in report.compared if one.contaminated]
    named = ", ".join(f"{one.item} ({one.match})" for one in report.contaminated[:sample])
    more = ", ..." if len(report.contaminated) > sample else ""
    kept = f"{report.dropped} training rows were left out" if report.dropped else "the rows are trained on all the same"
    return f"training prompts give away test items: {'; '.join(parts)}: {named}{more}; {kept}; see {NAME}"
