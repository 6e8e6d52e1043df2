"""HumanEval+: the functions of HumanEval with many more inputs. Declared, not fetched.

The published file holds inputs and a reference solution. The tests are written from them: they call the program and the
reference with every input and compare, as EvalPlus does, in the process that the program cannot reach.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dare.rewards import code
from dare.tasks import DataFile, Item, Task, UnknownSplitError, read_rows
from dare.tasks.humaneval import judge, judge_all, judge_under, opencompass, prompt, raw

FILE = "humaneval_plus/HumanEvalPlus.jsonl"
_TESTS = """
import copy, json, math
INPUTS = json.loads({inputs})
TOLERANCE = {tolerance}
reference = {{}}
exec({reference}, reference)
reference = reference[{name}]


def is_floats(value):
    if isinstance(value, (list, tuple)):
        return bool(value) and all(type(each) is float for each in value)
    return type(value) is float


def close(found, expected, tolerance):
    if isinstance(expected, (list, tuple)):
        return len(found) == len(expected) and all(map(lambda f, e: close(f, e, tolerance), found, expected))
    return math.isclose(found, expected, rel_tol=0, abs_tol=tolerance + 1e-7 * abs(expected))


def check(candidate):
    for arguments in INPUTS:
        expected = reference(*copy.deepcopy(arguments))
        found = candidate(*copy.deepcopy(arguments))
        if {name} == "find_zero":
            assert abs(sum(c * found**i for i, c in enumerate(arguments[0]))) <= TOLERANCE
            continue
        tolerance = TOLERANCE or (1e-6 if is_floats(expected) else 0)
        if not (found == expected):
            assert tolerance and type(found) is type(expected) and close(found, expected, tolerance), arguments


check({name_itself})
"""


def items(split: str, data: Path | None = None) -> Sequence[Item]:
    """The rows of the published file in its order."""
    if split != "test":
        raise UnknownSplitError(f"task 'humaneval_plus' has no split {split!r}; it has: test")
    return [_item(row) for row in read_rows("humaneval_plus", data, FILE, None)]


def _item(row: Mapping[str, Any]) -> Item:
    name = row["entry_point"]
    tests = _TESTS.format(
        inputs=repr(json.dumps([*row["base_input"], *row["plus_input"]])),
        tolerance=float(row["atol"]),
        reference=repr(row["prompt"] + row["canonical_solution"]),
        name=repr(name),
        name_itself=name,
    )
    gold = {"prompt": row["prompt"], "entry_point": name, "tests": tests}
    return Item(row["task_id"].replace("/", "-"), prompt(row["prompt"], name), gold, row["task_id"], row)


TASK = Task(
    name="humaneval_plus",
    title="HumanEval+",
    version="1",
    licence="Apache-2.0",
    source="evalplus/humanevalplus_release, HumanEvalPlus.jsonl of v0.1.10",
    chance_floor=0.0,
    chance_procedure="a body that returns one constant, as for HumanEval, whose tests are among these: it passes the "
    "tests of no item",
    example=(
        _item(
            {
                "task_id": "example",
                "prompt": 'def half(x: float) -> float:\n    """Half of it.\n    >>> half(3)\n    1.5\n    """\n',
                "canonical_solution": "    return x / 2\n",
                "entry_point": "half",
                "base_input": [[3], [4.5]],
                "plus_input": [[0.1], [-7]],
                "atol": 0,
            }
        ),
        "def half(x: float) -> float:\n    return x * 0.5",
    ),
    items=items,
    judge=judge,
    needs_data=True,
    kind="code",
    files=(
        DataFile(
            FILE,
            note="unpack HumanEvalPlus.jsonl.gz, an asset of the release v0.1.10 of "
            "github.com/evalplus/humanevalplus_release",
        ),
    ),
    contamination="That of HumanEval, whose prompts and solutions these are; the further inputs are public since 2023.",
    asked={"raw": raw, "opencompass": opencompass},
    policies=code.POLICIES,
    judge_under=judge_under,
    judge_all=judge_all,
    notes=(
        "Declared: no file comes with this package. 164 items are published; a copy with 163 is in circulation.",
        "One limit of processor time for all inputs of an item together, some of which have more than a thousand.",
        "Comparison after EvalPlus: exact, or within 1e-6 where the reference gives floats, or within the tolerance of "
        "the item; the root of find_zero is put into its polynomial.",
        "The shown example is made by hand.",
    ),
)
