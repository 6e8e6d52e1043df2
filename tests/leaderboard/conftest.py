"""A migrated, filled database made once, and a copy of it for every test that opens pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from filled_database import Site, fill, home_at, prepared
from sqlalchemy import update

from dare_platform.database import now, open_database
from dare_platform.models import Worker
from leaderboard import serving


@pytest.fixture(scope="session")
def empty_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with the tiny track and no entry."""
    folder = tmp_path_factory.mktemp("empty")
    prepared(home_at(folder)).close()
    return folder


@pytest.fixture(scope="session")
def filled_home(empty_home: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The same with entries and runs in every state."""
    folder = tmp_path_factory.mktemp("filled")
    shutil.copytree(empty_home, folder, dirs_exist_ok=True)
    with open_database(home_at(folder)) as database:
        return folder, fill(database)


@pytest.fixture
def empty_site(empty_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Pages that read an empty database."""
    yield from _site(empty_home, {}, tmp_path, monkeypatch)


@pytest.fixture
def site(filled_home: tuple[Path, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Pages that read a filled database."""
    yield from _site(*filled_home, tmp_path, monkeypatch)


def _site(home: Path, ids: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    import streamlit as st

    shutil.copytree(home, tmp_path / "home")
    monkeypatch.setenv("DARE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DARE_DATABASE_URL", raising=False)
    monkeypatch.setenv(serving.ADDRESS_VARIABLE, "127.0.0.1")
    with open_database(home_at(tmp_path / "home")) as database:
        with database.write() as session:  # the worker is alive, however long ago the database was filled
            session.execute(update(Worker).values(last_seen_at=now(session)))
        yield Site(database, ids)
    st.cache_resource.clear()
