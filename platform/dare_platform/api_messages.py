"""What travels in a form of its own, in both directions: errors, with status and code, and pieces of logs.

A problem is an object of RFC 9457 with three members of ours: `code` is stable, `problems` lists all that is wrong with
a submission, and `detail` is the sentence that the command would print.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from http import HTTPStatus

from sqlalchemy.exc import OperationalError

from dare.catalog import UnknownAlgorithmError, UnknownBackboneError
from dare.source.problems import Problem
from dare_platform.entries import RefusedError, UnknownEntryError
from dare_platform.errors import DatabaseLockedError, PlatformError, RegistryError, SchemaError, UnknownRunError
from dare_platform.log_chunks import Place
from dare_platform.quotas import QuotaError
from dare_platform.service import AwayError, LogPiece, ProblemsError
from dare_platform.subscriptions import SubscriptionError
from dare_platform.tokens import BadTokenError
from dare_platform.tracks import UnknownTrackError
from dare_platform.viewer import NotAllowedError

MEDIA_TYPE = "application/problem+json"
VERSION_HEADER, VERSION = "DARE-API", "1"
"""Every answer carries it: what does not is no DARE server."""
MOST_BYTES = 4_000_000
"""Of a request: a file of 1 MB in base64, its settings, and the points of a sweep."""
TOO_LARGE = f"a request has at most {MOST_BYTES / 1e6:.0f} MB, and a submitted file 1 MB"


@dataclass(frozen=True)
class ApiProblem:
    """Why something was not done."""

    status: int
    code: str
    """Stable; see the table in docs/api.md."""
    title: str
    """The status in words."""
    detail: str
    """One sentence for a person: what, where, and what to do."""
    problems: tuple[Problem, ...] = ()
    """All that is wrong with a submission, in the order of its file."""


@dataclass(frozen=True)
class Kind:
    """One kind of error. The first whose exception fits is the one."""

    error: type[Exception]
    status: HTTPStatus
    code: str
    detail: str | None = None
    """Instead of the exception's own sentence, where that is not for strangers."""


AWAY = "the database does not answer; try again in a moment"
KINDS = (
    Kind(BadTokenError, HTTPStatus.UNAUTHORIZED, "bad_token"),
    Kind(NotAllowedError, HTTPStatus.FORBIDDEN, "not_allowed"),
    Kind(UnknownEntryError, HTTPStatus.NOT_FOUND, "unknown_entry"),
    Kind(UnknownRunError, HTTPStatus.NOT_FOUND, "unknown_run"),
    Kind(UnknownTrackError, HTTPStatus.NOT_FOUND, "unknown_track"),
    Kind(UnknownBackboneError, HTTPStatus.NOT_FOUND, "unknown_backbone"),
    Kind(UnknownAlgorithmError, HTTPStatus.NOT_FOUND, "unknown_algorithm"),
    Kind(RefusedError, HTTPStatus.CONFLICT, "refused"),
    Kind(ProblemsError, HTTPStatus.UNPROCESSABLE_ENTITY, "problems"),
    Kind(SubscriptionError, HTTPStatus.UNPROCESSABLE_ENTITY, "subscription"),
    Kind(QuotaError, HTTPStatus.TOO_MANY_REQUESTS, "quota"),
    Kind(AwayError, HTTPStatus.SERVICE_UNAVAILABLE, "away"),
    Kind(DatabaseLockedError, HTTPStatus.SERVICE_UNAVAILABLE, "away", AWAY),
    Kind(OperationalError, HTTPStatus.SERVICE_UNAVAILABLE, "away", AWAY),
    Kind(
        SchemaError, HTTPStatus.SERVICE_UNAVAILABLE, "not_prepared",
        "the database is not prepared for this version: its operator runs `dare migrate`",
    ),
    Kind(RegistryError, HTTPStatus.SERVICE_UNAVAILABLE, "not_registered"),
    Kind(PlatformError, HTTPStatus.CONFLICT, "not_possible"),
)  # fmt: skip


def problem_of(error: Exception) -> ApiProblem:
    """How an error travels. Only for those in `KINDS`."""
    kind = next(kind for kind in KINDS if isinstance(error, kind.error))
    code = error.problem.code if isinstance(error, RefusedError) else kind.code
    problems = error.problems if isinstance(error, ProblemsError) else ()
    return ApiProblem(kind.status, code, kind.status.phrase, kind.detail or str(error), problems)


def error_of(problem: ApiProblem) -> Exception:
    """The exception that it was."""
    if problem.code == "problems":
        return ProblemsError(problem.problems)
    kind = next((kind for kind in KINDS if kind.code == problem.code), None)
    if kind is not None:
        return kind.error(problem.detail)
    if problem.status == HTTPStatus.CONFLICT:
        return RefusedError(Problem(problem.code, None, problem.detail))
    return PlatformError(problem.detail)


@dataclass(frozen=True)
class LogAnswer:
    """What a run printed behind a place. Ask again with `token` and `offset` until it is over and nothing comes."""

    is_over: bool
    """Nothing more is printed; what has been is still to be read."""
    token: int | None
    """Names the process that printed it; null for a run that was never started."""
    offset: int
    """In bytes: where to go on."""
    content: str
    """Bytes in base64; they may end within a character."""
    is_new: bool
    """Another process begins here, at 0."""

    @staticmethod
    def of(piece: LogPiece) -> LogAnswer:
        """A piece as it travels."""
        token, offset = (piece.place.job_token, piece.place.offset) if piece.place else (None, 0)
        return LogAnswer(piece.is_over, token, offset, base64.b64encode(piece.content).decode(), piece.is_new)

    def piece(self) -> LogPiece:
        """The piece that it was."""
        place = Place(self.token, self.offset) if self.token is not None else None
        return LogPiece(self.is_over, place, base64.b64decode(self.content), self.is_new)
