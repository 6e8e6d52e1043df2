"""A real database with entries and runs in every state, written through the platform's own functions. Numbers invented.

Results are inserted as rows; everything else goes the way that a worker takes: claim, move, ingest, end.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from dare.spec import Event, ItemStatus, Sample
from dare_platform import endings, entries, lease
from dare_platform.database import Database, migrate, now, open_database
from dare_platform.ingest import ingest
from dare_platform.models import (
    Attempt,
    Prediction,
    Result,
    Run,
    ScoreItem,
    TaskItem,
    TaskVersion,
    Usage,
    Worker,
)
from dare_platform.registry import register_track
from dare_platform.settings import Settings
from dare_platform.states import move
from dare_platform.tracks import Track, load_track
from dare_platform.uploads import read_builtin
from dare_platform.viewer import LOCAL

BACKBONE = "llada-tiny"
SOLVED: Mapping[str, float] = {"untouched": 0.12, "sft": 0.2, "shuffled-d1": 0.125, "d1": 0.31, "bgpo": 0.36}
TASKS = ("sudoku", "countdown")


def home_at(folder: Path) -> Settings:
    return Settings.from_environment({"DARE_HOME": str(folder)})


def prepared(settings: Settings) -> Database:
    """Migrated, with the tiny track registered and nothing else."""
    migrate(settings)
    database = open_database(settings)
    with database.write() as session:
        register_track(session, load_track("tiny"))
    return database


def fill(database: Database) -> dict[str, str]:
    """Entry ids by name. One is half way: a run trains, one has failed, the rest waits."""
    track = load_track("tiny")
    ids: dict[str, str] = {}
    for name in SOLVED:
        with database.write() as session:
            ids[name] = submit(session, track, name)
        work_off(database, name)
    with database.write() as session:
        ids["cj_grpo"] = submit(session, track, "cj_grpo")
    half_way(database)
    return ids


def submit(session: Session, track: Track, name: str, seeds: Sequence[int] | None = None) -> str:
    """One entry on one backbone, with every seed of the track unless some are named."""
    algorithm = name.removeprefix("shuffled-")
    settings = {"clip_high": 0.25} if algorithm != name else None
    report = read_builtin(algorithm, None, track, [BACKBONE], entry_name=name, assignments=settings, seeds=seeds)
    assert report.submission is not None, report.problems
    submission = replace(report.submission, kind="control") if algorithm != name else report.submission
    return entries.submit(session, LOCAL, submission, f"key-{name}").entry_id


def _worker(session: Session) -> Worker:
    found = session.execute(select(Worker)).scalar_one_or_none()
    if found is None:
        at = now(session)
        found = Worker(
            name="laptop-1", host="laptop", pid=1, boot_id="b", device="cpu", families="llada,sdar", state="idle",
            hardware="test CPU", software_version="0", started_at=at, last_seen_at=at,
        )  # fmt: skip
        session.add(found)
        session.flush()
    return found


def _claimed(session: Session) -> lease.Claim | None:
    claim = lease.claim(session, _worker(session), 600.0)
    if claim is not None:
        for state in ("preparing", "working"):
            move(session, claim.run_id, state, actor=claim.actor, token=claim.token)
        session.get_one(
            Attempt, (claim.run_id, claim.attempt)
        ).isolation = "process sandbox (laptop), no file isolation."
    return claim


def work_off(database: Database, name: str) -> None:
    """Every waiting run succeeds."""
    while True:
        with database.write() as session:
            claim = _claimed(session)
            if claim is None:
                return
            if claim.job.kind == "train":
                _train(session, claim, steps=40)
            else:
                _evaluate(session, claim, name)
            move(session, claim.run_id, "finalizing", actor=claim.actor, token=claim.token)
            move(session, claim.run_id, "succeeded", actor=claim.actor, token=claim.token)
            endings.close_attempt(session, claim.run_id, claim.token, "succeeded")
            endings.release_dependants(session, claim.run_id)


def begin(database: Database) -> dict[str, str]:
    """A board of one seed: everything that was asked for is done, and it is too little for a rank."""
    track = load_track("tiny")
    ids: dict[str, str] = {}
    for name in SOLVED:
        with database.write() as session:
            ids[name] = submit(session, track, name, seeds=(0,))
        work_off(database, name)
    return ids


def half_way(database: Database) -> None:
    """The first waiting run trains and is at step 18; the second has diverged."""
    with database.write() as session:
        claim = _claimed(session)
        assert claim is not None
        _train(session, claim, steps=18, ended=False)
    with database.write() as session:
        claim = _claimed(session)
        assert claim is not None
        endings.fail(
            session, claim.run_id, "diverged", "NaN in the loss at step 7.", actor=claim.actor, token=claim.token
        )


def _train(session: Session, claim: lease.Claim, steps: int, ended: bool = True) -> None:
    noise = random.Random(claim.job.seed)
    events = [Event(at=1.0, kind="stage", stage="train")]
    for step in range(1, steps + 1):
        metrics = {"reward": 0.4 + 0.004 * step + noise.gauss(0, 0.02), "log_ratio_abs": 0.001 * step}
        events.append(
            Event(at=1.0 + step, kind="step", step=step, of=40, metrics=metrics, forwards=step, device_seconds=step)
        )
    sample = Sample(
        prompt="S1020304000300100", tokens=tuple("1423314242132341"), step_map=(1, 3, 2, 4) * 4, reward=0.75
    )
    events.append(Event(at=2.0, kind="sample", step=steps, sample=sample))
    assert ingest(session, claim.run_id, claim.token, events, "loading weights\nstep 1 <b>&amp;\n", actor=claim.actor)
    if ended:
        _usage(session, claim, train_seconds=400.0, device_seconds=410.0, optimiser_steps=40, gradient_forwards=64.0)


def _usage(session: Session, claim: lease.Claim, **spent: float) -> None:
    session.add(Usage(run_id=claim.run_id, token=claim.token, wall_seconds=1.0, charged=True, **spent))
    session.flush()


def _evaluate(session: Session, claim: lease.Claim, name: str) -> None:
    assert claim.job.evaluate is not None
    noise = random.Random(f"{name}-{claim.job.seed}")
    for protocol in claim.job.evaluate.protocols:
        task = session.execute(select(TaskVersion).where(TaskVersion.task_slug == protocol.task)).scalar_one()
        share = SOLVED[name] if protocol.task == "sudoku" else 0.05
        value = max(0.0, share + noise.gauss(0, 0.01))
        for metric, decoding, number in (
            ("solved", "greedy", value),
            ("reward", "sampled", min(1.0, 0.3 + value)),
            ("solved", "sampled", value / 2),
        ):
            session.add(
                Result(
                    run_id=claim.run_id, task_version_id=task.id, scorer=protocol.scorer, metric=metric,
                    decoding=decoding, token=claim.token, value=number, standard_error=0.01, n=task.n_items,
                    n_no_answer=0, n_truncated=0, protocol=protocol.digest(), recorded_at=now(session),
                )
            )  # fmt: skip
    session.flush()
    if name == "d1" and claim.job.seed == 0:
        _second_scorer(session, claim)
    _usage(session, claim, evaluate_seconds=20.0, device_seconds=20.0)


SECOND = "opencompass-0.5.4"


def _second_scorer(session: Session, claim: lease.Claim) -> None:
    """Sixteen Sudoku answers by two scorers, which differ on seven; on one more the second one failed."""
    task = session.execute(select(TaskVersion).where(TaskVersion.task_slug == "sudoku")).scalar_one()
    items = session.execute(
        select(TaskItem.item_id).where(TaskItem.task_version_id == task.id).order_by(TaskItem.position).limit(16)
    ).scalars()
    words: list[ScoreItem] = []
    for place, item in enumerate(items):
        session.add(
            Prediction(
                run_id=claim.run_id, task_version_id=task.id, item_id=item, sample=0, token=claim.token,
                prompt_sha256="0" * 64, output="The grid is <b>1234</b>", output_sha256="0" * 64, tokens=16, nfe=16,
                truncated=False,
            )
        )  # fmt: skip
        word = {"run_id": claim.run_id, "task_version_id": task.id, "item_id": item, "sample": 0}
        solved = float(place % 2 == 0)
        other = 1.0 - solved if place < 7 else solved
        status: ItemStatus = "error" if place == 15 else "no_answer" if place == 14 else "ok"
        answer = "<b>1234</b> " + "4321 " * 30
        words.append(ScoreItem(**word, scorer="dare-1", score=solved, reward=solved, status="ok", answer=answer))
        words.append(ScoreItem(**word, scorer=SECOND, score=other, reward=other, status=status, answer=None))
    session.flush()
    session.add_all(words)
    session.add(
        Result(
            run_id=claim.run_id, task_version_id=task.id, scorer=SECOND, metric="solved", decoding="greedy",
            token=claim.token, value=0.25, standard_error=0.03, n=255, n_no_answer=12, n_truncated=3, n_undecoded=2,
            n_error=1, protocol="0" * 64, recorded_at=now(session),
        )
    )  # fmt: skip
    session.flush()


@dataclass
class Site:
    """An open database that the pages of this test read, and the entries in it by name."""

    database: Database
    entries: dict[str, str]

    def run(self, entry: str, state: str) -> str:
        """A run of an entry in a state."""
        with self.database.read() as session:
            query = select(Run.id).where(Run.entry_id == self.entries[entry], Run.state == state)
            return session.execute(query.order_by(Run.id).limit(1)).scalar_one()
