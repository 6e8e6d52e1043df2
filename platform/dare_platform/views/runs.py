"""The page of one run: what it does, how long still, what it writes, why it ended, and how to repeat it."""

from __future__ import annotations

import json

from sqlalchemy import select
from sqlalchemy.orm import Session

from dare.flags import interval
from dare.spec import JobSpec, Score
from dare_platform.database import now
from dare_platform.models import (
    ACTIVE,
    FINISHED,
    AlgorithmVersion,
    Artifact,
    Attempt,
    Entry,
    MetricPoint,
    Result,
    Run,
    RunArtifact,
    RunEvent,
    TaskVersion,
    TrackVersion,
    Usage,
    Worker,
)
from dare_platform.outputs import protocols_of
from dare_platform.verdict import escaped_prose
from dare_platform.viewer import NOBODY, Viewer
from dare_platform.views.curves import series_of
from dare_platform.views.queue import place_of
from dare_platform.views.rows import WITHHELD, alarms, ending, events, last_attempt, summaries
from dare_platform.views.scorers import differences, headlines
from dare_platform.views.shapes import (
    ArtifactView,
    Ending,
    NotScored,
    QueuePlace,
    RunSummary,
    RunView,
    SampleView,
    ScoreView,
    Series,
    Stage,
    StageState,
    UsageView,
)
from dare_platform.views.sight import is_withheld, may_act, sees_run
from dare_platform.views.words import about, duration, log_lines, seconds_left, state_in_words

SILENT_SECONDS = 45.0


def runs_list(
    session: Session, entry_id: str | None = None, limit: int = 200, viewer: Viewer = NOBODY
) -> tuple[RunSummary, ...]:
    """Runs, newest first."""
    conditions = (Run.entry_id == entry_id,) if entry_id is not None else ()
    return tuple(summaries(session, *conditions, viewer=viewer, limit=limit))


def run_view(session: Session, run_id: str, log_lines_shown: int = 200, viewer: Viewer = NOBODY) -> RunView | None:
    """The page of one run."""
    if not sees_run(session, viewer, run_id):
        return None
    run = session.get_one(Run, run_id)
    entry = session.get_one(Entry, run.entry_id)
    version = session.get(AlgorithmVersion, entry.algorithm_version_id) if entry.algorithm_version_id else None
    withheld = is_withheld(viewer, entry, version)
    at = now(session)
    job = JobSpec.model_validate_json(run.job_json)
    attempt = last_attempt(session, run_id)
    worker = session.get(Worker, run.lease_owner) if run.lease_owner else None
    silence = max(0.0, at - worker.last_seen_at) if worker else None
    left = _time_left(session, run, job)
    metrics, ended, place = series_of(session, run_id), ending(run), place_of(session, run)
    log = attempt.log_tail if attempt and not withheld else ""
    scores = _scores(session, run, job)
    return RunView(
        summary=summaries(session, Run.id == run_id, viewer=viewer)[0],
        headline=_headline(run, place, ended, silence, left, metrics),
        stages=_stages(run),
        progress=1.0 if run.state == "succeeded" else run.step / run.of if run.step is not None and run.of else None,
        time_left=about(left) if left is not None else None,
        is_active=run.state in ACTIVE,
        is_finished=run.state in FINISHED,
        place=place,
        worker=worker.name if worker else None,
        last_sign_seconds=silence,
        isolation=f"Isolation of this run: {attempt.isolation}" if attempt and attempt.isolation else None,
        ending=ended,
        metrics=metrics,
        alarms=alarms(session, run_id),
        sample=_sample(session, run_id),
        log_tail=log_lines(log, log_lines_shown),
        log_bytes=len(log.encode()),
        scores=scores,
        not_scored=_not_scored(session, run, job, scores),
        differences=differences(session, run_id, viewer=viewer) if run.kind == "evaluate" else (),
        usage=_usage(session, run_id),
        artifacts=_artifacts(session, run_id),
        provenance=_provenance(session, run, job, attempt, withheld),
        history=events(session, [run_id], viewer),
        job_json="" if withheld else run.job_json,
        job_sha256=run.job_sha256,
        self_reported=run.kind == "train",
        rerun_command=f"dare reproduce {run_id}",
        can_cancel=run.state not in FINISHED,
        can_retry=run.state in ("failed", "cancelled"),
        may_act=may_act(viewer, entry),
        withheld=withheld,
    )


