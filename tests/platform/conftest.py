"""Real databases and brokers for the platform's tests: SQLite always, PostgreSQL and Redis where they are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from needed import missing
from sqlalchemy import create_engine, make_url, text

from dare_platform.database import Database, migrate
from dare_platform.ids import new_id
from dare_platform.settings import MIB, Limits, Settings


def program(name: str) -> str:
    folders = [os.environ.get("PATH", ""), *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True))]
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        missing(name)
        raise AssertionError
    return found


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL of a private PostgreSQL on a unix socket, with an empty migrated database `template_dare`."""
    initdb, postmaster = program("initdb"), program("postgres")
    folder = Path(tempfile.mkdtemp(prefix="dare-pg-"))
    as_user: list[str] = []
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        shutil.chown(folder, "postgres", "postgres")
        as_user = ["runuser", "-u", "postgres", "--"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": "/"}
    subprocess.run([*as_user, initdb, "-D", folder / "data", "-A", "trust", "-U", "dare", "-N"], check=True, **quiet)
    options = ["-k", str(folder), "-c", "listen_addresses=", "-c", "fsync=off", "-c", "shared_buffers=32MB"]
    server = subprocess.Popen([*as_user, postmaster, "-D", folder / "data", *options], **quiet)
    url = f"postgresql+psycopg://dare@/postgres?host={folder}"
    try:
        wait_for_postgres(url)
        administer(url, "CREATE DATABASE template_dare")
        migrate(Settings(home=folder / "data", database_url=url.replace("/postgres?", "/template_dare?")))
        yield url
    finally:
        pid = int((folder / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(pid, 3)  # SIGQUIT: immediate shutdown
        server.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def wait_for_postgres(url: str) -> None:
    deadline = time.monotonic() + 30
    while True:
        engine = create_engine(url)
        try:
            with engine.connect():
                return
        except Exception:  # the server says in several ways that it is starting
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        finally:
            engine.dispose()


def administer(url: str, statement: str) -> None:
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            connection.execute(text(statement))
    finally:
        engine.dispose()


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
def postgres_settings(postgres: str, tmp_path: Path) -> Iterator[Settings]:
    """A fresh migrated PostgreSQL database."""
    name = f"dare_{new_id()}"
    administer(postgres, f"CREATE DATABASE {name} TEMPLATE template_dare")
    url = make_url(postgres).set(database=name).render_as_string(hide_password=False)
    limits = Limits(wall_seconds=20, memory_bytes=512 * MIB, processes=20, log_bytes=65536, grace_seconds=1)
    yield Settings(home=tmp_path / "home", database_url=url, lease_seconds=2.0, poll_seconds=0.1, limits=limits)
    administer(postgres, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def empty_postgres_settings(postgres: str, tmp_path: Path) -> Iterator[Settings]:
    """A PostgreSQL database without any table."""
    name = f"dare_{new_id()}"
    administer(postgres, f"CREATE DATABASE {name}")
    url = make_url(postgres).set(database=name).render_as_string(hide_password=False)
    yield Settings(home=tmp_path / "home", database_url=url)
    administer(postgres, f"DROP DATABASE {name} WITH (FORCE)")


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
    folder = Path(tempfile.mkdtemp(prefix="dare-redis-"))
    socket = folder / "redis.sock"
    server = subprocess.Popen(
        [program("redis-server"), "--port", "0", "--unixsocket", socket, "--save", "", "--dir", folder],
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 20
    while not socket.exists():
        assert time.monotonic() < deadline, "redis-server did not start"
        time.sleep(0.05)
    yield f"redis+socket://{socket}"
    server.terminate()
    server.wait(20)
    shutil.rmtree(folder, ignore_errors=True)
