"""HumanEval, HumanEval+ and MBPP: published solutions pass, mutants fail, prompts say what the tests need."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dare.data_record import NAME, DataRecord, FileRecord
from dare.rewards.code import Question, judge_all
from dare.tasks import Item, MissingDataError, Task, load_task, text_of
from dare.tasks.humaneval_plus import FILE
from dare.tasks.mbpp import SPLITS

REPOSITORY = Path(__file__).resolve().parent.parent
CODE = ("humaneval", "mbpp", "humaneval_plus")
CONSTANT = "    return 'a wrong constant'"


def items_of(name: str, shared: Path, split: str = "test") -> Sequence[Item]:
    return load_task(name).items(split, shared / "data")


def published(item: Item) -> str:
    """The solution of the item's row, in a block."""
    row = item.row
    source = row["prompt"] + row["canonical_solution"] if "canonical_solution" in row else row["code"]
    return f"```python\n{source}\n```"


@pytest.mark.shared
@pytest.mark.parametrize(("name", "count"), [("humaneval", 164), ("mbpp", 500)])
def test_every_prompt_names_what_the_tests_call(name: str, count: int, shared: Path) -> None:
    task, items = load_task(name), items_of(name, shared)
    assert len(items) == count == task.count
    for item in items:
        called = item.gold["entry_point"]
        assert f"`{called}`" in text_of(item.prompt)
        assert called in item.gold["tests"]
        assert "```python" in text_of(item.prompt)
        for write in task.asked.values():
            assert called in text_of(write(item, shared / "data"))


@pytest.mark.shared
def test_a_raw_prompt_keeps_its_last_line_break(shared: Path) -> None:
    for item in items_of("humaneval", shared):
        raw = load_task("humaneval").asked["raw"](item, None)
        assert raw == item.row["prompt"]
        assert raw[-1] == "\n" or item.id == "HumanEval-38"  # so published
    for item in items_of("mbpp", shared)[:3]:
        assert text_of(load_task("mbpp").asked["raw_three_shot"](item, shared / "data")).endswith("[BEGIN]\n")


@pytest.mark.shared
def test_the_worked_examples_of_mbpp_are_of_its_pool_and_end_as_the_judge_reads_them(shared: Path) -> None:
    item = items_of("mbpp", shared)[0]
    dialogue = load_task("mbpp").asked["three_shot"](item, shared / "data")
    assert not isinstance(dialogue, str)
    assert [message["role"] for message in dialogue] == ["user", "assistant"] * 3 + ["user"]
    assert "similar_elements" in dialogue[0]["content"]
    assert dialogue[1]["content"].startswith("[BEGIN]\nimport") or "def similar_elements" in dialogue[1]["content"]
    assert all(message["content"].endswith("[DONE]") for message in dialogue if message["role"] == "assistant")
    assert "\r" not in text_of(dialogue)


@pytest.mark.shared
def test_the_splits_of_mbpp_are_disjoint_and_leave_the_worked_examples_out(shared: Path) -> None:
    ids = {split: {item.row["task_id"] for item in items_of("mbpp", shared, split)} for split in SPLITS}
    assert {split: len(found) for split, found in ids.items()} == {"test": 500, "train": 374, "validation": 90}
    assert len(set().union(*ids.values())) == 964
    assert not set().union(*ids.values()) & set(range(1, 11))


@pytest.mark.parametrize("name", CODE)
def test_judging_one_by_one_and_all_at_once_agree(name: str) -> None:
    task = load_task(name)
    item, right = task.example
    entry_point = item.gold["entry_point"]
    texts = (right, f"```\n{right}", f"def {entry_point}(x):\n    return 3 * x", "I cannot.", "import os; os._exit(0)")
    assert task.judge_all is not None
    many = task.judge_all([(item, text) for text in texts], {})
    assert [task.judge(item, text) for text in texts] == list(many)
    assert [(each.solved, each.reward, each.status) for each in many] == [
        (True, 1.0, "ok"),
        (True, 1.0, "truncated"),
        (False, 0.0, "ok"),
        (False, 0.0, "no_answer"),
        (False, 0.0, "no_answer"),
    ]


ELSEWHERE = """
from dare.tasks import NotScoredError, load_task
for name in ("humaneval", "mbpp", "humaneval_plus"):
    task = load_task(name)
    for judge in (task.judge, lambda *pair: task.verdicts([pair], {})):
        try:
            judge(*task.example)
        except NotScoredError as error:
            print(error)
"""


def test_where_no_program_can_be_kept_apart_a_code_task_is_not_scored() -> None:
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("needs `unshare` to make such a place")
    without = 'echo 0 >/proc/sys/user/max_user_namespaces; exec "$@"'
    said = subprocess.run(
        (unshare, "--user", "--map-root-user", "sh", "-c", without, "sh", sys.executable, "-c", ELSEWHERE),
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY / "runners")},
    ).stdout  # fmt: skip
    assert said.count("cannot keep a program apart, so none is run") == 6


