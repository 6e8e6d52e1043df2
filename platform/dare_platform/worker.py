"""The process that does the work: claim a run, carry it out, take the next. Also the platform's housekeeper.

Before anything else it looks for what a worker that died on this host has left behind, and goes on with it.

Any number of workers may run, on any number of hosts that share the database and DARE_HOME. Each polls, so that a dead
broker delays nothing for longer than a poll; each does all chores, which are harmless when done twice.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Sequence
from types import FrameType

from sqlalchemy import select, update
from sqlalchemy.exc import OperationalError

from dare_platform import host, signs_of_life
from dare_platform.adoption import adopt, left_behind, take_back
from dare_platform.database import Database, now, open_database
from dare_platform.errors import DatabaseLockedError, LaunchError, SettingsError
from dare_platform.gpu import Gpus, OneGpu
from dare_platform.ids import new_id
from dare_platform.launcher import Launcher
from dare_platform.launchers import launcher_of
from dare_platform.lease import Claim, announce_again, claim, reap
from dare_platform.models import ACTIVE, Device, Run, WorkerState
from dare_platform.models import Worker as WorkerRow
from dare_platform.one_attempt import End, OneAttempt
from dare_platform.outbox import Publisher, relay
from dare_platform.settings import Settings

_ALIVE: set[str] = set()
"""Workers of this process: their process id says nothing about which of them are dead."""

log = logging.getLogger(__name__)


class Worker:
    """Claims and carries out runs of some families on one device, one at a time."""

    def __init__(
        self,
        settings: Settings,
        families: Sequence[str],
        *,
        device: Device = "cpu",
        launcher: Launcher | None = None,
        publish: Publisher | None = None,
        gpus: Gpus | None = None,
    ) -> None:
        """`publish`: how outbox messages reach the broker; without it they stay, and everybody polls.

        `gpus`: for a gpu worker, how it sees its device; NVML by default. SettingsError where it is not told which one.
        """
        self._settings = settings
        self._gpu = _gpu_of(settings, gpus) if device == "gpu" else None
        self._launcher = launcher or launcher_of(settings)
        self._publish = publish
        self._families = ",".join(sorted(families))
        self._device: Device = device
        self._id = ""
        self._carries = ""
        self._stops = threading.Event()
        self._woken = threading.Event()
        self._chores_at = -float("inf")
        self._broker_is_away = False
        self._source_revision = host.source_revision()

    @property
    def is_stopping(self) -> bool:
        """Somebody asked for its end."""
        return self._stops.is_set()

    def wake(self) -> None:
        """Look for work now."""
        self._woken.set()

    def stop(self) -> None:
        """End in good order: the current run goes back to the queue with its checkpoint."""
        self._stops.set()
        self._woken.set()

    def stop_on_signals(self) -> None:
        """Let SIGTERM and Ctrl-C mean `stop`. Call from the main thread."""

        def asked(_number: int, _frame: FrameType | None) -> None:
            self.stop()

        signal.signal(signal.SIGTERM, asked)
        signal.signal(signal.SIGINT, asked)

    def look_at_device(self, database: Database) -> None:
        """Make a gpu worker's device known; GpuError when there is no such device here."""
        if self._gpu is not None:
            self._gpu.register(database)

    def run(self, until_idle: bool = False) -> int:
        """Work until stopped, or until nothing waits; returns how many attempts were made."""
        made = 0
        with open_database(self._settings) as database:
            self.look_at_device(database)
            self._register(database)
            _ALIVE.add(self._id)
            try:
                while not self._stops.is_set():
                    self._woken.clear()
                    try:
                        ended = self.work_once(database)
                        is_done = ended is None and until_idle and not self._is_awaited(database)
                    except (DatabaseLockedError, OperationalError) as error:
                        log.warning("the worker waits for the database: %s", error)
                        ended, is_done = None, False
                    if ended is not None:
                        made += 1
                    elif is_done:
                        break
                    else:
                        self._woken.wait(self._settings.poll_seconds)
                self._say_at_last(database)
            finally:
                _ALIVE.discard(self._id)
        return made

    def work_once(self, database: Database) -> End | None:
        """Go on with one run that was left behind, or claim one, and bring it to its end; None when there is none."""
        signs_of_life.show()
        self._carries = ""
        claimed = self._take_over(database)
        if claimed is None:  # chores after it: the reaper would take back what can still be gone on with
            self._do_chores(database)
            claimed = self._claim(database)
        if claimed is None:
            return None
        self._say(database, "busy")
        self._carries = claimed.name
        ended = OneAttempt(
            self._settings,
            database,
            self._launcher,
            claimed,
            stops=self._stops,
            meanwhile=lambda: self._do_chores_patiently(database),
            gpu=self._gpu if claimed.job.kind != "score" else None,
        ).carry_out()
        log.info("run %s, attempt %d: %s", claimed.run_id, claimed.attempt, ended)
        self._may_compute(database)  # said at once, and not when the next run waits
        return ended

    def _take_over(self, database: Database) -> Claim | None:
        """A run that an earlier worker of this host left running. What it left without a process is taken back."""
        with database.read() as session:
            me = session.execute(select(WorkerRow).where(WorkerRow.id == self._id)).scalar_one()
            found = left_behind(session, me, self._settings.lease_seconds, frozenset(_ALIVE))
        if not found:
            return None
        try:
            goes_on = {(one.run_id, one.token) for one in self._launcher.list_own() if one.adoptable}
        except LaunchError as error:  # then the end of the lease decides
            log.warning("what is left of earlier workers cannot be seen: %s", error)
            return None
        for one in found:
            with database.write() as session:
                if (one.run_id, one.job_token) not in goes_on:
                    if take_back(session, me, one) is not None:
                        log.warning("run %s was taken back from a worker that is gone", one.run_id)
                    continue
                claimed = adopt(session, me, one, self._settings.lease_seconds, self._source_revision)
            if claimed is not None:
                log.warning("run %s goes on: its process outlived its worker", one.run_id)
                return claimed
        self._kill_orphans(database)
        return None

    def _claim(self, database: Database) -> Claim | None:
        with database.read() as session:  # most polls find nothing, and then take no lock
            ours = (Run.device == self._device) | (Run.kind == "score")
            if session.execute(select(Run.id).where(Run.state == "queued", ours).limit(1)).first() is None:
                return None
        self._may_compute(database)
        if self._stops.is_set():
            return None
        with database.write() as session:
            row = session.execute(select(WorkerRow).where(WorkerRow.id == self._id)).scalar_one()
            return claim(session, row, self._settings.lease_seconds, self._source_revision)

    def _may_compute(self, database: Database) -> None:
        """Wait until the device is free. One that does not become so, or does not answer, gets no run from here on."""
        if self._gpu is not None:
            self._gpu.may_be_used(database, self._stops)

    def _is_awaited(self, database: Database) -> bool:
        """Some run of this worker's families has not ended."""
        queues = [f"family_{family}" for family in self._families.split(",")]
        unfinished = select(Run.id).where(
            Run.state.in_(("blocked", "queued", *ACTIVE)), Run.queue.in_(queues), Run.device == self._device
        )
        with database.read() as session:
            return session.execute(unfinished.limit(1)).first() is not None

    def _register(self, database: Database) -> None:
        self._id = new_id()
        with database.write() as session:
            at = now(session)
            session.add(
                WorkerRow(
                    id=self._id,
                    name=f"{host.hostname()}-{os.getpid()}-{secrets.token_hex(3)}",
                    host=host.hostname(),
                    pid=os.getpid(),
                    boot_id=host.boot_id(),
                    device=self._device,
                    families=self._families,
                    state="idle",
                    hardware=host.hardware(),
                    software_version=host.software_version(),
                    started_at=at,
                    last_seen_at=at,
                    gpu_uuid=self._gpu.uuid if self._gpu is not None else None,
                )
            )

    def _say(self, database: Database, state: WorkerState) -> None:
        with database.write() as session:
            mine = update(WorkerRow).where(WorkerRow.id == self._id)
            session.execute(
                mine.values(state=state, last_seen_at=now(session)).execution_options(synchronize_session=False)
            )

    def _say_at_last(self, database: Database) -> None:
        try:
            self._say(database, "stopped")
        except (DatabaseLockedError, OperationalError) as error:
            log.warning("the worker ends and is shown as lost, since it cannot say so: %s", error)

    def _do_chores_patiently(self, database: Database) -> None:
        """While a run works, a busy database only postpones the chores."""
        signs_of_life.show()
        try:
            if self._stops.is_set():
                self._say(database, "draining")
            else:
                self._do_chores(database, busy=True)
        except (DatabaseLockedError, OperationalError) as error:
            log.warning("chores wait for the database: %s", error)

    def _do_chores(self, database: Database, busy: bool = False) -> None:
        """Four times in a lease: say that we live, take back lost runs, kill orphans, ring again, send messages."""
        if not busy:
            self._relay(database)
        if time.monotonic() - self._chores_at < self._settings.heartbeat_seconds:
            return
        self._chores_at = time.monotonic()
        self._broker_is_away = False  # ask it again
        self._relay(database)
        self._say(database, "busy" if busy else "idle")
        with database.write() as session:
            for run_id in reap(session, self._settings.lease_seconds):
                log.warning("run %s was lost by its worker and taken back", run_id)
            if self._publish is not None:
                announce_again(session, self._settings.lease_seconds)
        self._kill_orphans(database)

    def _relay(self, database: Database) -> None:
        """Waiting for a broker that is away would delay everything else; it is asked again a little later."""
        if self._publish is not None and not self._broker_is_away:
            self._broker_is_away = relay(database, self._publish).broker_is_away

    def _kill_orphans(self, database: Database) -> None:
        """End processes on this host that no run has. Those of another database are none of our business."""
        try:
            found = self._launcher.list_own()
        except LaunchError as error:
            log.error("orphans cannot be looked for: %s", error)
            return
        for owned in found:
            if owned.name == self._carries:  # taken back from us or not: whoever watches it ends it
                continue
            with database.read() as session:
                run = session.execute(select(Run.state, Run.job_token).where(Run.id == owned.run_id)).one_or_none()
            if run is None or (run.job_token == owned.token and run.state in ACTIVE):
                continue
            try:
                self._launcher.remove(owned.name)
            except LaunchError as error:
                log.error("%s", error)
            else:
                log.warning("killed what was left of run %s", owned.name)


def _gpu_of(settings: Settings, gpus: Gpus | None) -> OneGpu:
    """The one device of a gpu worker."""
    if settings.gpu_uuid is None:
        raise SettingsError("DARE_GPU_UUID is not set; a gpu worker needs its one device: `nvidia-smi -L` lists them")
    return OneGpu(gpus or Gpus.here(), settings.gpu_uuid, host.hostname())
