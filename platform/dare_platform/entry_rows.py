"""The rows that an entry stands on: its track, backbones, algorithm and version, found or made."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from dare.catalog import BackboneRecord
from dare.source.problems import Problem
from dare_platform.errors import PlatformError, RegistryError
from dare_platform.host import software_version
from dare_platform.ids import new_id
from dare_platform.models import (
    Algorithm,
    AlgorithmVersion,
    Backbone,
    BackboneRevision,
    CheckResult,
    Entry,
    Run,
    TrackVersion,
)
from dare_platform.tracks import Track
from dare_platform.uploads import Submission


class RefusedError(PlatformError):
    """A wish that a rule forbids. `problem` is the sentence for the one who had it."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.text)
        self.problem = problem


def track_row(session: Session, track: Track) -> TrackVersion:
    row = session.execute(
        select(TrackVersion).where(TrackVersion.track_slug == track.track, TrackVersion.version == track.version)
    ).scalar_one_or_none()
    if row is None:
        raise RegistryError(f"track {track.name} is not registered in this database: run `dare migrate`")
    if row.rules_sha256 != track.digest():
        raise RegistryError(f"track {track.name} has changed since it was registered: give it a new version")
    return row


def revision_id(session: Session, record: BackboneRecord) -> str:
    found = session.execute(
        select(BackboneRevision.id)
        .join(Backbone, Backbone.id == BackboneRevision.backbone_id)
        .where(
            Backbone.slug == record.name,
            BackboneRevision.source_revision == record.revision,
            BackboneRevision.weights_sha256 == record.weights_sha256,
            BackboneRevision.tokenizer_sha256 == record.tokenizer_sha256,
        )
    ).scalar_one_or_none()
    if found is None:
        raise RegistryError(f"backbone {record.name} is not registered in this database: run `dare migrate`")
    return found


def algorithm_row(session: Session, account_id: str, submission: Submission) -> Algorithm | None:
    """The algorithm's row, made when it is new. A built-in one is everybody's, any other its author's.

    An author's slug may be another's too while that one's entries are private: a refusal would say that they are there.
    """
    if submission.source is None:
        return None
    query = select(Algorithm).where(Algorithm.slug == submission.algorithm).order_by(Algorithm.created_at)
    if not submission.built_in:
        query = query.where(Algorithm.owner_id == account_id)
    row = session.execute(query.limit(1)).scalar_one_or_none()
    if row is not None:
        return row
    if not submission.built_in and _others_show(session, submission.algorithm):
        text = f"The name `{submission.name}` belongs to another account's algorithm. Choose another."
        raise RefusedError(Problem("name_taken", None, text))
    row = Algorithm(
        id=new_id(),
        slug=submission.algorithm,
        title=submission.source.class_name,
        owner_id=account_id,
        created_at=datetime.now(UTC),
    )
    session.add(row)
    session.flush()
    return row


def _others_show(session: Session, slug: str) -> bool:
    """Somebody has an entry of an algorithm of this slug that is not private."""
    query = (
        select(Entry.id)
        .join(AlgorithmVersion, AlgorithmVersion.id == Entry.algorithm_version_id)
        .join(Algorithm, Algorithm.id == AlgorithmVersion.algorithm_id)
        .where(Algorithm.slug == slug, Entry.visibility != "private")
    )
    return session.execute(query.limit(1)).first() is not None


def is_taken(session: Session, track_id: str, name: str, algorithm_id: str | None, account_id: str) -> bool:
    """Whether a name stands for another algorithm on a track; its latest entry is the row of the board.

    A private entry of somebody else holds no name: a refusal would say that it is there.
    """
    others = session.execute(
        select(AlgorithmVersion.algorithm_id)
        .select_from(Entry)
        .outerjoin(AlgorithmVersion, AlgorithmVersion.id == Entry.algorithm_version_id)
        .where(
            Entry.track_version_id == track_id,
            Entry.name == name,
            (Entry.visibility != "private") | (Entry.submitted_by == account_id),
        )
        .distinct()
    ).scalars()
    return any(other != algorithm_id for other in others)


def version_row(session: Session, algorithm: Algorithm, submission: Submission) -> AlgorithmVersion:
    assert submission.source is not None
    content = submission.content_sha256
    row = session.execute(
        select(AlgorithmVersion).where(
            AlgorithmVersion.algorithm_id == algorithm.id, AlgorithmVersion.content_sha256 == content
        )
    ).scalar_one_or_none()
    if row is None:
        latest = session.execute(
            select(func.max(AlgorithmVersion.version)).where(AlgorithmVersion.algorithm_id == algorithm.id)
        ).scalar_one()
        row = AlgorithmVersion(
            id=new_id(),
            algorithm_id=algorithm.id,
            version=1 + (latest or 0),
            class_name=submission.source.class_name,
            source=submission.source.text,
            source_sha256=submission.source.sha256,
            hyperparameters_json=json.dumps(submission.hyperparameters, sort_keys=True),
            content_sha256=content,
            trains_on=submission.source.trains_on,
            built_in=submission.built_in,
            created_at=datetime.now(UTC),
        )
        session.add(row)
        session.flush()
    return row


def same_content(
    session: Session, version: AlgorithmVersion | None, track: TrackVersion, revisions: set[str], account_id: str
) -> Entry | None:
    """The newest entry that would give the same runs; withdrawn, rejected and others' private ones do not count."""
    candidates = session.execute(
        select(Entry)
        .where(
            Entry.track_version_id == track.id,
            Entry.algorithm_version_id == version.id if version else Entry.algorithm_version_id.is_(None),
            Entry.gate.in_(("validating", "accepted")),
            (Entry.visibility != "private") | (Entry.submitted_by == account_id),
        )
        .order_by(Entry.created_at.desc(), Entry.id.desc())
    ).scalars()
    return next((entry for entry in candidates if revisions_of(session, entry.id) == revisions), None)


def revisions_of(session: Session, entry_id: str) -> set[str]:
    query = select(Run.backbone_revision_id).where(Run.entry_id == entry_id, Run.kind == "evaluate").distinct()
    return set(session.execute(query).scalars())


def tries(session: Session, version: AlgorithmVersion | None, track: TrackVersion) -> int:
    """Entries of this algorithm on this track so far, withdrawn and rejected ones included."""
    query = select(func.count()).select_from(Entry).where(Entry.track_version_id == track.id)
    if version is None:
        return session.execute(query.where(Entry.algorithm_version_id.is_(None))).scalar_one()
    joined = query.join(AlgorithmVersion, AlgorithmVersion.id == Entry.algorithm_version_id)
    return session.execute(joined.where(AlgorithmVersion.algorithm_id == version.algorithm_id)).scalar_one()


def families_to_check(session: Session, submission: Submission) -> dict[str, BackboneRecord]:
    """One backbone per family whose contract check has not passed yet. Built-in algorithms are checked by our tests."""
    if submission.built_in:
        return {}
    first = {record.family: record for record in reversed(submission.backbones)}
    passed = session.execute(
        select(CheckResult.family).where(
            CheckResult.content_sha256 == submission.content_sha256,
            CheckResult.runner_version == software_version(),
            CheckResult.passed,
        )
    ).scalars()
    done = set(passed)
    return {family: record for family, record in first.items() if family not in done}
