"""Tracks, tasks and backbones are recorded once, with every item; what contradicts the record is refused."""

from __future__ import annotations

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from dare.catalog import BackboneRecord
from dare.tasks import load_task
from dare_platform import registry
from dare_platform.database import Database
from dare_platform.errors import RegistryError
from dare_platform.models import Cell, TaskItem, TaskVersion, TrackVersion
from dare_platform.registry import register_backbone, register_task, register_track
from dare_platform.tracks import Track, load_track

SHA = "0" * 64


def record(name: str, family: str = "llada") -> BackboneRecord:
    return BackboneRecord.model_construct(
        name=name,
        family=family,
        revision="r1",
        weights_sha256=SHA,
        tokenizer_sha256=SHA,
        parameters=200_000,
        tiny=True,
    )


@pytest.fixture
def track(monkeypatch: pytest.MonkeyPatch) -> Track:
    """The tiny track, with backbones that need not be built yet."""
    shipped = load_track("tiny")
    catalog = {name: record(name, name.split("-")[0]) for name in shipped.backbones}
    monkeypatch.setattr(registry, "backbones", lambda: catalog)
    return shipped


def count(session: Session, table: type) -> int:
    return session.execute(select(func.count()).select_from(table)).scalar_one()


def test_a_track_is_recorded_once_with_its_items_and_cells(database: Database, track: Track) -> None:
    with database.write() as session:
        first = register_track(session, track)
    with database.write() as session:
        assert register_track(session, track).id == first.id
        tasks = [column for column in track.tasks if column.role != "transfer"]
        assert count(session, TrackVersion) == 1
        assert count(session, Cell) == len(tasks) * len(track.backbones)
        version = session.execute(select(TaskVersion).where(TaskVersion.task_slug == "sudoku")).scalar_one()
        items = session.execute(
            select(TaskItem).where(TaskItem.task_version_id == version.id).order_by(TaskItem.position)
        ).scalars()
        expected = load_task("sudoku").items("test", None)
        assert [(i.item_id, i.item_sha256, i.cluster_id) for i in items] == [
            (i.id, i.sha256, i.cluster) for i in expected
        ]


def test_changed_rules_under_the_same_version_are_refused(sqlite: Database, track: Track) -> None:
    with sqlite.write() as session:
        register_track(session, track)
        changed = track.model_copy(update={"seeds": (7, 8, 9)})
        with pytest.raises(RegistryError, match="changed rules need a new version"):
            register_track(session, changed)


def test_changed_items_under_the_same_version_are_refused(sqlite: Database) -> None:
    task = load_task("countdown")
    with sqlite.write() as session:
        version = register_task(session, task)
        version.items_sha256 = SHA
        with pytest.raises(RegistryError, match="changed items need a new version"):
            register_task(session, task)


def test_a_backbone_keeps_its_family_and_may_have_several_revisions(sqlite: Database) -> None:
    with sqlite.write() as session:
        first = register_backbone(session, record("a"))
        assert register_backbone(session, record("a")).id == first.id
        second = register_backbone(session, record("a").model_copy(update={"weights_sha256": "1" * 64}))
        assert second.id != first.id
        with pytest.raises(RegistryError, match="another family needs another name"):
            register_backbone(session, record("a", family="sdar"))


def test_a_track_with_an_unknown_backbone_is_refused(sqlite: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "backbones", dict)
    with sqlite.write() as session, pytest.raises(RegistryError, match="names backbone 'llada-tiny'"):
        register_track(session, load_track("tiny"))
