"""A small world of rows for tests: one tiny backbone, one track, one task of four items, entries and their runs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session
from toy_runner import ITEMS, SHA

from dare.sampling_config import SamplingConfig
from dare.spec import AlgorithmSpec, BackboneRef, Budget, EvaluateSpec, JobSpec, TaskProtocol, TrainSettings, TrainSpec
from dare_platform.database import now
from dare_platform.endings import add_run
from dare_platform.models import (
    LOCAL_ACCOUNT,
    Algorithm,
    AlgorithmVersion,
    Backbone,
    BackboneRevision,
    Entry,
    GpuDevice,
    Run,
    TaskItem,
    TaskVersion,
    TrackVersion,
    Worker,
)

SAMPLING = SamplingConfig(gen_length=4, block_length=4, steps_per_block=4)
PROTOCOL = TaskProtocol(task="toy", task_version="1", sampling=SAMPLING, samples=1)
SOURCE = "class Mine:\n    pass\n"


@dataclass
class World:
    """Ids of what `build` made."""

    track: str
    revision: str
    task: str
    backbone: BackboneRef
    entries: int = 0


def build(session: Session, family: str = "llada", tiny: bool = True) -> World:
    at = datetime.now(UTC)
    backbone = Backbone(slug=f"{family}-tiny", family=family, parameters=1000, tiny=tiny)
    task = TaskVersion(
        task_slug="toy",
        version="1",
        split="test",
        n_items=len(ITEMS),
        items_sha256=SHA,
        metric="solved",
        direction="max",
        lower_bound=0,
        upper_bound=1,
    )
    track = TrackVersion(
        track_slug="toy",
        version="1.0",
        state="open",
        title="Toy",
        device="cpu",
        rules_sha256=SHA,
        rules_json="{}",
        created_at=at,
    )
    session.add_all([backbone, task, track])
    session.flush()
    revision = BackboneRevision(backbone_id=backbone.id, source_revision="r1", weights_sha256=SHA, tokenizer_sha256=SHA)
    session.add(revision)
    session.add_all(
        TaskItem(task_version_id=task.id, item_id=item, position=i, item_sha256=SHA) for i, item in enumerate(ITEMS)
    )
    session.flush()
    ref = BackboneRef(name=backbone.slug, family=family, revision="r1", weights_sha256=SHA, tokenizer_sha256=SHA)
    return World(track.id, revision.id, task.id, ref)


def add_entry(session: Session, world: World, *, built_in: bool = False) -> Entry:
    world.entries += 1
    number = world.entries
    algorithm = Algorithm(
        slug=f"mine-{number}", title=f"Mine {number}", owner_id=LOCAL_ACCOUNT, created_at=datetime.now(UTC)
    )
    session.add(algorithm)
    session.flush()
    version = AlgorithmVersion(
        algorithm_id=algorithm.id,
        version=1,
        class_name="Mine",
        source=SOURCE,
        source_sha256=hashlib.sha256(SOURCE.encode()).hexdigest(),
        hyperparameters_json="{}",
        content_sha256=SHA,
        trains_on="prompts",
        built_in=built_in,
        created_at=datetime.now(UTC),
    )
    session.add(version)
    session.flush()
    entry = Entry(
        algorithm_version_id=version.id,
        track_version_id=world.track,
        submitted_by=LOCAL_ACCOUNT,
        idempotency_key=f"key-{number}",
        name=f"Mine {number}",
        kind="method",
        gate="accepted",
        visibility="public",
        ordinal=1,
        created_at=datetime.now(UTC),
    )
    session.add(entry)
    session.flush()
    return entry


def train_job(world: World, seed: int = 0, source: str = "entry", wall_seconds: float = 20.0) -> JobSpec:
    return JobSpec(
        kind="train",
        seed=seed,
        backbone=world.backbone,
        train=TrainSpec(
            algorithm=AlgorithmSpec.model_validate({"name": "mine", "source": source}),
            data="prompts:toy",
            settings=TrainSettings(learning_rate=1e-3),
            sampling=SAMPLING,
            budget=Budget(optimiser_steps=10, wall_seconds=wall_seconds),
        ),
    )


def evaluate_job(world: World, seed: int = 0, trained: bool = True) -> JobSpec:
    return JobSpec(
        kind="evaluate",
        seed=seed,
        backbone=world.backbone,
        evaluate=EvaluateSpec(protocols=(PROTOCOL,), trained=trained),
    )


def add_train_run(session: Session, world: World, entry: Entry | None = None, **job: Any) -> Run:
    entry = entry or add_entry(session, world)
    return add_run(
        session,
        entry_id=entry.id,
        backbone_revision_id=world.revision,
        job=train_job(world, **job),
        device="cpu",
    )


def add_evaluate_run(session: Session, world: World, train: Run | None, entry_id: str | None = None) -> Run:
    return add_run(
        session,
        entry_id=train.entry_id if train else str(entry_id),
        backbone_revision_id=world.revision,
        job=evaluate_job(world, train.seed if train else 0, trained=train is not None),
        device="cpu",
        depends_on=train.id if train else None,
    )


def add_gpu(session: Session, uuid: str = "GPU-1") -> GpuDevice:
    device = GpuDevice(uuid=uuid, host="test", model="a GPU", memory_mib=1000, health="ok", seen_at=now(session))
    session.add(device)
    session.flush()
    return device


def add_worker(
    session: Session, name: str = "w1", families: str = "llada", device: str = "cpu", gpu_uuid: str | None = None
) -> Worker:
    worker = Worker(
        name=name,
        host="test",
        pid=1,
        boot_id="b",
        device=device,
        families=families,
        state="idle",
        hardware="cpu",
        software_version="0",
        started_at=now(session),
        last_seen_at=now(session),
        gpu_uuid=gpu_uuid,
    )
    session.add(worker)
    session.flush()
    return worker


def state_of(session: Session, run_id: str) -> str:
    return session.execute(select(Run.state).where(Run.id == run_id)).scalar_one()
