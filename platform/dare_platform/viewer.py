"""Who looks or acts: the identity that every query and every act is given, and what it may see and do.

The embedded default knows one person, `LOCAL`. Elsewhere a page, a request or a token says who it is, and whoever says
nothing is `NOBODY`, who sees what is public.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import ColumnElement, or_, true

from dare_platform.errors import PlatformError
from dare_platform.models import LOCAL_ACCOUNT, Entry, Role

Scope = Literal["read", "submit", "operate", "admin"]
MAY: dict[Role, frozenset[Scope]] = {
    "viewer": frozenset({"read"}),
    "submitter": frozenset({"read", "submit"}),
    "operator": frozenset({"read", "submit", "operate"}),
    "admin": frozenset({"read", "submit", "operate", "admin"}),
}


class NotAllowedError(PlatformError):
    """Whoever asks may not do that. The sentence says what is needed."""


@dataclass(frozen=True)
class Viewer:
    """Somebody. Part of every key under which an answer is cached."""

    account_id: str | None
    """None for somebody who has not signed in."""
    role: Role
    scopes: frozenset[Scope]
    """What this identity may do: all that the role may, or less through a token."""
    until: datetime | None = None
    """When a token's time is over."""

    def may(self, scope: Scope) -> bool:
        """Whether it may act so."""
        return scope in self.scopes

    def require(self, scope: Scope) -> None:
        """NotAllowedError unless it may."""
        if not self.may(scope):
            who = "nobody is signed in" if self.account_id is None else f"this account or token ({self.role}) may not"
            raise NotAllowedError(f"{who}: that needs the right to {scope}")

    def sees(self) -> ColumnElement[Any]:
        """Which entries it sees: public and anonymous ones, its own, and all of them as an operator."""
        if self.may("operate"):
            return true()
        public = Entry.visibility.in_(("public", "anonymous"))
        return public if self.account_id is None else or_(public, Entry.submitted_by == self.account_id)

    def is_owner(self, entry: Entry) -> bool:
        """Whether the entry is its own."""
        return self.account_id is not None and entry.submitted_by == self.account_id

    def require_own(self, entry: Entry) -> None:
        """NotAllowedError unless it may change the entry: its author may, and operators."""
        self.require("submit")
        if not self.is_owner(entry) and not self.may("operate"):
            raise NotAllowedError(f"entry {entry.id} belongs to somebody else: only its author or an operator may")


def viewer_of(
    account_id: str, role: Role, scopes: frozenset[Scope] | None = None, until: datetime | None = None
) -> Viewer:
    """An account's identity, narrowed to `scopes` and in time where a token says so."""
    return Viewer(account_id, role, MAY[role] if scopes is None else MAY[role] & scopes, until)


LOCAL = viewer_of(LOCAL_ACCOUNT, "admin")
NOBODY = Viewer(None, "viewer", MAY["viewer"])
