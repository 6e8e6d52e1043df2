"""IFEval: prompts with instructions whose following can be checked by rule. Declared, not fetched.

`solved` is the strict prompt-level score: the response as it is follows every instruction of the prompt. The reward is
the share of instructions followed. The whole response counts; there is no answer to extract.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from dare.rewards.instructions import UnsupportedInstructionError, follows, require_supported
from dare.tasks import DataFile, Item, MissingDataError, Task, UnknownSplitError, Verdict, read_rows

FILE = "ifeval/input_data.jsonl"
CONSTANT = '"yes"'
"""The constant answer that the chance floor is about, with its quotation marks."""


def judge(item: Item, text: str) -> Verdict:
    """`solved` when every instruction is followed; the reward is the share of them."""
    if not text.strip():
        return Verdict(solved=False, reward=0.0, status="no_answer", answer=None)
    followed = [follows(text, each["kind"], each["arguments"]) for each in item.gold["instructions"]]
    return Verdict(solved=all(followed), reward=fmean(followed), status="ok", answer=text.strip())


def items(split: str, data: Path | None = None) -> Sequence[Item]:
    """The rows of the published file in its order; MissingDataError names an instruction that cannot be checked."""
    if split != "test":
        raise UnknownSplitError(f"task 'ifeval' has no split {split!r}; it has: test")
    return [_item(row) for row in read_rows("ifeval", data, FILE, None)]


def _item(row: dict[str, Any]) -> Item:
    instructions = [
        {"kind": kind, "arguments": {name: value for name, value in arguments.items() if value is not None}}
        for kind, arguments in zip(row["instruction_id_list"], row["kwargs"], strict=True)
    ]
    for instruction in instructions:
        try:
            require_supported(instruction["kind"], instruction["arguments"])
        except UnsupportedInstructionError as error:
            raise MissingDataError(f"item {row['key']} of task 'ifeval' cannot be judged: {error}") from error
    return Item(f"key-{row['key']}", row["prompt"], {"instructions": instructions}, f"key-{row['key']}")


TASK = Task(
    name="ifeval",
    title="IFEval",
    version="1",
    licence="Apache-2.0",
    source="google-research/google-research, instruction_following_eval/data/input_data.jsonl",
    chance_floor=115 / 540,
    chance_procedure='the constant answer "yes" in quotation marks, the best of nine short ones tried: it follows '
    "every instruction of 115 of the 540 items of a public copy of the file (SHA-256 0ca6d445a430). The empty answer "
    "follows none",
    example=(
        _item(
            {
                "key": "example",
                "prompt": "Name two rivers of Europe in exactly 2 bullet points, such as `* point`. Write all in lower "
                "case and use no commas.",
                "instruction_id_list": [
                    "detectable_format:number_bullet_lists",
                    "change_case:english_lowercase",
                    "punctuation:no_comma",
                ],
                "kwargs": [{"num_bullets": 2}, {}, {}],
            }
        ),
        "* the danube\n* the rhine",
    ),
    items=items,
    judge=judge,
    needs_data=True,
    files=(
        DataFile(
            FILE,
            address="https://raw.githubusercontent.com/google-research/google-research/"
            "19638399cc9e03623c5b9087a1d6fa8813974ce9/instruction_following_eval/data/input_data.jsonl",
        ),
    ),
    contamination="Public since 2023; instruction data made after its pattern is in common post-training mixtures.",
    notes=(
        "Declared: no file comes with this package. All 25 published kinds of instruction are checked; an item with "
        "another kind, argument or language is refused when the file is read, by its name.",
        "Sentences are counted by punctuation and languages told by script and function words, where the published "
        "checker uses trained models; the loose score of the paper is not offered.",
        "On published GPT-4 answers to the prompts and as many misplaced ones, 1504 of 1510 verdicts equal those of "
        "the checker in OpenCompass 0.5.4. Two differ since it counts a random letter where a prompt asks for `#` or "
        "`!`, four since its language model takes short English answers for another language.",
        "The shown example is made by hand.",
    ),
)
