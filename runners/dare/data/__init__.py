"""Training data: prompts with a judge, demonstrations or preferences, by reference. As tensors: `dare.data.batches`.

`prompts:<task>` takes a task's training split, `corpus:<task>/<name>` its demonstrations, `preferences:<task>` pairs
made from them, `mix:<name>` a pretraining mix, `file:<path>` rows of JSONL, JSON or Parquet, relative to the job
directory, and `hub:<owner>/<name>@<commit>/<file or split>` those of a data set of the hub. What the columns mean says
`dare.data.columns`; of two readings, `#<column>/<column>` at the end names one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, cast

from dare.data.columns import Example, JudgedItem, Kind, UnusableGoldError, layout_of, row_id
from dare.data.corpus import MIXES, Preference, demonstrations, preferences
from dare.data.files import DataError as DataError
from dare.data.files import Row, files_of, read_rows
from dare.data.hub import fetch_data, parse
from dare.data.manifest import Manifest, SetAside, data_file, hashes
from dare.tasks import Demonstration, Item, Task, load_task

CORPUS_ROWS = 4096
MIX_ROWS = 40_000


@dataclass(frozen=True)
class PromptData:
    """Questions to sample answers for, each judged by its task."""

    kind: ClassVar = "prompts"
    """What an algorithm that trains on these says in `trains_on`."""
    items: Sequence[Item]
    tasks: Sequence[Task]
    """One per item."""


@dataclass(frozen=True)
class DemonstrationData:
    """Answers to imitate."""

    kind: ClassVar = "demonstrations"
    rows: Sequence[Demonstration]


@dataclass(frozen=True)
class PreferenceData:
    """Pairs of answers, of which one is better."""

    kind: ClassVar = "preferences"
    rows: Sequence[Preference]


TrainingData = PromptData | DemonstrationData | PreferenceData


@dataclass(frozen=True)
class DataSet:
    """What a reference leads to: the rows that can be trained on, and where they come from."""

    source: str
    kind: Kind
    examples: Sequence[Example]
    ids: Sequence[str]
    """One per example."""
    revision: str | None = None
    layout: str | None = None
    files: tuple[tuple[Path, str], ...] = ()
    """Each with the name that the manifest calls it by."""
    set_aside: tuple[SetAside, ...] = field(default=())

    @property
    def data(self) -> TrainingData:
        """As the executor takes it."""
        if self.kind == "prompts":
            judged = cast(Sequence[JudgedItem], self.examples)
            return PromptData([one.item for one in judged], [one.task for one in judged])
        if self.kind == "preferences":
            return PreferenceData(cast(Sequence[Preference], self.examples))
        return DemonstrationData(cast(Sequence[Demonstration], self.examples))

    def manifest(self) -> Manifest:
        """Hashes the files and the rows."""
        rows_sha256, repeated = hashes(self.examples)
        return Manifest(
            source=self.source,
            revision=self.revision,
            kind=self.kind,
            layout=self.layout,
            files=tuple(data_file(path, name) for path, name in self.files),
            rows=len(self.examples) + len(self.set_aside),
            kept=len(self.examples),
            set_aside=self.set_aside,
            repeated=repeated,
            rows_sha256=rows_sha256,
        )

    def without(self, rows: Collection[int]) -> DataSet:
        """The same without some of its rows, by number from 0; DataError when none is left."""
        left = [number for number in range(len(self.examples)) if number not in rows]
        if not left:
            raise DataError(f"all {len(self.examples)} rows of {self.source} give test items away: nothing is left")
        return replace(self, examples=[self.examples[n] for n in left], ids=[self.ids[n] for n in left])


def load_data(reference: str, directory: Path, folder: Path | None = None) -> TrainingData:
    """Training data by reference; DataError says what is wrong in a sentence. `folder` holds published task data."""
    return load_data_set(reference, directory, folder).data


def load_data_set(reference: str, directory: Path, folder: Path | None = None) -> DataSet:
    """The same with ids, files and what was set aside."""
    kind, _, rest = reference.partition(":")
    if kind == "prompts":
        task = load_task(rest)
        items = task.items("train", folder)
        examples = [JudgedItem(item, task) for item in items]
        return DataSet(reference, "prompts", examples, [item.id for item in items], _version(task))
    if kind == "corpus":
        name, _, corpus = rest.partition("/")
        task = load_task(name)
        if task.demonstrations is None or corpus not in task.corpora:
            raise DataError(f"task {name!r} has no corpus {corpus!r}; it has: {', '.join(task.corpora) or 'none'}")
        return _generated(reference, "demonstrations", task.demonstrations(corpus, CORPUS_ROWS), [task])
    if kind == "preferences":
        task = load_task(rest)
        if task.demonstrations is None or task.item_of is None:
            raise DataError(f"task {rest!r} has no demonstrations to make preferences from; pass a file:<path>")
        return _generated(reference, "preferences", preferences(task, CORPUS_ROWS), [task])
    if kind == "mix":
        if rest not in MIXES:
            raise DataError(f"unknown mix {rest!r}; known: {', '.join(MIXES)}")
        tasks = [load_task(part.task) for part in MIXES[rest]]
        return _generated(reference, "demonstrations", demonstrations(rest, MIX_ROWS), tasks)
    if kind == "file":
        path, _, layout = rest.partition("#")
        return _read(reference, files_of(directory, path), layout)
    if kind == "hub":
        place, _, layout = rest.partition("#")
        wanted = parse(place)
        return _read(reference, fetch_data(wanted), layout, wanted.commit)
    known = "prompts:<task>, corpus:<task>/<name>, preferences:<task>, mix:<name>, file:<path>, "
    raise DataError(f"data {reference!r} is none of {known}hub:<owner>/<name>@<commit>/<file or split>")


def _version(*tasks: Task) -> str:
    return ", ".join(f"{task.name} {task.version}" for task in tasks)


def _generated(reference: str, kind: Kind, examples: Sequence[Example], tasks: Sequence[Task]) -> DataSet:
    ids = [str(number) for number in range(1, len(examples) + 1)]
    return DataSet(reference, kind, examples, ids, _version(*tasks))


def _read(reference: str, files: Sequence[tuple[Path, str]], layout: str, revision: str | None = None) -> DataSet:
    """Rows of files as examples; those whose gold is of no use are set aside."""
    name = ", ".join(path.name for path, _ in files)
    rows = [row for path, _ in files for row in read_rows(path)]
    if not rows:
        raise DataError(f"{name} has no rows")
    chosen = layout_of(rows, name, layout)
    examples, ids, set_aside = [], [], []
    places: dict[str, str] = {}
    for number, row in enumerate(rows, start=1):
        id = _unique(row, number, places)
        try:
            examples.append(chosen.read(row, id))
            ids.append(id)
        except UnusableGoldError as error:
            set_aside.append(SetAside(id=id, place=row.place, reason=str(error)))
    if not examples:
        first = set_aside[0]
        raise DataError(f"{name}: none of {len(rows)} rows can be trained on; {first.place}: {first.reason}")
    return DataSet(reference, chosen.kind, examples, ids, revision, chosen.name, tuple(files), tuple(set_aside))


def _unique(row: Row, number: int, places: dict[str, str]) -> str:
    id = row_id(row, number)
    if id in places:
        raise DataError(f"{row.place} has the id {id!r}, which {places[id]} has as well")
    places[id] = row.place
    return id
