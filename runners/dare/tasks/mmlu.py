"""MMLU: questions of 57 subjects with four options each, answered by a letter.

The published files are one of each subject; `mmlu.json` beside this file has the rows and the SHA-256 of all 114.
What the letter of an answer is says `dare.rewards.choice`, here and in the other multiple-choice tasks.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from io import StringIO
from pathlib import Path
from statistics import fmean

from dare.rewards import choice
from dare.tasks import DataFile, Dialogue, Item, Task, UnknownSplitError, Verdict, read_data

KNOWN: dict[str, tuple[int, str]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
"""Rows and SHA-256 of every published file, by its path."""
SPLITS = ("dev", "test")
SUBJECTS = tuple(sorted(path.split("/")[-1].removesuffix("_test.csv") for path in KNOWN if path.endswith("_test.csv")))
DIRECT = "Reply with the letter of the right choice, in this form:\n<answer>\nthe letter alone\n</answer>"
STEPS = (
    "Think step by step and reply in this form:\n"
    "<reasoning>\nyour steps\n</reasoning>\n<answer>\nthe letter of the right choice alone\n</answer>"
)
PASSAGE = "This question refers to the following information."
SHOTS = 5


class IncompleteError(ValueError):
    """A mean over subjects was asked for where some items have no score. The message names the subjects."""


def listed(options: Sequence[str]) -> str:
    """The options one a line, with their letters."""
    return "\n".join(f"{letter}. {option}" for letter, option in zip(choice.LETTERS, options, strict=False))


def judge(item: Item, text: str) -> Verdict:
    """`solved` when the one letter that the text picks is the right one; more than one letter is no answer."""
    picked = choice.read(text, item.gold["options"]).letter
    if picked is None:
        return Verdict(solved=False, reward=0.0, status="no_answer", answer=None)
    solved = picked == item.gold["letter"]
    return Verdict(solved=solved, reward=float(solved), status="ok", answer=picked)


def items(split: str, data: Path | None = None) -> Sequence[Item]:
    """The rows of the published files, subjects in alphabetical order; "dev" has the five worked examples of each."""
    if split not in SPLITS:
        raise UnknownSplitError(f"task 'mmlu' has no split {split!r}; it has: {', '.join(SPLITS)}")
    return [
        _item(f"{subject}-{number:04}", subject, row)
        for subject in SUBJECTS
        for number, row in enumerate(_rows(subject, split, data))
    ]


def _item(id: str, subject: str, row: Sequence[str]) -> Item:
    """Questions on one passage are one cluster, and so are those that were published twice."""
    question, *options, letter = row
    passage = question.rpartition("\n")[0] if question.startswith(PASSAGE) else question
    return Item(
        id,
        f"{question}\n\n{listed(options)}\n\n{DIRECT}",
        {"letter": letter, "options": options},
        passage,
        {"subject": subject, "question": question, "options": options, "answer": letter},
    )


@cache
def _rows(subject: str, split: str, data: Path | None) -> tuple[tuple[str, ...], ...]:
    path = f"mmlu/{split}/{subject}_{split}.csv"
    return tuple(map(tuple, csv.reader(StringIO(read_data("mmlu", data, path, KNOWN[path][1]), newline=""))))


def hendrycks_5shot(item: Item, data: Path | None) -> Dialogue:
    """The prompt of the benchmark's authors: the subject, its five worked examples, the question."""
    subject = item.row["subject"]
    shown = [_worked(question, options, letter) for question, *options, letter in _rows(subject, "dev", data)[:SHOTS]]
    asked = _worked(item.row["question"], item.row["options"], "")
    about = f"The following are multiple choice questions (with answers) about {subject.replace('_', ' ')}."
    return "\n\n".join([about, *shown, asked])


def _worked(question: str, options: Sequence[str], letter: str) -> str:
    return f"{question}\n{listed(options)}\nAnswer:{letter and ' '}{letter}"


def macro_average(scores: Mapping[str, float], items: Sequence[Item]) -> float:
    """The mean of the subjects' means, of scores by item id. IncompleteError unless every item has one: a mean over
    some of the subjects is a number of another benchmark."""
    by_subject: dict[str, list[float]] = defaultdict(list)
    missing = set(SUBJECTS) - {item.row["subject"] for item in items}
    for item in items:
        if item.id in scores:
            by_subject[item.row["subject"]].append(scores[item.id])
        else:
            missing.add(item.row["subject"])
    if missing:
        raise IncompleteError(f"no mean over {len(SUBJECTS)} subjects: without scores are {', '.join(sorted(missing))}")
    return fmean(map(fmean, by_subject.values()))


TASK = Task(
    name="mmlu",
    title="MMLU",
    version="1",
    licence="MIT",
    source="hendrycks/test, the original columns, from HaeChan0305/MLILAB-FedLLM at d92730e; SHA-256 of every file in "
    "dare/tasks/mmlu.json",
    chance_floor=0.25,
    chance_procedure="a letter drawn uniformly from A to D; exact: every item has four options and one right letter",
    example=(
        Item(
            "example",
            f"How many sides has a hexagon?\n\n{listed(['Four', 'Five', 'Six', 'Eight'])}\n\n{DIRECT}",
            {"letter": "C", "options": ["Four", "Five", "Six", "Eight"]},
            "How many sides has a hexagon?",
        ),
        "C",
    ),
    items=items,
    judge=judge,
    needs_data=True,
    count=14_042,
    files=tuple(DataFile(path, sha256, rows=rows) for path, (rows, sha256) in KNOWN.items()),
    contamination="The items have been on the web since 2020 in many copies, and texts that contain them are in common "
    "pretraining crawls. Nothing is known of the backbones here; a score is no proof of knowledge.",
    asked={"hendrycks_5shot": hendrycks_5shot},
    notes=(
        "Zero-shot, with the format in the prompt; `hendrycks_5shot` is another protocol, and so is the likelihood of "
        "the letters. The numbers of the three are not comparable.",
        "The headline is the mean over all items. The mean of the 57 subjects' means is another number, and "
        "`macro_average` refuses it over fewer subjects or items.",
        "Always D is right in 26.9 % of the items: 3776 of 14042. Always A is in 22.9 %.",
        "105 items repeat another one word for word, 78 of them under another subject; they are one cluster. 9 items "
        "have two equal options.",
        "The quality of the questions is uneven; published re-annotations find wrong golds in several per cent.",
    ),
)
