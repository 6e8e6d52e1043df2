"""What a launcher is asked for, taken from the database alone: whoever asks names a run and proves to hold it."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from dare.spec import JobSpec
from dare_platform.errors import LaunchError
from dare_platform.job_directory import directory_of
from dare_platform.launcher import Order
from dare_platform.models import ACTIVE, Run, Worker
from dare_platform.settings import Settings

START_SECONDS = 60.0
"""For loading libraries and weights, which a training budget does not include."""


def order_of(session: Session, settings: Settings, run_id: str, lease_token: int) -> Order:
    """The order for a run that is held under `lease_token`; LaunchError when it is not."""
    query = select(Run, Worker.gpu_uuid).outerjoin(Worker, Worker.id == Run.lease_owner).where(Run.id == run_id)
    row = session.execute(query.execution_options(populate_existing=True)).one_or_none()
    if row is None or row.Run.state not in ACTIVE or row.Run.lease_token != lease_token:
        raise LaunchError(f"run {run_id} is not held under token {lease_token}")
    run = row.Run
    job = JobSpec.model_validate_json(run.job_json)
    return Order(
        run_id=run.id,
        token=run.job_token,
        directory=directory_of(settings, run.id, run.job_token),
        wall_seconds=wall_seconds(settings, job),
        kind=job.kind,
        family=job.backbone.family,
        lease_token=lease_token,
        gpu_uuid=row.gpu_uuid if run.device == "gpu" and job.kind != "score" else None,
        backbone=job.backbone.name,
    )


def wall_seconds(settings: Settings, job: JobSpec) -> float:
    """How long a job may take: its budget's guard and the start, or the installation's limit."""
    return settings.limits.wall_seconds if job.train is None else job.train.budget.wall_seconds + START_SECONDS
