"""Plays a worker on a real database: claims every waiting run and ends it as told, without running anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from dare.spec import Event, JobSpec, Sample
from dare_platform import checks, endings
from dare_platform.database import now
from dare_platform.host import software_version
from dare_platform.ingest import ingest
from dare_platform.lease import Claim, claim
from dare_platform.models import Attempt, Result, Run, TaskVersion, Usage, Worker
from dare_platform.registry import register_track
from dare_platform.states import move
from dare_platform.tracks import Track, load_track
from dare_platform.uploads import Submission, UploadReport, read_builtin, read_upload

MY_RULE = '''"""MyRule: GRPO with a narrower clip."""

from dataclasses import dataclass

from dare.algorithm import GRPO


@dataclass(frozen=True, kw_only=True)
class MyRule(GRPO):
    """Half the clip range."""

    clip_low: float = 0.1
    clip_high: float = 0.1
'''
Solved = Callable[[Run, str], float]


def tiny() -> Track:
    return load_track("tiny")


def register(session: Session) -> None:
    register_track(session, tiny())


def given(report: UploadReport) -> Submission:
    """The submission of a report without problems."""
    assert report.problems == ()
    assert report.submission is not None
    return report.submission


def built_in(name: str, settings: str | None = None, *backbones: str, entry_name: str | None = None) -> Submission:
    return given(read_builtin(name, settings, tiny(), backbones or ["llada-tiny"], entry_name=entry_name))


def upload(text: str = MY_RULE, *backbones: str, name: str | None = None) -> Submission:
    return given(read_upload("my_rule.py", text.encode(), None, tiny(), backbones or ["llada-tiny"], name=name))


def worker(session: Session, families: str = "llada,sdar") -> Worker:
    row = session.execute(select(Worker).where(Worker.name == "w1")).scalar_one_or_none()
    if row is None:
        row = Worker(
            name="w1",
            host="test",
            pid=1,
            boot_id="b",
            device="cpu",
            families=families,
            state="idle",
            hardware="a processor",
            software_version=software_version(),
            started_at=now(session),
            last_seen_at=now(session),
        )
        session.add(row)
        session.flush()
    return row


def take(session: Session) -> Claim | None:
    """Claim the next run and bring it to `working`."""
    claimed = claim(session, worker(session), 60.0)
    if claimed is not None:
        for state in ("preparing", "working"):
            move(session, claimed.run_id, state, actor=claimed.actor, token=claimed.token)
    return claimed


def steps(session: Session, claimed: Claim, count: int, of: int = 32) -> None:
    """Report `count` steps of one second each, with a rising reward, an alarm and a sample."""
    events = [Event(at=0.0, kind="stage", stage="train")]
    events += [
        Event(
            at=float(step), kind="step", stage="train", step=step, of=of, forwards=1.0 * step,
            device_seconds=float(step), metrics={"reward": 0.2 + 0.01 * step, "kl": 0.001 * step},
        )
        for step in range(1, count + 1)
    ]  # fmt: skip
    sample = Sample(prompt="S0321", tokens=("1", "2"), step_map=(2, 1), reward=0.5)
    events += [
        Event(at=count, kind="alarm", stage="collapse", detail="96 % of groups without signal", step=count),
        Event(at=count, kind="sample", step=count, sample=sample),
    ]
    log = "\x1b[31mloading\x1b[0m\nstep 1\n" + "x" * 3000 + "\nlast line\n"
    assert ingest(session, claimed.run_id, claimed.token, events, log, actor=claimed.actor)


def succeed(session: Session, claimed: Claim, solved: Solved) -> None:
    """End a run well, with numbers for an evaluation and a cost for everything."""
    move(session, claimed.run_id, "finalizing", actor=claimed.actor, token=claimed.token)
    done = {"sentence": "All done.", "charged": True}
    move(session, claimed.run_id, "succeeded", actor=claimed.actor, token=claimed.token, changes=done)
    run = session.get_one(Run, claimed.run_id, populate_existing=True)
    job = JobSpec.model_validate_json(run.job_json)
    session.add(
        Usage(
            run_id=run.id,
            token=claimed.token,
            wall_seconds=9.0,
            train_seconds=8.0,
            device_seconds=8.0,
            gradient_forwards=64.0,
            optimiser_steps=32,
            charged=True,
        )
    )
    for protocol in job.evaluate.protocols if job.evaluate else ():
        version = session.execute(select(TaskVersion).where(TaskVersion.task_slug == protocol.task)).scalar_one()
        for metric, decoding in (("solved", "greedy"), ("reward", "sampled"), ("solved", "sampled")):
            session.add(
                Result(
                    run_id=run.id,
                    task_version_id=version.id,
                    scorer=protocol.scorer,
                    metric=metric,
                    decoding=decoding,
                    token=claimed.token,
                    value=solved(run, protocol.task),
                    standard_error=0.01,
                    n=version.n_items,
                    n_no_answer=0,
                    n_truncated=0,
                    protocol=protocol.digest(),
                    recorded_at=now(session),
                )
            )
    endings.close_attempt(session, run.id, claimed.token, "succeeded")
    if run.kind == "check":
        checks.conclude_check(session, run.id, passed=True, message="passed", log="")
    endings.release_dependants(session, run.id)
    session.flush()


def work_off(session: Session, by_entry: Mapping[str, float] | None = None) -> int:
    """End everything that waits well. Entries score their number, in every seed a little different."""
    from dare_platform.models import Entry

    def solved(run: Run, task: str) -> float:
        name = session.get_one(Entry, run.entry_id).name
        return (by_entry or {}).get(name, 0.3) + 0.004 * run.seed

    count = 0
    while (claimed := take(session)) is not None:
        succeed(session, claimed, solved)
        count += 1
    return count


def isolation(session: Session, claimed: Claim, sentence: str) -> None:
    attempt = session.execute(
        select(Attempt).where(Attempt.run_id == claimed.run_id, Attempt.token == claimed.token)
    ).scalar_one()
    attempt.isolation = sentence
    session.flush()
