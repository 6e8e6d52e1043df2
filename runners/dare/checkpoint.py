"""Checkpoints that are complete or absent, never half-written: a folder is published by rename."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch


def publish(directory: Path, name: str) -> Path:
    """A fresh folder to fill; `commit` makes it `directory/name`."""
    scratch = directory / f".{name}.new"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    return scratch


def commit(scratch: Path) -> Path:
    """Make a filled folder current, replacing the one before; at every moment one complete folder exists."""
    for file in scratch.rglob("*"):
        if file.is_file():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
    current = scratch.parent / scratch.name.removeprefix(".").removesuffix(".new")
    previous = scratch.parent / f".{current.name}.old"
    shutil.rmtree(previous, ignore_errors=True)
    if current.exists():
        current.rename(previous)
    scratch.rename(current)
    shutil.rmtree(previous, ignore_errors=True)
    return current


def find(directory: Path, name: str) -> Path | None:
    """The newest complete folder of that name, also when a kill fell between the two renames."""
    for candidate in (directory / name, directory / f".{name}.old"):
        if candidate.is_dir():
            return candidate
    return None


def save_state(directory: Path, tensors: dict[str, Any], facts: dict[str, Any], job: str) -> None:
    """Write the training state for `job` (its digest) as `checkpoint/`."""
    scratch = publish(directory, "checkpoint")
    torch.save(tensors, scratch / "state.pt")
    (scratch / "facts.json").write_text(json.dumps({**facts, "job": job}))
    commit(scratch)


def load_state(directory: Path, job: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The training state of `job`, or None: no checkpoint, or one of another job."""
    folder = find(directory, "checkpoint")
    if folder is None:
        return None
    facts = json.loads((folder / "facts.json").read_text())
    if facts.pop("job") != job:
        return None
    return torch.load(folder / "state.pt", weights_only=True), facts
