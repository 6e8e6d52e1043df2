"""Constraints hold on both databases: bounds, keys, parents, immutability, and times with a zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import delete, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError, StatementError
from world import ITEMS, SHA, World, add_entry, add_evaluate_run, add_train_run, add_worker, build

from dare_platform.database import Database, now
from dare_platform.errors import DatabaseLockedError
from dare_platform.ids import new_id
from dare_platform.lease import claim
from dare_platform.models import (
    IMMUTABLE,
    LOCAL_ACCOUNT,
    Account,
    AuditLog,
    Entry,
    MetricPoint,
    Prediction,
    QuotaLedger,
    Result,
    Run,
    ScoreItem,
    Snapshot,
    TaskVersion,
)


def test_the_database_clock_is_this_centurys(database: Database) -> None:
    with database.read() as session:
        assert abs(now(session) - datetime.now(UTC).timestamp()) < 5


def test_a_time_without_a_zone_is_refused_and_any_zone_comes_back_as_utc(database: Database) -> None:
    at = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    with database.write() as session:
        session.execute(update(Account).values(created_at=at))
    with database.read() as session:
        account = session.get(Account, LOCAL_ACCOUNT)
        assert account is not None
        assert account.created_at == at
        assert account.created_at.utcoffset() == timedelta(0)
    with pytest.raises(StatementError, match="has no zone"), database.write() as session:
        session.execute(update(Account).values(created_at=datetime(2026, 1, 1)))


def test_a_reading_transaction_cannot_write(database: Database) -> None:
    with pytest.raises(DBAPIError), database.read() as session:
        session.execute(update(Account).values(handle="other"))
    with database.write() as session:
        session.execute(update(Account).values(handle="other"))


def test_a_run_is_asked_for_once_per_entry_backbone_kind_and_seed(database: Database) -> None:
    with database.write() as session:
        world = build(session)
        entry = add_entry(session, world)
        add_train_run(session, world, entry)
        add_train_run(session, world, entry, seed=1)
    with pytest.raises(IntegrityError), database.write() as session:
        add_train_run(session, world, session.get(Entry, entry.id))


def test_parents_cannot_be_deleted(database: Database) -> None:
    with database.write() as session:
        add_train_run(session, build(session))
    for table in ("entry", "track_version", "backbone_revision", "account", "algorithm"):
        with pytest.raises(IntegrityError), database.write() as session:
            session.execute(text(f"DELETE FROM {table}"))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite_are_refused(database: Database, value: float) -> None:
    with database.write() as session:
        world, run_id, token = claimed(session)
    for row in (
        MetricPoint(run_id=run_id, token=token, name="loss", step=0, value=value),
        result_row(world, run_id, token, value=value),
        result_row(world, run_id, token, standard_error=value),
    ):
        if value != value and isinstance(row, Result) and row.value == row.value and database.is_sqlite:
            continue  # SQLite makes NaN into NULL, and a standard error may be NULL
        with pytest.raises(IntegrityError), database.write() as session:
            session.add(row)


def test_a_result_needs_an_attempt_that_was_made(database: Database) -> None:
    with database.write() as session:
        world, run_id, token = claimed(session)
    with pytest.raises(IntegrityError), database.write() as session:
        session.add(result_row(world, run_id, token + 1))
    with database.write() as session:
        session.add(result_row(world, run_id, token))
    with pytest.raises(IntegrityError), database.write() as session:
        session.add(result_row(world, run_id, token))


def test_two_scorers_of_one_run_are_two_rows(database: Database) -> None:
    with database.write() as session:
        world, run_id, token = claimed(session)
        session.add_all([result_row(world, run_id, token), result_row(world, run_id, token, scorer="dare-2")])


def test_a_prediction_must_answer_a_known_item(database: Database) -> None:
    with database.write() as session:
        world, run_id, token = claimed(session)
    with pytest.raises(IntegrityError), database.write() as session:
        session.add(prediction_row(world, run_id, token, item="unknown"))


def test_immutable_tables_refuse_change_and_removal(database: Database) -> None:
    with database.write() as session:
        world, run_id, token = claimed(session)
        session.add(prediction_row(world, run_id, token))
        session.flush()
        session.add(score_row(world, run_id))
        session.add(result_row(world, run_id, token))
        session.add(AuditLog(at=now(session), action="test", subject="test"))
        session.add(QuotaLedger(account_id="local", kind="entries", amount=1, at=now(session), note="test"))
        kept = {"made_at": now(session), "board_json": "{}", "runs_json": "[]", "inputs_sha256": "0" * 64}
        session.add(Snapshot(sha256="0" * 64, track_version_id=world.track, backbone="b", **kept))
    for table in IMMUTABLE:
        with database.read() as session:
            columns = session.execute(text(f"SELECT * FROM {table}")).first()
            assert columns is not None, f"{table} has no row to protect"
            column = next(iter(columns._mapping))
        for statement in (f"UPDATE {table} SET {column} = {column}", f"DELETE FROM {table}"):
            with pytest.raises(DBAPIError, match="never changed nor deleted"), database.write() as session:
                session.execute(text(statement))


def test_gate_marks_and_reasons_belong_together(database: Database) -> None:
    with database.write() as session:
        entry = add_entry(session, build(session))
    for wrong in ({"gate": "rejected"}, {"gate": "withdrawn"}, {"rejection": "no"}, {"kind": "reference"}):
        with pytest.raises(IntegrityError), database.write() as session:
            session.execute(update(Entry).where(Entry.id == entry.id).values(**wrong))
    with database.write() as session:
        session.execute(update(Entry).values(gate="withdrawn", withdrawn_at=datetime.now(UTC)))
        session.execute(update(Entry).values(gate="accepted", withdrawn_at=None))


def test_a_task_version_exists_once(database: Database) -> None:
    with database.write() as session:
        build(session)
    with database.read() as session:
        known = session.execute(select(TaskVersion)).scalar_one()
        values = {column.name: getattr(known, column.name) for column in TaskVersion.__table__.columns}
    with pytest.raises(IntegrityError), database.write() as session:
        session.add(TaskVersion(**(values | {"id": new_id()})))


def test_a_locked_sqlite_database_is_waited_for_and_then_reported(sqlite: Database) -> None:
    with Database(str(sqlite.url), lock_wait_seconds=0.2) as impatient, sqlite.write() as holder:
        holder.execute(delete(Run).where(Run.id == "none"))
        refused = pytest.raises(DatabaseLockedError, match=r"stayed locked for 0\.2 s: another program holds it")
        with refused, impatient.write() as session:
            session.execute(select(Run))
        with impatient.read() as session:  # readers do not wait
            session.execute(select(Run))


def test_ids_sort_by_time() -> None:
    first = [new_id() for _ in range(100)]
    assert len(set(first)) == 100
    assert all(len(id) == 26 for id in first)
    assert new_id()[:8] >= first[0][:8]


def claimed(session) -> tuple[World, str, int]:
    world = build(session)
    run = add_evaluate_run(session, world, None, add_entry(session, world).id)
    held = claim(session, add_worker(session), 10)
    assert held is not None
    return world, run.id, held.token


def prediction_row(world: World, run_id: str, token: int, item: str = ITEMS[0]) -> Prediction:
    return Prediction(
        run_id=run_id,
        token=token,
        task_version_id=world.task,
        item_id=item,
        sample=0,
        prompt_sha256=SHA,
        output="1",
        output_sha256=SHA,
        tokens=1,
        nfe=1,
        truncated=False,
    )


def score_row(world: World, run_id: str) -> ScoreItem:
    return ScoreItem(
        run_id=run_id,
        task_version_id=world.task,
        item_id=ITEMS[0],
        sample=0,
        scorer="dare-1",
        score=1,
        reward=1,
        status="ok",
    )


def result_row(world: World, run_id: str, token: int, **other: object) -> Result:
    values = {"scorer": "dare-1", "metric": "solved", "decoding": "greedy", "value": 0.5, "n": 4, **other}
    return Result(
        run_id=run_id,
        token=token,
        task_version_id=world.task,
        n_no_answer=0,
        n_truncated=0,
        protocol=SHA,
        recorded_at=1.0,
        **values,
    )
