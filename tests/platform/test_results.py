"""A run's end is committed whole or not at all, once, and only by the holder of its lease."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, func, select, text
from sqlalchemy.orm import Session
from toy_runner import PROVENANCE, WEIGHTS, files_of_evaluation, scores, work, write_result
from world import World, add_entry, add_evaluate_run, add_train_run, add_worker, build, state_of

from dare.spec import AlgorithmSpec, CheckSpec, Event, JobSpec
from dare_platform import endings
from dare_platform.database import Database
from dare_platform.endings import add_run
from dare_platform.errors import RegistryError
from dare_platform.ingest import ingest
from dare_platform.job_directory import weights_for, write_job_directory
from dare_platform.lease import Claim, claim
from dare_platform.models import (
    Artifact,
    Attempt,
    Base,
    CheckResult,
    Entry,
    MetricPoint,
    Outbox,
    Prediction,
    Result,
    Run,
    RunArtifact,
    RunEvent,
    ScoreItem,
    Usage,
)
from dare_platform.outputs import Outputs, read_outputs, read_result
from dare_platform.results import ProcessReport, finish, finish_badly, items_of, store_artifacts
from dare_platform.settings import Settings
from dare_platform.states import move

REPORT = ProcessReport(exit_code=0, peak_memory_bytes=5, log="the log\x00")


def counts(session: Session) -> dict[str, int]:
    tables = (Result, Prediction, ScoreItem, Usage, RunArtifact, RunEvent, Outbox, Attempt)
    return {
        table.__tablename__: session.execute(select(func.count()).select_from(table)).scalar_one() for table in tables
    }


def bring_to_finalizing(session: Session, held: Claim) -> None:
    for state in ("preparing", "working", "finalizing"):
        assert move(session, held.run_id, state, actor="t", token=held.token)


def evaluation(database: Database, tmp_path: Path) -> tuple[Claim, Outputs]:
    """A claimed evaluation of the untouched backbone, with its outputs read and ready to be committed."""
    with database.write() as session:
        world = build(session)
        add_evaluate_run(session, world, None, add_entry(session, world).id)
        held = claim(session, add_worker(session), 60)
        assert held is not None
        bring_to_finalizing(session, held)
    (tmp_path / "job.json").write_text(held.job_json)
    for path, content in files_of_evaluation().items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(content)
    write_result(tmp_path, scores=scores(json.loads(held.job_json)["evaluate"]["protocols"][0]))
    with database.read() as session:
        items = items_of(session, held.job)
    return held, read_outputs(tmp_path, held.job, read_result(tmp_path, held.job), items)


def test_a_success_is_all_there(database: Database, tmp_path: Path) -> None:
    held, outputs = evaluation(database, tmp_path)
    with database.write() as session:
        assert finish(session, held.run_id, held.token, outputs, REPORT, actor="t") == "succeeded"
    with database.read() as session:
        found = counts(session)
        assert (found["result"], found["prediction"], found["score_item"], found["usage"]) == (2, 8, 8, 1)
        run = session.get(Run, held.run_id)
        assert run is not None
        assert (run.state, run.cause, run.sentence) == ("succeeded", None, "Done.")
        attempt = session.execute(select(Attempt)).scalar_one()
        assert (attempt.outcome, attempt.exit_code, attempt.peak_memory_bytes) == ("succeeded", 0, 5)
        assert (attempt.log_tail, json.loads(attempt.versions_json)) == ("the log\ufffd", PROVENANCE)
        usage = session.execute(select(Usage)).scalar_one()
        assert (usage.charged, usage.optimiser_steps, usage.gradient_forwards) == (True, 3, 6.0)
        assert 0 <= usage.wall_seconds < 30


def test_a_replay_and_a_late_holder_change_nothing(database: Database, tmp_path: Path) -> None:
    held, outputs = evaluation(database, tmp_path)
    with database.write() as session:
        assert finish(session, held.run_id, held.token - 1, outputs, REPORT, actor="t") is None
        assert counts(session)["prediction"] == 0
        assert finish(session, held.run_id, held.token, outputs, REPORT, actor="t") == "succeeded"
    with database.write() as session:
        before = counts(session)
        for _ in range(3):
            assert finish(session, held.run_id, held.token, outputs, REPORT, actor="t") is None
            assert finish_badly(session, held.run_id, held.token, "internal", None, REPORT, actor="t") is None
        assert counts(session) == before


def test_a_crash_between_any_two_statements_leaves_nothing(sqlite: Database, tmp_path: Path) -> None:
    """The connection fails at the n-th statement of the commit, for every n."""
    held, outputs = evaluation(sqlite, tmp_path)
    with sqlite.read() as session:
        before = counts(session)
    crashes = 0
    for n in range(3, 200):
        left = n

        def crash(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

        event.listen(sqlite.engine, "before_cursor_execute", crash)
        try:
            with sqlite.write() as session:
                ended = finish(session, held.run_id, held.token, outputs, REPORT, actor="t")
        except KeyboardInterrupt:
            crashes += 1
            with Database(str(sqlite.url)) as other, other.read() as session:
                assert counts(session) == before
                assert state_of(session, held.run_id) == "finalizing"
            continue
        finally:
            event.remove(sqlite.engine, "before_cursor_execute", crash)
        assert ended == "succeeded"
        break
    assert crashes > 15


def test_a_failure_stores_its_cost_and_its_log(database: Database, tmp_path: Path) -> None:
    held, outputs = evaluation(database, tmp_path)
    with database.write() as session:
        ended = finish_badly(
            session,
            held.run_id,
            held.token,
            "diverged",
            "The loss became NaN at step 3.",
            REPORT,
            actor="t",
            usage=outputs.result.usage,
        )
        assert ended == "failed"
    with database.read() as session:
        run = session.get(Run, held.run_id)
        assert run is not None
        assert (run.cause, run.sentence, run.charged) == ("diverged", "The loss became NaN at step 3.", True)
        assert run.next_step
        usage = session.execute(select(Usage)).scalar_one()
        assert (usage.charged, usage.train_seconds) == (True, 1.0)
        assert counts(session)["result"] == 0


def test_training_frees_its_evaluation_and_hands_over_the_weights(
    database: Database, settings: Settings, tmp_path: Path
) -> None:
    with database.write() as session:
        world = build(session)
        train = add_train_run(session, world)
        evaluate = add_evaluate_run(session, world, train)
        worker = add_worker(session)
        held = claim(session, worker, 60)
        assert held is not None
        bring_to_finalizing(session, held)
    directory = write_job_directory(settings, held, ())
    work(directory)
    outputs = read_outputs(directory, held.job, read_result(directory, held.job), {})
    store_artifacts(settings, directory, outputs.artifacts)
    store_artifacts(settings, directory, outputs.artifacts)
    with database.write() as session:
        assert finish(session, held.run_id, held.token, outputs, REPORT, actor="t") == "succeeded"
        assert state_of(session, evaluate.id) == "queued"
        topics = [json.loads(p) for p in session.execute(select(Outbox.payload_json).order_by(Outbox.id)).scalars()]
        assert {"run_id": evaluate.id, "queue": "family_llada"} in topics
        second = claim(session, worker, 60)
        assert second is not None
        assert second.run_id == evaluate.id
        weights = weights_for(session, second)
    directory = write_job_directory(settings, second, weights)
    assert (directory / "weights" / "model.safetensors").read_bytes() == WEIGHTS


def test_two_runs_that_leave_the_same_file_share_it(database: Database, settings: Settings) -> None:
    with database.write() as session:
        world = build(session)
        entry = add_entry(session, world)
        add_train_run(session, world, entry, seed=0)
        add_train_run(session, world, entry, seed=1)
        worker = add_worker(session)
        both = [claim(session, worker, 60) for _ in range(2)]
        for held in both:
            assert held is not None
            bring_to_finalizing(session, held)
    for held in both:
        assert held is not None
        directory = write_job_directory(settings, held, ())
        work(directory)
        outputs = read_outputs(directory, held.job, read_result(directory, held.job), {})
        with database.write() as session:
            assert finish(session, held.run_id, held.token, outputs, REPORT, actor="t") == "succeeded"
    with database.read() as session:
        assert len(session.execute(select(Artifact)).all()) == 1
        assert counts(session)["run_artifact"] == 2


def test_a_task_that_is_not_registered_is_refused_with_why(database: Database) -> None:
    with database.write() as session:
        world = build(session)
        add_evaluate_run(session, world, None, add_entry(session, world).id)
        held = claim(session, add_worker(session), 60)
        assert held is not None
        session.execute(text("UPDATE task_version SET version = '2'"))
        with pytest.raises(RegistryError, match=r"task toy version 1 .* is not registered"):
            items_of(session, held.job)


# --- checks ------------------------------------------------------------------------------------------------------


def add_check(session: Session, world: World, entry: Entry, seed: int = 0) -> Run:
    job = JobSpec(
        kind="check",
        seed=seed,
        backbone=world.backbone,
        check=CheckSpec(algorithm=AlgorithmSpec(name="mine", source="entry")),
    )
    return add_run(session, entry_id=entry.id, backbone_revision_id=world.revision, job=job, device="cpu")


def checked(session: Session, world: World, checks: int = 1) -> tuple[Entry, list[Claim]]:
    entry = add_entry(session, world)
    entry.gate = "validating"
    worker = add_worker(session)
    for seed in range(checks):
        add_check(session, world, entry, seed)
    held = [claim(session, worker, 60) for _ in range(checks)]
    for one in held:
        assert one is not None
        bring_to_finalizing(session, one)
    return entry, [one for one in held if one is not None]


def test_an_entry_is_accepted_after_its_last_check(database: Database, tmp_path: Path) -> None:
    with database.write() as session:
        entry, held = checked(session, build(session), checks=2)
    for number, one in enumerate(held):
        (tmp_path / "job.json").write_text(one.job_json)
        write_result(tmp_path)
        outputs = read_outputs(tmp_path, one.job, read_result(tmp_path, one.job), {})
        with database.write() as session:
            assert finish(session, one.run_id, one.token, outputs, REPORT, actor="t") == "succeeded"
            gate = session.execute(select(Entry.gate).where(Entry.id == entry.id)).scalar_one()
            assert gate == ("validating", "accepted")[number]
    with database.read() as session:
        assert session.execute(select(CheckResult)).scalar_one().passed


def test_a_failed_check_rejects_the_entry_free_of_charge_and_cancels_its_runs(database: Database) -> None:
    with database.write() as session:
        world = build(session)
        entry, (held,) = checked(session, world)
        other = add_train_run(session, world, session.get(Entry, entry.id))
        finish_badly(session, held.run_id, held.token, "user_error", "The loss is not finite.", REPORT, actor="t")
    with database.read() as session:
        found = session.get(Entry, entry.id)
        assert found is not None
        assert (found.gate, found.rejection) == ("rejected", "The loss is not finite.")
        assert state_of(session, other.id) == "cancelled"
        run = session.get(Run, held.run_id)
        assert run is not None
        assert run.charged is False
        assert session.execute(select(Usage.charged)).scalar_one() is False
        remembered = session.execute(select(CheckResult)).scalar_one()
        assert (remembered.passed, remembered.log_tail) == (False, "the log\ufffd")


def test_our_own_fault_rejects_nobody(database: Database) -> None:
    with database.write() as session:
        _, (held,) = checked(session, build(session))
        session.execute(text("UPDATE run SET attempts = 3"))
        assert finish_badly(session, held.run_id, held.token, "internal", None, REPORT, actor="t") == "failed"
        session.expire_all()
        assert session.execute(select(Entry.gate)).scalar_one() == "validating"
        assert session.execute(select(CheckResult)).first() is None


# --- while it works ----------------------------------------------------------------------------------------------


def test_events_become_progress_curves_and_notes(database: Database) -> None:
    with database.write() as session:
        add_train_run(session, build(session))
        held = claim(session, add_worker(session), 60)
    assert held is not None
    events = [
        Event(at=1, kind="stage", stage="train"),
        Event(at=2, kind="step", step=3, of=9, metrics={"reward": 0.25, "kl": None, "x\x00": 1.0}, forwards=6),
        Event(at=3, kind="alarm", detail="reward \ud800 collapsed"),
    ]
    for _ in range(2):  # a replay changes nothing but the notes
        with database.write() as session:
            assert ingest(session, held.run_id, held.token, events, "log", actor="t")
    with database.write() as session:
        assert not ingest(session, held.run_id, held.token - 1, events, "other", actor="t")
    with database.read() as session:
        run = session.get(Run, held.run_id)
        assert run is not None
        assert (run.stage, run.step, run.of, run.reward) == ("train", 3, 9, 0.25)
        points = {point.name: point.value for point in session.execute(select(MetricPoint)).scalars()}
        assert points == {"reward": 0.25, "x\ufffd": 1.0}
        assert session.execute(select(Attempt.log_tail)).scalar_one() == "log"
        alarms = session.execute(select(RunEvent).where(RunEvent.kind == "alarm")).scalars().all()
        assert "collapsed" in json.loads(alarms[0].detail_json)["detail"]


def test_a_run_that_never_stops_alarming_is_heard_out_only_so_long(sqlite: Database) -> None:
    with sqlite.write() as session:
        add_train_run(session, build(session))
        held = claim(session, add_worker(session), 60)
        assert held is not None
        for _ in range(3):
            alarms = [Event(at=1, kind="alarm", detail="again")] * 90
            ingest(session, held.run_id, held.token, alarms, "", actor="t")
        assert session.execute(select(func.count()).where(RunEvent.kind == "alarm")).scalar_one() == 200


def test_the_record_outlives_a_cancelled_run(database: Database) -> None:
    """No table cascades: every foreign key restricts."""
    for table in Base.metadata.tables.values():
        for key in table.foreign_keys:
            assert key.ondelete == "RESTRICT", key
    with database.write() as session:
        run = add_train_run(session, build(session))
        assert endings.cancel(session, run.id, "t") == "cancelled"
