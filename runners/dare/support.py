"""Which algorithm runs on which family, derived from what one records and the other can record. Works without torch.

Nothing here is a list of names: an algorithm's file says what it asks of a rollout, a family's folder what its sampler
can tell, and the kinds of family that the authors published for are a fact about the paper.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

RECORDED = {"step_map": "step maps", "x0": "predicted tokens", "confidence": "confidences", "tree": "trees"}
Level = Literal["published", "extension", "unsupported"]


@dataclass(frozen=True)
class Support:
    """Whether a pair goes together; `reason` is the end of a sentence, empty where it does."""

    level: Level
    reason: str = ""


def missing_records(record: Collection[str], records: Collection[str]) -> tuple[str, ...]:
    """What an algorithm asks of every rollout and a sampler cannot tell, in alphabetical order."""
    return tuple(sorted(set(record) - set(records)))


def not_recorded(record: Collection[str], records: Collection[str]) -> str | None:
    """The end of a sentence that begins with the algorithm: why it cannot train there. None where it can."""
    missing = missing_records(record, records)
    if not missing:
        return None
    known = ", ".join(sorted(records)) or "nothing"
    return f"needs {', '.join(missing)} of every rollout; the sampler of this backbone records {known}"


def support(record: Collection[str], published_for: Collection[str], kind: str, records: Collection[str]) -> Support:
    """Of an algorithm on a family of `kind` whose sampler can tell `records`."""
    reason = not_recorded(record, records)
    if reason is not None:
        return Support("unsupported", reason)
    return Support("published" if kind in published_for else "extension")
