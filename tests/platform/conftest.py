"""Real databases and brokers for the platform's tests: SQLite always, PostgreSQL and Redis where they are installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from servers import PostgresServer, RedisServer

from dare_platform.database import Database, migrate
from dare_platform.ids import new_id
from dare_platform.settings import MIB, Limits, Settings


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A private PostgreSQL with an empty migrated database `template_dare`."""
    server = PostgresServer()
    try:
        server.administer("CREATE DATABASE template_dare")
        migrate(Settings(home=server.folder / "data", database_url=server.database("template_dare")))
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("template")
    settings = Settings.from_environment({"DARE_HOME": str(home)})
    migrate(settings)
    return home / "dare.sqlite"


@pytest.fixture
def sqlite_settings(tmp_path: Path, sqlite_template: Path) -> Settings:
    """A home with a migrated SQLite database, short leases and small limits."""
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(sqlite_template, home / "dare.sqlite")
    settings = Settings.from_environment({"DARE_HOME": str(home)})
    limits = Limits(wall_seconds=20, memory_bytes=512 * MIB, processes=20, log_bytes=65536, grace_seconds=1)
    return replace(settings, lease_seconds=2.0, poll_seconds=0.1, limits=limits)


@pytest.fixture
def postgres_settings(postgres: PostgresServer, tmp_path: Path) -> Iterator[Settings]:
    """A fresh migrated PostgreSQL database."""
    name = f"dare_{new_id()}"
    postgres.administer(f"CREATE DATABASE {name} TEMPLATE template_dare")
    limits = Limits(wall_seconds=20, memory_bytes=512 * MIB, processes=20, log_bytes=65536, grace_seconds=1)
    yield Settings(
        home=tmp_path / "home",
        database_url=postgres.database(name),
        lease_seconds=2.0,
        poll_seconds=0.1,
        limits=limits,
    )
    postgres.administer(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def empty_postgres_settings(postgres: PostgresServer, tmp_path: Path) -> Iterator[Settings]:
    """A PostgreSQL database without any table."""
    name = f"dare_{new_id()}"
    postgres.administer(f"CREATE DATABASE {name}")
    yield Settings(home=tmp_path / "home", database_url=postgres.database(name))
    postgres.administer(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.full)])
def settings(request: pytest.FixtureRequest) -> Settings:
    """Settings of one database of each kind."""
    chosen: Settings = request.getfixturevalue(f"{request.param}_settings")
    return chosen


@pytest.fixture
def database(settings: Settings) -> Iterator[Database]:
    with Database(settings.database_url, lock_wait_seconds=10) as opened:
        yield opened


@pytest.fixture
def sqlite(sqlite_settings: Settings) -> Iterator[Database]:
    with Database(sqlite_settings.database_url, lock_wait_seconds=10) as opened:
        yield opened


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """URL of a private Redis on a unix socket."""
    server = RedisServer()
    yield server.url
    server.remove()


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Where a test puts what it starts: none of it is alive afterwards."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
