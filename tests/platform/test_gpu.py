"""A GPU belongs to one attempt at a time, is free before the next, and is set aside when it is not as it should be."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import pynvml
import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError
from test_cli import Dare
from test_worker import TOY, add_pair, check_the_end, wait_for
from world import add_gpu, add_train_run, add_worker, build

from dare_platform import endings, orders
from dare_platform.database import Database
from dare_platform.errors import SettingsError
from dare_platform.gpu import GpuError, Gpus, OneGpu, take_gpu
from dare_platform.launcher import Order
from dare_platform.lease import claim, reap
from dare_platform.models import Attempt, AuditLog, GpuDevice, GpuLease, Run
from dare_platform.models import Worker as WorkerRow
from dare_platform.process_launcher import ProcessLauncher
from dare_platform.settings import MIB, Settings
from dare_platform.worker import Worker

UUID = "GPU-5f1e"
STOPS = threading.Event()


class NvmlError(Exception):
    """What the real module raises."""


@dataclass
class Card:
    total: int = 1000 * MIB
    used: int = 5 * MIB
    processes: list[int] = field(default_factory=list)
    says: str | None = None
    """An error of the driver."""


class Nvml(ModuleType):
    """The functions of NVML's bindings that are called, over cards that a test puts in."""

    NVMLError = NvmlError
    nvmlMemory_v2 = pynvml.nvmlMemory_v2  # noqa: N815

    def __init__(self, **cards: Card) -> None:
        super().__init__("pynvml")
        self.cards = {name.replace("_", "-"): card for name, card in cards.items()}
        self.open = 0

    def nvmlInit(self) -> None:  # noqa: N802
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Card:  # noqa: N802
        card = self.cards.get(uuid)
        if card is None:
            raise NvmlError("Not Found")
        if card.says:
            raise NvmlError(card.says)
        return card

    def nvmlDeviceGetName(self, card: Card) -> bytes:  # noqa: N802
        return b"Toy GPU"

    def nvmlDeviceGetMemoryInfo(self, card: Card, version: int) -> Card:  # noqa: N802
        assert version == self.nvmlMemory_v2
        return card

    def nvmlDeviceGetComputeRunningProcesses(self, card: Card) -> list[Any]:  # noqa: N802
        return [type("Process", (), {"pid": pid}) for pid in card.processes]


@pytest.fixture
def card() -> Card:
    return Card()


@pytest.fixture
def nvml(card: Card) -> Nvml:
    return Nvml(GPU_5f1e=card)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endings, "FIRST_BACK_OFF_SECONDS", 0.05)
    monkeypatch.setattr(orders, "START_SECONDS", 0.0)
    monkeypatch.setattr("dare_platform.gpu.FREE_AFTER_SECONDS", 0.2)
    monkeypatch.setattr("dare_platform.gpu.LOOK_SECONDS", 0.05)


def health(database: Database) -> tuple[str, str | None]:
    with database.read() as session:
        row = session.execute(select(GpuDevice.health, GpuDevice.note)).one()
        return row.health, row.note


def is_set_aside(database: Database) -> bool:
    with database.read() as session:
        return session.execute(select(GpuDevice.uuid).where(GpuDevice.health != "ok")).first() is not None


def leases(database: Database) -> list[tuple[int, bool]]:
    with database.read() as session:
        rows = session.execute(select(GpuLease).order_by(GpuLease.token)).scalars()
        return [(row.token, row.released_at is None) for row in rows]


# --- looking -------------------------------------------------------------------------------------------------------


def test_a_device_is_seen_as_it_is_and_nvml_is_closed_again(card: Card, nvml: Nvml) -> None:
    card.processes = [7]
    seen = Gpus(nvml).look(UUID)
    assert (seen.model, seen.memory_mib, seen.used_mib, seen.processes) == ("Toy GPU", 1000, 5, (7,))
    assert not seen.is_free
    card.says = "Unknown Error"
    with pytest.raises(GpuError, match=r"GPU-5f1e does not answer: Unknown Error"):
        Gpus(nvml).look(UUID)
    assert nvml.open == 0


def test_real_nvml_without_a_driver_is_one_sentence() -> None:
    with pytest.raises(GpuError, match="does not answer"):
        Gpus.here().look("GPU-of-nobody")


def test_without_its_bindings_nvml_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(GpuError, match="install nvidia-ml-py"):
        Gpus.here()


# --- leases --------------------------------------------------------------------------------------------------------


