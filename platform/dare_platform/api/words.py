"""What requests are made of: ids, names, keys, and the bodies that no other module knows."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header
from pydantic import Field

from dare.frozen import Frozen
from dare_platform.models import Channel, Visibility

WITHOUT_NUL = r"^[^\x00]*$"
"""PostgreSQL keeps no text that holds one."""
Id = Annotated[str, Field(min_length=1, max_length=100, pattern=WITHOUT_NUL)]
Name = Annotated[str, Field(min_length=1, max_length=100, pattern=WITHOUT_NUL, examples=["tiny"])]
Key = Annotated[
    str,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[!-~]{1,100}$",
        description="Of your choice, new for every wish. Sent again with the same one, it is done once.",
        examples=["2f7c1a"],
    ),
]


class WithdrawRequest(Frozen):
    """Why an entry is taken off the board."""

    reason: Annotated[str, Field(max_length=1000, pattern=WITHOUT_NUL)] | None = None
    """Shown on its page."""


class VisibilityRequest(Frozen):
    """Who shall see an entry."""

    visibility: Visibility
    """It can be opened, not closed."""


class SubscribeRequest(Frozen):
    """A wish to be told."""

    channel: Channel
    target: Annotated[str, Field(max_length=1000, pattern=WITHOUT_NUL)]
    """https://HOST/PATH, or a mail address."""
    entry: Id | None = None
    """One of yours only; all of them where it is left out."""
    each_run: bool = False
    """A message for every run, not one for the whole entry."""