def _headline(
    run: Run,
    place: QueuePlace | None,
    ended: Ending | None,
    silence: float | None,
    left: float | None,
    metrics: tuple[Series, ...],
) -> str:
    if place is not None:
        if not run.cause:
            return place.sentence
        why = escaped_prose(run.sentence or run.cause)
        return f"{place.sentence} Attempt {run.attempts} failed: {why} Nothing is charged."
    if ended is not None:
        pays = "It is charged." if ended.charged else "Nothing is charged."
        return f"**{escaped_prose(ended.sentence)}** {pays} {ended.next_step}"
    if run.state == "cancelled":
        step = f" at step {run.step}" if run.step is not None else ""
        return f"**Cancelled{step}.** Nothing more will be done."
    if run.state == "succeeded":
        took = duration((run.finished_at or 0.0) - (run.started_at or run.created_at))
        said = run.sentence or ""
        rose = "" if "Reward " in said else _rise(metrics)
        return f"**Finished in {took}.** {rose}{escaped_prose(said)}".strip()
    if run.cancel_requested_at is not None:
        return "**Stopping.** Its worker has been asked to end it."
    if silence is not None and silence > SILENT_SECONDS:
        text = f"**No sign from the worker for {duration(silence)}.** If it stays silent we restart the run"
        return f"{text}; nothing is charged."
    words = state_in_words(run.kind, run.state, run.step, run.of, run.stage, None)
    return f"**{words.capitalize()}.**" + (f" {about(left).capitalize()} left." if left is not None else "")


def _rise(metrics: tuple[Series, ...]) -> str:
    reward = next((series.points for series in metrics if series.name == "reward"), ())
    values = [point.value for point in reward if point.value is not None]
    return f"Reward {values[0]:.2f} → {values[-1]:.2f}. " if len(values) > 1 else ""


def _time_left(session: Session, run: Run, job: JobSpec) -> float | None:
    """From the last steps of this attempt; None before ten of them, after the end and where steps are not counted."""
    if run.state != "working" or run.step is None or not run.of or job.train is None:
        return None
    rows = session.execute(
        select(MetricPoint.step, MetricPoint.device_seconds, MetricPoint.forwards)
        .where(MetricPoint.run_id == run.id, MetricPoint.token == run.lease_token)
        .distinct()
        .order_by(MetricPoint.step)
    ).all()
    known = [(row.device_seconds, row.forwards) for row in rows if row.device_seconds is not None]
    forwards = [spent for _, spent in known if spent is not None]
    budget = job.train.budget.gradient_forwards
    remaining = budget - forwards[-1] if budget is not None and forwards else None
    return seconds_left([clock for clock, _ in known], run.of - run.step, forwards, remaining)


def _stages(run: Run) -> tuple[Stage, ...]:
    """The path of this run, with what went before it where it depends on another run."""
    earlier = {"train": ["check"], "evaluate": ["train"], "score": ["evaluate"]}
    before = earlier.get(run.kind, []) if run.depends_on else []
    names = [*before, "prepare", run.kind, "finish"]
    current = _current_stage(run)
    if run.state == "succeeded":
        return tuple(Stage(name, "done") for name in names)
    stages = []
    for name in names:
        ahead = name in before and run.state != "blocked" and run.cause != "dependency"
        state: StageState = "done" if ahead else "waiting"
        if current is not None and name not in before:
            here = ["prepare", "work", "finish"].index(current)
            own = names.index(name) - len(before)
            state = "done" if own < here else "active" if own == here else "waiting"
            if state == "active" and run.state in ("failed", "cancelled"):
                state = "failed"
        stages.append(Stage(name, state))
    return tuple(stages)


def _current_stage(run: Run) -> str | None:
    """Where a run is, or was when it ended: prepare, work or finish."""
    if run.state in ("blocked", "queued") or (run.state in FINISHED and run.started_at is None):
        return None
    if run.state == "finalizing" or run.stage == "finish":
        return "finish"
    if run.state in ("leased", "preparing") or run.stage in (None, "prepare", "rehearse"):
        return "prepare"
    return "work"


def _sample(session: Session, run_id: str) -> SampleView | None:
    row = session.execute(
        select(RunEvent.detail_json)
        .where(RunEvent.run_id == run_id, RunEvent.kind == "sample")
        .order_by(RunEvent.seq.desc())
        .limit(1)
    ).scalar_one_or_none()
    detail = json.loads(row) if row else {}
    sample = detail.get("sample")
    if not sample:
        return None
    return SampleView(
        prompt=sample["prompt"],
        tokens=tuple(sample["tokens"]),
        step_map=tuple(sample["step_map"]),
        reward=sample["reward"],
        step=detail.get("step"),
    )


def _scores(session: Session, run: Run, job: JobSpec) -> tuple[ScoreView, ...]:
    """By task and scorer, the headline's first."""
    samples = {protocol.task: protocol.samples for protocol in protocols_of(job)}
    heads = headlines(session, run.id)
    whose = Result.scored_by == run.id if run.kind == "score" else Result.run_id == run.id
    rows = session.execute(
        select(TaskVersion.task_slug, Result).join(Result, Result.task_version_id == TaskVersion.id).where(whose)
    ).all()
    found = [_score(task, row, samples.get(task, 1)) for task, row in rows]
    return tuple(
        sorted(
            found,
            key=lambda s: (s.task, s.scorer != heads.get(s.task), s.scorer, s.metric != "solved", s.decoding),
        )
    )


