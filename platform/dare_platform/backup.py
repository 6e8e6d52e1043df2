"""Copies database and artifacts into a folder while the platform works, and back into an empty installation.

The database comes first, as of one moment; then the files that this database names. A file is never changed once it is
kept, so the two fit together. The manifest is written last and renamed: a folder without one is no backup.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import URL, create_engine, inspect, make_url, select
from sqlalchemy.orm import Session

from dare_platform.artifact_store import AddressStore, FolderStore, artifact_store, storage_key
from dare_platform.database import Database, open_database, schema_revision
from dare_platform.errors import PlatformError
from dare_platform.host import software_version
from dare_platform.ids import new_id
from dare_platform.inside import CHUNK
from dare_platform.models import Artifact
from dare_platform.settings import Settings

MANIFEST = "manifest.json"
LAYOUT = 1


class BackupError(PlatformError):
    """A backup cannot be made or restored; nothing that was there has been changed."""


@dataclass(frozen=True)
class Manifest:
    """What a backup holds."""

    layout: int
    database: str
    """File name; `.sqlite`, or `.pgdump` for pg_restore."""
    database_sha256: str
    schema_revision: str
    software_version: str
    made_at: str
    artifacts: dict[str, int]
    """SHA-256 -> bytes."""


def back_up(settings: Settings, folder: Path) -> Manifest:
    """Into a folder, which may hold earlier backups: files that are there already are only hashed."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open_database(settings) as database:
        revision = schema_revision(database)
        kind = "sqlite" if database.is_sqlite else "pgdump"
        dump = folder / f"database-{new_id()}.{kind}"
        part = dump.with_name(f"{dump.name}.part")
        try:
            named = _dump(database, part)
            part.chmod(0o600)
            _to_disk(part)
            part.rename(dump)
        finally:
            part.unlink(missing_ok=True)
    store = artifact_store(settings)
    for sha256 in named:
        target = folder / storage_key(sha256)
        if target.is_file() and hash_of(target) == sha256:
            continue
        if not store.holds(sha256):
            raise BackupError(
                f"the file {storage_key(sha256)} is recorded and missing in {store.name()}: "
                "`dare purge` may just have removed it; back up again, or look at `dare doctor`"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f"{target.name}.part")
        try:
            with fresh.open("wb") as file:  # a copy: a second name would change with the first
                for chunk in store.chunks(sha256):
                    file.write(chunk)
            _to_disk(fresh)
            fresh.rename(target)
        finally:
            fresh.unlink(missing_ok=True)
    manifest = Manifest(
        layout=LAYOUT,
        database=dump.name,
        database_sha256=hash_of(dump),
        schema_revision=str(revision),
        software_version=software_version(),
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        artifacts=named,
    )
    _write_manifest(folder, manifest)
    for earlier in folder.glob("database-*"):
        if earlier.name != dump.name:
            earlier.unlink()
    return manifest


def restore(settings: Settings, folder: Path) -> Manifest:
    """Into an empty database and store. Everything is verified before anything is written."""
    manifest = read_manifest(folder)
    url = make_url(settings.database_url)
    kind = "sqlite" if url.get_backend_name() == "sqlite" else "pgdump"
    if not manifest.database.endswith(f".{kind}"):
        raise BackupError(f"the backup holds {manifest.database}, which this kind of database cannot take")
    _refuse_unless_empty(settings, url)
    if hash_of(folder / manifest.database) != manifest.database_sha256:
        raise BackupError(f"{manifest.database} is not the file that was backed up; nothing was restored")
    for sha256 in manifest.artifacts:
        file = folder / storage_key(sha256)
        if not file.is_file() or hash_of(file) != sha256:
            raise BackupError(f"{storage_key(sha256)} is missing or was changed in {folder}; nothing was restored")
    settings.home.mkdir(parents=True, exist_ok=True)
    store = artifact_store(settings)
    for sha256, size in manifest.artifacts.items():  # before the database: it never names what is not there
        if isinstance(store, AddressStore):
            store.put(folder / storage_key(sha256), sha256)
        else:
            store.keep(folder, storage_key(sha256), sha256, size)
    _load(url, folder / manifest.database)
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """BackupError for a folder that holds no whole backup."""
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        manifest = Manifest(**found)
    except FileNotFoundError as error:
        raise BackupError(f"{folder} holds no {MANIFEST}, so no backup was finished there") from error
    except (OSError, ValueError, TypeError) as error:
        raise BackupError(f"{folder / MANIFEST} cannot be read: {error}") from error
    names = [manifest.database, *manifest.artifacts]
    if manifest.layout != LAYOUT or any("/" in name or name.startswith(".") for name in names):
        raise BackupError(f"{folder / MANIFEST} was not written by this version of DARE")
    return manifest


