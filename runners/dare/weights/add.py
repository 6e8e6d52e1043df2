"""Adds a checkpoint to this machine's backbones: looked at before it is loaded, hashed, and recorded.

A folder stays where it is and is named by its path, so nothing is copied and no network is needed. A hub id is fetched
once, at an exact commit, into the folder of the record. The record says what every file hashes to.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from dare.catalog import BackboneRecord, added_root, backbone_directory, backbones, is_shipped
from dare.weights.files import RECORD, BackboneError, Inspected, checkpoint_files, inspect, loadable
from dare.weights.hashes import Advance, file_sha256, joint_sha256, tokenizer_files, weights_sha256
from dare.weights.headers import shortened
from dare.weights.hub import HUB_ID, PATTERNS, SMALL, Pinned, fetch, pin

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
TINY_PARAMETERS = 2_000_000
UNKNOWN_LICENCE = "unknown"


@dataclass(frozen=True)
class Request:
    """What a person says of the backbone to add."""

    source: str
    """A folder, or a hub id `owner/name`."""
    revision: str | None = None
    """Of a hub id: branch, tag or commit. Of a folder: what to call its state."""
    name: str | None = None
    licence: str | None = None
    endpoint: str | None = None
    """Another hub than the public one."""


def add(request: Request, total: Advance = lambda _: None, advance: Advance = lambda _: None) -> BackboneRecord:
    """The record of the backbone, written; BackboneError or HubError when it cannot be.

    `total` is told how many bytes will be hashed, `advance` how many more are.
    """
    directory = Path(request.source).expanduser()
    if directory.is_dir():
        directory = directory.resolve()
        name = _free_name(request.name or directory.name)
        return _record(name, directory, request, None, total, advance)
    if not HUB_ID.fullmatch(request.source):
        raise BackboneError(f"{request.source!r} is neither a folder that exists nor a hub id like owner/name")
    if request.revision is None:
        raise BackboneError(
            f"{request.source} needs an exact revision: --revision COMMIT, or a branch or tag, whose commit is recorded"
        )
    name = _free_name(request.name or request.source.rpartition("/")[2])
    pinned = pin(request.source, request.revision, request.endpoint)
    files = added_root() / name / "files"
    _check_origin(name, pinned)
    fresh = not files.exists()
    try:
        fetch(pinned, files, SMALL)
        loadable(files)  # before gigabytes are fetched for nothing
        fetch(pinned, files, PATTERNS)
        return _record(name, files, request, pinned, total, advance)
    except BackboneError:
        if fresh:
            shutil.rmtree(files.parent)
        raise


def verify(name: str, total: Advance = lambda _: None, advance: Advance = lambda _: None) -> list[str]:
    """Hash a backbone again; one sentence for each file that is not what its record says."""
    record, directory = backbones().get(name), backbone_directory(name)
    assert record is not None
    if not record.files:
        return _verify_shipped(record, directory)
    present = {file.name: file for file in checkpoint_files(directory)}
    total(sum(file.stat().st_size for file in present.values()))
    problems = [f"{file} is missing" for file in sorted(record.files.keys() - present.keys())]
    problems += [f"{file} is new" for file in sorted(present.keys() - record.files.keys())]
    for file_name in sorted(present.keys() & record.files.keys()):
        found = file_sha256(present[file_name], advance)
        if found != record.files[file_name]:
            problems.append(f"{file_name} hashes to {found[:12]}, its record says {record.files[file_name][:12]}")
    return problems


def _verify_shipped(record: BackboneRecord, directory: Path) -> list[str]:
    found = {"weights": weights_sha256(directory), "tokenizer.json": file_sha256(directory / "tokenizer.json")}
    said = {"weights": record.weights_sha256, "tokenizer.json": record.tokenizer_sha256}
    changed = [what for what in said if found[what] != said[what]]
    return [f"{what} hashes to {found[what][:12]}, its record says {said[what][:12]}" for what in changed]


def _record(
    name: str, directory: Path, request: Request, pinned: Pinned | None, total: Advance, advance: Advance
) -> BackboneRecord:
    inspected = inspect(directory)
    files = checkpoint_files(directory)
    total(sum(file.stat().st_size for file in files))
    hashes = {file.name: file_sha256(file, advance) for file in files}
    weights = joint_sha256({file.name: hashes[file.name] for file in inspected.weights.files})
    record = BackboneRecord(
        name=name,
        family=inspected.family,
        revision=pinned.commit if pinned else request.revision or f"sha256-{weights[:12]}",
        weights_sha256=weights,
        tokenizer_sha256=joint_sha256({file: hashes[file] for file in tokenizer_files(hashes)}),
        parameters=inspected.parameters,
        tiny=inspected.parameters <= TINY_PARAMETERS,
        licence=request.licence or (pinned.licence if pinned else None) or UNKNOWN_LICENCE,
        summary=_summary(inspected, pinned, directory),
        sampling=inspected.sampling,
        directory=str(directory),
        origin=pinned.hub_id if pinned else None,
        files=hashes,
    )
    _check_same_content(record)
    _write(record)
    return record


def _summary(inspected: Inspected, pinned: Pinned | None, directory: Path) -> str:
    weights = inspected.weights
    dtypes = " and ".join(f"{size:,} bytes of {dtype}" for dtype, size in sorted(weights.bytes_by_dtype.items()))
    whence = f"{pinned.hub_id} at {pinned.commit[:12]}" if pinned else f"The folder {directory}"
    return f"{whence}: {inspected.architecture}, {len(weights.tensors):,} tensors, {dtypes}."


def _free_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise BackboneError(f"{name!r} cannot name a backbone: give --name of letters, digits, dots and dashes")
    if is_shipped(name):
        raise BackboneError(f"{name} is a backbone of this package: give another --name")
    return name


def _check_origin(name: str, pinned: Pinned) -> None:
    """The folder of a record holds one commit of one repository."""
    known = backbones().get(name)
    if known is not None and (known.origin, known.revision) != (pinned.hub_id, pinned.commit):
        raise BackboneError(
            f"backbone {name} is {known.origin or known.directory} at {known.revision[:12]}: "
            f"give another --name for {pinned.hub_id} at {pinned.commit[:12]}"
        )


def _check_same_content(record: BackboneRecord) -> None:
    known = backbones().get(record.name)
    if known is None or known.files == record.files:
        return
    names = sorted(known.files.keys() | record.files.keys())
    changed = [name for name in names if known.files.get(name) != record.files.get(name)]
    raise BackboneError(
        f"backbone {record.name} is already there with other content ({shortened(changed, most=3)}): "
        f"give another --name, or remove {added_root() / record.name}"
    )


def _write(record: BackboneRecord) -> None:
    folder = added_root() / record.name
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{RECORD}.part"
    part.write_text(record.model_dump_json(indent=2) + "\n", encoding="utf-8")
    part.replace(folder / RECORD)
