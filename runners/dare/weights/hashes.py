"""SHA-256 of files, and one digest for a checkpoint in however many files.

A checkpoint in one file is known by the hash of that file; one in shards by the hash of the list that
`sha256sum model-*.safetensors` prints, so that anybody can check it: `sha256sum model-*.safetensors | sha256sum`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from dare.weights.headers import weight_files

TOKENIZER = "tokenizer.json"
TOKENIZER_PARTS = ("added_tokens.json", "merges.txt", "vocab.json")
"""What a published tokenizer without a `tokenizer.json` is made of."""
_CHUNK = 4 * 2**20

Advance = Callable[[int], object]
"""Told how many more bytes are hashed."""


def file_sha256(file: Path, advance: Advance = lambda _: None) -> str:
    """Hash of a file of any size."""
    digest = hashlib.sha256()
    with file.open("rb") as handle:
        while chunk := handle.read(_CHUNK):
            digest.update(chunk)
            advance(len(chunk))
    return digest.hexdigest()


def joint_sha256(hashes: Mapping[str, str]) -> str:
    """One digest for several files by name: the hash itself where there is one, else that of their list."""
    if len(hashes) == 1:
        return next(iter(hashes.values()))
    return hashlib.sha256("".join(f"{hashes[name]}  {name}\n" for name in sorted(hashes)).encode()).hexdigest()


def weights_sha256(directory: Path) -> str:
    """The digest of a folder's weights."""
    return joint_sha256({file.name: file_sha256(file) for file in weight_files(directory)})


def tokenizer_files(names: Iterable[str]) -> list[str]:
    """Of all files of a checkpoint, those whose digest names the tokenizer."""
    known = set(names)
    return [TOKENIZER] if TOKENIZER in known else sorted(known.intersection(TOKENIZER_PARTS))
