"""What can be run, known without importing torch: backbones by their record, algorithms by reading their source."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from pathlib import Path

from pydantic import Field

from dare.spec import BackboneRef, Frozen


class UnknownBackboneError(ValueError):
    """No backbone of that name is in the catalog."""


class BackboneRecord(Frozen):
    """One backbone: `backbone.json` beside its weights."""

    name: str
    family: str
    revision: str
    weights_sha256: str
    tokenizer_sha256: str
    parameters: int
    tiny: bool
    """Small enough for a CPU worker."""
    licence: str
    summary: str
    recipe: dict[str, str | int | float] = Field(default_factory=dict)
    """How a backbone that we made was made."""

    @property
    def ref(self) -> BackboneRef:
        """What a job says of it."""
        return BackboneRef(
            name=self.name,
            family=self.family,
            revision=self.revision,
            weights_sha256=self.weights_sha256,
            tokenizer_sha256=self.tokenizer_sha256,
        )


def backbone_directory(name: str) -> Path:
    """Where a shipped backbone's config, weights and tokenizer lie."""
    directory = Path(str(resources.files("dare").joinpath("backbones", name)))
    if not (directory / "backbone.json").is_file():
        raise UnknownBackboneError(f"unknown backbone {name!r}; known: {', '.join(backbones())}")
    return directory


@cache
def backbones() -> dict[str, BackboneRecord]:
    """All shipped backbones by name."""
    root = Path(str(resources.files("dare").joinpath("backbones")))
    records = [BackboneRecord.model_validate(json.loads(f.read_text())) for f in sorted(root.glob("*/backbone.json"))]
    return {record.name: record for record in records}
