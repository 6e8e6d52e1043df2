"""A few seconds of `studies.fuzz` for every judge, with fixed seeds; and that it finds what it looks for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dare.tasks import Item, Verdict, load_task, task_names
from studies.fuzz import LONG, fuzz, report

LONG_TIME = 60.0


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in task_names() if load_task(name).kind != "code"])
def test_hostile_texts_find_nothing(name: str) -> None:
    fuzzed = fuzz(load_task(name), LONG_TIME, seed=5, most=40)
    assert fuzzed.findings == []
    assert fuzzed.texts == 40


def test_a_judge_that_breaks_the_rules_is_found_out() -> None:
    def judge(_item: Item, text: str) -> Verdict:
        if "\x00" in text:
            raise LookupError("no such thing")
        return Verdict(solved=True, reward=0.5 if "}" in text else 1.0, status="ok", answer=text)

    task = replace(load_task("sudoku"), judge=judge, judge_under=None)
    found = fuzz(task, LONG_TIME, seed=0, most=300)
    assert found.texts == 300
    assert any("raised LookupError: no such thing" in finding for finding in found.findings)
    assert any("solved, with a reward of 0.5" in finding for finding in found.findings)
    table = list(report([found]))
    assert table[2].startswith("| sudoku | 300 | ")
    assert len(table) == 3 + 5


def test_the_texts_of_a_seed_are_the_same_every_time() -> None:
    def figures() -> tuple[object, ...]:
        fuzzed = fuzz(load_task("countdown"), LONG_TIME, seed=1, most=50)
        return fuzzed.texts, fuzzed.characters, fuzzed.verdicts, fuzzed.findings

    assert figures() == figures()


def test_every_long_text_repeats_something() -> None:
    assert all(unit for _, unit, _ in LONG.values())
