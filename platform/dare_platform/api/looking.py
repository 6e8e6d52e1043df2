"""Routes that only look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import PlainTextResponse

from dare_platform.api.who import Asked, Door
from dare_platform.api.words import Id, Name
from dare_platform.api_messages import LogAnswer
from dare_platform.board import Board
from dare_platform.database import now
from dare_platform.log_chunks import Place
from dare_platform.service import ExportFormat, Whoami
from dare_platform.subscriptions import SubscriptionView
from dare_platform.views import EntrySummary, EntryView, QueueView, RunSummary, RunView

routes = APIRouter()
MEDIA_TYPES: dict[ExportFormat, str] = {"csv": "text/csv", "json": "application/json", "latex": "application/x-latex"}


@dataclass(frozen=True)
class Health:
    """That it answers."""

    status: str


@routes.get("/health", tags=["service"])
def health(request: Request) -> Health:
    """Whether the service and its database answer. Whoever asks."""
    door: Door = request.app.state.door
    with door.database().read() as session:
        now(session)
    return Health("ok")


@routes.get("/whoami", tags=["account"])
def whoami(asked: Asked) -> Whoami:
    """Who you are here, what you may do, and what is left of your quota."""
    return asked.whoami()


@routes.get("/entries", tags=["entries"])
def entries(
    asked: Asked, track: Annotated[Name | None, Query(description="Only those of one track.")] = None
) -> tuple[EntrySummary, ...]:
    """Entries, newest first."""
    return asked.entries(track)


@routes.get("/entries/{id}", tags=["entries"])
def entry(asked: Asked, id: Id) -> EntryView:
    """One entry in full: its settings, its runs, its history."""
    return asked.entry(id)


@routes.get("/runs", tags=["runs"])
def runs(
    asked: Asked,
    entry: Annotated[Id | None, Query(description="Only those of one entry.")] = None,
    limit: Annotated[int, Query(ge=0, le=100_000)] = 50,
) -> tuple[RunSummary, ...]:
    """Runs, newest first."""
    return asked.runs(entry, limit)


@routes.get("/runs/{id}", tags=["runs"])
def run(asked: Asked, id: Id, log_lines: Annotated[int, Query(ge=0, le=100_000)] = 200) -> RunView:
    """One run in full: state, curves, scores, cost, provenance, and the end of its log."""
    return asked.run(id, log_lines)


@routes.get("/runs/{id}/log", tags=["runs"])
def log(
    asked: Asked,
    id: Id,
    token: Annotated[int | None, Query(ge=0, lt=2**31, description="Of the last answer.")] = None,
    offset: Annotated[int, Query(ge=0, lt=2**53, description="Of the last answer.")] = 0,
) -> LogAnswer:
    """What a run printed: from the first byte of its newest process on, then on from where the last answer ended."""
    return LogAnswer.of(asked.log(id, None if token is None else Place(token, offset)))


@routes.get("/queue", tags=["runs"])
def queue(asked: Asked) -> QueueView:
    """Who works and who waits, for what, and how long at most."""
    return asked.queue()


@routes.get("/boards/{track}", tags=["boards"])
def board(
    asked: Asked, track: Name, backbone: Annotated[Name | None, Query(description="The track's first.")] = None
) -> Board:
    """The board of one backbone: gains over the untouched model, with their uncertainty."""
    return asked.board(track, backbone)


@routes.get(
    "/boards/{track}/export",
    tags=["boards"],
    response_class=PlainTextResponse,
    responses={200: {"content": {name: {"schema": {}} for name in MEDIA_TYPES.values()}}},
)
def export(
    asked: Asked,
    track: Name,
    backbone: Annotated[Name | None, Query(description="The track's first.")] = None,
    format: ExportFormat = "csv",
) -> Response:
    """The board as a file: CSV and JSON in full precision, LaTeX as on the page."""
    return Response(asked.export(track, backbone, format), media_type=MEDIA_TYPES[format])


@routes.get("/subscriptions", tags=["account"])
def subscriptions(asked: Asked) -> tuple[SubscriptionView, ...]:
    """What you are told of, how it went, and what did not arrive."""
    return asked.subscriptions()
