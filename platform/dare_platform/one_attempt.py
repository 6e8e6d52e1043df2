"""One attempt of a run, from claim to end: prepare and start, or go on with what another worker has started; then
watch, take in, commit.

Every write asks whether the lease is still ours. When it is not, the process is killed and its output discarded, unless
it is watched by another holder by now.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, TypeVar

from sqlalchemy import select, update
from sqlalchemy.exc import DatabaseError, OperationalError
from sqlalchemy.orm import Session

from dare.spec import Cause, Result
from dare_platform import trees
from dare_platform.artifact_store import ArtifactStoreError
from dare_platform.database import Database
from dare_platform.endings import end_cancelled, give_back, tail
from dare_platform.errors import DatabaseLockedError, JobDirectoryError, LaunchError, OutputError, RegistryError
from dare_platform.gpu import OneGpu
from dare_platform.heartbeat import Heartbeat
from dare_platform.ingest import ingest
from dare_platform.job_directory import CHECKPOINT, answers_for, weights_for, write_job_directory
from dare_platform.launcher import Launcher, Observed
from dare_platform.lease import Claim
from dare_platform.log_chunks import Collector, Piece
from dare_platform.models import ACTIVE, Attempt, Run, State
from dare_platform.orders import order_of
from dare_platform.outputs import EventReader, read_outputs, read_result
from dare_platform.results import ProcessReport, finish, finish_badly, items_of, store_artifacts
from dare_platform.settings import Settings
from dare_platform.states import move

TICK_SECONDS = 0.1
SLOW_TICK_SECONDS = 0.5
YOUNG_SECONDS = 10.0
"""A run that is older is looked at less often: looking may be a request to another service."""
INGEST_SECONDS = 0.5
WISH_SECONDS = 2.0
"""Between two questions whether somebody wants the run cancelled; heartbeats may be further apart."""
LOG_SECONDS = 5.0
"""The whole log is looked at so often where nothing comes piece by piece: of a long one, only its first part does."""
PIECES_AT_ONCE = 16

End = Literal["succeeded", "queued", "failed", "cancelled", "lost", "returned"]
T = TypeVar("T")

log = logging.getLogger(__name__)


class OneAttempt:
    """Carries a claimed run to its end."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        launcher: Launcher,
        claim: Claim,
        *,
        stops: threading.Event,
        meanwhile: Callable[[], None],
        gpu: OneGpu | None = None,
    ) -> None:
        """`stops`: the worker shall end, and gives the run back. `meanwhile`: its chores, called now and then.

        `gpu`: the device that was leased with the run.
        """
        self._settings = settings
        self._database = database
        self._launcher = launcher
        self._claim = claim
        self._stops = stops
        self._meanwhile = meanwhile
        self._gpu = gpu
        self._beat = Heartbeat(settings, claim.run_id, claim.token)
        self._output = Collector(settings.limits.log_bytes)
        self._taken_log: str | None = None
        self._log_at = 0.0
        self._wish_at = time.monotonic()

    def carry_out(self) -> End:
        """Run it and say how it ended. Afterwards no process of it lives on this host, unless it has another holder."""
        with self._beat:
            try:
                return self._go_on() if self._claim.is_adopted else self._prepare_and_watch()
            except (ArtifactStoreError, JobDirectoryError, LaunchError, OutputError, RegistryError) as error:
                return self._fail("internal", str(error))
            except OSError as error:
                cause: Cause = "disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "internal"
                return self._fail(cause, f"The worker could not write: {error.strerror}.")
            finally:
                self._let_go()

    def _let_go(self) -> None:
        """What cannot be removed now is an orphan, and swept later."""
        if self._has_another_holder():
            return
        try:
            self._launcher.remove(self._claim.name)
        except LaunchError as error:
            log.error("run %s: %s", self._claim.run_id, error)

    def _has_another_holder(self) -> bool:
        """Somebody else goes on with this very process: it is not ours to end. A database that is away has no holders
        but us."""
        claim = self._claim
        held = select(Run.id).where(
            Run.id == claim.run_id,
            Run.state.in_(ACTIVE),
            Run.job_token == claim.job_token,
            Run.lease_token != claim.token,
        )
        try:
            with self._database.read() as session:
                return session.execute(held).first() is not None
        except (DatabaseLockedError, OperationalError):
            return False

    def _go_on(self) -> End:
        """Watch what another worker has started. Its events and its output are read from the beginning."""
        claim = self._claim
        order = self._commit(lambda s: order_of(s, self._settings, claim.run_id, claim.token))
        if order is None:
            return "lost"
        try:
            name = self._launcher.adopt(order)
        except LaunchError as error:
            return self._fail("lost_worker", f"The run's worker ended, and the next could not go on: {error}.")
        image = self._launcher.state(name).image_id
        if not self._commit(lambda s: self._begin_work(s, image)):
            return "lost"
        return self._watch(name, order.directory)

    def _prepare_and_watch(self) -> End:
        claim = self._claim
        for earlier in self._launcher.list_own():  # a dead worker may have left its process on this host
            if earlier.run_id == claim.run_id and earlier.token != claim.job_token:
                self._launcher.remove(earlier.name)
        if not self._commit(lambda s: self._reach(s, "preparing")):
            return "lost"
        given = self._ask(lambda s: (weights_for(s, claim), answers_for(s, self._settings, claim)))
        if given is None:
            return "lost"
        directory = write_job_directory(self._settings, claim, *given)
        status = self._status()
        if status == "lost":  # copying took longer than the lease
            return "lost"
        if status == "cancel":
            return self._end_cancelled()
        order = self._commit(lambda s: order_of(s, self._settings, claim.run_id, claim.token))
        if order is None:
            return "lost"
        fault = self._gpu.fault(self._database) if self._gpu is not None else None
        if fault is not None:
            return self._fail("gpu_fault", fault)
        name = self._launcher.start(order)
        image = self._launcher.state(name).image_id
        if not self._commit(lambda s: self._begin_work(s, image)):
            return "lost"
        return self._watch(name, directory)

    def _begin_work(self, session: Session, image_id: str | None) -> bool:
        """Into the state `working`, from wherever an earlier holder has brought it to."""
        claim = self._claim
        if not (self._reach(session, "preparing") and self._reach(session, "working")):
            return False
        ours = update(Attempt).where(Attempt.run_id == claim.run_id, Attempt.token == claim.token)
        said = ours.values(isolation=self._launcher.isolation, image_id=image_id)
        session.execute(said.execution_options(synchronize_session=False))
        return True

    def _reach(self, session: Session, state: State) -> bool:
        """Move to a state unless the run is there or further already. False: it is not ours any more."""
        claim = self._claim
        held = select(Run.state).where(Run.id == claim.run_id, Run.lease_token == claim.token).with_for_update()
        found = session.execute(held).scalar_one_or_none()
        if found is None or found not in ACTIVE:
            return False
        if ACTIVE.index(found) >= ACTIVE.index(state):
            return True
        return move(session, claim.run_id, state, actor=claim.actor, token=claim.token)

    def _status(self) -> Literal["held", "cancel", "lost"]:
        """What the heartbeat knows; between two beats the database is asked for a wish to cancel."""
        status = self._beat.status
        if status != "held" or time.monotonic() - self._wish_at < WISH_SECONDS:
            return status
        self._wish_at = time.monotonic()
        try:
            with self._database.read() as session:
                wish = session.execute(
                    select(Run.cancel_requested_at).where(
                        Run.id == self._claim.run_id, Run.lease_token == self._claim.token
                    )
                ).scalar_one_or_none()
        except (DatabaseLockedError, OperationalError):
            return status
        return status if wish is None else "cancel"

    def _end_cancelled(self) -> End:
        claim = self._claim
        done = self._commit(lambda s: end_cancelled(s, claim.run_id, claim.token, claim.actor))
        return "cancelled" if done else "lost"

    def _watch(self, name: str, directory: Path) -> End:
        claim = self._claim
        reader = EventReader(directory)
        began, taken_at = time.monotonic(), 0.0
        while (observed := self._launcher.state(name)).running:
            status = self._status()
            if status == "lost":
                return "lost"
            if status == "cancel":
                self._launcher.stop(name)
                return self._end_cancelled()
            if self._stops.is_set():
                self._meanwhile()
                self._launcher.stop(name)
                self._take_in(reader, name)
                returned = self._commit(lambda s: give_back(s, claim.run_id, claim.token, claim.actor))
                return "returned" if returned else "lost"
            if time.monotonic() - taken_at > INGEST_SECONDS:
                if self._take_in(reader, name) is False:
                    return "lost"
                taken_at = time.monotonic()
                self._meanwhile()
            self._stops.wait(TICK_SECONDS if taken_at - began < YOUNG_SECONDS else SLOW_TICK_SECONDS)
        while self._take_in(reader, name):
            pass
        if self._take_rest(name) is False:
            return "lost"
        return self._conclude(name, directory, observed)

    def _take_in(self, reader: EventReader, name: str) -> bool | None:
        """Bring what is new into the database. True: there was something. None: nothing. False: not ours now."""
        claim, events, pieces = self._claim, reader.read(), self._printed(name)
        text = self._log(name, fresh=bool(pieces))
        if not events and not pieces and text == self._taken_log:
            return None
        self._taken_log = text
        held = self._commit(
            lambda s: ingest(s, claim.run_id, claim.token, events, text, actor=claim.actor, output=pieces)
        )
        if not held:
            return False
        return True if events or pieces else None

    def _take_rest(self, name: str) -> bool | None:
        """Launchers hand out the first part of a long log while the run works; its end is kept when it has ended."""
        claim, text = self._claim, self._launcher.logs(name)
        pieces = self._output.add_rest(text)
        if not pieces:
            return None
        return bool(
            self._commit(lambda s: ingest(s, claim.run_id, claim.token, [], text, actor=claim.actor, output=pieces))
        )

    def _printed(self, name: str) -> list[Piece]:
        """What has been printed since the last time; not all of it when it is much."""
        pieces: dict[int, Piece] = {}
        for _ in range(PIECES_AT_ONCE):
            if self._output.is_full or not (output := self._launcher.output(name, self._output.offset)):
                break
            pieces |= {piece.offset: piece for piece in self._output.add(output)}
        return list(pieces.values())

    def _log(self, name: str, fresh: bool) -> str:
        """The end of the log: from what was just handed out, and now and then whole, which may be megabytes."""
        if not fresh and time.monotonic() - self._log_at <= LOG_SECONDS:
            return self._taken_log or ""
        self._log_at = time.monotonic()
        return self._output.tail if fresh else tail(self._launcher.logs(name))

    def _conclude(self, name: str, directory: Path, observed: Observed) -> End:
        claim = self._claim
        report = ProcessReport(observed.exit_code, observed.peak_memory_bytes, self._launcher.logs(name))
        if not self._commit(lambda s: self._reach(s, "finalizing")):
            return "lost"
        if observed.cause is not None:
            return self._fail(observed.cause, observed.sentence, report)
        try:
            result = read_result(directory, claim.job)
        except OutputError as error:
            return self._fail_without_result(error, report)
        if result.outcome == "failed":
            assert result.cause is not None
            return self._fail(result.cause, result.message, report, result)
        return self._succeed(directory, result, report)

    def _succeed(self, directory: Path, result: Result, report: ProcessReport) -> End:
        claim = self._claim
        try:
            items = self._ask(lambda s: items_of(s, claim.job))
            if items is None:
                return "lost"
            outputs = read_outputs(directory, claim.job, result, items, self._settings.limits.directory_bytes)
            store_artifacts(self._settings, directory, outputs.artifacts)
            ended = self._commit(lambda s: finish(s, claim.run_id, claim.token, outputs, report, actor=claim.actor))
        except OutputError as error:
            return self._fail(self._blame(), f"The run's output was refused: {error}.", report, result)
        except DatabaseError as error:
            log.error("run %s: the database refused its output: %s", claim.run_id, error.orig)
            return self._fail("internal", "The database refused the run's output.", report, result)
        if ended == "succeeded":
            trees.remove(directory / CHECKPOINT)
        return ended or "lost"

    def _blame(self) -> Cause:
        """Whose mistake a result is that contradicts itself."""
        if self._claim.job.kind in ("evaluate", "score"):
            return "scoring"
        return "user_error" if self._claim.runs_submitted_code else "internal"

    def _fail_without_result(self, error: OutputError, report: ProcessReport) -> End:
        if self._claim.runs_submitted_code and report.exit_code == 0:
            said = f"The entry ended the process before the run was finished ({error})."
            return self._fail("user_error", said, report)
        code = report.exit_code
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return self._fail("internal", f"The runner ended with {how} and without an acceptable result: {error}.", report)

    def _fail(
        self, cause: Cause, sentence: str | None, report: ProcessReport | None = None, result: Result | None = None
    ) -> End:
        claim = self._claim
        if cause == "internal" and self._gpu is not None and (fault := self._gpu.fault(self._database)) is not None:
            cause, sentence = "gpu_fault", fault
        ended = self._commit(
            lambda s: finish_badly(
                s,
                claim.run_id,
                claim.token,
                cause,
                sentence,
                report or ProcessReport(),
                actor=claim.actor,
                usage=result.usage if result else None,
                provenance=result.provenance if result else None,
            )
        )
        return ended or "lost"

    def _commit(self, work: Callable[[Session], T]) -> T | None:
        """One transaction, repeated while the database is away and the lease is ours. None: it is not any more.

        It may have been committed when its answer was lost, so `work` must find done what it did.
        """
        return self._patiently(self._database.write, work)

    def _ask(self, work: Callable[[Session], T]) -> T | None:
        """The same for what only reads."""
        return self._patiently(self._database.read, work)

    def _patiently(
        self, transaction: Callable[[], AbstractContextManager[Session]], work: Callable[[Session], T]
    ) -> T | None:
        while self._beat.status != "lost":
            try:
                with transaction() as session:
                    return work(session)
            except (DatabaseLockedError, OperationalError) as error:
                log.warning("run %s waits for the database: %s", self._claim.run_id, error)
                time.sleep(self._settings.heartbeat_seconds / 4)
        return None
