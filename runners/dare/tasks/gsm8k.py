"""GSM8K: word problems of grade-school arithmetic whose answer is one number.

Prompt and judge belong together: the prompt asks for the tags that `dare.rewards.format` looks at, the judge accepts
the number in every usual notation. There is no credit for the format here; a run that wants it composes its reward.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from dare.rewards import number
from dare.tasks import Demonstration, Item, Task, UnknownSplitError, Verdict, read_data

SHA256 = {
    "train": "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
    "test": "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
}
FORMAT = "<reasoning>\nyour steps\n</reasoning>\n<answer>\nthe number alone\n</answer>"
FIRST = (
    "Janet’s ducks lay 16 eggs per day. She eats three for breakfast every morning and bakes muffins for her friends "
    "every day with four. She sells the remainder at the farmers' market daily for $2 per fresh duck egg. How much in "
    "dollars does she make every day at the farmers' market?"
)
"""The first question of the test split, to be shown."""
_NUMERAL = re.compile(r"[0-9][0-9,.]*")
_CALCULATION = re.compile(r"<<[^<>\n]*>>")


def prompt(question: str) -> str:
    """The question as published and the form that the answer should have."""
    return f"{question}\n\nSolve the problem step by step and reply in this form:\n{FORMAT}"


def judge(item: Item, text: str) -> Verdict:
    """`solved` by exact comparison of rational numbers, read by `dare.rewards.number`; the reward is the same."""
    gold = number.exact(str(item.gold["answer"]))
    if gold is None:
        raise ValueError(f"the gold of item {item.id!r} is {item.gold['answer']!r:.40}, no number")
    reading = number.read(text)
    if reading is None:
        return Verdict(solved=False, reward=0.0, status="no_answer", answer=None)
    solved = reading.value == gold
    return Verdict(solved=solved, reward=float(solved), status="ok", answer=reading.text)


def items(split: str, data: Path | None = None) -> Sequence[Item]:
    """The rows of the published file in its order; a gold is the number after `####`, without its commas."""
    return [
        _item(f"{split}-{index:04}", question, solution.rpartition("####")[2])
        for index, (question, solution) in enumerate(_rows(split, data))
    ]


def _item(id: str, question: str, gold: str) -> Item:
    """Questions that differ in their numbers alone are one cluster."""
    return Item(id, prompt(question), {"answer": gold.strip().replace(",", "")}, _NUMERAL.sub("#", question))


def worked(data: Path | None) -> Sequence[Demonstration]:
    """The training split's own solutions in the form that the prompt asks for, without calculator annotations."""
    shown = []
    for question, solution in _rows("train", data):
        steps, _, answer = solution.rpartition("\n####")
        steps, answer = _CALCULATION.sub("", steps), answer.strip().replace(",", "")
        shown.append(
            Demonstration(prompt(question), f"<reasoning>\n{steps}\n</reasoning>\n<answer>\n{answer}\n</answer>")
        )
    return shown


@cache
def _rows(split: str, data: Path | None) -> tuple[tuple[str, str], ...]:
    if split not in SHA256:
        raise UnknownSplitError(f"task 'gsm8k' has no split {split!r}; it has: {', '.join(SHA256)}")
    lines = read_data("gsm8k", data, f"gsm8k/{split}.jsonl", SHA256[split]).splitlines()
    return tuple((row["question"], row["answer"]) for row in map(json.loads, lines))


TASK = Task(
    name="gsm8k",
    title="GSM8K",
    version="1",
    licence="MIT",
    source=f"openai/grade-school-math at 3101c7d, test.jsonl, SHA-256 {SHA256['test']}",
    chance_floor=99_903 / (7_473 * 1_319),
    chance_procedure="the answer of a training question, drawn uniformly; exact: mean share of the 7473 training "
    "answers that equal the item's",
    example=(_item("test-0000", FIRST, "18"), "18"),
    items=items,
    judge=judge,
    needs_data=True,
    notes=(
        "Zero-shot, with the format in the prompt. It is another protocol than few-shot prompting with `####`, and the "
        "numbers of the two are not comparable.",
        "An answer tag that is never closed is no tag; a box that is never closed is no answer. Of 1130 published "
        "generations of LLaDA-8B-Instruct 69.4 % are solved at 128 tokens (20 have no answer), and 78.1 % at 256 (13); "
        "a scorer that takes the last number of the text gives them 70.9 % and 78.0 %.",
    ),
)