def hash_of(file: Path) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while chunk := opened.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _dump(database: Database, target: Path) -> dict[str, int]:
    """A copy as of one moment, and the files that it names."""
    if database.is_sqlite:
        with (
            closing(sqlite3.connect(str(database.url.database))) as source,
            closing(sqlite3.connect(target)) as copy,
        ):
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
        engine = create_engine(f"sqlite:///{target}")
        try:
            with Session(engine) as session:
                return _named(session)
        finally:
            engine.dispose()
    with database.engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        snapshot = str(connection.exec_driver_sql("SELECT pg_export_snapshot()").scalar_one())
        options = ["--format=custom", "--no-owner", "--no-privileges", f"--snapshot={snapshot}", f"--file={target}"]
        _run("pg_dump", options, database.url)
        with Session(connection) as session:  # the same snapshot
            return _named(session)


def _named(session: Session) -> dict[str, int]:
    kept = select(Artifact.sha256, Artifact.size_bytes).where(Artifact.purged_at.is_(None)).order_by(Artifact.sha256)
    return {row.sha256: row.size_bytes for row in session.execute(kept)}


def _load(url: URL, dump: Path) -> None:
    if url.get_backend_name() != "sqlite":
        options = ["--exit-on-error", "--single-transaction", "--no-owner", "--no-privileges"]
        _run("pg_restore", [*options, f"--dbname={url.database}", str(dump)], url)
        return
    target = Path(url.database or "")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    try:
        shutil.copyfile(dump, part)
        _to_disk(part)
        part.rename(target)
    finally:
        part.unlink(missing_ok=True)


def _refuse_unless_empty(settings: Settings, url: URL) -> None:
    if url.get_backend_name() == "sqlite":
        if Path(url.database or "").exists():
            raise BackupError(f"there is a database at {url.database}; restore into an empty installation")
    else:
        engine = create_engine(url)
        try:
            tables = inspect(engine).get_table_names()
        finally:
            engine.dispose()
        if tables:
            raise BackupError(f"the database {url.database} has {len(tables)} tables; restore into an empty one")
    store = artifact_store(settings)
    if isinstance(store, FolderStore) and next((settings.home / "artifacts").glob("*"), None) is not None:
        raise BackupError(f"there are files in {store.name()}; restore into an empty installation")
    if isinstance(store, AddressStore) and not store.is_empty():
        raise BackupError(f"there are files in {store.name()}; restore into an empty installation")


def _run(program: str, options: list[str], url: URL) -> None:
    """A client program of PostgreSQL. The password goes by the environment: arguments can be read by everybody."""
    found = shutil.which(program)
    if found is None:
        raise BackupError(f"{program} is not installed; install PostgreSQL's client programs (postgresql-client)")
    given: dict[str, Any] = {
        "PGHOST": url.query.get("host") or url.host,
        "PGPORT": url.port,
        "PGUSER": url.username,
        "PGPASSWORD": url.password,
        "PGDATABASE": url.database,
    }
    environment = {**os.environ, **{name: str(value) for name, value in given.items() if value is not None}}
    done = subprocess.run([found, *options], env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]
        raise BackupError(f"{program} did not finish: {said}")


def _to_disk(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    part = folder / f"{MANIFEST}.part"
    part.write_text(json.dumps(asdict(manifest), indent=1), encoding="utf-8")
    _to_disk(part)
    part.rename(folder / MANIFEST)
