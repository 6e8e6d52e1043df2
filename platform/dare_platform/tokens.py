"""API tokens: keys for programs, which may do less than the account that they belong to, and end by themselves.

A token is shown once. What is stored is its SHA-256: it is random enough that nothing slower is needed.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from dare_platform import audit
from dare_platform.database import Database
from dare_platform.errors import PlatformError
from dare_platform.ids import new_id
from dare_platform.models import Account, ApiToken
from dare_platform.viewer import MAY, NotAllowedError, Scope, Viewer, viewer_of

PREFIX = "dare_"
"""What every token begins with, so that scanners for leaked secrets find it."""
DEFAULT_DAYS, MOST_DAYS = 90.0, 366.0
SCOPES: tuple[Scope, ...] = ("read", "submit", "operate", "admin")
MOST = 20
"""Live tokens of one account."""
LONGEST_NAME = 60
TOUCH_EVERY = timedelta(minutes=1)
"""How exact `last_used_at` is: a busy program does not make a busy database."""


class TokenError(PlatformError):
    """A token that cannot be issued as asked. The sentence is for the one who asked."""


class UnknownTokenError(PlatformError):
    """No token has this id, or it belongs to somebody else."""


class BadTokenError(PlatformError):
    """A token that opens nothing. The sentence names no account."""


@dataclass(frozen=True)
class Issued:
    """A new token, told this once."""

    id: str
    token: str


@dataclass(frozen=True)
class TokenView:
    """A token as its owner sees it afterwards."""

    id: str
    name: str
    scopes: tuple[Scope, ...]
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    """Exact to a minute."""

    def is_expired(self, at: datetime) -> bool:
        """Whether its time is over."""
        return self.expires_at is not None and self.expires_at <= at


def issue(
    session: Session, viewer: Viewer, name: str, scopes: Collection[Scope], days: float | None = DEFAULT_DAYS
) -> Issued:
    """Make a token that may do at most what the viewer may, for at most as long.

    Raises TokenError for a name or a time that cannot be, NotAllowedError for more rights than there are to give.
    """
    account_id = _account_of(viewer)
    name = _checked_name(name)
    wanted = _checked_scopes(viewer, scopes)
    at = datetime.now(UTC)
    expires_at = _end(viewer, days, at)
    if len([one for one in tokens_of(session, viewer) if not one.is_expired(at)]) >= MOST:
        raise TokenError(f"You have {MOST} tokens already; revoke one first.")
    token = PREFIX + secrets.token_urlsafe(32)
    made = ApiToken(
        id=new_id(), account_id=account_id, name=name, token_sha256=_sha256(token), scopes=",".join(sorted(wanted)),
        created_at=at, expires_at=expires_at,
    )  # fmt: skip
    session.add(made)
    until = f"until {expires_at:%Y-%m-%d}" if expires_at else "without end"
    audit.note(session, account_id, "issue token", made.id, f"{', '.join(wanted)}, {until}")
    return Issued(made.id, token)


def tokens_of(session: Session, viewer: Viewer) -> tuple[TokenView, ...]:
    """The account's tokens that are not revoked, newest first."""
    query = select(ApiToken).where(ApiToken.account_id == viewer.account_id, ApiToken.revoked_at.is_(None))
    rows = session.execute(query.order_by(ApiToken.created_at.desc(), ApiToken.id.desc())).scalars()
    return tuple(
        TokenView(row.id, row.name, _scopes(row), row.created_at, row.expires_at, row.last_used_at) for row in rows
    )


def revoke(session: Session, viewer: Viewer, id: str) -> None:
    """End a token at once: one's own, or as an operator anybody's. A token ends none that may do more than itself."""
    row = session.get(ApiToken, id)
    if row is None or not (
        viewer.may("operate") or (viewer.account_id is not None and row.account_id == viewer.account_id)
    ):
        raise UnknownTokenError(f"there is no token `{id}`")
    owner = session.get_one(Account, row.account_id)
    if not viewer_of(owner.id, owner.role, frozenset(_scopes(row))).scopes <= viewer.scopes:
        raise NotAllowedError(f"token `{id}` may do more than this one")
    if row.revoked_at is None:
        row.revoked_at = datetime.now(UTC)
        audit.note(session, viewer.account_id, "revoke token", id)


