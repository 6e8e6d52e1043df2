"""The database: engine, short transactions, its clock, and the schema's revision.

SQLite runs with WAL and foreign keys; a writing transaction begins IMMEDIATE, so that two writers wait for each other
at the start instead of failing in the middle. PostgreSQL uses its defaults. No transaction surrounds a wait or a file.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import (
    Connection,
    DateTime,
    Dialect,
    Engine,
    Float,
    MetaData,
    TypeDecorator,
    create_engine,
    event,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session
from sqlalchemy.sql.functions import FunctionElement

from dare_platform.errors import DatabaseLockedError, NaiveTimeError, SchemaError
from dare_platform.settings import Settings

LOCK_WAIT_SECONDS = 30.0
MIGRATION_LOCK = 0x64617265  # "dare": the keys of PostgreSQL's advisory locks
INTAKE_LOCK = MIGRATION_LOCK + 1

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class UtcDateTime(TypeDecorator[datetime]):
    """An aware time, kept and returned in UTC. A time without a zone is refused."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """To UTC; SQLite keeps it without the zone."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise NaiveTimeError(f"the time {value.isoformat()} has no zone; use datetime.now(UTC)")
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Aware again."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class epoch_now(FunctionElement[float]):  # noqa: N801  # a SQL function
    """Seconds since 1970 on the database's clock: the only clock that leases know."""

    type = Float()
    inherit_cache = True


@compiles(epoch_now, "sqlite")
def _sqlite_now(_element: epoch_now, _compiler: Any, **_: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(epoch_now, "postgresql")
def _postgresql_now(_element: epoch_now, _compiler: Any, **_: Any) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"


def now(session: Session) -> float:
    """The database's clock, in epoch seconds."""
    return float(session.execute(select(epoch_now())).scalar_one())


def wait_for_intake(session: Session) -> None:
    """Until the end of its transaction nobody else passes here: who looks whether something is there and writes it when
    it is not must not do so beside another. Writers of SQLite wait for each other anyway."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": INTAKE_LOCK})


class Database:
    """An open database. `write()` and `read()` give one session in one transaction each; close it when done."""

    def __init__(self, url: str, lock_wait_seconds: float = LOCK_WAIT_SECONDS) -> None:
        self.url = make_url(url)
        self._lock_wait_seconds = lock_wait_seconds
        if self.is_sqlite:
            Path(self.url.database or "").parent.mkdir(parents=True, exist_ok=True)
            self.engine = create_engine(self.url, connect_args={"timeout": lock_wait_seconds})
            event.listen(self.engine, "connect", self._prepare_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)
        else:
            self.engine = create_engine(self.url, pool_pre_ping=True)
        self._reading = self.engine.execution_options(dare_reads=True, postgresql_readonly=True)

    @property
    def is_sqlite(self) -> bool:
        """SQLite, the embedded default, as opposed to PostgreSQL."""
        return self.url.get_backend_name() == "sqlite"

    @contextmanager
    def write(self) -> Iterator[Session]:
        """One writing transaction: committed at the end of the block, rolled back if it raises."""
        yield from self._session(self.engine)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """One reading transaction; a write in it is refused."""
        yield from self._session(self._reading)

    def _session(self, engine: Engine) -> Iterator[Session]:
        try:
            with Session(engine, expire_on_commit=False) as session, session.begin():
                yield session
        except OperationalError as error:
            if not _is_locked(error):
                raise
            raise DatabaseLockedError(
                f"the database {self.url.database} stayed locked for {self._lock_wait_seconds:g} s: "
                "another program holds it open for writing; close that one, then try again"
            ) from error

    def close(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _prepare_sqlite(self, connection: sqlite3.Connection, record: object) -> None:
        connection.isolation_level = None  # we begin transactions ourselves
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = NORMAL")
        if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
            _turn_on_wal(connection, self._lock_wait_seconds)


def _turn_on_wal(connection: sqlite3.Connection, wait_seconds: float) -> None:
    """SQLite's own waiting does not cover this statement when two programs create the file together."""
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _begin_sqlite(connection: Connection) -> None:
    reads = bool(connection.get_execution_options().get("dare_reads"))
    connection.exec_driver_sql(f"PRAGMA query_only = {'ON' if reads else 'OFF'}")
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _is_locked(error: OperationalError) -> bool:
    return isinstance(error.orig, sqlite3.OperationalError) and "locked" in str(error.orig)


def migrations_directory() -> Path:
    """The Alembic folder: inside the installed package, or at the root of a checkout."""
    here = Path(__file__).resolve()
    for folder in (here.parent / "migrations", here.parents[2] / "migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise SchemaError(f"the migrations are missing beside {here.parent}: install DARE again")


def alembic_config(connection: Connection | None = None) -> Config:
    """Alembic's configuration without a file; `connection` is the one that env.py shall use."""
    config = Config()
    config.set_main_option("script_location", str(migrations_directory()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def migrate(settings: Settings, revision: str = "head") -> None:
    """Bring the schema to `revision`. Two callers at once wait for each other; the second finds nothing to do."""
    settings.home.mkdir(parents=True, exist_ok=True)
    with Database(settings.database_url) as database, database.engine.connect() as connection:
        raw = connection.connection.driver_connection
        if isinstance(raw, sqlite3.Connection):  # rebuilding a table must not touch its children
            raw.execute("PRAGMA foreign_keys = OFF")
        with connection.begin():
            if not database.is_sqlite:
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
            if revision == "base" or revision.startswith("-"):
                command.downgrade(alembic_config(connection), revision)
            else:
                command.upgrade(alembic_config(connection), revision)
            if database.is_sqlite and connection.exec_driver_sql("PRAGMA foreign_key_check").first():
                raise SchemaError("the migration would leave rows without their parents; nothing was changed")


def schema_revision(database: Database) -> str | None:
    """The revision that the database is at; None for an empty one."""
    with database.read() as session:
        return MigrationContext.configure(session.connection()).get_current_revision()


def open_database(settings: Settings) -> Database:
    """The database of these settings; SchemaError when its revision is not this program's."""
    database = Database(settings.database_url)
    expected = ScriptDirectory.from_config(alembic_config()).get_current_head()
    try:
        found = schema_revision(database)
        if found != expected:
            is_at = f"is at revision {found}" if found else "is empty"
            raise SchemaError(f"the database {is_at}, this version of DARE needs {expected}: run `dare migrate`")
    except BaseException:
        database.close()
        raise
    return database
