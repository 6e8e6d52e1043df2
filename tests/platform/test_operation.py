"""What an operator sees and does: metrics, logs without secrets, retention."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest
from sqlalchemy import func, select, update
from test_backup import keep
from world import add_evaluate_run, add_train_run, add_worker, build

from dare_platform.artifact_store import artifact_store
from dare_platform.database import Database, now
from dare_platform.errors import SettingsError
from dare_platform.lease import claim
from dare_platform.metrics import Metrics
from dare_platform.models import Artifact, Attempt, LogChunk, Run, RunArtifact, RunEvent, Worker
from dare_platform.outputs import FoundArtifact
from dare_platform.results import _write_artifacts
from dare_platform.retention import DAY, purge, purged_at
from dare_platform.settings import Retention, Settings
from dare_platform.structured_logs import TAKEN_OVER, set_up

CONTENT = b"weights"
SHA = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def kept_loggers() -> Iterator[None]:
    """Logging is of the whole process: it is put back."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    others = {name: logging.getLogger(name).handlers[:] for name in TAKEN_OVER}
    yield
    root.handlers[:], root.level = before[0], before[1]
    for name, handlers in others.items():
        logging.getLogger(name).handlers[:] = handlers


def figure(text: str, name: str) -> float:
    found = [line.rpartition(" ")[2] for line in text.splitlines() if line.rpartition(" ")[0] == name]
    assert len(found) == 1, f"{name} is not in:\n{text}"
    return float(found[0])


def test_a_queue_that_nobody_serves_is_an_alarm(settings: Settings, database: Database) -> None:
    with database.write() as session:
        world = build(session)
        add_train_run(session, world)
        add_train_run(session, world)
    fresh = Metrics(settings, database).text().decode()
    assert figure(fresh, 'dare_queue_ready{family="llada"}') == 2
    assert figure(fresh, 'dare_queue_unserved{family="llada"}') == 0
    with database.write() as session:
        long_ago = now(session) - 1000
        session.execute(update(Run).values(created_at=long_ago, enqueued_at=long_ago))
        worker = add_worker(session)
    waiting = Metrics(settings, database).text().decode()
    assert figure(waiting, 'dare_queue_unserved{family="llada"}') == 1
    assert 1000 <= figure(waiting, 'dare_queue_oldest_seconds{family="llada"}') < 1100
    assert figure(waiting, 'dare_workers_alive{device="cpu",family="llada"}') == 1
    with database.write() as session:
        taken = claim(session, session.get_one(Worker, worker.id), 60)
        assert taken is not None
        session.execute(update(Run).where(Run.id == taken.run_id).values(started_at=now(session)))
    served = Metrics(settings, database).text().decode()
    assert figure(served, 'dare_queue_unserved{family="llada"}') == 0
    assert figure(served, "dare_claims_total") == 1
    assert figure(served, "dare_leases") == 1


def test_a_run_that_is_tried_again_waits_from_the_end_of_its_pause_on(settings: Settings, database: Database) -> None:
    """It was queued an hour ago, and nobody has claimed from its queue since."""
    with database.write() as session:
        add_train_run(session, build(session))
        at = now(session)

    def pausing_until(seconds: float) -> str:
        with database.write() as session:
            session.execute(update(Run).values(enqueued_at=at - 3600, not_before=at + seconds))
        return Metrics(settings, database).text().decode()

    assert "dare_queue_ready{" not in pausing_until(300)
    due = pausing_until(-1)
    assert figure(due, 'dare_queue_ready{family="llada"}') == 1
    assert 1 <= figure(due, 'dare_queue_oldest_seconds{family="llada"}') < 100
    assert figure(due, 'dare_queue_unserved{family="llada"}') == 0
    assert figure(pausing_until(-130), 'dare_queue_unserved{family="llada"}') == 1


def test_a_database_that_is_away_is_a_figure_and_not_an_error(sqlite_settings: Settings) -> None:
    nowhere = "postgresql+psycopg://nobody@127.0.0.1:9/none?connect_timeout=2"
    with Database(nowhere) as database:
        text = Metrics(sqlite_settings, database).text().decode()
    assert figure(text, "dare_database_up") == 0
    assert figure(text, "dare_disk_free_bytes") > 0


CANARIES = {
    "DARE_LAUNCHER_SECRET": "canary-launcher",
    "AWS_SECRET_ACCESS_KEY": "canary-bucket",
    "DARE_DATABASE_URL": "postgresql://dare:canary-database@db/dare",
    "DARE_SMTP_URL": "smtp://me:canary-mail@mail",
}


@pytest.mark.parametrize("how", ["plain", "json"])
def test_no_log_holds_a_secret(how: str, capsys: pytest.CaptureFixture[str], kept_loggers: None) -> None:
    set_up("worker", {**CANARIES, "DARE_LOG": how})
    for name in (*TAKEN_OVER, "dare_platform.worker"):
        logger = logging.getLogger(name)
        logger.warning("connecting to %s with %s", CANARIES["DARE_DATABASE_URL"], "Authorization: Bearer canary-token")
        for value in CANARIES.values():
            try:
                raise ValueError(value)
            except ValueError:
                logger.exception("it did not work: %s", value)
    said = capsys.readouterr().err
    assert "canary" not in said
    assert said.count("it did not work") == len(CANARIES) * (len(TAKEN_OVER) + 1)