def test_a_claim_takes_run_and_device_together_or_neither(database: Database) -> None:
    with database.write() as session:
        world = build(session)
        runs = [add_train_run(session, world) for _ in range(2)]
        for run in runs:
            run.device = "gpu"
        uuid = add_gpu(session).uuid
        one, other = (add_worker(session, name, device="gpu", gpu_uuid=uuid) for name in ("one", "other"))
        held = claim(session, one, 60)
        assert held is not None
        assert claim(session, other, 60) is None  # it has the same device
        assert claim(session, add_worker(session, "none", device="gpu"), 60) is None  # it has none
    assert leases(database) == [(1, True)]
    with database.write() as session, pytest.raises(IntegrityError):
        take_gpu(session, session.get_one(WorkerRow, other.id), held.run_id, held.token, 0.0)
    with database.write() as session:
        session.execute(text("UPDATE gpu_device SET health = 'suspect'"))
        assert endings.give_back(session, held.run_id, held.token, "t")
        one = session.execute(select(WorkerRow).where(WorkerRow.name == "one")).scalar_one()
        assert claim(session, one, 60) is None


@pytest.mark.parametrize("way", ["failed", "given back", "cancelled", "reaped"])
def test_every_end_of_an_attempt_lets_go_of_its_device(sqlite: Database, way: str) -> None:
    with sqlite.write() as session:
        run = add_train_run(session, build(session))
        run.device = "gpu"
        worker = add_worker(session, device="gpu", gpu_uuid=add_gpu(session).uuid)
        assert claim(session, worker, -1 if way == "reaped" else 60) is not None
    assert leases(sqlite) == [(1, True)]
    with sqlite.write() as session:
        if way == "failed":
            assert endings.fail(session, run.id, "diverged", actor="t", token=1) == "failed"
        elif way == "given back":
            assert endings.give_back(session, run.id, 1, "t")
        elif way == "cancelled":
            endings.cancel(session, run.id, "t")
            assert endings.end_cancelled(session, run.id, 1, "t")
        else:
            assert reap(session, 60) == [run.id]
    assert leases(sqlite) == [(1, False)]


# --- a worker with a device ----------------------------------------------------------------------------------------


class Noisy(ProcessLauncher):
    """Runs that leave something on the card."""

    def __init__(self, settings: Settings, mode: str, card: Card, leaves: dict[str, object]) -> None:
        super().__init__(settings, (sys.executable, str(TOY), mode))
        self._card, self._leaves = card, leaves
        self.started: list[str | None] = []

    def start(self, order: Order) -> str:
        self.started.append(order.gpu_uuid)
        for name, value in self._leaves.items():
            setattr(self._card, name, value)
        return super().start(order)


def worker_of(settings: Settings, card: Card, nvml: Nvml, mode: str = "good", **leaves: object) -> tuple[Worker, Noisy]:
    settings = replace(settings, gpu_uuid=UUID, limits=replace(settings.limits, free_disk_bytes=1))
    launcher = Noisy(settings, mode, card, leaves)
    return Worker(settings, ["llada"], device="gpu", launcher=launcher, gpus=Gpus(nvml)), launcher


def add_gpu_pair(database: Database) -> tuple[str, str]:
    train, evaluate = add_pair(database, source="builtin")
    with database.write() as session:
        session.execute(text("UPDATE run SET device = 'gpu'"))
    return train, evaluate


def test_a_gpu_worker_needs_to_be_told_its_device(sqlite_settings: Settings, nvml: Nvml) -> None:
    with pytest.raises(SettingsError, match="DARE_GPU_UUID is not set"):
        Worker(sqlite_settings, ["llada"], device="gpu", gpus=Gpus(nvml))


def test_a_worker_whose_device_was_never_seen_does_not_start(sqlite_settings: Settings, sqlite: Database) -> None:
    worker, _ = worker_of(sqlite_settings, Card(), Nvml())
    with pytest.raises(GpuError, match="Not Found"):
        worker.run(until_idle=True)


def test_runs_get_the_workers_device_one_after_the_other(
    settings: Settings, database: Database, card: Card, nvml: Nvml
) -> None:
    train, evaluate = add_gpu_pair(database)
    worker, launcher = worker_of(settings, card, nvml)
    assert worker.run(until_idle=True) == 2
    check_the_end(database, train, evaluate)
    assert launcher.started == [UUID, UUID]
    assert leases(database) == [(1, False), (1, False)]
    assert health(database) == ("ok", None)
    with database.read() as session:
        row = session.execute(select(GpuDevice)).scalar_one()
        assert (row.model, row.memory_mib) == ("Toy GPU", 1000)
        assert session.execute(select(WorkerRow.gpu_uuid)).scalar_one() == UUID


