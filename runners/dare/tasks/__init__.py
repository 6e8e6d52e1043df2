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

from dare.data_record import DataRecordError, read_record
from dare.spec import ItemStatus

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
    row: Mapping[str, Any] = field(default_factory=dict)
    """The published row, from which other prompts are written. Not part of the hash."""
    choices: Sequence[str] = ()
    """Continuations whose likelihoods are compared, of a likelihood task; `gold["choice"]` is the index of the right
    one."""

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
    status: ItemStatus
    answer: str | None


Judge = Callable[[Item, str], Verdict]


@dataclass(frozen=True)
class DataFile:
    """A published file below the data folder. Without `sha256` it is declared: `dare data fetch` records what it is."""

    path: str
    sha256: str | None = None
    address: str | None = None
    """Where `dare data fetch` finds it: `https://...`, `https://...zip!MEMBER` for one file of an archive, or
    `hub:OWNER/NAME/PATH` of a data set on the hub. None: it has to be put there by hand, and `note` says how."""
    note: str = ""
    rows: int | None = None


class NotScoredError(RuntimeError):
    """This machine cannot score the task at all, for example because it cannot keep a program apart. No number."""


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
    judge: Judge
    """Under the default policies. Never raises, whatever the text."""
    demonstrations: Callable[[str, int], Sequence[Demonstration]] | None = None
    """(corpus name, how many) -> demonstrations of the training split."""
    corpora: Sequence[str] = ()
    item_of: Callable[[str], Item] | None = None
    """The item behind a demonstration's prompt, so that other answers to it can be judged."""
    needs_data: bool = False
    notes: Sequence[str] = field(default_factory=tuple)
    """Overlaps, ambiguities and other facts a reader must know."""
    kind: Literal["answer", "code", "likelihood"] = "answer"
    """What is scored: a generated text, a generated program that has to be run apart, or the likelihoods of given
    choices. A benchmark that is scored in two ways is two tasks."""
    count: int | None = None
    """Items of the test split; None while it is declared and not fetched."""
    files: Sequence[DataFile] = ()
    training_files: Mapping[str, Callable[[Path | None], bytes]] = field(default_factory=dict)
    """What its training split is read from and nothing else: names below the data folder, and how to get each out of
    the published files. Empty where the split is generated, and where there is none."""
    contamination: str = ""
    """What is known of test items in training data."""
    asked: Mapping[str, Callable[[Item, Path | None], Dialogue]] = field(default_factory=dict)
    """Other published prompts for the same items, by the name that a protocol gives them; the data folder is for their
    worked examples."""
    policies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Choices that have no universal answer: the values of each, the default first."""
    judge_under: Callable[[Mapping[str, str]], Judge] | None = None
    """The judge under chosen policies, for tasks that have some."""
    judge_all: Callable[[Sequence[tuple[Item, str]], Mapping[str, str]], Sequence[Verdict]] | None = None
    """Many at once under chosen policies, where that is how it has to be done: programs in a sandbox, with canaries.
    Raises NotScoredError where this machine cannot do it."""

    @property
    def verified(self) -> bool:
        """Whether every byte of its items is known. Only then can it be ranked."""
        return all(file.sha256 for file in self.files)

    def judging(self, policies: Mapping[str, str]) -> Judge:
        """The judge under these policies; UnknownPolicyError for a name or a value that the task does not have."""
        self.check_policies(policies)
        return self.judge_under(policies) if policies and self.judge_under is not None else self.judge

    def verdicts(self, answers: Sequence[tuple[Item, str]], policies: Mapping[str, str]) -> Sequence[Verdict]:
        """One verdict for each answer, in order."""
        self.check_policies(policies)
        if self.judge_all is not None:
            return self.judge_all(answers, policies)
        judge = self.judging(policies)
        return [judge(item, text) for item, text in answers]

    def check_policies(self, policies: Mapping[str, str]) -> None:
        """UnknownPolicyError for a name or a value that the task does not have."""
        for name, value in policies.items():
            if name not in self.policies:
                raise UnknownPolicyError(
                    f"task {self.name!r} has no policy {name!r}; known: {', '.join(self.policies) or 'none'}"
                )
            if value not in self.policies[name]:
                known = ", ".join(self.policies[name])
                raise UnknownPolicyError(f"policy {name} of task {self.name!r} cannot be {value!r}; known: {known}")


class UnknownPolicyError(ValueError):
    """The task has no such policy, or the policy no such value."""


class UnknownTaskError(ValueError):
    """The name is no module under dare/tasks."""


class UnknownSplitError(ValueError):
    """The task has no such split."""


def read_data(task: str, folder: Path | None, name: str, sha256: str | None) -> str:
    """The text of a published data file, byte for byte the one that the task's numbers are about."""
    content = read_data_bytes(task, folder, name, sha256)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise MissingDataError(f"{name} of task {task!r} is no text in UTF-8: byte {error.start} is none") from error


def read_rows(task: str, folder: Path | None, name: str, sha256: str | None) -> list[dict[str, Any]]:
    """The rows of a published file of JSON lines; MissingDataError names a line that is none."""
    rows = []
    for number, line in enumerate(read_data(task, folder, name, sha256).split("\n"), start=1):  # U+2028 ends no row
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise MissingDataError(f"{name} of task {task!r}, line {number}: {error}") from error
    return rows


def read_data_bytes(task: str, folder: Path | None, name: str, sha256: str | None) -> bytes:
    """A published data file with this hash; without one, a declared file as `dare data fetch` recorded it."""
    path = folder / name if folder else None
    if folder is None or path is None or not path.is_file():
        where = f"is not in {folder}" if folder else "was not given"
        raise MissingDataError(
            f"task {task!r} needs the file {name}, which {where}: pass --data FOLDER, the folder that holds {name}, "
            f"or get it with `dare data fetch {task}`"
        )
    expected = sha256 or _recorded(task, folder, name)
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise MissingDataError(
            f"{path} is not the file that task {task!r} needs: its SHA-256 is {found}, not {expected}"
        )
    return content


def _recorded(task: str, folder: Path, name: str) -> str:
    try:
        record = read_record(folder).files.get(name)
    except DataRecordError as error:
        raise MissingDataError(str(error)) from error
    if record is None:
        raise MissingDataError(
            f"task {task!r} is declared, and nothing says which {name} lies in {folder}: `dare data fetch {task}` "
            "records it"
        )
    return record.sha256


def is_recorded(task: Task, folder: Path | None) -> bool:
    """Whether every file of the task lies in the folder with the hash that is known of it, from the task itself or
    from the record of `dare data fetch`. A declared task can be ranked once this is so."""
    try:
        for file in task.files:
            read_data_bytes(task.name, folder, file.path, file.sha256)
    except MissingDataError:
        return False
    return True


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
