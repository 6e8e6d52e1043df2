"""Rows of data files: JSONL (also .gz), JSON and Parquet, each row with the place that a sentence about it can name.

All formats give the same rows: a file that is written again in another format trains the same policy.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".parquet")
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})$")
_BATCH = 1024
_DEPTH = 16


class DataError(ValueError):
    """The training data cannot be used. The message names the file and line, or the word that is wrong."""


@dataclass(frozen=True)
class Row:
    """One row as it was read. `place` is its file with the line (JSONL) or the number of the row, from 1."""

    place: str
    values: dict[str, Any]


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of one file in its order; blank lines are none. DataError where the file is not what its name says."""
    if not path.is_file():
        raise DataError(f"there is no data file {path}")
    name = path.name
    if name.endswith((".jsonl", ".jsonl.gz")):
        yield from _lines(path)
    elif name.endswith(".json"):
        yield from _array(path)
    elif name.endswith(".parquet"):
        yield from _parquet(path)
    else:
        raise DataError(f"{name} is no file of rows by its name; it must end in {', '.join(SUFFIXES)}")


def suffix_of(name: str) -> str:
    """The ending that says the format; empty where there is none of ours."""
    return next((suffix for suffix in sorted(SUFFIXES, key=len, reverse=True) if name.endswith(suffix)), "")


def pick(names: Sequence[str], wanted: str, source: str) -> list[str]:
    """The files of a folder that `wanted` names: one file, or all shards of a split such as `main/train`.

    A split is `train.parquet`, `train-00000-of-00002.parquet` or `train/...`; a shard that is absent is an error.
    """
    if wanted in names:
        return [wanted]
    splits: dict[str, list[str]] = {}
    for name in sorted(names):
        if suffix := suffix_of(name):
            splits.setdefault(_SHARD.sub("", name.removesuffix(suffix)) + suffix, []).append(name)
    matching = [split for split in splits if not wanted or _is_split(split.removesuffix(suffix_of(split)), wanted)]
    if len(matching) != 1:
        what = "no file or split" if not matching else "more than one file for"
        listed = ", ".join(split.removesuffix(suffix_of(split)) for split in matching or splits) or "no file of rows"
        raise DataError(f"{source} has {what} {wanted!r}; it has: {listed}")
    files = splits[matching[0]]
    shards = [(int(found[1]), int(found[2])) for f in files if (found := _SHARD.search(f.removesuffix(suffix_of(f))))]
    if shards and [number for number, _ in shards] != list(range(shards[0][1])):
        raise DataError(f"{source} has {len(shards)} of the {shards[0][1]} shards of {matching[0]!r}")
    return files


def files_of(directory: Path, path: str) -> list[tuple[Path, str]]:
    """A file, or the shards of a split of a folder: `gsm8k/main/train`."""
    whole = directory / path
    if whole.is_file():
        return [(whole, path)]
    folder, wanted = (whole, "") if whole.is_dir() else (whole.parent, whole.name)
    if not folder.is_dir() or (wanted and not any(file.name.startswith(f"{wanted}-") for file in folder.iterdir())):
        raise DataError(f"there is no data file {whole}")
    names = [file.name for file in folder.iterdir() if file.is_file()]
    called = Path(path) if whole.is_dir() else Path(path).parent
    return [(folder / name, (called / name).as_posix()) for name in pick(names, wanted, str(folder))]


@dataclass(frozen=True)
class LocalData:
    """Files of this machine that become those of a job directory. `reference` is what the job calls them."""

    files: tuple[tuple[Path, str], ...]
    reference: str

    def copy_to(self, directory: Path) -> None:
        """A run does not depend on files that may be edited or removed."""
        for source, name in self.files:
            shutil.copy(source, directory / name)


def local_data(reference: str) -> LocalData | None:
    """The files of a `file:` reference, relative to the working directory; None for data of another kind."""
    kind, _, rest = reference.partition(":")
    if kind != "file":
        return None
    path, mark, layout = rest.partition("#")
    found = [file for file, _ in files_of(Path(), path)]
    suffix = suffix_of(found[0].name)
    if not suffix:
        raise DataError(f"{found[0].name} is no file of rows by its name; it must end in {', '.join(SUFFIXES)}")
    if len(found) == 1:
        return LocalData(((found[0], f"train{suffix}"),), f"file:train{suffix}{mark}{layout}")
    names = [f"train-{number:05}-of-{len(found):05}{suffix}" for number in range(len(found))]
    return LocalData(tuple(zip(found, names, strict=True)), f"file:train{mark}{layout}")


def _is_split(split: str, wanted: str) -> bool:
    return split == wanted or split.endswith(f"/{wanted}")


def _lines(path: Path) -> Iterator[Row]:
    """Line by line, so that a large file is never in memory as text; a line ends at a line feed and nowhere else."""
    opener = gzip.open if path.name.endswith(".gz") else open
    try:
        with opener(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    place = f"{path.name} line {number}"
                    yield Row(place, _object(_parsed(line, place), place))
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path.name} cannot be read: {error}") from error


def _array(path: Path) -> Iterator[Row]:
    """An array of objects, or an object of objects whose keys become their `id`."""
    whole = _parsed(path.read_bytes(), path.name)
    if isinstance(whole, dict):
        whole = [{"id": key, **value} if isinstance(value, dict) else value for key, value in whole.items()]
    if not isinstance(whole, list):
        raise DataError(f"{path.name} is no array of rows: it begins with {str(whole)[:40]!r}")
    for number, value in enumerate(whole, start=1):
        place = f"{path.name} row {number}"
        yield Row(place, _object(value, place))


def _parquet(path: Path) -> Iterator[Row]:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    number = 0
    try:
        with ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_BATCH):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(f"{path.name} row {number}", _columns(values, f"{path.name} row {number}"))
    except (ArrowException, UnicodeDecodeError, OSError) as error:
        raise DataError(f"{path.name} cannot be read as Parquet after row {number}: {_one_line(error)}") from error


def _parsed(content: bytes, place: str) -> Any:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{place} is not UTF-8: byte {content[error.start]:#04x} at {error.start}") from error
    try:
        return json.loads(text, object_pairs_hook=lambda pairs: _without_twins(pairs, place))
    except DataError:
        raise
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place} is no JSON: {_one_line(error)}") from error


def _without_twins(pairs: list[tuple[str, Any]], place: str) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twin = next(name for number, (name, _) in enumerate(pairs) if name in dict(pairs[:number]))
        raise DataError(f"{place} has the column {twin!r} twice")
    return found


def _columns(values: dict[str, Any], place: str) -> dict[str, Any]:
    """Columns may be null. Inside of them nulls are left out: Parquet has one wherever any other row has an entry."""
    return {name: _without_nulls(value, f"{place}: {name!r}") for name, value in values.items()}


def _without_nulls(value: Any, where: str, depth: int = 0) -> Any:
    if depth > _DEPTH:
        raise DataError(f"{where} nests deeper than {_DEPTH} levels")
    if isinstance(value, dict):
        return {name: _without_nulls(item, where, depth + 1) for name, item in value.items() if item is not None}
    return [_without_nulls(item, where, depth + 1) for item in value] if isinstance(value, list) else value


def _object(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"{place} is no JSON object with columns: {str(value)[:40]!r}")
    return _columns(value, place)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
