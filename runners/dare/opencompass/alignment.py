"""Which item of ours each row of OpenCompass's dataset is, by what stands in them and never by position alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dare.tasks import Item, text_of

Row = Mapping[str, Any]
LETTERS = "ABCDEFGHIJKLMNOP"


class MismatchError(ValueError):
    """OpenCompass's rows are not the task's items. The message names the item and what differs."""


def align(benchmark: str, rows: Sequence[Row], items: Sequence[Item], *, drops: bool = False) -> list[Item]:
    """The item of every row, in the order of the rows, which has to be that of the items.

    With `drops`, OpenCompass may leave items out. MismatchError for anything else.
    """
    compare, aligned, place = COMPARE[benchmark], [], 0
    for number, row in enumerate(rows):
        reason = "there are no more items"
        while place < len(items):
            difference = compare(row, items[place])
            if difference is None:
                break
            if not drops:
                raise MismatchError(
                    f"row {number} of OpenCompass's {benchmark} is not item {items[place].id!r}: the {difference} "
                    "differs; is the data folder another release?"
                )
            place, reason = place + 1, f"no later item has this {difference}"
        else:
            raise MismatchError(f"row {number} of OpenCompass's {benchmark} is none of {len(items)} items: {reason}")
        aligned.append(items[place])
        place += 1
    if not drops and place < len(items):
        raise MismatchError(
            f"OpenCompass's {benchmark} has {len(rows)} rows and no item {items[place].id!r}; there are {len(items)}"
        )
    return aligned


def _plain(text: object) -> str:
    return " ".join(str(text).split())


def _asks(question: object, item: Item) -> bool:
    """Whether the item's published question or, where it keeps none, its prompt contains the row's."""
    return _plain(question) in _plain(item.row.get("question", text_of(item.prompt)))


def _told(item: Item, published: str, gold: str) -> Any:
    """From the published row where the item keeps one."""
    return item.row[published] if published in item.row else item.gold[gold]


def _number(row: Row, item: Item) -> str | None:
    if not _asks(row["question"], item):
        return "question"
    gold = row["answer"].rpartition("####")[2].strip().replace(",", "")
    return None if gold == str(item.gold["answer"]) else "answer"


def _problem(column: str) -> Callable[[Row, Item], str | None]:
    return lambda row, item: None if _asks(row[column], item) else "problem"


def _options(question: str, options: Sequence[str], right: str) -> Callable[[Row, Item], str | None]:
    """The options may be in another order, but the right one has the same words."""

    def compare(row: Row, item: Item) -> str | None:
        if not _asks(row[question], item):
            return "question"
        theirs = [_plain(row[column]) for column in options]
        ours = [_plain(option) for option in _told(item, "options", "options")]
        if sorted(theirs) != sorted(ours):
            return "list of options"
        given = row[right]
        place = given if isinstance(given, int) else LETTERS.index(given)
        return None if theirs[place] == ours[LETTERS.index(_told(item, "answer", "letter"))] else "right option"

    return compare


def _listed_options(row: Row, item: Item) -> str | None:
    if not _asks(row["question"], item):
        return "question"
    ours = [f"{letter}. {option}" for letter, option in zip(LETTERS, item.gold["options"], strict=False)]
    if _plain(row["options_str"]) != _plain("\n".join(ours)):
        return "list of options"
    return None if row["answer"] == item.gold["letter"] else "right option"


COMPARE: Mapping[str, Callable[[Row, Item], str | None]] = {
    "gsm8k": _number,
    "math": _problem("problem"),
    "aime2024": _problem("question"),
    "OlympiadBench": _problem("problem"),
    "humaneval": _problem("prompt"),
    "mbpp": _problem("text"),
    "IFEval": _problem("prompt"),
    "mmlu": _options("input", "ABCD", "target"),
    "mmlu_pro": _listed_options,
    "ARC_c": _options("question", ("textA", "textB", "textC", "textD"), "answerKey"),
    "hellaswag": _options("ctx", "ABCD", "label"),
    "gpqa": _options("question", "ABCD", "answer"),
}
"""By the folder of the configuration: what differs between a row and an item, None where nothing does."""
