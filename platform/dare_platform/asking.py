"""What somebody asks for who submits: the same whether it comes from a form, a command or over HTTP."""

from __future__ import annotations

import base64
import json
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Base64Bytes, ConfigDict, Field, model_validator

from dare.frozen import Frozen
from dare_platform.models import Visibility
from dare_platform.tracks import Track
from dare_platform.uploads import UploadReport, read_builtin, read_upload

MOST_ENTRIES = 500
"""Of one sweep."""


def _can_be_written(values: dict[str, Any]) -> dict[str, Any]:
    json.dumps(values, ensure_ascii=False, default=str).encode()  # halves of characters cannot
    return values


Values = Annotated[dict[str, Any], AfterValidator(_can_be_written)]
"""Hyperparameters by name, as YAML or JSON have them."""


class SubmittedFile(Frozen):
    """A Python file with one Algorithm subclass, or an archive that holds one."""

    name: str
    """Its suffix says what it is: .py, .zip, .tar, .tar.gz, .tgz."""
    content: Base64Bytes
    """In base64; 1 MB at most."""

    @staticmethod
    def of(name: str, content: bytes) -> SubmittedFile:
        """A file of these bytes."""
        return SubmittedFile(name=name, content=base64.b64encode(content))


class SubmitRequest(Frozen):
    """An entry: a built-in method or a file, with settings, for backbones of a track."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"algorithm": "bgpo", "assignments": {"mc_samples": 4}, "backbones": ["llada-tiny"]}]
        },
    )

    algorithm: str | None = None
    """A built-in method, or `untouched`; this or `file`."""
    file: SubmittedFile | None = None
    settings: str | None = None
    """YAML of `hyperparameter: value` lines."""
    assignments: Values = Field(default_factory=dict)
    """Hyperparameters by name; they go before those of `settings`."""
    track: str = "tiny"
    """`tiny`, or `tiny@1.0` for a version."""
    backbones: tuple[str, ...] = ()
    """All of the track where none is named."""
    name: str | None = None
    """On the board; the algorithm's where it is left out."""
    control: bool = False
    """A file of yours that is shown and never ranked."""
    visibility: Visibility = "public"
    """Who sees it. It can be opened later, not closed."""

    @model_validator(mode="after")
    def _is_one_thing(self) -> Self:
        if (self.algorithm is None) == (self.file is None):
            raise ValueError("give either `algorithm` or `file`")
        if self.control and self.file is None:
            raise ValueError("`control` goes with a file: what a built-in algorithm is, is known")
        return self

    def report(self, track: Track, with_data: bool, counted_as: str | None = None) -> UploadReport:
        """What reading it finds. `counted_as` is the name whose tries it counts among, where that is not its own."""
        chosen = self.backbones or tuple(track.backbones)
        if self.file is not None:
            return read_upload(
                self.file.name, self.file.content, self.settings, track, chosen,
                name=self.name, kind="control" if self.control else "method", assignments=self.assignments,
                with_data=with_data, algorithm=counted_as,
            )  # fmt: skip
        return read_builtin(
            self.algorithm or "", self.settings, track, chosen,
            entry_name=self.name, assignments=self.assignments, with_data=with_data,
        )  # fmt: skip


class SweepPoint(Frozen):
    """What is one entry's own."""

    name: str
    assignments: Values


class SweepRequest(Frozen):
    """Several entries of one method: all of them or none."""

    shared: SubmitRequest
    """What they have in common. Each counts as a try of its name."""
    points: Annotated[tuple[SweepPoint, ...], Field(min_length=1, max_length=MOST_ENTRIES)]

    def request_at(self, point: SweepPoint) -> SubmitRequest:
        """One of its entries."""
        together = {**self.shared.assignments, **point.assignments}
        return self.shared.model_copy(update={"name": point.name, "assignments": together})
