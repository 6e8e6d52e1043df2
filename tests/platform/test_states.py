"""Runs move along the table and no other way, whatever happens in whatever order; each move leaves an event."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import pairwise
from typing import get_args

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from world import World, add_entry, add_evaluate_run, add_train_run, add_worker, build, state_of

from dare.spec import Cause
from dare_platform import endings
from dare_platform.database import Database
from dare_platform.errors import IllegalMoveError, UnknownRunError
from dare_platform.lease import claim, heartbeat, reap
from dare_platform.models import ACTIVE, FINISHED, Attempt, Outbox, Run, RunEvent, State, Usage, Worker
from dare_platform.outputs import Outputs
from dare_platform.results import ProcessReport, finish, finish_badly
from dare_platform.states import CAUSES, MOVES, move


def test_every_state_has_its_moves_and_ends_have_none() -> None:
    assert set(MOVES) == set(get_args(State))
    assert {state for state, targets in MOVES.items() if not targets} == set(FINISHED)


def test_every_cause_says_what_happened_what_to_do_and_who_pays() -> None:
    assert set(CAUSES) == set(get_args(Cause))
    for rule in CAUSES.values():
        assert rule.sentence.endswith(".")
        assert rule.next_step.endswith(".")
    assert {cause for cause, rule in CAUSES.items() if rule.retried} == {
        "image",
        "gpu_fault",
        "disk",
        "lost_worker",
        "internal",
    }
    assert not any(rule.retried and rule.charged for rule in CAUSES.values())


def test_a_move_outside_the_table_is_refused_in_one_sentence(database: Database) -> None:
    with database.write() as session:
        run = add_train_run(session, build(session))
        with pytest.raises(IllegalMoveError, match=f"run {run.id} is queued: it can become .*, not working"):
            move(session, run.id, "working", actor="test")
        with pytest.raises(UnknownRunError, match="there is no run 'nothing'"):
            move(session, "nothing", "queued", actor="test")


def test_a_move_writes_its_event_and_its_message_or_nothing_at_all(database: Database) -> None:
    with database.write() as session:
        run = add_train_run(session, build(session))
    with database.write() as session:
        assert move(session, run.id, "cancelled", actor="test")
        session.rollback()
    with database.read() as session:
        assert state_of(session, run.id) == "queued"
        assert len(session.execute(select(RunEvent)).all()) == 1
    with database.write() as session:
        assert move(session, run.id, "cancelled", actor="test", detail={"why": "test"})
    with database.read() as session:
        event = session.execute(select(RunEvent).order_by(RunEvent.seq.desc())).scalars().first()
        assert event is not None
        assert (event.from_state, event.to_state, json.loads(event.detail_json)) == (
            "queued",
            "cancelled",
            {"why": "test"},
        )
        assert [row.topic for row in session.execute(select(Outbox).order_by(Outbox.id)).scalars()] == [
            "queued",
            "finished",
        ]


def test_an_old_token_moves_nothing(database: Database) -> None:
    with database.write() as session:
        run = add_train_run(session, build(session))
        held = claim(session, add_worker(session), 10)
    assert held is not None
    with database.write() as session:
        assert not move(session, run.id, "preparing", actor="test", token=held.token - 1)
        assert not move(session, run.id, "preparing", actor="test", expected="queued")
        assert move(session, run.id, "preparing", actor="test", token=held.token)


def test_only_states_move_a_run(database: Database) -> None:
    """The database itself refuses states that contradict the lease or lack an explanation."""
    with database.write() as session:
        run = add_train_run(session, build(session))
    for change in ("state = 'working'", "state = 'failed'", "state = 'sleeping'", "lease_owner = 'x'"):
        with pytest.raises(IntegrityError), database.write() as session:
            session.execute(text(f"UPDATE run SET {change} WHERE id = :id"), {"id": run.id})


def test_a_failed_parent_fails_its_dependants_and_their_dependants(database: Database) -> None:
    with database.write() as session:
        world = build(session)
        train = add_train_run(session, world)
        evaluate = add_evaluate_run(session, world, train)
        assert evaluate.state == "blocked"
        worker = add_worker(session)
        held = claim(session, worker, 10)
        assert held is not None
        assert endings.fail(session, train.id, "user_error", "It raised.", actor="test", token=held.token) == "failed"
    with database.read() as session:
        found = session.get(Run, evaluate.id)
        assert found is not None
        assert (found.state, found.cause, found.charged) == ("failed", "dependency", False)
        attempt = session.execute(select(Attempt)).scalar_one()
        assert (attempt.outcome, attempt.cause, attempt.sentence) == ("failed", "user_error", "It raised.")


def test_a_run_added_after_its_parent_ended_does_not_wait_for_ever(database: Database) -> None:
    with database.write() as session:
        world = build(session)
        train = add_train_run(session, world)
        endings.cancel(session, train.id, "test")
        assert add_evaluate_run(session, world, train).state == "cancelled"


def test_cancelling_a_waiting_run_ends_it_and_its_dependants(database: Database) -> None:
    with database.write() as session:
        world = build(session)
        train = add_train_run(session, world)
        evaluate = add_evaluate_run(session, world, train)
        assert endings.cancel(session, train.id, "account local") == "cancelled"
        assert endings.cancel(session, train.id, "account local") == "already finished"
        assert state_of(session, evaluate.id) == "cancelled"


def test_a_cancellation_that_comes_first_discards_the_result(database: Database) -> None:
    with database.write() as session:
        add_train_run(session, build(session))
        held = claim(session, add_worker(session), 10)
        assert held is not None
        for state in ("preparing", "working", "finalizing"):
            move(session, held.run_id, state, actor="test", token=held.token)
        assert endings.cancel(session, held.run_id, "account local") == "asked"
        assert heartbeat(session, held.run_id, held.token, 10) == "cancel"
        outputs = Outputs(result_of(held.job_sha256))
        assert finish(session, held.run_id, held.token, outputs, ProcessReport(), actor="t") == "cancelled"
        assert state_of(session, held.run_id) == "cancelled"


def test_infrastructure_faults_are_retried_three_times_and_then_explained(database: Database) -> None:
    with database.write() as session:
        run = add_train_run(session, build(session))
        worker = add_worker(session)
        ends = []
        for _ in range(3):
            session.execute(text("UPDATE run SET not_before = 0"))
            held = claim(session, worker, 10)
            assert held is not None
            ends.append(endings.fail(session, run.id, "internal", "Broken.", actor="t", token=held.token))
        assert ends == ["queued", "queued", "failed"]
        session.expire_all()
        assert (run.cause, run.sentence, run.charged, run.attempts) == ("internal", "Broken.", False, 3)
        assert claim(session, worker, 10) is None


def test_an_orderly_stop_uses_up_no_attempt(database: Database) -> None:
    with database.write() as session:
        run = add_train_run(session, build(session))
        worker = add_worker(session)
        for number in range(1, 6):
            held = claim(session, worker, 10)
            assert held is not None
            assert held.attempt == number
            assert endings.give_back(session, run.id, held.token, "t")
            assert not endings.give_back(session, run.id, held.token, "t")
        session.expire_all()
        assert (run.state, run.attempts) == ("queued", 0)


def result_of(job: str) -> object:
    from dare.spec import Result

    return Result(job=job, kind="train", outcome="succeeded", message="Done.")


class Hazard:
    """One thing that may happen at any time, by whom ever, with whatever token."""

    def __init__(self, session: Session, random: random.Random, world: World, worker: Worker) -> None:
        self.session, self.random, self.world, self.worker = session, random, world, worker

    def any_run(self) -> Run:
        return self.random.choice(self.session.execute(select(Run).order_by(Run.id)).scalars().all())

    def token(self, run: Run) -> int:
        return max(0, run.lease_token - self.random.choice((0, 0, 0, 1)))

    def claims(self) -> None:
        claim(self.session, self.worker, self.random.choice((10.0, -1.0)))

    def advances(self) -> None:
        run = self.any_run()
        to = {"leased": "preparing", "preparing": "working", "working": "finalizing"}.get(run.state)
        if to:
            move(self.session, run.id, to, actor="t", token=self.token(run), expected=run.state)

    def beats(self) -> None:
        run = self.any_run()
        heartbeat(self.session, run.id, self.token(run), 10)

    def reaps(self) -> None:
        reap(self.session, 10)

    def cancels(self) -> None:
        if self.random.random() < 0.3:
            endings.cancel(self.session, self.any_run().id, "t")

    def finishes(self) -> None:
        run = self.any_run()
        outputs = Outputs(result_of(run.job_sha256))
        finish(self.session, run.id, self.token(run), outputs, ProcessReport(), actor="t")

    def fails(self) -> None:
        run = self.any_run()
        cause = self.random.choice(get_args(Cause))
        finish_badly(self.session, run.id, self.token(run), cause, None, ProcessReport(), actor="t")

    def gives_back(self) -> None:
        run = self.any_run()
        endings.give_back(self.session, run.id, self.token(run), "t")

    def time_passes(self) -> None:
        self.session.execute(text("UPDATE run SET not_before = 0"))


HAPPENINGS: tuple[Callable[[Hazard], None], ...] = (
    Hazard.claims,
    Hazard.claims,
    Hazard.advances,
    Hazard.advances,
    Hazard.advances,
    Hazard.beats,
    Hazard.reaps,
    Hazard.cancels,
    Hazard.finishes,
    Hazard.finishes,
    Hazard.fails,
    Hazard.gives_back,
    Hazard.time_passes,
)


@pytest.mark.parametrize("seed", range(6))
def test_random_orders_of_events_keep_every_rule(sqlite: Database, seed: int) -> None:
    chance = random.Random(seed)
    with sqlite.write() as session:
        world = build(session)
        worker = add_worker(session)
        for _ in range(3):
            train = add_train_run(session, world, add_entry(session, world))
            add_evaluate_run(session, world, train)
    for _ in range(120):
        with sqlite.write() as session:
            session.expire_all()
            hazard = Hazard(session, chance, world, session.merge(worker))
            chance.choice(HAPPENINGS)(hazard)
    with sqlite.read() as session:
        check_the_record(session)


def check_the_record(session: Session) -> None:
    """Every run's events form a walk along the table that ends in its state, and its attempts agree with it."""
    for run in session.execute(select(Run)).scalars():
        events = session.execute(
            select(RunEvent).where(RunEvent.run_id == run.id, RunEvent.kind == "state").order_by(RunEvent.seq)
        ).scalars()
        states = [(event.from_state, event.to_state) for event in events]
        assert states[0][0] is None
        for (_, before), (start, end) in pairwise(states):
            assert start == before
            assert end in MOVES[start]
        assert states[-1][1] == run.state
        assert states.count(("finalizing", "succeeded")) <= 1
        attempts = session.execute(select(Attempt).where(Attempt.run_id == run.id)).scalars().all()
        open_ones = [attempt for attempt in attempts if attempt.ended_at is None]
        assert len(open_ones) == (run.state in ACTIVE)
        assert [attempt.outcome for attempt in attempts].count("succeeded") == (run.state == "succeeded")
        costs = session.execute(select(Usage.token).where(Usage.run_id == run.id)).scalars().all()
        assert sorted(costs) == sorted(attempt.token for attempt in attempts if attempt.ended_at is not None)
        if run.depends_on is not None and run.state == "blocked":
            parent = session.get(Run, run.depends_on)
            assert parent is not None
            assert parent.state not in FINISHED
