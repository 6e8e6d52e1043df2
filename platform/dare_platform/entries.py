"""The life of an entry: submitted, cancelled, withdrawn, asked for again. Form, CLI and API have no rules of their own.

`submit` writes algorithm, version, entry and all runs in the caller's transaction, so that an entry is there with all
its runs or not at all. A submitted file is checked once per family before it trains; a built-in one trains at once;
the untouched backbone is evaluated only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from dare.catalog import BackboneRecord, backbones
from dare.source.problems import Problem
from dare.spec import AlgorithmSpec, CheckSpec, JobSpec
from dare_platform import endings
from dare_platform.database import now, wait_for_intake
from dare_platform.entry_rows import (
    RefusedError,
    algorithm_row,
    families_to_check,
    is_taken,
    revision_id,
    revisions_of,
    same_content,
    track_row,
    tries,
    version_row,
)
from dare_platform.entry_status import statuses
from dare_platform.errors import PlatformError
from dare_platform.ids import new_id
from dare_platform.models import (
    FINISHED,
    Algorithm,
    AlgorithmVersion,
    AuditLog,
    Backbone,
    BackboneRevision,
    Entry,
    Gate,
    Run,
    TrackVersion,
    Visibility,
)
from dare_platform.quotas import NO_QUOTA, charge_entry
from dare_platform.rescoring import score_job, without_programs
from dare_platform.settings import Quota
from dare_platform.tracks import Track
from dare_platform.uploads import UNTOUCHED, Submission, UploadReport, kind_of, read_builtin, read_upload
from dare_platform.viewer import NotAllowedError, Viewer

CHECK_SEED = 0
CHECK_FIRST, SCORE_NEXT, EVALUATE_NEXT = 2, 2, 1
"""Priorities over training: an author waits for the check, and a trained policy is a result only when it is scored."""


class UnknownEntryError(PlatformError):
    """No entry, or no run, has this id."""


@dataclass(frozen=True)
class Submitted:
    """The entry that a submission led to: a new one, or the one that was there already."""

    entry_id: str
    created: bool
    runs: int = 0
    sentence: str = ""
    """Markdown; for an entry that was there already it says so."""


def submit(
    session: Session,
    viewer: Viewer,
    submission: Submission,
    idempotency_key: str,
    visibility: Visibility = "public",
    quota: Quota = NO_QUOTA,
) -> Submitted:
    """Write an entry and queue its runs. The same key, or identical content, leads to the entry that is there.

    Raises RefusedError when the name belongs to another algorithm or the key to other content, NotAllowedError when
    the viewer may not submit, RegistryError when the track is not registered, QuotaError when nothing is left: the
    transaction must then be given up.
    """
    account_id = _account(viewer)
    wait_for_intake(session)
    again = session.execute(
        select(Entry).where(Entry.submitted_by == account_id, Entry.idempotency_key == idempotency_key)
    ).scalar_one_or_none()
    revisions = {record.name: revision_id(session, record) for record in submission.backbones}
    if again is not None and _content_of(session, again) != submission.content_sha256:
        raise _key_is_used(again)
    if again is not None:
        return _completed(session, viewer, again, submission, revisions, quota)
    track = track_row(session, submission.track)
    algorithm = algorithm_row(session, account_id, submission)
    if is_taken(session, track.id, submission.name, algorithm.id if algorithm else None, account_id):
        text = f"The name `{submission.name}` stands for another algorithm on track {submission.track.name}."
        raise RefusedError(Problem("name_taken", None, f"{text} Choose another."))
    version = version_row(session, algorithm, submission) if algorithm is not None else None
    same = same_content(session, version, track, set(revisions.values()), account_id)
    if same is not None:
        return _completed(session, viewer, same, submission, revisions, quota)
    seen_by: Visibility = "public" if submission.kind == "reference" else visibility
    made = _write(session, account_id, submission, idempotency_key, track, version, revisions, visibility=seen_by)
    charge_entry(session, quota, account_id, made.entry_id)
    return made


def _write(
    session: Session,
    account_id: str,
    submission: Submission,
    idempotency_key: str,
    track: TrackVersion,
    version: AlgorithmVersion | None,
    revisions: dict[str, str],
    rerun_of: str | None = None,
    visibility: Visibility = "public",
) -> Submitted:
    checks = families_to_check(session, submission)
    entry = Entry(
        id=new_id(),
        algorithm_version_id=version.id if version else None,
        track_version_id=track.id,
        submitted_by=account_id,
        idempotency_key=idempotency_key,
        name=submission.name,
        kind=submission.kind,
        gate="validating" if checks else "accepted",
        visibility=visibility,
        ordinal=1 + tries(session, version, track),
        rerun_of=rerun_of,
        created_at=datetime.now(UTC),
    )
    session.add(entry)
    session.flush()
    checked_by = {family: _add_check(session, entry, submission, record) for family, record in checks.items()}
    for record in submission.backbones:
        for seed in submission.seeds:
            _add_work(session, entry, submission, record, revisions[record.name], seed, checked_by.get(record.family))
    runs = session.execute(select(func.count()).select_from(Run).where(Run.entry_id == entry.id)).scalar_one()
    return Submitted(entry.id, created=True, runs=runs, sentence=f"**{runs} runs queued** for `{submission.name}`.")


def _content_of(session: Session, entry: Entry) -> str | None:
    version = session.get(AlgorithmVersion, entry.algorithm_version_id) if entry.algorithm_version_id else None
    return version.content_sha256 if version else None


def _completed(
    session: Session, viewer: Viewer, entry: Entry, submission: Submission, revisions: Mapping[str, str], quota: Quota
) -> Submitted:
    """The entry that is there. Its author's first look with one seed grows into all; nobody else's entry grows."""
    if not (viewer.is_owner(entry) or viewer.may("operate")):
        return Submitted(entry.id, created=False, sentence=_identical(entry))
    work = session.execute(select(Run).where(Run.entry_id == entry.id)).scalars().all()
    checked_by = {run.queue: run.id for run in work if run.kind == "check" and run.state != "succeeded"}
    there = {(run.backbone_revision_id, run.seed) for run in work if run.kind == "evaluate"}
    added = 0
    for record in submission.backbones:
        revision = revisions[record.name]
        for seed in submission.seeds:
            if (revision, seed) not in there and entry.gate in ("accepted", "validating"):
                after = checked_by.get(f"family_{record.family}")
                _add_work(session, entry, submission, record, revision, seed, after)
                added += 1
    if added and viewer.is_owner(entry):
        charge_entry(session, quota, entry.submitted_by, entry.id)  # unless it still is: it may have been given back
    text = _identical(entry) + (f" {added} {'seed was' if added == 1 else 'seeds were'} added to it." if added else "")
    return Submitted(entry.id, created=False, runs=added, sentence=text)


def _add_check(session: Session, entry: Entry, submission: Submission, record: BackboneRecord) -> str:
    job = JobSpec(
        kind="check",
        seed=CHECK_SEED,
        backbone=record.ref,
        check=CheckSpec(algorithm=_algorithm_spec(submission)),
    )
    revision = revision_id(session, record)
    device = submission.track.device
    run = endings.add_run(
        session, entry_id=entry.id, backbone_revision_id=revision, job=job, device=device, priority=CHECK_FIRST
    )
    return run.id


def _add_work(
    session: Session,
    entry: Entry,
    submission: Submission,
    record: BackboneRecord,
    revision: str,
    seed: int,
    after: str | None,
) -> None:
    """A training run, behind its check if there is one, and the evaluation behind it; or the evaluation alone.

    Behind an evaluation that asks for programs, the run that judges them.
    """
    track, trains_on = submission.track, submission.source.trains_on if submission.source else None
    if trains_on is not None:
        job = track.train_job(record.ref, _algorithm_spec(submission), trains_on, seed)
        after = endings.add_run(
            session, entry_id=entry.id, backbone_revision_id=revision, job=job, device=track.device, depends_on=after
        ).id
    job = track.evaluate_job(record.ref, seed, trained=trains_on is not None, with_data=submission.with_data)
    scoring = score_job(job)
    if scoring is not None:
        job = without_programs(job)
    evaluation = endings.add_run(
        session,
        entry_id=entry.id,
        backbone_revision_id=revision,
        job=job,
        device=track.device,
        depends_on=after,
        priority=EVALUATE_NEXT,
    )
    if scoring is not None:
        endings.add_run(
            session,
            entry_id=entry.id,
            backbone_revision_id=revision,
            job=scoring,
            device=track.device,
            depends_on=evaluation.id,
            priority=SCORE_NEXT,
        )


def _algorithm_spec(submission: Submission) -> AlgorithmSpec:
    return AlgorithmSpec(
        name=submission.algorithm,
        source="builtin" if submission.built_in else "entry",
        hyperparameters=submission.hyperparameters,
    )


def _identical(entry: Entry) -> str:
    day = f"{entry.created_at.day} {entry.created_at:%b}"
    return f"This entry is identical to `{entry.id}` ({entry.name}, {day})."


def _key_is_used(entry: Entry) -> RefusedError:
    text = f"Something else was sent with this key before, as entry `{entry.id}` ({entry.name}). Use a new key."
    return RefusedError(Problem("key_used", None, text))


def _account(viewer: Viewer) -> str:
    viewer.require("submit")
    if viewer.account_id is None:
        raise NotAllowedError("nobody is signed in: an entry needs an author")
    return viewer.account_id


# --- afterwards -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cancelled:
    """What a wish to cancel came to, counted over runs."""

    at_once: int
    asked: int
    """At work: their worker ends them."""
    finished: int

    @property
    def sentence(self) -> str:
        """For the one who asked."""
        if not self.at_once and not self.asked:
            return "Nothing to cancel: everything has already finished."
        parts = [f"{self.at_once} cancelled"] if self.at_once else []
        parts += [f"{self.asked} asked to stop"] if self.asked else []
        parts += [f"{self.finished} already finished"] if self.finished else []
        return ", ".join(parts) + "."


def cancel(session: Session, viewer: Viewer, id: str) -> Cancelled:
    """Cancel one run, or all runs of an entry. Evaluations behind a cancelled training run are cancelled with it."""
    _own(session, viewer, id)
    runs = session.execute(select(Run).where((Run.id == id) | (Run.entry_id == id))).scalars().all()
    order: dict[str, int] = {"score": 0, "evaluate": 1, "train": 2, "check": 3}  # dependants first, each counted once
    outcomes = [
        endings.cancel(session, run.id, f"account {viewer.account_id}")
        for run in sorted(runs, key=lambda run: order[run.kind])
    ]
    return Cancelled(outcomes.count("cancelled"), outcomes.count("asked"), outcomes.count("already finished"))


def withdraw(session: Session, viewer: Viewer, entry_id: str, reason: str | None = None) -> None:
    """Take an entry off the board. Its results stay readable, its try stays counted, its waiting runs are cancelled."""
    entry = _own(session, viewer, entry_id)
    if entry.id != entry_id:
        raise UnknownEntryError(f"there is no entry `{entry_id}`")
    if entry.gate == "withdrawn":
        raise RefusedError(Problem("withdrawn", None, f"Entry `{entry_id}` is withdrawn already."))
    before: Gate = entry.gate
    cancel(session, viewer, entry_id)
    values = {"gate": "withdrawn", "withdrawn_at": datetime.now(UTC), "rejection": None}
    session.execute(update(Entry).where(Entry.id == entry_id).values(**values))
    session.add(
        AuditLog(
            at=now(session),
            actor_id=viewer.account_id,
            action="withdraw",
            subject=entry_id,
            note=reason or f"was {before}",
        )
    )
    session.flush()


def retry(
    session: Session,
    viewer: Viewer,
    id: str,
    idempotency_key: str,
    catalog: Mapping[str, BackboneRecord] | None = None,
    quota: Quota = NO_QUOTA,
) -> Submitted:
    """Ask for an ended entry again, named by its id or that of one of its runs: a new try with every run anew.

    A finished run never changes. The whole entry is done again, so that all its seeds come from the same software. It
    stays its author's, whoever asks, and is charged when the author does.
    """
    entry = _own(session, viewer, id)
    wait_for_intake(session)
    again = session.execute(
        select(Entry).where(Entry.submitted_by == entry.submitted_by, Entry.idempotency_key == idempotency_key)
    ).scalar_one_or_none()
    if again is not None and again.rerun_of != entry.id:
        raise _key_is_used(again)
    if again is not None:
        return Submitted(again.id, created=False, sentence=_identical(again))
    status = statuses(session, {entry.id: entry.gate})[entry.id]
    if status not in ("partial", "failed", "withdrawn", "rejected"):
        text = (
            f"Entry `{entry.id}` is {status}; only a failed, partial, rejected or withdrawn one can be asked for again."
        )
        raise RefusedError(Problem("not_ended", None, text))
    submission = _submission_of(session, entry, backbones() if catalog is None else catalog)
    track = track_row(session, submission.track)
    revisions = {record.name: revision_id(session, record) for record in submission.backbones}
    version = session.get(AlgorithmVersion, entry.algorithm_version_id) if entry.algorithm_version_id else None
    made = _write(
        session,
        entry.submitted_by,
        submission,
        idempotency_key,
        track,
        version,
        revisions,
        rerun_of=entry.id,
        visibility=entry.visibility,
    )
    if viewer.is_owner(entry):
        charge_entry(session, quota, entry.submitted_by, made.entry_id)
    return made


def _submission_of(session: Session, entry: Entry, catalog: Mapping[str, BackboneRecord]) -> Submission:
    """What was submitted, from what is stored. Source and settings are the stored ones, never today's files."""
    row = session.get_one(TrackVersion, entry.track_version_id)
    track = Track.model_validate_json(row.rules_json)
    chosen = _backbones_of(session, entry.id)
    with_data = _evaluated_transfer(session, entry.id, track)
    if entry.algorithm_version_id is None:
        report = read_builtin(
            UNTOUCHED, None, track, chosen, entry_name=entry.name, with_data=with_data, catalog=catalog
        )
    else:
        version = session.get_one(AlgorithmVersion, entry.algorithm_version_id)
        given = json.loads(version.hyperparameters_json)
        algorithm = session.get_one(Algorithm, version.algorithm_id)
        if version.built_in:
            report = read_builtin(
                algorithm.slug, None, track, chosen,
                entry_name=entry.name, assignments=given, with_data=with_data, catalog=catalog,
            )  # fmt: skip
        else:
            report = read_upload(
                "algorithm.py", version.source.encode(), None, track, chosen,
                name=entry.name, kind=entry.kind, assignments=given, with_data=with_data, catalog=catalog,
                algorithm=algorithm.slug,
            )  # fmt: skip
    if report.submission is None:
        raise RefusedError(report.problems[0])
    return report.submission


