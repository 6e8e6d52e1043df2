"""The program in an answer: fences, bodies, markers and tokens, up to the verdict of the sandbox."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dare.rewards.code import POLICIES, PREAMBLES, Judged, Question, judge_all, program_in
from dare.sandbox import Limits, Sandbox

PROMPT = 'def double(x):\n    """Return twice x."""\n'
TESTS = "assert double(2) == 4\nassert double(-3) == -6\nassert double(0) == 0"
DOUBLE = Question(PROMPT, "double", TESTS)
PROGRAM = "def double(x):\n    return 2 * x"
# The recorded names of what a policy decides.
CHOICES = {
    "commonmark_inline_code": {"fence": "commonmark"},
    "lenient": {"fence": "lenient"},
    "no_preamble": {"preamble": "none"},
    "preamble_with_math": {"preamble": "common_imports"},
    "call_refused_and_program_goes_on": dict[str, str](),
}
NEVER = ("program_killed",)
"""Of two ways to refuse a call, the one that the sandbox does not have."""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    sandbox = Sandbox(Limits(cpu_seconds=1))
    yield sandbox
    sandbox.close()


def read(text: str, fence: Any = "commonmark") -> str | None:
    extracted = program_in(text, "double", PROMPT, fence=fence)
    return extracted.source if extracted else None


@pytest.mark.shared
def test_the_verdicts_of_the_case_table_are_reached_through_the_sandbox(
    sandbox: Sandbox, shared: Path, tmp_path: Path
) -> None:
    canary, outside = tmp_path / "canary", tmp_path / "outside"
    canary.touch()
    rows = json.loads((shared / "goldens/rewards/code.json").read_text())

    def judged(rows: list[dict[str, Any]], policies: dict[str, str]) -> list[Judged]:
        texts = [r["input"].replace("{canary_path}", str(canary)) for r in rows]
        texts = [text.replace("{outside_path}", str(outside)) for text in texts]
        return judge_all(
            [(Question(**row["gold"]), text) for row, text in zip(rows, texts, strict=True)], policies, sandbox=sandbox
        )

    assert len(rows) == 55
    wrong = []
    for row, found in zip(rows, judged(rows, {}), strict=True):
        if row["verdict"] is not None and found.solved != (row["verdict"] == "pass"):
            wrong.append((row["id"], found))
        said = {
            None: found.status in ("ok", "no_answer", "truncated"),
            "truncated": found.status == "truncated",
            "mask_left": found.status == "undecoded",
            "timeout": found.outcome is not None and found.outcome.status == "timeout",
        }
        if not said[row.get("status")]:
            wrong.append((row["id"], found))
    assert not wrong
    chosen = [(row, name) for row in rows for name in row.get("policy") or () if name not in NEVER]
    assert {name for _, name in chosen} == set(CHOICES)
    for row, name in chosen:
        (found,) = judged([row], CHOICES[name])
        assert found.solved == (row["policy"][name] == "pass"), (row["id"], name, found)
    assert canary.exists()
    assert not outside.exists()


@pytest.mark.parametrize(
    ("text", "source"),
    [
        (PROGRAM, PROGRAM),
        (f"Sure!\n```python\n{PROGRAM}\n```\nDone.", PROGRAM),
        (f"<answer>\n{PROGRAM}\n</answer>", PROGRAM),
        (f"<answer>\n```python\n{PROGRAM}\n```\n</answer>", PROGRAM),
        (f"<answer>```python\n{PROGRAM}\n```</answer>", PROGRAM),
        (f"1. So:\n   ```python\n   {PROGRAM.replace(chr(10), chr(10) + '   ')}\n   ```", PROGRAM),
        (f"[BEGIN]\n '{PROGRAM}'\n[DONE]\n\n", PROGRAM),  # as the published few-shot prompt shows it
        (f" '{PROGRAM}", PROGRAM),
        (f" {PROGRAM}", PROGRAM),
        (f"[BEGIN]\n```python\n{PROGRAM}\n```\n[DONE]\n[BEGIN]\ndef other(): pass\n[DONE]", PROGRAM),
        (f"{PROGRAM}\n[DONE]\nWrite another function.", PROGRAM),
        (f"```python\n{PROGRAM}\n```<|im_end|>\n```python\ndef double(x): pass\n```", PROGRAM),
        ("```\ndouble = lambda x: 2 * x\n```", "double = lambda x: 2 * x"),
        ("```\nprint('double(x)')\n```\n```\nimport os\n```", "import os"),
        ("    return 2 * x", f"{PROMPT}    return 2 * x"),
        ("```\n\treturn 2 * x\n```", f"{PROMPT}\treturn 2 * x"),
        ("def double(x)", "def double(x)"),
        ("The function doubles its argument.", None),
        ("def doubled(x):\n    return 2 * x", None),
        ("```\n```", None),
        ("", None),
    ],
)
def test_the_program_is_found_where_it_stands(text: str, source: str | None) -> None:
    found = read(text)
    assert (found.strip("\n") if found else found) == source


def test_what_is_never_closed_is_taken_to_the_end_and_said() -> None:
    for text in (f"```python\n{PROGRAM}", f"[BEGIN]\n{PROGRAM}", f"~~~\n{PROGRAM}\n```"):
        extracted = program_in(text, "double", PROMPT)
        assert extracted is not None
        assert extracted.truncated
        assert extracted.source.startswith(PROGRAM)
    closed = program_in(f"```python\n{PROGRAM}\n```\n```", "double", PROMPT)
    assert closed is not None
    assert not closed.truncated


def test_a_prompt_without_a_last_line_break_gets_one_before_a_body() -> None:
    extracted = program_in("    return 2 * x", "double", PROMPT.rstrip())
    assert extracted is not None
    assert extracted.source == f"{PROMPT}    return 2 * x"


def test_what_the_prompt_imports_and_defines_need_not_be_repeated(sandbox: Sandbox) -> None:
    prompt = "from typing import List\n\ndef twice(x):\n    return 2 * x\n\ndef double(x: List[int]):\n    ...\n"
    question = Question(prompt, "double", TESTS)
    assert question.prefix == prompt[: prompt.index("def double")]
    whole = "from __future__ import annotations\ndef double(x: List[int]):\n    return twice(x)"
    answers = [whole, "    return twice(x)", "    return twice(twice(x))"]
    found = judge_all([(question, text) for text in answers], {}, sandbox=sandbox)
    assert [each.solved for each in found] == [True, True, False]


def test_reward_and_evaluation_import_the_same_and_every_module_of_it_comes_with_python(sandbox: Sandbox) -> None:
    assert set(PREAMBLES) == set(POLICIES["preamble"])
    assert POLICIES["preamble"][0] == "none"
    assert PREAMBLES["none"] == ()
    text = "def double(x):\n    return math.floor(Counter([1, 1])[1] * x)"
    for name, solved in (("none", False), ("common_imports", True)):
        (found,) = judge_all([(DOUBLE, text)], {"preamble": name}, sandbox=sandbox)
        assert found.solved == solved, found


def test_tests_that_are_at_fault_are_an_error_and_nothing_about_the_program(sandbox: Sandbox) -> None:
    (found,) = judge_all([(Question(PROMPT, "double", "assert double(2"), PROGRAM)], {}, sandbox=sandbox)
    assert (found.solved, found.status) == (False, "error")


@given(text=st.text() | st.text("`~ \n\tdefouble(x):=[BEGIN]DONE'<>|mask"))
def test_any_text_gives_a_program_or_none(text: str) -> None:
    for fence in POLICIES["fence"]:
        extracted = program_in(text, "double", PROMPT, fence=fence)  # type: ignore[arg-type]
        assert extracted is None or extracted.source.strip()


@pytest.mark.parametrize(
    "part", ["`", "```\n", "``` ", " ", "\t", "a ", "[BEGIN]\n", "</s> ", "<answer>", "import ", "double", "'", "\r"]
)
def test_a_long_hostile_text_is_read_in_no_time(part: str) -> None:
    text = (part * 200_000)[:199_000]
    started = time.process_time()
    for fence in POLICIES["fence"]:
        program_in(f"{text}\ndef double", "double", PROMPT, fence=fence)  # type: ignore[arg-type]
    assert time.process_time() - started < 3


def test_ten_megabytes_are_no_answer() -> None:
    assert read(f"{PROGRAM}\n" + "#" * 10_000_000) is None
