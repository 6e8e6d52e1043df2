"""Everything that people ask of this place, as one interface: the HTTP API offers it, the command uses it.

`LocalService` answers from a database, `RemoteService` asks a server; whoever uses one cannot tell which it is. Answers
are the plain data of `views`, `board` and `entries`, and errors are the same exceptions with the same sentences.

PlatformError
├── ProblemsError     a submission cannot be accepted; all that is wrong with it
└── AwayError         whoever should answer does not; asking again later may help
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from dare.source.problems import Problem
from dare_platform.asking import SubmitRequest, SweepRequest
from dare_platform.board import Board
from dare_platform.entries import Cancelled, Submitted
from dare_platform.errors import PlatformError
from dare_platform.log_chunks import Place
from dare_platform.models import Channel, Role, Visibility
from dare_platform.quotas import QuotaLeft
from dare_platform.subscriptions import Subscribed, SubscriptionView
from dare_platform.viewer import Scope
from dare_platform.views import EntrySummary, EntryView, QueueView, RunSummary, RunView

ExportFormat = Literal["csv", "json", "latex"]


class ProblemsError(PlatformError):
    """A submission that cannot be accepted."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__(" ".join(problem.text for problem in problems))
        self.problems = problems


class AwayError(PlatformError):
    """Nobody answers now."""


@dataclass(frozen=True)
class Whoami:
    """Who asks, as they are known here, and what they may do."""

    handle: str | None
    """None for somebody who is not signed in."""
    role: Role
    scopes: tuple[Scope, ...]
    until: datetime | None
    """When the token's time is over."""
    quota: QuotaLeft | None


@dataclass(frozen=True)
class EntryCost:
    """The runs that an entry would queue."""

    name: str
    checks: int
    trainings: int
    evaluations: int

    @property
    def runs(self) -> int:
        """All of them."""
        return self.checks + self.trainings + self.evaluations


@dataclass(frozen=True)
class Checked:
    """What a submission would come to. Nothing is queued, and whether its content is there already is not asked."""

    entries: tuple[EntryCost, ...]
    """None of them where there is a problem."""
    problems: tuple[Problem, ...]

    @property
    def runs(self) -> int:
        """Of all entries."""
        return sum(one.runs for one in self.entries)


@dataclass(frozen=True)
class LogPiece:
    """What came next of a run's output, and where it ends. Without content and not new: nothing has come yet."""

    is_over: bool
    """Nothing more comes behind what is still to be read."""
    place: Place | None
    """None for a run that was never started."""
    content: bytes = b""
    is_new: bool = False
    """Another process begins here."""


class Service(Protocol):
    """What there is to ask. Unknown and private give the same error."""

    def whoami(self) -> Whoami:
        """Whom this service answers."""

    def entries(self, track: str | None = None) -> tuple[EntrySummary, ...]:
        """Entries, newest first; of one track where it is named."""

    def entry(self, id: str) -> EntryView:
        """One entry in full."""

    def runs(self, entry: str | None = None, limit: int = 50) -> tuple[RunSummary, ...]:
        """Runs, newest first; of one entry where it is named."""

    def run(self, id: str, log_lines: int = 200) -> RunView:
        """One run in full, with the end of its log."""

    def queue(self) -> QueueView:
        """Who works, and who waits for what."""

    def board(self, track: str, backbone: str | None = None) -> Board:
        """The board of a backbone, the track's first where none is named."""

    def export(self, track: str, backbone: str | None, format: ExportFormat) -> str:
        """The same as a file."""

    def log(self, run: str, place: Place | None = None) -> LogPiece:
        """What a run printed behind a place; from the first byte of its newest process on where there is none."""

    def check(self, asked: SubmitRequest) -> Checked:
        """What submitting this would come to."""

    def check_sweep(self, asked: SweepRequest) -> Checked:
        """The same for several entries."""

    def submit(self, asked: SubmitRequest, key: str) -> Submitted:
        """Queue an entry. The same key, or the same content, leads to the entry that is there."""

    def submit_sweep(self, asked: SweepRequest, key: str) -> tuple[Submitted, ...]:
        """Queue several entries, all of them or none."""

    def cancel(self, id: str) -> Cancelled:
        """Cancel a run, or all runs of an entry."""

    def retry(self, id: str, key: str) -> Submitted:
        """Ask for an ended entry again, named by its id or that of one of its runs."""

    def withdraw(self, entry: str, reason: str | None = None) -> None:
        """Take an entry off the board."""

    def show_to(self, entry: str, visibility: Visibility) -> None:
        """Let more people see an entry."""

    def subscriptions(self) -> tuple[SubscriptionView, ...]:
        """What this account is told of."""

    def subscribe(self, channel: Channel, target: str, entry: str | None = None, each_run: bool = False) -> Subscribed:
        """Tell this account when something of its own has ended."""

    def end_subscription(self, id: str) -> None:
        """Tell no more."""
