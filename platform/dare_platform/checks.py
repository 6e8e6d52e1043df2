"""What a finished contract check means: it is remembered, and it opens or closes the entry's gate."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from dare_platform.endings import cancel
from dare_platform.models import (
    FINISHED,
    AlgorithmVersion,
    Attempt,
    Backbone,
    BackboneRevision,
    CheckResult,
    Entry,
    Run,
)
from dare_platform.quotas import give_back


def conclude_check(session: Session, run_id: str, *, passed: bool, message: str, log: str) -> None:
    """Remember a check's verdict; accept the entry after its last one, reject it after the first that fails.

    Runs behind the check have failed with it, a rejected entry's others are cancelled, and its author pays nothing.
    """
    run = session.execute(select(Run).where(Run.id == run_id)).scalar_one()
    _remember(session, run, passed, message, log)
    validating = update(Entry).where(Entry.id == run.entry_id, Entry.gate == "validating")
    if not passed:
        session.execute(
            validating.values(gate="rejected", rejection=message).execution_options(synchronize_session=False)
        )
        session.execute(
            update(Run).where(Run.id == run_id).values(charged=False).execution_options(synchronize_session=False)
        )
        others = select(Run.id).where(Run.entry_id == run.entry_id, Run.id != run_id, Run.state.not_in(FINISHED))
        for other in session.execute(others.order_by(Run.id)).scalars().all():
            cancel(session, other, actor=f"run {run_id}")
        give_back(session, run.entry_id, "rejected by its check")
        return
    waiting = select(Run.id).where(Run.entry_id == run.entry_id, Run.kind == "check", Run.state != "succeeded")
    if session.execute(waiting).first() is None:
        session.execute(validating.values(gate="accepted").execution_options(synchronize_session=False))


def _remember(session: Session, run: Run, passed: bool, message: str, log: str) -> None:
    """Keyed by content, family and runner version, so that the same file is checked once."""
    content, family = session.execute(
        select(AlgorithmVersion.content_sha256, Backbone.family)
        .select_from(Entry)
        .join(AlgorithmVersion, AlgorithmVersion.id == Entry.algorithm_version_id)
        .join(BackboneRevision, BackboneRevision.id == run.backbone_revision_id)
        .join(Backbone, Backbone.id == BackboneRevision.backbone_id)
        .where(Entry.id == run.entry_id)
    ).one()
    version = session.execute(
        select(Attempt.software_version).where(Attempt.run_id == run.id, Attempt.token == run.lease_token)
    ).scalar_one()
    session.merge(
        CheckResult(
            content_sha256=content,
            family=family,
            runner_version=version,
            run_id=run.id,
            passed=passed,
            message=message,
            log_tail=log,
            created_at=datetime.now(UTC),
        )
    )
    session.flush()
