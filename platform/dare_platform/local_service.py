"""The service as it is answered from a database: one transaction for each question, in the name of one viewer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from dare_platform import board_flags, entries, exports, log_chunks, quotas, rankings, subscriptions, sweeps, views
from dare_platform.asking import SubmitRequest, SweepRequest
from dare_platform.board import Board
from dare_platform.board_flags import Flag
from dare_platform.database import Database
from dare_platform.entries import Cancelled, Submitted, UnknownEntryError
from dare_platform.errors import UnknownRunError
from dare_platform.log_chunks import Place
from dare_platform.models import Account, Channel, Visibility
from dare_platform.service import Checked, EntryCost, ExportFormat, LogPiece, ProblemsError, Whoami
from dare_platform.settings import Settings
from dare_platform.subscriptions import Subscribed, SubscriptionView
from dare_platform.sweeps import Sweep
from dare_platform.tokens import SCOPES
from dare_platform.tracks import track_named
from dare_platform.uploads import Submission, UploadReport
from dare_platform.viewer import NotAllowedError, Viewer
from dare_platform.views import EntrySummary, EntryView, QueueView, RunSummary, RunView
from dare_platform.views.flags import flag_facts
from dare_platform.views.sight import sees_log, sees_run
from dare_platform.visibility import show_to

T = TypeVar("T")


class LocalService:
    """What `service.Service` says, for one viewer of one database."""

    def __init__(self, settings: Settings, database: Database, viewer: Viewer, takes_files: bool = True) -> None:
        """`takes_files`: somebody else's code may be sent in, since it runs in a container, or nobody else is here."""
        self._settings = settings
        self._database = database
        self._viewer = viewer
        self._takes_files = takes_files

    def whoami(self) -> Whoami:
        """As in `Service`."""
        scopes = tuple(scope for scope in SCOPES if self._viewer.may(scope))
        account_id = self._viewer.account_id
        if account_id is None:
            return Whoami(None, self._viewer.role, scopes, None, None)
        with self._database.read() as session:
            handle = session.get_one(Account, account_id).handle
            left = quotas.left_of(session, self._settings.quota, account_id)
        return Whoami(handle, self._viewer.role, scopes, self._viewer.until, left)

    # --- looking ----------------------------------------------------------------------------------------------------

    def entries(self, track: str | None = None) -> tuple[EntrySummary, ...]:
        """As in `Service`."""
        name = track_named(track).name if track else None
        with self._reading() as session:
            return views.entries_list(session, name, self._viewer)

    def entry(self, id: str) -> EntryView:
        """As in `Service`."""
        with self._reading() as session:
            found = views.entry_view(session, id, self._viewer)
        if found is None:
            raise UnknownEntryError(f"there is no entry {id!r}")
        return found

    def runs(self, entry: str | None = None, limit: int = 50) -> tuple[RunSummary, ...]:
        """As in `Service`."""
        with self._reading() as session:
            return views.runs_list(session, entry, limit, self._viewer)

    def run(self, id: str, log_lines: int = 200) -> RunView:
        """As in `Service`."""
        with self._reading() as session:
            found = views.run_view(session, id, log_lines, self._viewer)
        if found is None:
            raise UnknownRunError(f"there is no run {id!r}")
        return found

    def queue(self) -> QueueView:
        """As in `Service`."""
        with self._reading() as session:
            return views.queue_view(session, self._viewer)

    def board(self, track: str, backbone: str | None = None) -> Board:
        """As in `Service`."""
        rules = track_named(track)
        with self._reading() as session:
            return rankings.board(session, rules, backbone or next(iter(rules.backbones)), self._viewer)

    def export(self, track: str, backbone: str | None, format: ExportFormat) -> str:
        """As in `Service`."""
        board = self.board(track, backbone)
        with self._reading() as session:
            flags = board_flags.flags(board, flag_facts(session, board))
        return FORMATS[format](board, flags)

    def log(self, run: str, place: Place | None = None) -> LogPiece:
        """As in `Service`."""
        with self._reading() as session:
            if not sees_run(session, self._viewer, run):
                raise UnknownRunError(f"there is no run {run!r}")
            if not sees_log(session, self._viewer, run):
                raise NotAllowedError(f"the log of run {run} is shown to its author only: the entry is anonymous")
            is_over = log_chunks.is_over(session, run)
            place = place or log_chunks.newest(session, run)
            read = log_chunks.read_on(session, run, place) if place is not None else None
        return LogPiece(is_over, place) if read is None else LogPiece(is_over, read.place, read.content, read.is_new)

    # --- submitting -------------------------------------------------------------------------------------------------

    def check(self, asked: SubmitRequest) -> Checked:
        """As in `Service`."""
        report = self._report(asked)
        if report.submission is None:
            return Checked((), report.problems)
        return Checked((_cost(report.submission.name, report),), ())

    def check_sweep(self, asked: SweepRequest) -> Checked:
        """As in `Service`."""
        found = self._sweep(asked)
        costs = [_cost(name, report) for name, report in zip(found.names, found.reports, strict=True)]
        return Checked(() if found.problems else tuple(costs), found.problems)

    def submit(self, asked: SubmitRequest, key: str) -> Submitted:
        """As in `Service`."""
        report = self._report(asked)
        if report.submission is None:
            raise ProblemsError(report.problems)
        submission = report.submission
        return self._written(lambda session: self._submit(session, submission, key, asked.visibility))

    def submit_sweep(self, asked: SweepRequest, key: str) -> tuple[Submitted, ...]:
        """As in `Service`."""
        found = self._sweep(asked)
        if found.problems:
            raise ProblemsError(found.problems)
        seen_by = asked.shared.visibility
        return self._written(  # one transaction: all entries or none
            lambda session: tuple(
                self._submit(session, one, f"{key}.{number}", seen_by) for number, one in enumerate(found.submissions)
            )
        )

    def retry(self, id: str, key: str) -> Submitted:
        """As in `Service`."""
        return self._written(lambda session: entries.retry(session, self._viewer, id, key, quota=self._settings.quota))

    # --- changing ---------------------------------------------------------------------------------------------------

    def cancel(self, id: str) -> Cancelled:
        """As in `Service`."""
        return self._written(lambda session: entries.cancel(session, self._viewer, id))

    def withdraw(self, entry: str, reason: str | None = None) -> None:
        """As in `Service`."""
        self._written(lambda session: entries.withdraw(session, self._viewer, entry, reason))

    def show_to(self, entry: str, visibility: Visibility) -> None:
        """As in `Service`."""
        self._written(lambda session: show_to(session, self._viewer, entry, visibility))

    def subscriptions(self) -> tuple[SubscriptionView, ...]:
        """As in `Service`."""
        with self._reading() as session:
            return tuple(subscriptions.subscriptions_of(session, self._viewer))

    def subscribe(self, channel: Channel, target: str, entry: str | None = None, each_run: bool = False) -> Subscribed:
        """As in `Service`."""
        chosen = self._settings
        return self._written(
            lambda session: subscriptions.subscribe(session, chosen, self._viewer, channel, target, entry, each_run)
        )

    def end_subscription(self, id: str) -> None:
        """As in `Service`."""
        self._viewer.require("submit")
        self._written(lambda session: subscriptions.end_subscription(session, self._viewer, id))

    # --- transactions -----------------------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[Session]:
        self._viewer.require("read")
        with self._database.read() as session:
            yield session

    def _written(self, do: Callable[[Session], T]) -> T:
        """One transaction. Of two that write the same row at once, the second one finds it when it asks again."""
        try:
            with self._database.write() as session:
                return do(session)
        except IntegrityError:
            with self._database.write() as session:
                return do(session)

    def _submit(self, session: Session, submission: Submission, key: str, seen_by: Visibility) -> Submitted:
        return entries.submit(session, self._viewer, submission, key, seen_by, self._settings.quota)

    def _report(self, asked: SubmitRequest) -> UploadReport:
        self._require_files(asked)
        return asked.report(track_named(asked.track), self._settings.data is not None)

    def _sweep(self, asked: SweepRequest) -> Sweep:
        self._require_files(asked.shared)
        return sweeps.read_sweep(asked, track_named(asked.shared.track), self._settings.data is not None)

    def _require_files(self, asked: SubmitRequest) -> None:
        """Rights first: nobody else's file is read."""
        self._viewer.require("submit")
        if asked.file is not None and not self._takes_files:
            raise NotAllowedError(
                "this place takes built-in methods only: runs are no containers here (DARE_LAUNCHER), and others "
                "can reach it"
            )


FORMATS: dict[ExportFormat, Callable[[Board, Sequence[Flag]], str]] = {
    "csv": exports.csv,
    "json": exports.json,
    "latex": exports.latex,
}


def _cost(name: str, report: UploadReport) -> EntryCost:
    return EntryCost(name, report.check_runs, report.train_runs, report.evaluate_runs)
