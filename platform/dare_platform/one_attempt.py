"""One attempt of a run, from claim to end: prepare, start, watch, take in, commit.

Every write asks whether the lease is still ours. When it is not, the process is killed and its output discarded.
"""

from __future__ import annotations

import errno
import logging
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeVar

from sqlalchemy import update
from sqlalchemy.exc import DatabaseError, OperationalError
from sqlalchemy.orm import Session

from dare.spec import Cause, Result
from dare_platform.database import Database
from dare_platform.endings import end_cancelled, give_back
from dare_platform.errors import DatabaseLockedError, JobDirectoryError, LaunchError, OutputError, RegistryError
from dare_platform.heartbeat import Heartbeat
from dare_platform.ingest import ingest
from dare_platform.job_directory import CHECKPOINT, answers_for, weights_for, write_job_directory
from dare_platform.launcher import Launcher, Observed
from dare_platform.lease import Claim
from dare_platform.models import Attempt
from dare_platform.orders import order_of
from dare_platform.outputs import EventReader, read_outputs, read_result
from dare_platform.results import ProcessReport, finish, finish_badly, items_of, store_artifacts
from dare_platform.settings import Settings
from dare_platform.states import move

TICK_SECONDS = 0.1
INGEST_SECONDS = 0.5

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
    ) -> None:
        """`stops`: the worker shall end, and gives the run back. `meanwhile`: its chores, called now and then."""
        self._settings = settings
        self._database = database
        self._launcher = launcher
        self._claim = claim
        self._stops = stops
        self._meanwhile = meanwhile
        self._beat = Heartbeat(settings, claim.run_id, claim.token)
        self._taken_log = ""

    def carry_out(self) -> End:
        """Run it and say how it ended. Afterwards no process of it lives on this host."""
        with self._beat:
            try:
                return self._prepare_and_watch()
            except (JobDirectoryError, LaunchError, OutputError, RegistryError) as error:
                return self._fail("internal", str(error), ProcessReport())
            except OSError as error:
                cause: Cause = "disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "internal"
                return self._fail(cause, f"The worker could not write: {error.strerror}.", ProcessReport())
            finally:
                self._launcher.remove(f"{self._claim.run_id}-{self._claim.token}")

    def _prepare_and_watch(self) -> End:
        claim = self._claim
        for earlier in self._launcher.list_own():  # a dead worker may have left its process on this host
            if earlier.run_id == claim.run_id and earlier.token != claim.token:
                self._launcher.remove(earlier.name)
        if not self._commit(lambda s: move(s, claim.run_id, "preparing", actor=claim.actor, token=claim.token)):
            return "lost"
        with self._database.read() as session:
            weights = weights_for(session, claim)
            answers = answers_for(session, self._settings, claim)
        directory = write_job_directory(self._settings, claim, weights, answers)
        if self._beat.status == "lost":  # copying took longer than the lease
            return "lost"
        order = self._commit(lambda s: order_of(s, self._settings, claim.run_id, claim.token))
        if order is None:
            return "lost"
        name = self._launcher.start(order)
        if not self._commit(self._begin_work):
            return "lost"
        return self._watch(name, directory)

    def _begin_work(self, session: Session) -> bool:
        claim = self._claim
        if not move(session, claim.run_id, "working", actor=claim.actor, token=claim.token):
            return False
        ours = update(Attempt).where(Attempt.run_id == claim.run_id, Attempt.token == claim.token)
        said = ours.values(isolation=self._launcher.isolation)
        session.execute(said.execution_options(synchronize_session=False))
        return True

    def _watch(self, name: str, directory: Path) -> End:
        claim = self._claim
        reader = EventReader(directory)
        taken_at = 0.0
        while (observed := self._launcher.state(name)).running:
            status = self._beat.status
            if status == "lost":
                self._launcher.stop(name)
                return "lost"
            if status == "cancel":
                self._launcher.stop(name)
                done = self._commit(lambda s: end_cancelled(s, claim.run_id, claim.token, claim.actor))
                return "cancelled" if done else "lost"
            if self._stops.is_set():
                self._launcher.stop(name)
                self._take_in(reader, name)
                returned = self._commit(lambda s: give_back(s, claim.run_id, claim.token, claim.actor))
                return "returned" if returned else "lost"
            if time.monotonic() - taken_at > INGEST_SECONDS:
                if self._take_in(reader, name) is False:
                    self._launcher.stop(name)
                    return "lost"
                taken_at = time.monotonic()
                self._meanwhile()
            time.sleep(TICK_SECONDS)
        while self._take_in(reader, name):
            pass
        return self._conclude(name, directory, observed)

    def _take_in(self, reader: EventReader, name: str) -> bool | None:
        """Bring new events into the database. True: there were some. None: there were none. False: not ours now."""
        claim, events = self._claim, reader.read()
        text = self._launcher.logs(name)
        if not events and text == self._taken_log:
            return None
        self._taken_log = text
        held = self._commit(lambda s: ingest(s, claim.run_id, claim.token, events, text, actor=claim.actor))
        if not held:
            return False
        return True if events else None

    def _conclude(self, name: str, directory: Path, observed: Observed) -> End:
        claim = self._claim
        report = ProcessReport(observed.exit_code, observed.peak_memory_bytes, self._launcher.logs(name))
        if not self._commit(lambda s: move(s, claim.run_id, "finalizing", actor=claim.actor, token=claim.token)):
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
            with self._database.read() as session:
                items = items_of(session, claim.job)
            outputs = read_outputs(directory, claim.job, result, items)
            store_artifacts(self._settings, directory, outputs.artifacts)
            ended = self._commit(lambda s: finish(s, claim.run_id, claim.token, outputs, report, actor=claim.actor))
        except OutputError as error:
            return self._fail(self._blame(), f"The run's output was refused: {error}.", report, result)
        except DatabaseError as error:
            log.error("run %s: the database refused its output: %s", claim.run_id, error.orig)
            return self._fail("internal", "The database refused the run's output.", report, result)
        if ended == "succeeded":
            shutil.rmtree(directory / CHECKPOINT, ignore_errors=True)
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

    def _fail(self, cause: Cause, sentence: str | None, report: ProcessReport, result: Result | None = None) -> End:
        claim = self._claim
        ended = self._commit(
            lambda s: finish_badly(
                s,
                claim.run_id,
                claim.token,
                cause,
                sentence,
                report,
                actor=claim.actor,
                usage=result.usage if result else None,
                provenance=result.provenance if result else None,
            )
        )
        return ended or "lost"

    def _commit(self, work: Callable[[Session], T]) -> T | None:
        """One transaction, repeated while the database is away and the lease is ours. None: it is not any more."""
        while self._beat.status != "lost":
            try:
                with self._database.write() as session:
                    return work(session)
            except (DatabaseLockedError, OperationalError) as error:
                log.warning("run %s waits for the database: %s", self._claim.run_id, error)
                time.sleep(self._settings.heartbeat_seconds / 4)
        return None
