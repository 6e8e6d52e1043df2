"""Routes that check a submission and queue one."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response, status

from dare_platform.api.who import Asked
from dare_platform.api.words import Id, Key
from dare_platform.asking import SubmitRequest, SweepRequest
from dare_platform.entries import Submitted
from dare_platform.service import Checked

routes = APIRouter(tags=["entries"])
OR_CREATED: dict[int | str, dict[str, Any]] = {
    200: {"description": "It was there already."},
    201: {"model": Submitted, "description": "A new entry."},
}


@routes.post("/entries/check")
def check(asked: Asked, body: SubmitRequest) -> Checked:
    """What submitting this would come to: its runs, or everything that is wrong with it. Nothing is queued."""
    return asked.check(body)


@routes.post("/entries", responses=OR_CREATED)
def submit(asked: Asked, body: SubmitRequest, key: Key, response: Response) -> Submitted:
    """Queue an entry: training and evaluation for every backbone and seed of the track.

    The same key, or identical content, leads to the entry that is there. A file is read, never imported, and checked
    on a tiny backbone before it trains.
    """
    return _created(asked.submit(body, key), response)


@routes.post("/entries/{id}/retry", responses=OR_CREATED)
def retry(asked: Asked, id: Id, key: Key, response: Response) -> Submitted:
    """Ask for an ended entry again, named by its id or that of one of its runs: a new try, every run anew."""
    return _created(asked.retry(id, key), response)


@routes.post("/sweeps/check")
def check_sweep(asked: Asked, body: SweepRequest) -> Checked:
    """What these entries would come to. Nothing is queued."""
    return asked.check_sweep(body)


@routes.post("/sweeps")
def submit_sweep(asked: Asked, body: SweepRequest, key: Key) -> tuple[Submitted, ...]:
    """Queue several entries of one method, all of them or none; each counts as a try of it."""
    return asked.submit_sweep(body, key)


def _created(done: Submitted, response: Response) -> Submitted:
    if done.created:
        response.status_code = status.HTTP_201_CREATED
    return done
