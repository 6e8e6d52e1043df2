"""Tasks: data, prompt, parser, reward and scorer of one benchmark in one file each. No torch here.

A module of this folder offers `TASK`, a `Task`. Training reward and evaluation score come from the same `judge`.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Dialogue = str | tuple[Mapping[str, str], ...]
"""One user turn, or several messages with `role` and `content`, the last of them not an answer."""


def text_of(dialogue: Dialogue) -> str:
    """What is asked, to be shown or compared: the contents of all messages, a blank line between them."""
    return dialogue if isinstance(dialogue, str) else "\n\n".join(message["content"] for message in dialogue)


@dataclass(frozen=True)
class Item:
    """One question. `gold` is whatever the task's judge needs; `cluster` joins items that are not independent."""

    id: str
    prompt: Dialogue
    gold: Mapping[str, Any]
    cluster: str | None = None

    @property
    def sha256(self) -> str:
        """Hash of prompt and gold: two items with one hash are one item."""
        text = json.dumps([self.prompt, dict(self.gold)], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Demonstration:
    """A prompt with an answer to imitate."""

    prompt: Dialogue
    answer: str


@dataclass(frozen=True)
class Verdict:
    """What the judge says of one answer. `solved` is the headline; `reward` may give partial credit."""

    solved: bool
    reward: float
    status: Literal["ok", "no_answer"]
    answer: str | None


class MissingDataError(FileNotFoundError):
    """A task's data is not on this machine. The message says which file and how to get it."""


@dataclass(frozen=True)
class Task:
    """One benchmark task. `version` changes whenever an item, the prompt or the judge changes."""

    name: str
    title: str
    version: str
    licence: str
    source: str
    chance_floor: float
    """Expected `solved` of an answer drawn without looking at the question, from a stated procedure."""
    chance_procedure: str
    example: tuple[Item, str]
    """A shown item with a right answer."""
    items: Callable[[str, Path | None], Sequence[Item]]
    """(split, data folder) -> items; raises MissingDataError when the folder is needed and absent, UnknownSplitError
    for a split that the task does not have. Every task has "test"."""
    judge: Callable[[Item, str], Verdict]
    """Never raises, whatever the text."""
    demonstrations: Callable[[str, int], Sequence[Demonstration]] | None = None
    """(corpus name, how many) -> demonstrations of the training split."""
    corpora: Sequence[str] = ()
    item_of: Callable[[str], Item] | None = None
    """The item behind a demonstration's prompt, so that other answers to it can be judged."""
    needs_data: bool = False
    notes: Sequence[str] = field(default_factory=tuple)
    """Overlaps, ambiguities and other facts a reader must know."""


class UnknownTaskError(ValueError):
    """The name is no module under dare/tasks."""


class UnknownSplitError(ValueError):
    """The task has no such split."""


def read_data(task: str, folder: Path | None, name: str, sha256: str) -> str:
    """The text of a published data file, byte for byte the one that the task's numbers are about."""
    path = folder / name if folder else None
    if path is None or not path.is_file():
        where = f"is not in {folder}" if folder else "was not given"
        raise MissingDataError(
            f"task {task!r} needs the file {name}, which {where}: pass --data FOLDER, the folder that holds {name}"
        )
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise MissingDataError(f"{path} is not the file that task {task!r} needs: its SHA-256 is {found}, not {sha256}")
    return content.decode()


def task_names() -> list[str]:
    """Names of all tasks, in alphabetical order."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load_task(name: str) -> Task:
    """A task by the name of its file."""
    if name not in task_names():
        raise UnknownTaskError(f"unknown task {name!r}; known: {', '.join(task_names())}")
    task: Task = importlib.import_module(f"dare.tasks.{name}").TASK
    return task


def items_sha256(items: Sequence[Item]) -> str:
    """Hash of an item list, ids and order included."""
    return hashlib.sha256("\n".join(f"{item.id} {item.sha256}" for item in items).encode()).hexdigest()
