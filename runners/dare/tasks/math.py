r"""MATH: competition problems of seven subjects and five levels whose answer is a formula. Declared, not fetched.

Prompt and judge of all tasks with mathematical answers are here: the prompt asks for a box, `math_answer` says where
the answer stands, `equivalence` whether it is the gold. There is no credit for the format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

from dare.rewards import equivalence, math_answer, mathverify, notation
from dare.rewards.equivalence import Rules
from dare.tasks import (
    DataFile,
    Dialogue,
    Item,
    Judge,
    NotScoredError,
    Task,
    UnknownSplitError,
    Verdict,
    read_data,
)

FILE = "math/math.json"
FORMAT = "<reasoning>\nyour steps\n</reasoning>\n<answer>\n\\boxed{the final answer alone}\n</answer>"
D1_INSTRUCTION = (
    "You are a math expert. You will be given a question to solve. Solve it step by step. Wrap the final answer in a "
    "\\boxed{}.\nRespond in the following format:\n<reasoning>\nYour reasoning here\n</reasoning>\n<answer>\n"
    '\\boxed{...}\n</answer>" \n'
)
"""What d1 puts before the problem in the user's turn, with its stray quotation mark. It also begins the answer with
`<reasoning>`."""
POLICIES: Mapping[str, tuple[str, ...]] = {
    "box": ("last", "first"),
    "without_box": ("marker", "none"),
    **equivalence.choices(),
}
RIGHTS = (
    "The files carry an MIT licence; a rights holder of some contest problems is reported to have objected to hosted "
    "copies of the full set."
)
CONTAMINATION = (
    "Public since 2021 and in many copies on the web; its training split, rewritings of it and often the test problems "
    "themselves are in pretraining and instruction mixtures. Little is known of the backbones here, so a score on it "
    "is no proof of reasoning."
)
_NUMERAL = re.compile(r"[0-9][0-9,.]*")


def prompt(problem: str) -> str:
    """The problem as published and the form that the answer should have."""
    return f"{problem}\n\nSolve the problem step by step and reply in this form:\n{FORMAT}"


def item_of_row(id: str, problem: str, answer: str, row: Mapping[str, Any]) -> Item:
    """Problems that differ in their numbers alone are one cluster."""
    return Item(id, prompt(problem), {"answer": answer}, _NUMERAL.sub("#", problem), row)


def d1(item: Item, _data: Path | None = None) -> Dialogue:
    """d1's prompt, as its evaluation writes it without worked examples."""
    return f"{D1_INSTRUCTION}\n\n{item.row['problem']}"


def bare(item: Item, _data: Path | None = None) -> Dialogue:
    """The problem alone, as DARE's reinforcement learning asks it: nothing says that the scorer needs a box."""
    return str(item.row["problem"])


def judge(item: Item, text: str) -> Verdict:
    """`solved` when the answer is equivalent to the gold under the default rules; the reward is the same.

    Where math-verify fails on the pair the status is "error". NotScoredError where it is not installed.
    """
    return _judge(item, text, {})


def judge_under(policies: Mapping[str, str]) -> Judge:
    """The judge under the rules of a protocol."""
    return lambda item, text: _judge(item, text, policies)


def judge_all(answers: Sequence[tuple[Item, str]], policies: Mapping[str, str]) -> Sequence[Verdict]:
    """Many at once: while one waits for math-verify the next is read."""
    _require()
    with ThreadPoolExecutor(mathverify.PROCESSES) as threads:
        return list(threads.map(lambda pair: _judge(pair[0], pair[1], policies), answers))


def _judge(item: Item, text: str, policies: Mapping[str, str]) -> Verdict:
    _require()
    which = cast(Literal["last", "first"], policies.get("box", "last"))
    without_box = cast(Literal["marker", "none"], policies.get("without_box", "marker"))
    found = math_answer.read(text, which=which, without_box=without_box)
    if found is None:
        return Verdict(solved=False, reward=0.0, status="no_answer", answer=None)
    shown = found.text[: notation.MAX_LENGTH]
    try:
        solved = equivalence.equal(found.text, str(item.gold["answer"]), _rules(policies))
    except mathverify.MathVerifyError:
        return Verdict(solved=False, reward=0.0, status="error", answer=shown)
    return Verdict(solved=solved, reward=float(solved), status="ok", answer=shown)


def _rules(policies: Mapping[str, str]) -> Rules:
    chosen: dict[str, Any] = {name: policies[name] for name in equivalence.choices() if name in policies}
    return Rules(**chosen)


def _require() -> None:
    try:
        mathverify.require()
    except mathverify.MissingMathVerifyError as error:
        raise NotScoredError(str(error)) from error


def items(split: str, data: Path | None = None) -> Sequence[Item]:
    """The rows of the file in its order; the gold is the last box of the published solution."""
    if split != "test":
        raise UnknownSplitError(f"task 'math' has no split {split!r}; it has: test")
    return list(_items(data))


@cache
def _items(data: Path | None) -> tuple[Item, ...]:
    rows = json.loads(read_data("math", data, FILE, None))
    return tuple(_item(f"test-{number:04}", row) for number, row in enumerate(rows.values()))


def _item(id: str, row: Mapping[str, Any]) -> Item:
    """The gold of a row is the last box of its solution."""
    gold = math_answer.read(row["solution"], without_box="none")
    if gold is None:
        raise ValueError(f"the solution of problem {id} of {FILE} has no box")
    return item_of_row(id, row["problem"], gold.text, row)


TASK = Task(
    name="math",
    title="MATH",
    version="1",
    licence="MIT",
    source="hendrycks/math, the 5,000 test problems, as OpenCompass 0.5.4 distributes them",
    chance_floor=19 / 500,
    chance_procedure="the answer 3 for every problem: the most frequent one of the 500 problems of math_500, a sample "
    "of these; 19 of 500 there",
    example=(
        _item(
            "example",
            {
                "problem": "What is the sum of the roots of $x^2-7x+10$?",
                "solution": "By Vieta's formulas it is $\\boxed{7}$.",
                "level": "Level 2",
                "type": "Algebra",
            },
        ),
        "7",
    ),
    items=items,
    judge=judge,
    judge_under=judge_under,
    judge_all=judge_all,
    policies=POLICIES,
    needs_data=True,
    files=(DataFile(FILE, address=f"https://opencompass.oss-cn-shanghai.aliyuncs.com/datasets/data/math.zip!{FILE}"),),
    contamination=CONTAMINATION,
    asked={"d1": d1, "bare": bare},
    notes=(
        "Declared: no file has been seen here. The loader and the judge are tested on rows made by hand.",
        RIGHTS,
        "The 500 problems of math_500 are among the 5,000.",
        "The shown example is made by hand.",
    ),
)