def test_a_line_of_json_tells_run_token_and_worker(capsys: pytest.CaptureFixture[str], kept_loggers: None) -> None:
    set_up("worker", {"DARE_LOG": "json"})
    logging.getLogger("x").warning("two\nlines", extra={"run_id": "r1", "token": 3, "worker": "w"})
    line = json.loads(capsys.readouterr().err)
    assert (line["run_id"], line["token"], line["worker"], line["message"]) == ("r1", 3, "w", "two\nlines")
    assert (line["service"], line["level"], line["logger"]) == ("worker", "warning", "x")


def test_an_unknown_way_to_log_is_one_sentence() -> None:
    with pytest.raises(SettingsError, match="must be plain or json"):
        set_up("worker", {"DARE_LOG": "xml"})


def left_a_model(settings: Settings, database: Database) -> tuple[str, str]:
    """A train run that ended forty days ago with a model and some output, and an evaluation that waits for it."""
    keep(settings, CONTENT)
    with database.write() as session:
        world = build(session)
        worker, run = add_worker(session), add_train_run(session, world)
        evaluation = add_evaluate_run(session, world, run)
        session.flush()
        session.add(
            Attempt(
                run_id=run.id, number=1, token=1, worker_id=worker.id, started_at=0.0, ended_at=1.0,
                outcome="succeeded", host="here", hardware="cpu", software_version="0", log_tail="the end",
            )
        )  # fmt: skip
        session.flush()
        file = session.execute(select(Artifact.id)).scalar_one()
        session.add(RunArtifact(run_id=run.id, token=1, role="model/model.safetensors", artifact_id=file))
        session.add(LogChunk(run_id=run.id, token=1, offset=0, content=b"printed"))
        ended = {"state": "succeeded", "finished_at": now(session) - 40 * DAY}
        session.execute(update(Run).where(Run.id == run.id).values(ended))
        folder = settings.jobs / run.id / "1"
        folder.mkdir(parents=True)
        (folder / "checkpoint").write_bytes(b"12345")
        return run.id, evaluation.id


def end(database: Database, run: str) -> None:
    with database.write() as session:
        session.execute(update(Run).where(Run.id == run).values(state="cancelled", finished_at=now(session)))


def test_what_an_unfinished_run_builds_on_is_kept(settings: Settings, database: Database) -> None:
    settings.home.mkdir(exist_ok=True)
    run, evaluation = left_a_model(settings, database)
    short = replace(settings, retention=Retention(30, 30, 30))
    assert [one.count for one in purge(short, database)] == [0, 0, 0]
    end(database, evaluation)
    would = [(one.count, one.bytes) for one in purge(short, database, dry_run=True)]
    assert would == [(1, len(CONTENT)), (1, 5), (1, len(b"printed"))]
    assert artifact_store(settings).holds(SHA)
    assert [(one.count, one.bytes) for one in purge(short, database)] == would
    assert not artifact_store(settings).holds(SHA)
    assert not (settings.jobs / run).exists()
    with database.read() as session:
        assert purged_at(session, SHA) is not None
        assert session.execute(select(func.count()).select_from(LogChunk)).scalar_one() == 0
        assert session.execute(select(Attempt.log_tail)).scalar_one() == "the end"
    assert [one.count for one in purge(short, database)] == [0, 0, 0]


def test_nothing_goes_without_a_wish_or_before_its_time(sqlite_settings: Settings, sqlite: Database) -> None:
    _, evaluation = left_a_model(sqlite_settings, sqlite)
    end(sqlite, evaluation)
    for retention in (Retention(), Retention(50, 50, 50)):
        found = purge(replace(sqlite_settings, retention=retention), sqlite)
        assert [one.count for one in found] == [0, 0, 0]
    with sqlite.write() as session:
        session.execute(update(Artifact).values(expires_at=now(session) + 100))
    assert purge(replace(sqlite_settings, retention=Retention(30)), sqlite)[0].count == 0


def test_answers_are_records_and_stay(sqlite_settings: Settings, sqlite: Database) -> None:
    run, evaluation = left_a_model(sqlite_settings, sqlite)
    end(sqlite, evaluation)
    with sqlite.write() as session:
        file = session.execute(select(Artifact.id)).scalar_one()
        session.add(RunArtifact(run_id=run, token=1, role="predictions/toy.jsonl", artifact_id=file))
    assert purge(replace(sqlite_settings, retention=Retention(1)), sqlite)[0].count == 0
    assert artifact_store(sqlite_settings).holds(SHA)


@pytest.mark.parametrize(("purged_before", "kept"), [(10.0, True), (-10.0, False)])
def test_a_purged_file_that_a_run_leaves_again_is_kept_again(
    sqlite_settings: Settings, sqlite: Database, purged_before: float, kept: bool
) -> None:
    """Unless the purge came after the run had looked whether the file is there."""
    run, _ = left_a_model(sqlite_settings, sqlite)
    with sqlite.write() as session:
        at = now(session)
        session.execute(update(Artifact).values(purged_at=at - purged_before))
        session.add(RunEvent(run_id=run, seq=100, at=at, actor="w", token=1, to_state="finalizing", kind="state"))
        session.flush()
        _write_artifacts(session, run, 1, [FoundArtifact("model/again.safetensors", SHA, len(CONTENT))])
    with sqlite.read() as session:
        assert (purged_at(session, SHA) is None) == kept
