"""Records what can be compared: backbones, tasks with every item, tracks and their cells. Twice changes nothing."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from dare.catalog import BackboneRecord, backbones
from dare.recipe import backbone_names as published
from dare.tasks import Task, items_sha256, load_task
from dare_platform.errors import RegistryError
from dare_platform.models import Backbone, BackboneRevision, Cell, TaskItem, TaskVersion, TrackVersion
from dare_platform.tracks import Track

SPLIT = "test"


def register_backbone(session: Session, record: BackboneRecord) -> BackboneRevision:
    """The row of a backbone's exact content, made if it is new."""
    backbone = session.execute(select(Backbone).where(Backbone.slug == record.name)).scalar_one_or_none()
    if backbone is None:
        backbone = Backbone(slug=record.name, family=record.family, parameters=record.parameters, tiny=record.tiny)
        session.add(backbone)
        session.flush()
    elif backbone.family != record.family:
        raise RegistryError(
            f"backbone {record.name} is registered as {backbone.family}, the catalog says {record.family}: "
            "another family needs another name"
        )
    content = {
        "backbone_id": backbone.id,
        "source_revision": record.revision,
        "weights_sha256": record.weights_sha256,
        "tokenizer_sha256": record.tokenizer_sha256,
    }
    revision = session.execute(select(BackboneRevision).filter_by(**content)).scalar_one_or_none()
    if revision is None:
        revision = BackboneRevision(**content)
        session.add(revision)
        session.flush()
    return revision


def register_task(session: Session, task: Task, data: Path | None = None) -> TaskVersion:
    """The row of a task version with all its items; RegistryError when they are not those recorded under it."""
    items = task.items(SPLIT, data)
    digest = items_sha256(items)
    known = session.execute(
        select(TaskVersion).filter_by(task_slug=task.name, version=task.version, split=SPLIT)
    ).scalar_one_or_none()
    if known is not None:
        if known.items_sha256 != digest:
            raise RegistryError(
                f"task {task.name} version {task.version} is registered with other items "
                f"({known.items_sha256[:12]}, now {digest[:12]}): changed items need a new version"
            )
        return known
    version = TaskVersion(
        task_slug=task.name,
        version=task.version,
        split=SPLIT,
        n_items=len(items),
        items_sha256=digest,
        metric="solved",
        direction="max",
        lower_bound=0.0,
        upper_bound=1.0,
    )
    session.add(version)
    session.flush()
    session.add_all(
        TaskItem(
            task_version_id=version.id,
            item_id=item.id,
            position=position,
            item_sha256=item.sha256,
            cluster_id=item.cluster,
        )
        for position, item in enumerate(items)
    )
    session.flush()
    return version


def register_track(session: Session, track: Track, data: Path | None = None) -> TrackVersion:
    """The row of a track version, its backbones, and one cell for each backbone and task.

    Transfer tasks whose data is not at hand get their cells when the track is registered again with `data`.
    """
    version = session.execute(
        select(TrackVersion).filter_by(track_slug=track.track, version=track.version)
    ).scalar_one_or_none()
    if version is None:
        version = TrackVersion(
            track_slug=track.track,
            version=track.version,
            state=track.state,
            title=track.title,
            device=track.device,
            rules_sha256=track.digest(),
            rules_json=track.model_dump_json(),
            created_at=datetime.now(UTC),
        )
        session.add(version)
        session.flush()
    elif version.rules_sha256 != track.digest():
        raise RegistryError(
            f"track {track.name} is registered with other rules ({version.rules_sha256[:12]}, "
            f"now {track.digest()[:12]}): changed rules need a new version"
        )
    catalog = backbones()
    for name in track.backbones:
        if name not in catalog and name in published():
            continue  # its cells come when it has been added to this machine and the track is registered again
        if name not in catalog:
            raise RegistryError(f"track {track.name} names backbone {name!r}; the catalog has: {', '.join(catalog)}")
        _register_cells(session, track, version, name, register_backbone(session, catalog[name]), data)
    session.flush()
    return version


def _register_cells(
    session: Session, track: Track, version: TrackVersion, name: str, revision: BackboneRevision, data: Path | None
) -> None:
    rules = track.rules_of(name)
    budget = {kind: getattr(rules, kind).budget.model_dump(mode="json") for kind in ("prompts", "demonstrations")}
    budget_json = json.dumps(budget, sort_keys=True)
    for position, column in enumerate(track.tasks):
        task = load_task(column.task)
        if task.needs_data and data is None:
            continue
        identity = {
            "track_version_id": version.id,
            "backbone_revision_id": revision.id,
            "task_version_id": register_task(session, task, data).id,
            "budget_sha256": hashlib.sha256(budget_json.encode()).hexdigest(),
        }
        if session.execute(select(Cell.id).filter_by(**identity)).first() is None:
            session.add(
                Cell(
                    **identity,
                    budget_json=budget_json,
                    position=position,
                    role=column.role,
                    seeds_required=track.seeds_required,
                    chance_floor=task.chance_floor,
                )
            )
