"""Scoring what is stored: the run that judges an evaluation's programs, and any run again by any scorer at hand.

Both are score jobs: predictions in, items and numbers out, no weights and no entry. What comes out is new rows beside
the old ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from dare.scoring import SCORER
from dare.spec import JobSpec, ScoreSpec, TaskProtocol
from dare_platform import stock_scoring
from dare_platform.answers import stored_answers
from dare_platform.database import now
from dare_platform.errors import OutputError, RescoringError, UnknownRunError
from dare_platform.job_directory import place_answers
from dare_platform.models import AuditLog, Run
from dare_platform.outputs import holds_programs, protocols_of, read_outputs, read_result
from dare_platform.results import answers_of, items_of
from dare_platform.scores import Taken, take_scores
from dare_platform.settings import Settings


def score_job(evaluation: JobSpec) -> JobSpec | None:
    """The run that judges the programs that an evaluation asks for; None where it asks for none."""
    assert evaluation.evaluate is not None
    programs = [protocol for protocol in evaluation.evaluate.protocols if holds_programs(protocol.task)]
    return _scoring(evaluation, programs, SCORER) if programs else None


def without_programs(evaluation: JobSpec) -> JobSpec:
    """The same evaluation with its programs left to that run: they are run once."""
    assert evaluation.evaluate is not None
    return evaluation.model_copy(update={"evaluate": evaluation.evaluate.model_copy(update={"programs": "later"})})


def _scoring(job: JobSpec, protocols: Sequence[TaskProtocol], scorer: str) -> JobSpec:
    alone = {"scorer": scorer, "further_scorers": ()}
    return JobSpec(
        kind="score",
        seed=job.seed,
        backbone=job.backbone,
        score=ScoreSpec(protocols=tuple(protocol.model_copy(update=alone) for protocol in protocols)),
    )


def scorers_here() -> Mapping[str, str]:
    """Names of the scorers that this installation has for stored answers, each with what it is."""
    here = {SCORER: "our own, of this version: one parser for each task, used by reward and evaluation alike"}
    if (stock := stock_scoring.scorer()) is not None:
        here[stock] = "OpenCompass's evaluators as released, in a process of their own; no programs"
    return here


def order(session: Session, run_id: str, scorer: str, tasks: Sequence[str] = ()) -> JobSpec:
    """The job that judges the answers of a succeeded evaluation again; all of its tasks unless some are named.

    UnknownRunError for no run, RescoringError where there is nothing to judge or nobody who could.
    """
    if scorer not in scorers_here():
        raise RescoringError(f"there is no scorer {scorer!r} here; known: {', '.join(scorers_here())}")
    run = session.get(Run, run_id)
    if run is None:
        raise UnknownRunError(f"there is no run {run_id!r}")
    job = JobSpec.model_validate_json(run.job_json)
    if job.evaluate is None:
        raise RescoringError(f"run {run_id} is a run of kind {run.kind}; answers are stored by evaluate runs")
    if run.state != "succeeded":
        raise RescoringError(f"run {run_id} is {run.state}; its answers are stored when it has succeeded")
    known = {protocol.task: protocol for protocol in job.evaluate.protocols}
    unknown = [task for task in tasks if task not in known]
    if unknown:
        raise RescoringError(f"run {run_id} was not asked for task {unknown[0]!r}; it has: {', '.join(known)}")
    protocols = [known[task] for task in dict.fromkeys(tasks)] or list(known.values())
    return _scoring(job, protocols if scorer == SCORER else _for_stock(protocols, named=bool(tasks)), scorer)


def _for_stock(protocols: Sequence[TaskProtocol], named: bool) -> list[TaskProtocol]:
    """Under the configurations of OpenCompass that judge them; tasks that none can judge are left out unless named."""
    found = {protocol.task: stock_scoring.judged_by(protocol) for protocol in protocols}
    silent = [task for task, prompt in found.items() if prompt is None]
    if silent and (named or len(silent) == len(found)):
        raise RescoringError(f"OpenCompass cannot judge the stored answers to {', '.join(silent)}")
    return [p.model_copy(update={"prompt": found[p.task]}) for p in protocols if found[p.task] is not None]


def is_stock(job: JobSpec) -> bool:
    """Whether OpenCompass is asked, and not our own scorer."""
    return any(protocol.scorer != SCORER for protocol in protocols_of(job))


def prepare(session: Session, settings: Settings, run_id: str, job: JobSpec, directory: Path) -> None:
    """Write the job directory of a score job over the answers of a run."""
    assert job.score is not None
    (directory / "job.json").write_text(job.model_dump_json(), encoding="utf-8")
    protocols = job.score.protocols
    place_answers(directory, {p.task: stored_answers(session, settings, run_id, p) for p in protocols})


def take(session: Session, account_id: str, run_id: str, job: JobSpec, directory: Path) -> tuple[Taken, ...]:
    """Take in what the scorer said, and note who asked.

    Raises OutputError where it failed or its output contradicts itself, ScorerChangedError where its word is not what
    it was.
    """
    result = read_result(directory, job)
    if result.outcome == "failed":
        raise OutputError(f"the scorer failed: {result.message}")
    outputs = read_outputs(directory, job, result, items_of(session, job))
    session.execute(select(Run.id).where(Run.id == run_id).with_for_update())
    answered = answers_of(session, run_id)
    taken = [
        one
        for task, outcomes in outputs.outcomes.items()
        for one in take_scores(session, answered[task], outcomes, result.scores)
    ]
    by = result.provenance
    added = [
        " ".join(filter(None, [f"{one.task} by {one.scorer}", by.get(f"opencompass/{one.task}")]))
        for one in taken
        if one.outcome == "added"
    ]
    if added:
        session.add(
            AuditLog(
                at=now(session),
                actor_id=account_id,
                action="rescore",
                subject=run_id,
                note=f"added: {'; '.join(added)}",
            )
        )
        session.flush()
    return tuple(taken)
