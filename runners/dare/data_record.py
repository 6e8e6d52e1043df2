"""`dare-data.json`: what the published data files of a folder were when `dare data fetch` put them there.

A declared file has no hash in its task; the one recorded here takes its place, so that a file that changes afterwards
is noticed all the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from dare.frozen import Frozen

NAME = "dare-data.json"


class FileRecord(Frozen):
    """One file as it was fetched. A file that was put there by hand has no address and no revision."""

    sha256: str
    bytes: int
    rows: int | None
    address: str | None
    revision: str | None
    date: str
    """Of the record, UTC, as in 2026-01-31T12:00:00Z."""


class DataRecord(Frozen):
    """The record of a data folder: path below the folder -> what lies there."""

    version: Literal[1] = 1
    files: dict[str, FileRecord] = Field(default_factory=dict)


class DataRecordError(ValueError):
    """The record of a data folder cannot be read."""


def read_record(folder: Path) -> DataRecord:
    """The record of a folder, empty where it has none; DataRecordError for one that is damaged."""
    path = folder / NAME
    try:
        return DataRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return DataRecord()
    except (ValidationError, OSError) as error:
        raise DataRecordError(
            f"{path} cannot be read as a record of data files: delete it and run `dare data fetch` again"
        ) from error
