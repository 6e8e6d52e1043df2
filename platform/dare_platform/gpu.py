"""A worker's one GPU: seen through NVML, leased together with a run, and free before it is given to the next.

A device that keeps memory or processes of a run that is gone is suspect, one that does not answer is bad. Neither gets
work until an operator has looked at it and says so: nobody resets one automatically.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from dare_platform.database import Database, now
from dare_platform.errors import PlatformError
from dare_platform.models import LOCAL_ACCOUNT, AuditLog, GpuDevice, GpuHealth, GpuLease, Worker
from dare_platform.settings import MIB

FREE_MIB = 1024
"""A device with less memory in use is free: a display or a daemon may have some."""
FREE_AFTER_SECONDS = 60.0
"""A driver may take so long to give back what a killed process had."""
LOOK_SECONDS = 1.0

log = logging.getLogger(__name__)


class GpuError(PlatformError):
    """The device does not answer, or there is no such device here."""


class UnknownGpuError(PlatformError):
    """No worker has seen a device of this name."""


@dataclass(frozen=True)
class Seen:
    """How a device stands at this moment."""

    model: str
    memory_mib: int
    used_mib: int
    processes: tuple[int, ...]
    """Ids of those that compute on it, in the namespace of whoever looks."""

    @property
    def is_free(self) -> bool:
        """Nothing of an earlier run is on it."""
        return self.used_mib < FREE_MIB and not self.processes

    @property
    def in_words(self) -> str:
        """What is on it."""
        return f"{self.used_mib} of {self.memory_mib} MiB in use by {len(self.processes)} known processes"


class Gpus:
    """The devices of this machine. `nvml` is the module `pynvml`, or what stands in for it."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml

    @staticmethod
    def here() -> Gpus:
        """Through NVML; GpuError where its bindings are not installed."""
        try:
            return Gpus(importlib.import_module("pynvml"))
        except ImportError as error:
            raise GpuError("NVML cannot be asked: install nvidia-ml-py") from error

    def look(self, uuid: str) -> Seen:
        """One device; GpuError when it, or the driver, does not answer."""
        nvml = self._nvml
        try:
            nvml.nvmlInit()  # counted by NVML, and cheap: a driver that was reloaded is found again
            try:
                device = nvml.nvmlDeviceGetHandleByUUID(uuid)
                memory = nvml.nvmlDeviceGetMemoryInfo(device, nvml.nvmlMemory_v2)  # without what the driver keeps
                name = nvml.nvmlDeviceGetName(device)
                processes = nvml.nvmlDeviceGetComputeRunningProcesses(device)
            finally:
                nvml.nvmlShutdown()
        except nvml.NVMLError as error:
            raise GpuError(f"the GPU {uuid} does not answer: {error}") from error
        return Seen(
            model=name.decode() if isinstance(name, bytes) else str(name),
            memory_mib=int(memory.total) // MIB,
            used_mib=int(memory.used) // MIB,
            processes=tuple(int(process.pid) for process in processes),
        )