def _backbones_of(session: Session, entry_id: str) -> Sequence[str]:
    query = (
        select(Backbone.slug)
        .join(BackboneRevision, BackboneRevision.backbone_id == Backbone.id)
        .where(BackboneRevision.id.in_(revisions_of(session, entry_id)))
    )
    return session.execute(query).scalars().all()


def _evaluated_transfer(session: Session, entry_id: str, track: Track) -> bool:
    job = session.execute(
        select(Run.job_json).where(Run.entry_id == entry_id, Run.kind == "evaluate").limit(1)
    ).scalar_one_or_none()
    evaluate = JobSpec.model_validate_json(job).evaluate if job else None
    transfer = {column.task for column in track.tasks if column.role == "transfer"}
    return evaluate is not None and any(protocol.task in transfer for protocol in evaluate.protocols)


def _own(session: Session, viewer: Viewer, id: str) -> Entry:
    """The entry of this id, or that of the run of this id, which the viewer may change.

    What they do not see is unknown to them (UnknownEntryError); what they see and may not change, NotAllowedError.
    """
    query = select(Entry).outerjoin(Run, Run.entry_id == Entry.id).where((Entry.id == id) | (Run.id == id))
    entry = session.execute(query.where(viewer.sees()).limit(1)).scalar_one_or_none()
    if entry is None:
        raise UnknownEntryError(f"there is no entry `{id}`")
    viewer.require_own(entry)
    return entry


def is_finished(session: Session, entry_id: str) -> bool:
    """Whether no run of an entry can change any more."""
    states = session.execute(select(Run.state).where(Run.entry_id == entry_id)).scalars()
    return all(state in FINISHED for state in states)


__all__ = [
    "Cancelled",
    "RefusedError",
    "Submission",
    "Submitted",
    "UnknownEntryError",
    "UploadReport",
    "cancel",
    "is_finished",
    "kind_of",
    "read_builtin",
    "read_upload",
    "retry",
    "submit",
    "withdraw",
]
