"""What an older program has written stays readable, and what the older schema cannot hold is not thrown away."""

from __future__ import annotations

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError
from test_models import claimed, prediction_row, result_row, score_row
from world import SHA, World

from dare_platform.database import Database, migrate, schema_revision
from dare_platform.errors import SchemaError
from dare_platform.models import Result, ScoreItem
from dare_platform.settings import Settings


def to_0001(settings: Settings) -> None:
    """Whatever revision is the newest."""
    with Database(settings.database_url) as database:
        newest = int(schema_revision(database) or 0)
    migrate(settings, f"-{newest - 1}")


def written_before(settings: Settings, database: Database) -> tuple[World, str, int]:
    """A result and a scored answer as revision 0001 wrote them."""
    migrate(settings)
    with database.write() as session:
        world, run_id, token = claimed(session)
    to_0001(settings)
    assert schema_revision(database) == "0001"
    with database.write() as session:
        session.add(prediction_row(world, run_id, token))
        session.flush()
        session.execute(
            text("INSERT INTO score_item VALUES (:run, :task, 'a', 0, 'dare-1', 1, 1, 'ok', '7')"),
            {"run": run_id, "task": world.task},
        )
        session.execute(
            text(
                "INSERT INTO result VALUES (:run, :task, 'dare-1', 'solved', 'greedy', :token, 1, NULL, 1, 0, 0, :p, 5)"
            ),
            {"run": run_id, "task": world.task, "token": token, "p": SHA},
        )
    return world, run_id, token


def test_rows_of_the_older_schema_stay_readable(settings: Settings, database: Database) -> None:
    _, run_id, _ = written_before(settings, database)
    migrate(settings)
    with database.read() as session:
        result = session.execute(select(Result)).scalar_one()
        assert (result.run_id, result.value, result.protocol, result.recorded_at) == (run_id, 1.0, SHA, 5.0)
        assert (result.n_undecoded, result.n_error, result.scored_by) == (0, 0, None)
        item = session.execute(select(ScoreItem)).scalar_one()
        assert (item.item_id, item.scorer, item.answer, item.status) == ("a", "dare-1", "7", "ok")


def test_the_tables_still_refuse_changes(settings: Settings, database: Database) -> None:
    written_before(settings, database)
    migrate(settings)
    for table in ("result", "score_item"):
        for statement in (f"UPDATE {table} SET scorer = 'x'", f"DELETE FROM {table}"):
            with pytest.raises(DBAPIError, match="never changed nor deleted"), database.write() as session:
                session.execute(text(statement))
    to_0001(settings)
    with pytest.raises(DBAPIError, match="never changed nor deleted"), database.write() as session:
        session.execute(text("DELETE FROM result"))


def test_undecoded_is_a_status_and_counts_are_never_negative(database: Database) -> None:
    with database.write() as session:
        world, run_id, token = claimed(session)
        session.add(prediction_row(world, run_id, token))
        session.flush()
        row = score_row(world, run_id)
        row.status = "undecoded"
        session.add(row)
        session.add(result_row(world, run_id, token, n_undecoded=1, n_error=2, scored_by=run_id))
    for count in ("n_undecoded", "n_error"):
        with pytest.raises(DBAPIError), database.write() as session:
            session.add(result_row(world, run_id, token, scorer="other", **{count: -1}))
    with pytest.raises(DBAPIError), database.write() as session:
        session.add(result_row(world, run_id, token, scorer="other", scored_by="nobody"))


def test_going_back_keeps_what_the_older_schema_can_hold(settings: Settings, database: Database) -> None:
    written_before(settings, database)
    migrate(settings)
    to_0001(settings)
    with database.read() as session:
        assert session.execute(text("SELECT count(*) FROM score_item")).scalar_one() == 1
        assert list(session.execute(text("SELECT n, n_truncated, protocol FROM result")).one()) == [1, 0, SHA]


def test_going_back_refuses_to_lose_a_status(settings: Settings, database: Database) -> None:
    with database.write() as session:
        world, run_id, token = claimed(session)
        session.add(prediction_row(world, run_id, token))
        session.flush()
        row = score_row(world, run_id)
        row.status = "undecoded"
        session.add(row)
    before = schema_revision(database)
    with pytest.raises(SchemaError, match="1 scored answers have the status 'undecoded'"):
        to_0001(settings)
    assert schema_revision(database) == before
    with database.read() as session:
        assert session.execute(select(func.count()).select_from(ScoreItem)).scalar_one() == 1
