"""Routes that change what is there."""

from __future__ import annotations

from fastapi import APIRouter, status

from dare_platform.api.who import Asked
from dare_platform.api.words import Id, SubscribeRequest, VisibilityRequest, WithdrawRequest
from dare_platform.entries import Cancelled
from dare_platform.subscriptions import Subscribed

routes = APIRouter()
DONE = status.HTTP_204_NO_CONTENT


@routes.post("/entries/{id}/cancel", tags=["entries"])
def cancel(asked: Asked, id: Id) -> Cancelled:
    """Cancel all runs of an entry, or one run by its own id. Waiting ones end at once, the others within seconds."""
    return asked.cancel(id)


@routes.post("/entries/{id}/withdraw", tags=["entries"], status_code=DONE)
def withdraw(asked: Asked, id: Id, body: WithdrawRequest) -> None:
    """Take an entry off the board. Its results stay readable and its try stays counted."""
    asked.withdraw(id, body.reason)


@routes.put("/entries/{id}/visibility", tags=["entries"], status_code=DONE)
def show_to(asked: Asked, id: Id, body: VisibilityRequest) -> None:
    """Let more people see an entry: private, then anonymous, then public."""
    asked.show_to(id, body.visibility)


@routes.post("/subscriptions", tags=["account"])
def subscribe(asked: Asked, body: SubscribeRequest) -> Subscribed:
    """Be told when an entry of yours has ended. A webhook's secret is told this once."""
    return asked.subscribe(body.channel, body.target, body.entry, body.each_run)


@routes.delete("/subscriptions/{id}", tags=["account"], status_code=DONE)
def end_subscription(asked: Asked, id: Id) -> None:
    """Be told no more."""
    asked.end_subscription(id)
