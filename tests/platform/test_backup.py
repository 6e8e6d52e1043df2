"""Backup and restore: whole or not at all, into an empty installation only, while the platform works."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import make_url, select
from world import add_train_run, add_worker, build

from dare_platform.artifact_store import artifact_store, storage_key
from dare_platform.backup import MANIFEST, BackupError, back_up, restore
from dare_platform.database import Database, open_database
from dare_platform.models import Artifact, Run
from dare_platform.settings import Settings

CONTENT = b"weights"
SHA = hashlib.sha256(CONTENT).hexdigest()


def fill(settings: Settings) -> str:
    """A run, and a file that some run left."""
    settings.home.mkdir(parents=True, exist_ok=True)
    with Database(settings.database_url) as database, database.write() as session:
        world = build(session)
        add_worker(session)
        run = add_train_run(session, world).id
    keep(settings, CONTENT)
    return run


def keep(settings: Settings, content: bytes) -> None:
    sha256 = hashlib.sha256(content).hexdigest()
    (settings.home / "file").write_bytes(content)
    artifact_store(settings).keep(settings.home, "file", sha256, len(content))
    with Database(settings.database_url) as database, database.write() as session:
        session.add(Artifact(sha256=sha256, size_bytes=len(content), storage_key=storage_key(sha256)))


def runs_of(settings: Settings) -> list[str]:
    with open_database(settings) as database, database.read() as session:
        return list(session.execute(select(Run.id)).scalars())


@pytest.fixture
def empty(settings: Settings, request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """An installation of the same kind without anything."""
    home = tmp_path / "new"
    if make_url(settings.database_url).get_backend_name() == "sqlite":
        return replace(settings, home=home, database_url=f"sqlite:///{home / 'dare.sqlite'}")
    url = request.getfixturevalue("empty_postgres_settings").database_url
    return replace(settings, home=home, database_url=url)


def test_a_restored_installation_has_every_run_and_every_file(
    settings: Settings, empty: Settings, tmp_path: Path
) -> None:
    run = fill(settings)
    manifest = back_up(settings, tmp_path / "kept")
    assert manifest.artifacts == {SHA: len(CONTENT)}
    assert restore(empty, tmp_path / "kept") == manifest
    assert runs_of(empty) == [run]
    assert b"".join(artifact_store(empty).chunks(SHA)) == CONTENT
    with pytest.raises(BackupError, match="restore into an empty"):
        restore(empty, tmp_path / "kept")


def test_a_second_backup_copies_only_what_is_new(sqlite_settings: Settings, tmp_path: Path) -> None:
    fill(sqlite_settings)
    back_up(sqlite_settings, tmp_path / "kept")
    before = (tmp_path / "kept" / storage_key(SHA)).stat()
    keep(sqlite_settings, b"more")
    assert len(back_up(sqlite_settings, tmp_path / "kept").artifacts) == 2
    after = (tmp_path / "kept" / storage_key(SHA)).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert len(list((tmp_path / "kept").glob("database-*"))) == 1


def test_a_backup_that_broke_off_is_none_and_leaves_the_earlier_one_whole(
    sqlite_settings: Settings, tmp_path: Path
) -> None:
    run, folder = fill(sqlite_settings), tmp_path / "kept"
    back_up(sqlite_settings, folder)
    keep(sqlite_settings, b"lost")
    artifact_store(sqlite_settings).delete(hashlib.sha256(b"lost").hexdigest())
    with pytest.raises(BackupError, match="recorded and missing"):
        back_up(sqlite_settings, folder)
    empty = replace(sqlite_settings, home=tmp_path / "new", database_url=f"sqlite:///{tmp_path}/new/dare.sqlite")
    restore(empty, folder)
    assert runs_of(empty) == [run]
    (folder / MANIFEST).unlink()
    with pytest.raises(BackupError, match="no backup was finished"):
        restore(replace(empty, home=tmp_path / "newer"), folder)


@pytest.mark.parametrize("what", ["database", "artifact"])
def test_a_changed_backup_restores_nothing(sqlite_settings: Settings, tmp_path: Path, what: str) -> None:
    fill(sqlite_settings)
    folder = tmp_path / "kept"
    manifest = back_up(sqlite_settings, folder)
    file = folder / (manifest.database if what == "database" else storage_key(SHA))
    file.chmod(0o644)
    file.write_bytes(file.read_bytes() + b"!")
    empty = replace(sqlite_settings, home=tmp_path / "new", database_url=f"sqlite:///{tmp_path}/new/dare.sqlite")
    with pytest.raises(BackupError, match="nothing was restored"):
        restore(empty, folder)
    assert not empty.home.exists()


def test_a_backup_beside_a_writer_is_of_one_moment(sqlite_settings: Settings, tmp_path: Path) -> None:
    """A transaction that is open meanwhile is in no backup."""
    run = fill(sqlite_settings)
    with Database(sqlite_settings.database_url) as database, database.write() as session:
        session.add(Artifact(sha256="f" * 64, size_bytes=1, storage_key="x"))
        session.flush()
        assert "f" * 64 not in back_up(sqlite_settings, tmp_path / "kept").artifacts
    assert runs_of(sqlite_settings) == [run]


def test_the_database_of_another_kind_is_refused(sqlite_settings: Settings, tmp_path: Path) -> None:
    fill(sqlite_settings)
    back_up(sqlite_settings, tmp_path / "kept")
    other = replace(sqlite_settings, home=tmp_path / "new", database_url="postgresql+psycopg://nobody@nowhere/none")
    with pytest.raises(BackupError, match="cannot take"):
        restore(other, tmp_path / "kept")


def test_a_manifest_that_points_elsewhere_is_refused(sqlite_settings: Settings, tmp_path: Path) -> None:
    fill(sqlite_settings)
    name = back_up(sqlite_settings, tmp_path / "kept").database
    file = tmp_path / "kept" / MANIFEST
    file.write_text(file.read_text().replace(name, f"../{name}"))
    with pytest.raises(BackupError, match="not written by this version"):
        restore(replace(sqlite_settings, home=tmp_path / "new"), tmp_path / "kept")


def test_files_move_to_another_store_by_backup_and_restore(sqlite_settings: Settings, tmp_path: Path) -> None:
    fill(sqlite_settings)
    back_up(sqlite_settings, tmp_path / "kept")
    elsewhere = replace(
        sqlite_settings,
        home=tmp_path / "new",
        database_url=f"sqlite:///{tmp_path}/new/dare.sqlite",
        artifact_store=f"file://{tmp_path}/store",
    )
    restore(elsewhere, tmp_path / "kept")
    assert b"".join(artifact_store(elsewhere).chunks(SHA)) == CONTENT
    assert back_up(elsewhere, tmp_path / "again").artifacts == {SHA: len(CONTENT)}
    again = replace(elsewhere, home=tmp_path / "third", database_url=f"sqlite:///{tmp_path}/third/dare.sqlite")
    with pytest.raises(BackupError, match="there are files in"):
        restore(again, tmp_path / "kept")
