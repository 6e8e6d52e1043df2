"""HumanEval: complete a Python function from its signature and docstring; hidden tests decide.

Prompt and judge belong together: the prompt asks for the whole function in one code block, the judge takes the last
block that defines it, or a body that continues the signature. Programs run in `dare.sandbox` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from dare.rewards import code
from dare.sandbox import NoSandboxError
from dare.tasks import DataFile, Item, Judge, NotScoredError, Task, UnknownSplitError, Verdict, read_rows

FILE = "humaneval/human-eval-v2-20210705.jsonl"
SHA256 = "1d49078ba3e2b196b9344535bef34a43021f038fad9561d6ee7c53450609a6a2"
COUNT = 164


def prompt(question: str, entry_point: str) -> str:
    """The published prompt in a code block, with the name that the tests call."""
    return (
        f"Complete the Python function `{entry_point}`.\n\n```python\n{question.rstrip()}\n```\n\n"
        f"Reply with the whole function `{entry_point}`, and whatever it needs, in one Python code block."
    )


def judge_all(answers: Sequence[tuple[Item, str]], policies: Mapping[str, str]) -> Sequence[Verdict]:
    """`solved` when the program passes all tests; the reward is the same. Any task whose gold is a `code.Question`.

    `error` where a program of known verdict came out wrong, for the whole batch. NotScoredError where this machine
    cannot keep a program apart.
    """
    questions = [(code.Question(**item.gold), text) for item, text in answers]
    try:
        judged = code.judge_all(questions, policies)
    except NoSandboxError as error:
        raise NotScoredError(str(error)) from error
    return [Verdict(each.solved, float(each.solved), each.status, each.source) for each in judged]


def judge_under(policies: Mapping[str, str]) -> Judge:
    """The judge of one answer: a batch of one."""

    def judge(item: Item, text: str) -> Verdict:
        return judge_all([(item, text)], policies)[0]

    return judge


judge = judge_under({})


def items(split: str, data: Path | None = None) -> Sequence[Item]:
    """The rows of the published file in its order."""
    if split != "test":
        raise UnknownSplitError(f"task 'humaneval' has no split {split!r}; it has: test")
    return [_item(row) for row in _rows(data)]


@cache
def _rows(data: Path | None) -> tuple[dict[str, Any], ...]:
    return tuple(read_rows("humaneval", data, FILE, SHA256))


def _item(row: Mapping[str, Any]) -> Item:
    name = row["entry_point"]
    gold = {"prompt": row["prompt"], "entry_point": name, "tests": f"{row['test']}\n\ncheck({name})\n"}
    return Item(row["task_id"].replace("/", "-"), prompt(row["prompt"], name), gold, row["task_id"], row)


def raw(item: Item, _data: Path | None) -> str:
    """The published prompt alone, its last line break included: for backbones that continue a text."""
    return str(item.row["prompt"])


def opencompass(item: Item, _data: Path | None) -> str:
    """The prompt of OpenCompass's `humaneval_gen_8e312c`, also that of DARE's published results."""
    return f"Complete the following python code:\n{item.row['prompt']}"


TASK = Task(
    name="humaneval",
    title="HumanEval",
    version="1",
    licence="MIT",
    source=f"openai/human-eval at 6d43fb9, data/HumanEval.jsonl.gz unpacked, SHA-256 {SHA256}",
    chance_floor=0.0,
    chance_procedure="a body that returns one constant whatever the question, the best of None, True, False, 0, 1, "
    "-1, the empty string, the empty list and the empty tuple: it passes the tests of no item, as was run",
    example=(
        _item(
            {
                "task_id": "example",
                "prompt": 'def double(x: int) -> int:\n    """Twice the number.\n    >>> double(3)\n    6\n    """\n',
                "entry_point": "double",
                "test": "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(-3) == -6\n",
            }
        ),
        "def double(x: int) -> int:\n    return 2 * x",
    ),
    items=items,
    judge=judge,
    needs_data=True,
    kind="code",
    count=COUNT,
    files=(DataFile(FILE, SHA256, rows=COUNT),),
    contamination="Public since 2021 with its solutions, in many repositories and in common pretraining crawls; "
    "translations and rewordings of the items are in instruction data.",
    asked={"raw": raw, "opencompass": opencompass},
    policies=code.POLICIES,
    judge_under=judge_under,
    judge_all=judge_all,
    notes=(
        "Zero-shot, pass@1 of a single answer. Imports and helpers that the prompt shows before the function need not "
        "be repeated in the answer.",
        "Tests compare plain values: an object of a class of the program's own equals nothing. Tests that draw numbers "
        "are seeded.",
        "A program may start threads and no processes.",
        "With 164 items the half-width of a 95 % interval is up to 7.6 points.",
    ),
)
