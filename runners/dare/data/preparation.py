"""What happens to training data before the first step: a manifest, what was set aside, what test items it gives away.

Leaves `data_manifest.json` and `overlap.json` in the job directory. A resumed run that finds other data stops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dare.data import DataSet, TrainingData, load_data_set, overlap
from dare.data import manifest as dataset_manifest
from dare.data.columns import JudgedItem
from dare.data.files import DataError
from dare.data.manifest import Manifest
from dare.data.overlap import Asked, Overlap
from dare.diary.events import EventLog
from dare.tasks import text_of

REASONS = 3


@dataclass(frozen=True)
class Prepared:
    """Data to train on, and what the result says of them."""

    data: TrainingData
    metrics: dict[str, float]
    provenance: dict[str, str]


def prepare(
    reference: str, directory: Path, policy: Literal["report", "drop"], folder: Path | None, events: EventLog
) -> Prepared:
    """Load, write down, compare with every test item at hand, and leave out what the policy says."""
    data_set = load_data_set(reference, directory, folder)
    manifest = data_set.manifest()
    _keep(manifest, directory / dataset_manifest.NAME)
    if manifest.set_aside:
        events.alarm(0, "set_aside", aside(manifest))
    tests, absent = overlap.held_out(folder)
    found = overlap.compare(asked(data_set), tests, absent)
    if policy == "drop" and found.rows:
        data_set = data_set.without(found.rows)
        report = found.report.model_copy(update={"dropped": len(found.rows)})
        found = Overlap(report, found.rows)
    (directory / overlap.NAME).write_text(found.report.model_dump_json(indent=1) + "\n", encoding="utf-8")
    if found.report.contaminated:
        events.alarm(0, "overlap", overlap.sentence(found.report))
    metrics = {
        "contaminated_items": float(len(found.report.contaminated)),
        "rows_set_aside": float(len(manifest.set_aside)),
        "rows_dropped": float(found.report.dropped),
    }
    return Prepared(data_set.data, metrics, {"data": reference, "data_manifest": manifest.digest()})


def asked(data_set: DataSet) -> Sequence[Asked]:
    """The prompts of a data set, to be compared."""
    return [
        Asked(id, text_of(example.item.prompt), example.task.name, example.item.gold)
        if isinstance(example, JudgedItem)
        else Asked(id, text_of(example.prompt))
        for id, example in zip(data_set.ids, data_set.examples, strict=True)
    ]


def aside(manifest: Manifest) -> str:
    """How many rows were set aside, and the commonest reasons, in one line."""
    counts = Counter(row.reason for row in manifest.set_aside)
    reasons = "; ".join(f"{count} x {reason}" for reason, count in counts.most_common(REASONS))
    more = "; ..." if len(counts) > REASONS else ""
    return f"{len(manifest.set_aside)} of {manifest.rows} rows are set aside and not trained on: {reasons}{more}"


def _keep(manifest: Manifest, path: Path) -> None:
    if path.is_file():
        before = dataset_manifest.read(path)
        if before != manifest:
            changed = dataset_manifest.difference(before, manifest)
            raise DataError(f"the data are not those that this run began with: {changed}; start it in a new directory")
        return
    dataset_manifest.write(manifest, path)
