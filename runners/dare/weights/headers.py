"""What safetensors files say of themselves: names, dtypes, shapes and bytes. No tensor is read, and no torch needed.

Everything is checked that can be known without reading weights: the header is whole, every tensor has the bytes that
its shape needs, nothing overlaps, the file ends where its last tensor ends, and the shards hold what the index names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip
"""Size of one number by the name of its dtype in a header."""
_LENGTH = 8  # bytes before the header, which say how long it is
_LONGEST_HEADER = 100_000_000  # the format's own limit
_MOST_DIMENSIONS = 16


class CheckpointError(ValueError):
    """The files do not hold exactly the tensors of the model, or are no files of tensors. One sentence."""


@dataclass(frozen=True)
class StoredTensor:
    """One tensor as its file describes it."""

    file: Path
    dtype: str
    shape: tuple[int, ...]

    @property
    def numbers(self) -> int:
        """How many."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """What they take."""
        return self.numbers * BYTES[self.dtype]


@dataclass(frozen=True)
class StoredWeights:
    """All tensors of a checkpoint."""

    files: tuple[Path, ...]
    tensors: Mapping[str, StoredTensor]
    stated_bytes: int | None
    """`total_size` of the index, where there is one."""

    @property
    def bytes(self) -> int:
        """Of all tensors."""
        return sum(tensor.bytes for tensor in self.tensors.values())

    @property
    def bytes_by_dtype(self) -> dict[str, int]:
        """The same, by the name of the dtype."""
        sizes: dict[str, int] = {}
        for tensor in self.tensors.values():
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.bytes
        return sizes


def weight_files(directory: Path) -> list[Path]:
    """The one file, or the shards that the index names."""
    index = directory / INDEX
    if index.is_file():
        if (directory / WEIGHTS).is_file():
            raise CheckpointError(f"{directory} has both {WEIGHTS} and {INDEX}: remove the one that is not meant")
        names = sorted(set(_weight_map(index).values()))
        missing = [name for name in names if not (directory / name).is_file()]
        if missing:
            raise CheckpointError(f"{index} names {shortened(missing)}, which {directory} lacks")
        return [directory / name for name in names]
    if (directory / WEIGHTS).is_file():
        return [directory / WEIGHTS]
    raise CheckpointError(f"{directory} has neither {WEIGHTS} nor {INDEX}")


def stored_weights(directory: Path) -> StoredWeights:
    """The headers of all weight files; CheckpointError when a file is broken or not what the index says."""
    files = weight_files(directory)
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        for name, tensor in read_header(file).items():
            if name in tensors:
                raise CheckpointError(f"{name} is in {tensors[name].file.name} and in {file.name} of {directory}")
            tensors[name] = tensor
    index = directory / INDEX
    if not index.is_file():
        return StoredWeights(tuple(files), tensors, None)
    named = _weight_map(index)
    unnamed = sorted(tensors.keys() - named.keys())
    if unnamed:
        file_name = tensors[unnamed[0]].file.name
        raise CheckpointError(f"{file_name} holds {shortened(unnamed)}, which {index} does not name")
    for name, file_name in named.items():
        found = tensors[name].file.name if name in tensors else None
        if found != file_name:
            where = f"it is in {found}" if found else "no file has it"
            raise CheckpointError(f"{index} says that {name} is in {file_name}; {where}")
    return StoredWeights(tuple(files), tensors, _stated_bytes(index))


def read_header(file: Path) -> dict[str, StoredTensor]:
    """The tensors of one file by name."""
    with file.open("rb") as handle:
        return read_open_header(handle, file.stat().st_size, file)


def read_open_header(
    handle: BinaryIO, size: int, file: Path, longest: int = _LONGEST_HEADER
) -> dict[str, StoredTensor]:
    """The same of an open file of `size` bytes that is called `file`. A header longer than `longest` is refused."""
    length = int.from_bytes(handle.read(_LENGTH), "little")
    if size < _LENGTH or length > _LONGEST_HEADER or _LENGTH + length > size:
        raise CheckpointError(f"{file} is no safetensors file, or was cut off inside its header ({size} bytes)")
    if length > longest:
        raise CheckpointError(f"{file} has a header of {length} bytes; {longest} are read")
    text = handle.read(length)
    try:
        entries: dict[str, Any] = json.loads(text, object_pairs_hook=lambda pairs: _each_once(file, pairs))
    except (ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{file} has a header that is no JSON: {error}") from error
    if not isinstance(entries, dict):
        raise CheckpointError(f"{file} has a header that is no JSON object")
    entries.pop("__metadata__", None)
    end = 0
    tensors = {}
    for name, (tensor, first, last) in sorted(
        ((name, _entry(file, name, entry)) for name, entry in entries.items()), key=lambda pair: pair[1][1:]
    ):
        if first != end or last - first != tensor.bytes:
            raise CheckpointError(
                f"{file}: {name} has {tensor.bytes} bytes from its shape {tensor.shape}, but the bytes {first} to "
                f"{last} after {end}: the file is damaged"
            )
        tensors[name], end = tensor, last
    if _LENGTH + length + end != size:
        raise CheckpointError(
            f"{file} has {size} bytes, its header describes {_LENGTH + length + end}: it was cut off or damaged; "
            "copy it again"
        )
    return tensors


def _entry(file: Path, name: str, entry: Any) -> tuple[StoredTensor, int, int]:
    try:
        dtype, shape, (first, last) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        numbers = (*shape, first, last)
        if len(shape) > _MOST_DIMENSIONS or not all(_is_count(number) for number in numbers):
            raise ValueError
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{file}: the header's entry for {name} is {str(entry)[:80]}, which makes no sense"
        ) from error
    if not isinstance(dtype, str) or dtype not in BYTES:
        raise CheckpointError(f"{file}: {name} has dtype {dtype!r}; known: {', '.join(BYTES)}")
    return StoredTensor(file, dtype, shape), first, last


def _is_count(number: object) -> bool:
    """No bool, which Python counts among the integers, and nothing so large that multiplying it takes time."""
    return type(number) is int and 0 <= number < 2**63


def _each_once(file: Path, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise CheckpointError(f"{file} has {name} twice in its header")
        found[name] = value
    return found


def _index(index: Path) -> dict[str, Any]:
    try:
        content = json.loads(
            index.read_text(encoding="utf-8"), object_pairs_hook=lambda pairs: _each_once(index, pairs)
        )
    except ValueError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{index} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{index} is no JSON object")
    return content


def _weight_map(index: Path) -> dict[str, str]:
    """Name of tensor to name of file, all files beside the index."""
    named = _index(index).get("weight_map")
    if not isinstance(named, dict) or not named:
        raise CheckpointError(f"{index} has no weight_map from tensors to files")
    for name, file in named.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise CheckpointError(f"{index} says that {name} is in {file!r}; it must be a .safetensors file beside it")
    return named


def _stated_bytes(index: Path) -> int | None:
    metadata = _index(index).get("metadata")
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(size, float) and size.is_integer():  # some tools write 1.5e10
        size = int(size)
    if size is not None and not isinstance(size, int):
        raise CheckpointError(f"{index} has total_size {size!r}, which is no number of bytes")
    return size


def shortened(words: Sequence[str], between: str = ", ", most: int = 5) -> str:
    """The first few, and how many more there are."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return between.join(words[:most]) + more
