"""What a run trained on, in one JSON file: where the rows come from, hashes of files and rows, what was set aside."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from dare.data.columns import Example, JudgedItem, Kind
from dare.data.corpus import Preference
from dare.data.files import DataError
from dare.frozen import Frozen
from dare.weights.hashes import file_sha256

NAME = "data_manifest.json"


class DataFile(Frozen):
    """One file by content. `path` is relative to the job directory, or inside the data set of a hub."""

    path: str
    bytes: int
    sha256: str


class SetAside(Frozen):
    """A row that nothing is trained on, and why."""

    id: str
    place: str
    reason: str


class Manifest(Frozen):
    """One data set as one run read it. Its digest is in the run's provenance."""

    version: Literal[1] = 1
    source: str
    """The reference, as the job has it."""
    revision: str | None = None
    """Commit of a data set of the hub; names and versions of the tasks that generate the rows."""
    kind: Kind
    layout: str | None = None
    """The columns that were read; None where no file was."""
    files: tuple[DataFile, ...] = ()
    rows: int
    kept: int
    set_aside: tuple[SetAside, ...] = ()
    repeated: int
    """Kept rows that are equal to an earlier one: they stay, and count twice."""
    rows_sha256: str
    """Hash of the kept rows as they are trained on, order included: the same for every file format."""


def data_file(path: Path, name: str) -> DataFile:
    """A file as it is now."""
    return DataFile(path=name, bytes=path.stat().st_size, sha256=file_sha256(path))


def hashes(examples: Iterable[Example]) -> tuple[str, int]:
    """The hash of all rows, and how many repeat an earlier one."""
    whole, seen, repeated = hashlib.sha256(), set(), 0
    for example in examples:
        row = hashlib.sha256(json.dumps(_content(example), sort_keys=True, ensure_ascii=False).encode()).digest()
        repeated += row in seen
        seen.add(row)
        whole.update(row)
    return whole.hexdigest(), repeated


def _content(example: Example) -> list[object]:
    if isinstance(example, JudgedItem):
        return [example.item.prompt, dict(example.item.gold), example.task.name, example.task.version]
    if isinstance(example, Preference):
        return [example.prompt, example.chosen, example.rejected]
    return [example.prompt, example.answer]


def write(manifest: Manifest, path: Path) -> None:
    """Write by rename; the same content gives the same bytes."""
    scratch = path.with_name(f".{path.name}.new")
    scratch.write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")
    scratch.replace(path)


def read(path: Path) -> Manifest:
    """The manifest of a file; DataError where it is none."""
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise DataError(f"{path} is no manifest: {where}: {first['msg']}") from error


def difference(before: Manifest, now: Manifest) -> str:
    """The first thing that is not the same."""
    files = {file.path: file for file in before.files}
    for file in now.files:
        if (old := files.get(file.path)) != file:
            was = "new" if old is None else f"SHA-256 {old.sha256[:12]}"
            return f"{file.path} was {was}, it is {file.sha256[:12]}"
    name = next(name for name in Manifest.model_fields if getattr(before, name) != getattr(now, name))
    return f"{name} was {str(getattr(before, name))[:40]}, it is {str(getattr(now, name))[:40]}"


def verify(manifest: Manifest, directory: Path) -> list[str]:
    """A sentence for every file that is not what the manifest says; files are looked for below `directory`."""
    problems = []
    for file in manifest.files:
        path = directory / file.path
        if not path.is_file():
            problems.append(f"{file.path} is not in {directory}")
        elif (size := path.stat().st_size) != file.bytes:
            problems.append(f"{file.path} has changed: it has {size:,} bytes, the manifest says {file.bytes:,}")
        elif (found := file_sha256(path)) != file.sha256:
            problems.append(f"{file.path} has changed: its SHA-256 is {found[:12]}, not {file.sha256[:12]}")
    return problems
