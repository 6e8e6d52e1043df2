"""The 256 published Countdowns of the d1 test set, asked and judged as `countdown` is: does its skill transfer?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dare.tasks import DataFile, Dialogue, Item, Task, UnknownSplitError, read_rows
from dare.tasks.countdown import POLICIES, Question, judge, judge_under

FILE = "countdown/countdown_cd3_test.jsonl"
SHA256 = "9916f614621e26fb2b035ed4ea641e35e4fff0d533bb9b9c7bcaaa61017d88c6"


D1 = (
    "Using only the provided numbers, create an arithmetic expression that evaluates to exactly the provided target "
    "number. You may use the operations +, -, *, and / as needed, but each number must be used exactly once. Think "
    "step-by-step. After reasoning, provide only your final expression inside \\boxed{} tags without including an "
    "equals sign or the target number. For example: \\boxed{a + b * c}Respond in the following format:\n<reasoning>\n"
    "Your reasoning here\n</reasoning>\n<answer>\n\\boxed{...}\n</answer>"
)
"""d1's instruction, as published."""
DARE_FORM = "Respond in the following format:\n<reasoning>\n...\n</reasoning>\n<answer>\n...\n</answer>"
DARE = (
    "You must use all numbers from the list, and each number must be used exactly once. You may use the operations +, "
    "-, *, and / as needed. After reasoning, provide only your final expression inside <answer></answer> tags without "
    "including an equals sign or the target number. For example, if the numbers are [2, 3, 4] and the target is 5, a "
    "valid answer is: <answer>\n2*4-3\n</answer>"
)
"""The instruction in DARE's parquet, as published."""


def d1(item: Item, _data: Path | None) -> Dialogue:
    """d1's evaluation prompt, one user turn; protocol `d1` begins the answer with `<reasoning>`, as its code does."""
    return f"{D1}\n\nNumbers: {item.gold['numbers']}\nTarget: {item.gold['target']}"


def dare(item: Item, _data: Path | None) -> Dialogue:
    """The prompt that DARE trains and tests with."""
    asked = f"Using only the numbers {item.gold['numbers']}, create an arithmetic expression that evaluates to exactly"
    return f"{DARE_FORM}\n\n{asked} {item.gold['target']}. {DARE}"


def items(split: str, data: Path | None = None) -> Sequence[Item]:
    """The rows of the published file in its order."""
    if split != "test":
        raise UnknownSplitError(f"task 'countdown_published' has no split {split!r}; it has: test")
    rows = read_rows("countdown_published", data, FILE, SHA256)
    return [_question(row).item(f"row-{number:03}") for number, row in enumerate(rows)]


def _question(row: dict[str, str]) -> Question:
    a, b, c = map(int, row["input"].split(","))
    return Question((a, b, c), int(row["output"]))


TASK = Task(
    name="countdown_published",
    title="Countdown, published test set",
    version="1",
    licence="Apache-2.0",
    source=f"dllm-reasoning/d1 at 837888f, {FILE.split('/')[-1]}, SHA-256 {SHA256}",
    chance_floor=2022 / (256 * 192),
    chance_procedure="the item's numbers in a uniform order, two uniform operators and a uniform grouping; exact: "
    "mean share of the 192 forms that reach the target",
    example=(Question((30, 100, 93), 23).item("row-000"), "30-(100-93)"),
    items=items,
    judge=judge,
    needs_data=True,
    count=256,
    files=(
        DataFile(
            FILE,
            SHA256,
            "https://raw.githubusercontent.com/dllm-reasoning/d1/837888f22c21a5da91a0af2b0d7b19e81d9b47ec/dataset/countdown_cd3_test.jsonl",
            rows=256,
        ),
    ),
    contamination="Public since 2025. 4 of the 256 questions are in the training set that DARE published.",
    asked={"d1": d1, "dare": dare},
    policies=POLICIES,
    judge_under=judge_under,
    notes=(
        "Training questions of task 'countdown' have numbers up to 10 and targets up to 60. No item has only such "
        "numbers: 65 have at least one, 172 have such a target. About 0 is to be expected after training on them.",
    ),
)