class OneGpu:
    """The device of a worker, and what the database says of it."""

    def __init__(self, gpus: Gpus, uuid: str, host: str) -> None:
        self.uuid = uuid
        self._gpus = gpus
        self._host = host

    def register(self, database: Database) -> None:
        """Make it known, or say that it was seen again; its health stays as it was. GpuError for one unknown so far."""
        try:
            seen = self._gpus.look(self.uuid)
        except GpuError as error:
            with database.write() as session:
                if session.get(GpuDevice, self.uuid) is None:
                    raise
                self._judge(session, "bad", str(error))
            return
        with database.write() as session:
            at = now(session)
            known = session.get(GpuDevice, self.uuid, with_for_update=True)
            if known is None:
                known = GpuDevice(uuid=self.uuid, health="ok")
                session.add(known)
            known.host, known.model, known.memory_mib = self._host, seen.model, seen.memory_mib
            known.seen_at = at

    def may_be_used(self, database: Database, stops: threading.Event, patience: float | None = None) -> bool:
        """Whether it answers and is free. Waits a while for what an earlier run had on it, then sets it aside."""
        patience = FREE_AFTER_SECONDS if patience is None else patience
        with database.read() as session:
            health = session.execute(select(GpuDevice.health).where(GpuDevice.uuid == self.uuid)).scalar_one_or_none()
        if health != "ok":
            return False
        until = time.monotonic() + patience
        while True:
            try:
                seen = self._gpus.look(self.uuid)
            except GpuError as error:
                self._set_aside(database, "bad", str(error))
                return False
            if seen.is_free:
                return True
            if time.monotonic() >= until:
                self._set_aside(database, "suspect", f"still {seen.in_words}, {patience:g} s after the last run")
                return False
            if stops.wait(min(LOOK_SECONDS, patience)):
                return False

    def fault(self, database: Database) -> str | None:
        """Why it cannot be computed on, in a sentence; None when it answers. One that does not is set aside."""
        try:
            self._gpus.look(self.uuid)
        except GpuError as error:
            self._set_aside(database, "bad", str(error))
            return f"The GPU failed: {error}."
        return None

    def _set_aside(self, database: Database, health: GpuHealth, note: str) -> None:
        log.error("GPU %s is %s and gets no more work: %s. See `dare gpus`.", self.uuid, health, note)
        with database.write() as session:
            self._judge(session, health, note)

    def _judge(self, session: Session, health: GpuHealth, note: str) -> None:
        judged = update(GpuDevice).where(GpuDevice.uuid == self.uuid)
        session.execute(judged.values(health=health, note=note).execution_options(synchronize_session=False))


def gpu_can_be_taken(session: Session, worker: Worker) -> bool:
    """Whether the worker's device is healthy and nobody has it. Claimers of one device wait for each other here."""
    locked = select(GpuDevice.health).where(GpuDevice.uuid == worker.gpu_uuid).with_for_update()
    if worker.gpu_uuid is None or session.execute(locked).scalar_one_or_none() != "ok":
        return False
    taken = select(GpuLease.id).where(GpuLease.gpu_uuid == worker.gpu_uuid, GpuLease.released_at.is_(None))
    return session.execute(taken.limit(1)).first() is None


def take_gpu(session: Session, worker: Worker, run_id: str, token: int, at: float) -> None:
    """The worker's device for an attempt. A second lease of one device fails, and the whole transaction with it."""
    session.add(GpuLease(gpu_uuid=worker.gpu_uuid, run_id=run_id, token=token, acquired_at=at))
    session.flush()


@dataclass(frozen=True)
class GpuView:
    """A device as operators see it."""

    uuid: str
    host: str
    model: str
    memory_mib: int
    health: str
    note: str | None
    run_id: str | None
    """Which run has it."""
    seen_seconds: float


def gpus(session: Session) -> tuple[GpuView, ...]:
    """All devices that workers have seen, by host."""
    held = select(GpuLease).where(GpuLease.released_at.is_(None))
    has = {lease.gpu_uuid: lease.run_id for lease in session.execute(held).scalars()}
    at = now(session)
    rows = session.execute(select(GpuDevice).order_by(GpuDevice.host, GpuDevice.uuid)).scalars()
    return tuple(
        GpuView(
            uuid=row.uuid,
            host=row.host,
            model=row.model,
            memory_mib=row.memory_mib,
            health=row.health,
            note=row.note,
            run_id=has.get(row.uuid),
            seen_seconds=max(0.0, at - row.seen_at),
        )
        for row in rows
    )


def clear(session: Session, uuid: str, account_id: str = LOCAL_ACCOUNT) -> None:
    """An operator has looked at it: it gets work again, if it is free and answers when a worker next asks."""
    device = session.get(GpuDevice, uuid, with_for_update=True)
    if device is None:
        raise UnknownGpuError(f"no worker has seen a GPU {uuid!r}; `dare gpus` lists those that some have")
    note = f"was {device.health}: {device.note}" if device.note else f"was {device.health}"
    device.health, device.note = "ok", None
    session.add(AuditLog(at=now(session), actor_id=account_id, action="clear_gpu", subject=uuid, note=note))
    session.flush()
