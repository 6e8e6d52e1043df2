"""The page of the tasks is what the files of the tasks say."""

from __future__ import annotations

import re
from pathlib import Path

from dare.task_pages import fenced, page, problems
from dare.tasks import load_task, task_names

PAGE = Path(__file__).resolve().parent.parent / "docs" / "tasks.md"


def test_the_page_of_the_tasks_is_not_stale() -> None:
    assert problems(PAGE) == []


def test_a_missing_and_a_changed_page_are_problems(tmp_path: Path) -> None:
    path = tmp_path / "tasks.md"
    assert problems(path) == ["tasks.md is missing: `python -m dare.task_pages`"]
    path.write_text(page().replace("verified", "certified", 1))
    assert problems(path) == ["tasks.md is stale: `python -m dare.task_pages`"]
    path.write_text(page())
    assert problems(path) == []


def test_every_task_has_a_row_and_a_section_and_the_row_leads_to_it() -> None:
    text = page()
    sections = re.findall(r"^## `(\w+)`$", text, re.MULTILINE)
    assert sections == task_names() == re.findall(r"^\| \[`(\w+)`\]\(#\1\) \|", text, re.MULTILINE)


def test_a_section_says_where_the_items_come_from_and_what_chance_is() -> None:
    text = page()
    for name in task_names():
        task = load_task(name)
        section = text.partition(f"\n## `{name}`\n")[2].partition("\n## ")[0]
        assert task.source in section
        assert task.chance_procedure in section
        assert all(note in section for note in task.notes)
        assert all(f"`{value}`" in section for values in task.policies.values() for value in values)


def test_a_text_cannot_close_its_fence() -> None:
    first, *_, last = fenced("~~~~\n~~~~~\n```")
    assert first == "~~~~~~text"
    assert last == "~~~~~~"


def test_every_policy_and_its_values_are_explained_with_the_default_first() -> None:
    text = (PAGE.parent / "evaluation.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| ((?:`\w+`(?:, )?)+) \|", text, re.MULTILINE))
    told = {name: tuple(re.findall(r"`(\w+)`", values)) for name, values in rows.items()}
    policies = [one for name in task_names() for one in load_task(name).policies.items()]
    assert {name: told.get(name) for name, _ in policies} == dict(policies)