ROWS: list[dict[str, Any]] = [
    {
        "task_id": "HumanEval/0",
        "prompt": "from typing import List\n\ndef scale(xs: List[int]) -> List[float]:\n    '''Halves.'''\n",
        "canonical_solution": "    return [x / 2 for x in xs]\n",
        "entry_point": "scale",
        "base_input": [[[2, 4]]],
        "plus_input": [[[]], [[1, -7]]],
        "atol": 0,
    },
    {
        "task_id": "HumanEval/32",
        "prompt": "def poly(xs, x):\n    return sum(c * x**i for i, c in enumerate(xs))\n\n"
        "def find_zero(xs):\n    '''A zero of a line.'''\n",
        "canonical_solution": "    return -xs[0] / xs[1]\n",
        "entry_point": "find_zero",
        "base_input": [[[1, 2]]],
        "plus_input": [[[3, -9]]],
        "atol": 0.0001,
    },
    {
        "task_id": "HumanEval/1",
        "prompt": "def count(text):\n    '''How many letters.'''\n",
        "canonical_solution": "    return len(text)\n",
        "entry_point": "count",
        "base_input": [["a"]],
        "plus_input": [["abc"], [""]],
        "atol": 0,
    },
]
ANSWERS = [
    [
        ("def scale(xs):\n    return [x * 0.5 for x in xs]", True),
        ("def scale(xs):\n    return [x / 2 + 1e-8 for x in xs]", True),
        ("def scale(xs):\n    return [x / 2 + 1e-5 for x in xs]", False),
        ("def scale(xs):\n    return tuple(x / 2 for x in xs)", False),
        ("def scale(xs):\n    return [abs(x) / 2 for x in xs]", False),  # right for the base inputs
        ("def scale(xs):\n    xs[:] = [x / 2 for x in xs]\n    return xs", True),  # the inputs are copies
    ],
    [
        ("    return -xs[0] / xs[1] + 1e-6", True),
        ("    return -xs[0] / xs[1] + 1e-3", False),
        ("def poly(xs, x):\n    return 0\ndef find_zero(xs):\n    return 1.0", False),
    ],
    [
        ("def count(text):\n    return sum(1 for _ in text)", True),
        ("def count(text):\n    return 1", False),
        ("def count(text):\n    return len(text) + 1e-9", False),  # no tolerance for whole numbers
        ("class Liar:\n    __eq__ = lambda *_: True\ndef count(text):\n    return Liar()", False),
    ],
]


def test_humaneval_plus_judges_by_all_inputs_and_compares_as_published(tmp_path: Path) -> None:
    content = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    (tmp_path / FILE).parent.mkdir()
    (tmp_path / FILE).write_bytes(content)
    task = load_task("humaneval_plus")
    with pytest.raises(MissingDataError, match="task 'humaneval_plus' is declared"):
        task.items("test", tmp_path)
    record = FileRecord(
        sha256=hashlib.sha256(content).hexdigest(), bytes=len(content), rows=3, address=None, revision=None,
        date="2026-01-31T12:00:00Z",
    )  # fmt: skip
    (tmp_path / NAME).write_text(DataRecord(files={FILE: record}).model_dump_json())
    items = task.items("test", tmp_path)
    pairs = [(item, text, solved) for item, texts in zip(items, ANSWERS, strict=True) for text, solved in texts]
    verdicts = task.verdicts([(item, text) for item, text, _ in pairs], {})
    for (item, text, solved), verdict in zip(pairs, verdicts, strict=True):
        assert verdict.solved == solved, (item.id, text, verdict)
    assert [each.solved for each in task.verdicts([(item, published(item)) for item in items], {})] == [True] * 3
    assert not task.verified


def outcomes_of(task: Task, items: Sequence[Item], texts: Sequence[str]) -> list[str]:
    """Ids of the items that these answers solve; none may be an error."""
    judged = judge_all([(Question(**item.gold), text) for item, text in zip(items, texts, strict=True)], {})
    assert [each for each in judged if each.status == "error"] == []
    return [item.id for item, each in zip(items, judged, strict=True) if each.solved]


@pytest.mark.full
@pytest.mark.shared
@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_every_published_solution_passes(name: str, shared: Path) -> None:
    items = items_of(name, shared)
    solved = outcomes_of(load_task(name), items, [published(item) for item in items])
    assert solved == [item.id for item in items]


@pytest.mark.full
@pytest.mark.shared
@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_a_wrong_constant_passes_nowhere(name: str, shared: Path) -> None:
    items = items_of(name, shared)
    texts = [
        CONSTANT if item.gold["prompt"] else f"def {item.gold['entry_point']}(*_, **__):\n{CONSTANT}" for item in items
    ]
    assert outcomes_of(load_task(name), items, texts) == []
