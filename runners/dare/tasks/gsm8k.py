"""GSM8K: word problems of grade-school arithmetic whose answer is one number.

Prompt and judge belong together: the prompt asks for the tags that `dare.rewards.format` looks at, the judge accepts
the number in every usual notation. There is no credit for the format here; a run that wants it composes its reward.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from dare.rewards import number
from dare.tasks import (
    DataFile,
    Demonstration,
    Dialogue,
    Item,
    Judge,
    Task,
    UnknownSplitError,
    Verdict,
    read_data_bytes,
    read_rows,
)

SHA256 = {
    "train": "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
    "test": "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
}
ADDRESS = (
    "https://raw.githubusercontent.com/openai/grade-school-math/3101c7d5072418e28b9008a6636bde82a006892c/"
    "grade_school_math/data/"
)
D1_INSTRUCTION = (
    "You are a math expert. You will be given a question to solve. Solve it step by step. Wrap the final answer in a "
    "\\boxed{}. \nRespond in the following format:\n<reasoning>\nYour reasoning here\n</reasoning>\n<answer>\n"
    "\\boxed{...}\n</answer>"
)
"""What d1 puts before the question in the user's turn. It also begins the answer with `<reasoning>`."""
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
    return _judge(item, text)


def judge_under(policies: Mapping[str, str]) -> Judge:
    """The judge of a protocol that reads another marker, or numbers with a marker alone."""
    which: Literal["last", "first"] = "first" if policies.get("marker") == "first" else "last"
    unmarked: Literal["last_number", "none"] = "none" if policies.get("unmarked") == "none" else "last_number"
    return lambda item, text: _judge(item, text, which, unmarked)


def _judge(
    item: Item,
    text: str,
    which: Literal["last", "first"] = "last",
    unmarked: Literal["last_number", "none"] = "last_number",
) -> Verdict:
    gold = number.exact(str(item.gold["answer"]))
    if gold is None:
        raise ValueError(f"the gold of item {item.id!r} is {item.gold['answer']!r:.40}, no number")
    reading = number.read(text, which=which, unmarked=unmarked)
    if reading is None:
        return Verdict(solved=False, reward=0.0, status="no_answer", answer=None)
    solved = reading.value == gold
    return Verdict(solved=solved, reward=float(solved), status="ok", answer=reading.text)


def d1(item: Item, _data: Path | None = None) -> Dialogue:
    """d1's prompt, as its evaluation writes it without worked examples."""
    return f"{D1_INSTRUCTION}\n\n{item.row['question']}"


def bare(item: Item, _data: Path | None = None) -> Dialogue:
    """The question alone, as DARE's reinforcement learning asks it: nothing says how the answer should look."""
    return str(item.row["question"])


def items(split: str, data: Path | None = None) -> Sequence[Item]:
    """The rows of the published file in its order; a gold is the number after `####`, without its commas."""
    return [
        _item(f"{split}-{index:04}", question, solution.rpartition("####")[2])
        for index, (question, solution) in enumerate(_rows(split, data))
    ]


def _item(id: str, question: str, gold: str) -> Item:
    """Questions that differ in their numbers alone are one cluster."""
    answer = gold.strip().replace(",", "")
    return Item(id, prompt(question), {"answer": answer}, _NUMERAL.sub("#", question), {"question": question})


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
    rows = read_rows("gsm8k", data, f"gsm8k/{split}.jsonl", SHA256[split])
    return tuple((row["question"], row["answer"]) for row in rows)


def _train(data: Path | None) -> bytes:
    return read_data_bytes("gsm8k", data, "gsm8k/train.jsonl", SHA256["train"])


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
    count=1_319,
    files=(
        DataFile("gsm8k/test.jsonl", SHA256["test"], f"{ADDRESS}test.jsonl", rows=1_319),
        DataFile("gsm8k/train.jsonl", SHA256["train"], f"{ADDRESS}train.jsonl", rows=7_473),
    ),
    training_files={"gsm8k/train.jsonl": _train},
    contamination="Public since 2021. Its training split, and rewritings of it, are in most instruction mixtures; test "
    "questions have been found in pretraining corpora. No test question of the file differs from a training question "
    "in its numbers alone.",
    asked={"d1": d1, "bare": bare},
    policies={"marker": ("last", "first"), "unmarked": ("last_number", "none")},
    judge_under=judge_under,
    notes=(
        "Zero-shot, with the format in the prompt. It is another protocol than few-shot prompting with `####`, and the "
        "numbers of the two are not comparable.",
        "An answer tag that is never closed is no tag; a box that is never closed is no answer. Of 1130 published "
        "generations of LLaDA-8B-Instruct 69.4 % are solved at 128 tokens (20 have no answer), and 78.1 % at 256 (13); "
        "a scorer that takes the last number of the text gives them 70.9 % and 78.0 %.",
    ),
)
