"""`python -m dare.task_pages` writes docs/tasks.md from the files of the tasks, so that the page says what they say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from dare.commands.terminal import say
from dare.tasks import DataFile, Task, load_task, task_names, text_of

PAGE = Path("docs/tasks.md")
SHOWN_FILES = 3
INTRODUCTION = """# Tasks

Written by `make docs` from the files under [runners/dare/tasks](../runners/dare/tasks); edit those. How a task is
asked, scored and scored again says [evaluation.md](evaluation.md).

*generated*: the items come from a seed and are the same everywhere. *verified*: the SHA-256 of every data file is in
the task. *declared*: loader, prompt and scorer are tested on rows made by hand; what the file is, `dare data fetch`
records, and nothing is ranked before. Chance is the expected share solved of an answer drawn without looking at the
question, by the stated procedure.
"""


def page() -> str:
    """The whole page."""
    tasks = [load_task(name) for name in task_names()]
    return "\n".join([INTRODUCTION, *overview(tasks), *(line for task in tasks for line in section(task))])


def overview(tasks: list[Task]) -> Iterator[str]:
    """One row for each task."""
    yield "| task | what | scored by | items | data | chance, % | licence | policies |"
    yield "|---|---|---|---|---|---|---|---|"
    for task in tasks:
        cells = (
            f"[`{task.name}`](#{anchor(task)})",
            task.title,
            {"answer": "answer", "code": "running it", "likelihood": "likelihood"}[task.kind],
            f"{count:,}" if (count := items_of(task)) is not None else "not known",
            data_of(task),
            f"{100 * task.chance_floor:.3g}",
            task.licence,
            ", ".join(f"`{name}`" for name in task.policies) or "-",
        )
        yield f"| {' | '.join(map(cell, cells))} |"


def section(task: Task) -> Iterator[str]:
    """Everything that a task says of itself."""
    item, answer = task.example
    yield f"\n## {heading(task)}\n"
    link = f"[`{task.name}.py`](../runners/dare/tasks/{task.name}.py)"
    yield f"{task.title}, version {task.version}, {data_of(task)}, {link}.\n"
    yield f"- Source: {task.source}. Licence: {task.licence}."
    yield f"- Chance: {100 * task.chance_floor:.4g} %: {task.chance_procedure}."
    if task.contamination:
        yield f"- Contamination: {task.contamination}"
    if task.asked:
        yield f"- Prompts: `task` and {', '.join(f'`{name}`' for name in task.asked)}."
    for name, values in task.policies.items():
        default, *others = values
        more = f"; also {', '.join(f'`{value}`' for value in others)}" if others else ""
        yield f"- Policy `{name}`: `{default}`{more}."
    for note in task.notes:
        yield f"- {note}"
    if task.files:
        yield f"- Files: {'; '.join(files_of(task.files))}."
    yield "\nAsked and answered:\n"
    yield from fenced(text_of(item.prompt))
    if item.choices:
        yield "\nContinuations, the right one first:\n"
        right = item.gold["choice"]
        yield from fenced("\n".join([item.choices[right], *(c for n, c in enumerate(item.choices) if n != right)]))
    else:
        yield ""
        yield from fenced(answer)


def items_of(task: Task) -> int | None:
    """Items of the test split; None while nobody knows."""
    return task.count if task.count is not None or task.needs_data else len(task.items("test", None))


def data_of(task: Task) -> str:
    """Where its bytes come from, in a word."""
    if not task.needs_data:
        return "generated"
    return "verified" if task.verified else "declared"


def files_of(files: Sequence[DataFile]) -> Iterator[str]:
    """The first few, with what is known of them."""
    for file in files[:SHOWN_FILES]:
        known = f"SHA-256 `{file.sha256}`" if file.sha256 else "not fetched yet"
        rows = f", {file.rows:,} rows" if file.rows is not None else ""
        note = f"; {file.note}" if file.note else ""
        yield f"`{file.path}` ({known}{rows}{note})"
    if len(files) > SHOWN_FILES:
        yield f"and {len(files) - SHOWN_FILES} more"


def heading(task: Task) -> str:
    """The line that a link leads to."""
    return f"`{task.name}`"


def anchor(task: Task) -> str:
    """As GitHub makes it of the heading."""
    return task.name.lower()


def fenced(text: str) -> Iterator[str]:
    """A text as it is, in a fence that nothing in it can close."""
    fence = "~~~~"
    while fence in text:
        fence += "~"
    yield f"{fence}text"
    yield text
    yield fence


def cell(text: str) -> str:
    """For a table."""
    return text.replace("|", "\\|").replace("\n", " ")


def problems(path: Path) -> list[str]:
    """What is wrong with the page; nothing is the aim."""
    if not path.is_file():
        return [f"{path.name} is missing: `python -m dare.task_pages`"]
    return [] if path.read_text(encoding="utf-8") == page() else [f"{path.name} is stale: `python -m dare.task_pages`"]


def main(path: Annotated[Path, typer.Argument(help="The page.")] = PAGE) -> None:
    """Write the page of the tasks."""
    text = page()
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
        say(f"{path}: written")


if __name__ == "__main__":
    typer.run(main)