def _score(task: str, row: Result, samples: int) -> ScoreView:
    greedy = row.decoding == "greedy"
    bounds = interval(
        Score(
            task=task,
            metric=row.metric,
            decoding="greedy" if greedy else "sampled",
            value=row.value,
            standard_error=row.standard_error,
            n=row.n,
            scorer=row.scorer,
            protocol=row.protocol,
        )
    )
    return ScoreView(
        task=task,
        metric=row.metric,
        decoding="greedy" if greedy else "sampled",
        value=row.value,
        standard_error=row.standard_error,
        n=row.n,
        completions=row.n * (1 if greedy else samples),
        n_no_answer=row.n_no_answer,
        n_truncated=row.n_truncated,
        scorer=row.scorer,
        protocol=row.protocol,
        low=bounds.low if bounds else None,
        high=bounds.high if bounds else None,
        n_undecoded=row.n_undecoded,
        n_error=row.n_error,
        scored_by=row.scored_by,
    )


def _not_scored(session: Session, run: Run, job: JobSpec, scores: tuple[ScoreView, ...]) -> tuple[NotScored, ...]:
    """Tasks of a succeeded evaluation that have no number yet, and how their score run stands."""
    if run.kind != "evaluate" or run.state != "succeeded":
        return ()
    scored = {score.task for score in scores}
    later = session.execute(
        select(Run).where(Run.depends_on == run.id, Run.kind == "score").limit(1)
    ).scalar_one_or_none()
    return tuple(
        NotScored(protocol.task, _why_not(later), later.id if later else None)
        for protocol in protocols_of(job)
        if protocol.task not in scored
    )


def _why_not(later: Run | None) -> str:
    if later is None:
        return "No run was asked for that could run the programs in its answers."
    if later.state == "failed":
        return later.sentence or "Its score run failed."
    if later.state == "succeeded":
        return later.sentence or "Its score run could not run the programs in its answers."
    words = state_in_words(later.kind, later.state, later.step, later.of, later.stage, later.cause)
    return f"Its score run: {words}."


def _usage(session: Session, run_id: str) -> UsageView | None:
    """Summed over all attempts: lost ones cost too, whoever pays for them."""
    rows = session.execute(select(Usage).where(Usage.run_id == run_id)).scalars().all()
    if not rows:
        return None
    energy = [row.energy_joules for row in rows if row.energy_joules is not None]
    return UsageView(
        prepare_seconds=sum(row.prepare_seconds for row in rows),
        train_seconds=sum(row.train_seconds for row in rows),
        evaluate_seconds=sum(row.evaluate_seconds for row in rows),
        overhead_seconds=sum(row.overhead_seconds for row in rows),
        device_seconds=sum(row.device_seconds for row in rows),
        optimiser_steps=sum(row.optimiser_steps for row in rows),
        gradient_forwards=sum(row.gradient_forwards for row in rows),
        forwards=sum(row.forwards for row in rows),
        tokens_decoded=sum(row.tokens_decoded for row in rows),
        tokens_kept=sum(row.tokens_kept for row in rows),
        energy_joules=sum(energy) if energy else None,
    )


def _artifacts(session: Session, run_id: str) -> tuple[ArtifactView, ...]:
    rows = session.execute(
        select(RunArtifact.role, Artifact)
        .join(Artifact, Artifact.id == RunArtifact.artifact_id)
        .where(RunArtifact.run_id == run_id)
        .order_by(RunArtifact.role)
    )
    return tuple(
        ArtifactView(role, row.sha256, row.size_bytes, row.purged_at is None, row.purged_at) for role, row in rows
    )


def _provenance(
    session: Session, run: Run, job: JobSpec, attempt: Attempt | None, withheld: bool
) -> tuple[tuple[str, str], ...]:
    """What a result must carry to be believed and repeated: name and value, in reading order."""
    entry = session.get_one(Entry, run.entry_id)
    track = session.get_one(TrackVersion, entry.track_version_id)
    version = session.get(AlgorithmVersion, entry.algorithm_version_id) if entry.algorithm_version_id else None
    said = {
        "track": f"{track.track_slug} {track.version}",
        "rules": track.rules_sha256,
        "job": run.job_sha256,
        "algorithm": f"{version.class_name} {version.source_sha256}" if version else "none: the untouched backbone",
        "hyperparameters": version.hyperparameters_json if version else "none",
        "backbone": f"{job.backbone.name} {job.backbone.revision}",
        "weights": job.backbone.weights_sha256,
        "tokenizer": job.backbone.tokenizer_sha256,
        "seed": str(job.seed),
        "threads": str(job.threads),
    }
    if withheld:
        said |= {"algorithm": WITHHELD, "hyperparameters": WITHHELD}
    if job.evaluate is not None:
        said |= {f"protocol {protocol.task}": protocol.digest() for protocol in job.evaluate.protocols}
    if run.kind == "score":
        said["answers of run"] = str(run.depends_on)
    if attempt is not None:
        said |= {
            "host": attempt.host,
            "hardware": attempt.hardware,
            "dare": attempt.software_version,
            "source revision": attempt.source_revision or "not a checkout",
            "image": attempt.image_id or "no container",
        }
        said |= {str(name): str(value) for name, value in json.loads(attempt.versions_json).items()}
    return tuple(said.items())