@pytest.mark.parametrize(
    ("leaves", "words"),
    [
        ({"used": 1200 * MIB}, "1200 of 1000 MiB"),
        pytest.param({"processes": [4, 5]}, "2 known processes", marks=pytest.mark.full),
    ],
)
def test_a_device_that_is_not_free_after_a_run_is_set_aside_until_an_operator_says_so(
    sqlite_settings: Settings, sqlite: Database, card: Card, nvml: Nvml, leaves: dict[str, object], words: str
) -> None:
    train, evaluate = add_gpu_pair(sqlite)
    worker, launcher = worker_of(sqlite_settings, card, nvml, **leaves)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        wait_for(lambda: is_set_aside(sqlite))
    finally:
        worker.stop()
        thread.join(20)
    assert health(sqlite)[0] == "suspect"
    assert words in str(health(sqlite)[1])
    assert len(launcher.started) == 1
    card.used, card.processes = 0, []
    dare = Dare(sqlite_settings)
    assert "suspect" in dare("gpus")
    assert "dare gpus clear UUID" in dare.errors
    assert dare.json("gpus")[0]["run_id"] is None
    dare("gpus", "clear", "GPU-unknown", code=3)
    dare("gpus", "clear", UUID)
    assert health(sqlite) == ("ok", None)
    with sqlite.read() as session:
        noted = session.execute(select(AuditLog.action, AuditLog.subject, AuditLog.note)).one()
        assert noted[:2] == ("clear_gpu", UUID)
        assert str(noted.note).startswith("was suspect: still")
    worker_of(sqlite_settings, card, nvml)[0].run(until_idle=True)
    check_the_end(sqlite, train, evaluate)


def test_memory_that_is_given_back_a_little_later_is_waited_for(sqlite: Database, card: Card, nvml: Nvml) -> None:
    one = OneGpu(Gpus(nvml), UUID, "test")
    one.register(sqlite)
    card.used = 900 * MIB * 2
    threading.Timer(0.3, lambda: setattr(card, "used", 0)).start()
    assert one.may_be_used(sqlite, STOPS, patience=5)
    card.used = 900 * MIB * 2
    assert not one.may_be_used(sqlite, STOPS, patience=0)
    card.used = 0
    assert not one.may_be_used(sqlite, STOPS)  # it is suspect, however it looks now
    one.register(sqlite)
    assert health(sqlite)[0] == "suspect"


def test_a_gpu_that_fails_under_a_run_is_bad_and_the_run_is_not_to_blame(
    sqlite_settings: Settings, sqlite: Database, card: Card, nvml: Nvml
) -> None:
    train, _ = add_gpu_pair(sqlite)
    worker, launcher = worker_of(sqlite_settings, card, nvml, mode="segfault", says="GPU is lost")
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        wait_for(lambda: is_set_aside(sqlite))
    finally:
        worker.stop()
        thread.join(20)
    assert health(sqlite) == ("bad", f"the GPU {UUID} does not answer: GPU is lost")
    assert len(launcher.started) == 1  # it waits for another device
    with sqlite.read() as session:
        run = session.get_one(Run, train)
        assert (run.state, run.cause, run.attempts) == ("queued", "gpu_fault", 1)
        attempt = session.execute(select(Attempt)).scalar_one()
        assert attempt.sentence == f"The GPU failed: the GPU {UUID} does not answer: GPU is lost."


def test_a_gpu_that_does_not_answer_before_a_run_costs_the_run_nothing(
    sqlite_settings: Settings, sqlite: Database, card: Card, nvml: Nvml
) -> None:
    train, _ = add_gpu_pair(sqlite)
    worker, launcher = worker_of(sqlite_settings, card, nvml)
    OneGpu(Gpus(nvml), UUID, "test").register(sqlite)
    card.says = "Unknown Error"
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        wait_for(lambda: is_set_aside(sqlite))
    finally:
        worker.stop()
        thread.join(20)
    assert launcher.started == []
    with sqlite.read() as session:
        run = session.get_one(Run, train)
        assert (run.state, run.attempts) == ("queued", 0)
