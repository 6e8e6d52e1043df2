"""Migrations: up, down and up again on both databases, no drift from the models, and two migrators at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect, select, text
from world import add_train_run, build

import dare_platform.database
from dare_platform.database import Database, alembic_config, migrate, open_database, schema_revision
from dare_platform.errors import SchemaError
from dare_platform.models import Account, Base, Run
from dare_platform.settings import Settings


def test_the_schema_goes_up_and_down_and_up_again(settings: Settings, database: Database) -> None:
    migrate(settings, "base")
    assert set(inspect(database.engine).get_table_names()) == {"alembic_version"}
    migrate(settings)
    with database.read() as session:
        account = session.execute(select(Account)).scalar_one()
        assert (account.id, account.role) == ("local", "admin")
        assert account.created_at.tzinfo is not None


def test_models_and_migrations_do_not_drift(database: Database) -> None:
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": False})
        assert compare_metadata(context, Base.metadata) == []


def test_checks_and_foreign_keys_of_the_migration_are_those_of_the_models(sqlite: Database, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'models.sqlite'}")
    Base.metadata.create_all(engine)
    listing = text("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name <> 'alembic_version'")
    with engine.connect() as a, sqlite.engine.connect() as b:
        of_models = {name: lines(sql) for name, sql in a.execute(listing)}
        of_migration = {name: lines(sql) for name, sql in b.execute(listing) if not name.startswith("tr_")}
    engine.dispose()
    assert of_migration == of_models


def lines(sql: str) -> list[str]:
    """Columns and constraints. SQLite quotes the name of a renamed table and puts an added column on the last line."""
    _, _, rest = sql.partition("(")
    inside, _, after = rest.rpartition(")")
    depth, parts = 0, [""]
    for letter in inside:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return sorted(" ".join(part.replace('"', "").split()) for part in (*parts, after))


def test_every_constraint_has_a_name(sqlite: Database) -> None:
    with sqlite.engine.connect() as connection:
        for name, sql in connection.execute(text("SELECT name, sql FROM sqlite_master WHERE type = 'table'")):
            bare = [row for row in lines(sql) if row.startswith(("CHECK", "UNIQUE", "PRIMARY", "FOREIGN"))]
            assert not bare, f"{name}: {bare}"


def test_an_upgrade_keeps_rows(settings: Settings, database: Database) -> None:
    with database.write() as session:
        run = add_train_run(session, build(session))
    migrate(settings)
    with database.read() as session:
        assert session.get(Run, run.id) is not None


@pytest.fixture
def empty_sqlite_settings(tmp_path: Path) -> Settings:
    return Settings.from_environment({"DARE_HOME": str(tmp_path / "fresh")})


@pytest.mark.parametrize(
    "kind", ["empty_sqlite_settings", pytest.param("empty_postgres_settings", marks=pytest.mark.full)]
)
def test_two_migrators_at_once_both_succeed(request: pytest.FixtureRequest, kind: str) -> None:
    settings: Settings = request.getfixturevalue(kind)
    program = (
        "import sys; from dare_platform.database import migrate; from dare_platform.settings import Settings;"
        "migrate(Settings.from_environment({'DARE_HOME': sys.argv[1], 'DARE_DATABASE_URL': sys.argv[2]}))"
    )
    command = [sys.executable, "-W", "error", "-c", program, str(settings.home), settings.database_url]
    migrators = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
    for migrator in migrators:
        _, errors = migrator.communicate(timeout=60)
        assert migrator.returncode == 0, errors.decode()
    with open_database(settings) as database:
        assert schema_revision(database) == ScriptDirectory.from_config(alembic_config()).get_current_head()


def test_an_empty_database_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"is empty, this version of DARE needs \d+: run `dare migrate`"):
        open_database(Settings.from_environment({"DARE_HOME": str(tmp_path)}))


def test_an_installed_package_finds_its_own_migrations(tmp_path: Path) -> None:
    """A wheel holds the folder inside the package."""
    root = Path(dare_platform.database.__file__).resolve().parents[2]
    shutil.copytree(root / "platform" / "dare_platform", tmp_path / "dare_platform")
    shutil.copytree(root / "migrations", tmp_path / "dare_platform" / "migrations")
    program = (
        "from dare_platform.database import migrate; from dare_platform.settings import Settings;"
        "from dare_platform.database import migrations_directory; print(migrations_directory());"
        "migrate(Settings.from_environment({'DARE_HOME': 'home'}))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    said = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    )
    assert said.stdout.strip() == str(tmp_path / "dare_platform" / "migrations")