def viewer_by_token(session: Session, text: str) -> Viewer:
    """Whom a token stands for, with its rights and those of the account's role now. Only reads.

    Raises BadTokenError for one that is unknown, over, revoked, or of an account that is switched off.
    """
    found = session.execute(
        select(ApiToken, Account)
        .join(Account, Account.id == ApiToken.account_id)
        .where(ApiToken.token_sha256 == _sha256(text))
    ).one_or_none()
    if found is None:
        raise BadTokenError("this token is not known: make one with `dare tokens new` or on the account page")
    row, account = found
    if row.revoked_at is not None:
        raise BadTokenError("this token was revoked: make a new one")
    if row.expires_at is not None and row.expires_at <= datetime.now(UTC):
        raise BadTokenError(f"this token expired on {row.expires_at:%Y-%m-%d}: make a new one")
    if not account.active:
        raise BadTokenError("the account of this token is switched off: ask an admin")
    return viewer_of(account.id, account.role, frozenset(_scopes(row)), until=row.expires_at)


def touch(session: Session, text: str) -> None:
    """Note that a token was used, once a minute at most. Needs a writing session."""
    at = datetime.now(UTC)
    old = ApiToken.last_used_at.is_(None) | (ApiToken.last_used_at < at - TOUCH_EVERY)
    used = update(ApiToken).where(ApiToken.token_sha256 == _sha256(text), old)
    session.execute(used.values(last_used_at=at).execution_options(synchronize_session=False))


def admit(database: Database, text: str) -> Viewer:
    """`viewer_by_token` and, where it is time, `touch`: what a server does with each request."""
    with database.read() as session:
        viewer = viewer_by_token(session, text)
        used = session.execute(select(ApiToken.last_used_at).where(ApiToken.token_sha256 == _sha256(text))).scalar_one()
    if used is None or used < datetime.now(UTC) - TOUCH_EVERY:
        with database.write() as session:
            touch(session, text)
    return viewer


def _account_of(viewer: Viewer) -> str:
    if viewer.account_id is None:
        raise NotAllowedError("nobody is signed in: a token needs an owner")
    return viewer.account_id


def _checked_name(name: str) -> str:
    name = name.strip()
    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        raise TokenError(f"A token needs a name of 1 to {LONGEST_NAME} printable characters, such as `laptop`.")
    return name


def _checked_scopes(viewer: Viewer, scopes: Collection[Scope]) -> tuple[Scope, ...]:
    """In the order of what they allow."""
    unknown = sorted(set(scopes) - MAY["admin"])
    if unknown or not scopes:
        said = f"{unknown[0]!r} is no right" if unknown else "A token needs a right"
        raise TokenError(f"{said}; there are: {', '.join(SCOPES)}.")
    lacking = [scope for scope in SCOPES if scope in scopes and not viewer.may(scope)]
    if lacking:
        may = ", ".join(scope for scope in SCOPES if viewer.may(scope))
        raise NotAllowedError(f"a token may do at most what you may ({may}); `{lacking[0]}` is more")
    return tuple(scope for scope in SCOPES if scope in scopes)


def _end(viewer: Viewer, days: float | None, at: datetime) -> datetime | None:
    """When it ends, no later than the token that asks for it."""
    if days is None and not viewer.may("operate"):
        raise NotAllowedError(f"only an operator's token may be without end; name days, at most {MOST_DAYS:g}")
    if days is not None and not 0 < days <= MOST_DAYS:
        raise TokenError(f"A token lives for more than 0 and at most {MOST_DAYS:g} days, not {days:g}.")
    ends = [end for end in (viewer.until, at + timedelta(days=days) if days is not None else None) if end is not None]
    return min(ends, default=None)


def _scopes(row: ApiToken) -> tuple[Scope, ...]:
    """In the order of what they allow; stored sorted by name."""
    stored = set(row.scopes.split(","))
    return tuple(scope for scope in SCOPES if scope in stored)


def _sha256(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
