"""Accounts: found, or made for whom a provider vouches for the first time, and looked after by admins.

Every change by hand is one line of the audit log. Nobody is removed: an account that is erased keeps its id and its
entries, and nothing that says whose it was.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from dare_platform import audit
from dare_platform.database import now, wait_for_intake
from dare_platform.errors import PlatformError
from dare_platform.ids import new_id
from dare_platform.models import LOCAL_ACCOUNT, Account, ApiToken, Entry, Role, Subscription
from dare_platform.viewer import Viewer

ERASED = "erased"
"""Provider of an account that nobody can sign in to any more."""
MOST_PER_DAY, MOST_HOURS = 10_000, 100_000.0


class UnknownAccountError(PlatformError):
    """No account has this handle or id."""


class AccountError(PlatformError):
    """An account that cannot be changed so. The sentence is for the one who asked."""


@dataclass(frozen=True)
class AccountView:
    """An account as an admin sees it."""

    id: str
    handle: str
    role: Role
    active: bool
    provider: str
    subject: str
    email: str | None
    created_at: datetime
    entries: int
    entries_per_day: int | None
    """Its own limit; None for the installation's."""
    device_hours_per_week: float | None


def signed_in(
    session: Session,
    provider: str,
    subject: str,
    handle_hint: str,
    email: str | None,
    admins: tuple[tuple[str, str], ...] = (),
) -> Account:
    """The account of somebody whom a provider vouches for. New ones may submit; those that `admins` names are admins.

    One that is switched off is given as it is: whoever asks looks at `active`. The mail address is the one that the
    provider vouches for, and no other: messages to an address of one's own choice could be sent to strangers.
    """
    theirs = select(Account).where(Account.auth_provider == provider, Account.auth_subject == subject)
    known = session.execute(theirs).scalar_one_or_none()
    if known is None:
        wait_for_intake(session)
        known = session.execute(theirs).scalar_one_or_none()  # by now another page of theirs may have made it
    if known is None:
        known = Account(
            id=new_id(), handle=_free(session, handle_hint), role="submitter", auth_provider=provider,
            auth_subject=subject, created_at=datetime.now(UTC),
        )  # fmt: skip
        session.add(known)
    if known.active:
        known.email = email
    session.flush()
    if (provider, subject) in admins and known.active and known.role != "admin":
        known.role = "admin"
        audit.note(session, None, "set role", known.id, "admin, by DARE_ADMINS")
    return known


# --- by admins ------------------------------------------------------------------------------------------------------


def accounts(session: Session, viewer: Viewer) -> tuple[AccountView, ...]:
    """All of them, oldest first."""
    viewer.require("admin")
    counts = select(Entry.submitted_by, func.count().label("entries")).group_by(Entry.submitted_by).subquery()
    rows = session.execute(
        select(Account, func.coalesce(counts.c.entries, 0))
        .outerjoin(counts, counts.c.submitted_by == Account.id)
        .order_by(Account.created_at, Account.id)
    )
    return tuple(
        AccountView(
            row.id, row.handle, row.role, row.active, row.auth_provider, row.auth_subject, row.email, row.created_at,
            entries, row.entries_per_day, row.device_hours_per_week,
        )
        for row, entries in rows
    )  # fmt: skip


def set_role(session: Session, viewer: Viewer, name: str, role: Role) -> None:
    """Let an account do more, or less. The last admin stays one."""
    account = _changeable(session, viewer, name)
    if role != "admin":
        _require_another_admin(session, account)
    if account.role != role:
        before, account.role = account.role, role
        audit.note(session, viewer.account_id, "set role", account.id, f"{before} to {role}")


def switch_off(session: Session, viewer: Viewer, name: str) -> None:
    """Let nobody in as this account, by sign-in or token. What it submitted runs on and stays."""
    account = _changeable(session, viewer, name)
    _require_another_admin(session, account)
    if account.active:
        account.active = False
        audit.note(session, viewer.account_id, "switch off", account.id)


def switch_on(session: Session, viewer: Viewer, name: str) -> None:
    """Let the account in again."""
    account = _changeable(session, viewer, name)
    if account.auth_provider == ERASED:
        raise AccountError(f"Account `{name}` was erased: who it was is not known any more.")
    if not account.active:
        account.active = True
        audit.note(session, viewer.account_id, "switch on", account.id)


def set_quota(
    session: Session, viewer: Viewer, name: str, entries_per_day: int | None, device_hours_per_week: float | None
) -> None:
    """Give an account limits of its own; None for the installation's."""
    account = _changeable(session, viewer, name)
    if entries_per_day is not None and not 0 <= entries_per_day <= MOST_PER_DAY:
        raise AccountError(f"{entries_per_day} entries a day cannot be: 0 to {MOST_PER_DAY}.")
    if device_hours_per_week is not None and not 0 <= device_hours_per_week <= MOST_HOURS:
        raise AccountError(f"{device_hours_per_week:g} device-hours a week cannot be: 0 to {MOST_HOURS:g}.")
    account.entries_per_day, account.device_hours_per_week = entries_per_day, device_hours_per_week
    entries = "the installation's" if entries_per_day is None else str(entries_per_day)
    hours = "the installation's" if device_hours_per_week is None else f"{device_hours_per_week:g}"
    audit.note(session, viewer.account_id, "set quota", account.id, f"entries a day {entries}, hours a week {hours}")


def erase(session: Session, viewer: Viewer, name: str) -> None:
    """Forget who an account was: handle, mail, identity, tokens and subscriptions. Its entries stay, without a name.

    Who signs in with the same identity afterwards is somebody new.
    """
    account = _changeable(session, viewer, name)
    if account.auth_provider == ERASED:
        return
    _require_another_admin(session, account)
    account.handle, account.email = f"erased-{account.id[-12:]}", None
    account.auth_provider, account.auth_subject = ERASED, account.id
    account.active, account.role = False, "viewer"
    tokens = update(ApiToken).where(ApiToken.account_id == account.id)
    live = tokens.where(ApiToken.revoked_at.is_(None)).values(revoked_at=datetime.now(UTC))
    session.execute(live.execution_options(synchronize_session=False))
    session.execute(tokens.values(name=ERASED).execution_options(synchronize_session=False))
    wishes = update(Subscription).where(Subscription.account_id == account.id)
    forgotten = {"target": ERASED, "secret": None, "ended_at": func.coalesce(Subscription.ended_at, now(session))}
    session.execute(wishes.values(**forgotten).execution_options(synchronize_session=False))
    audit.note(session, viewer.account_id, "erase", account.id)


def _changeable(session: Session, viewer: Viewer, name: str) -> Account:
    """The account of this handle or id, locked. Rights first: nobody else learns who is here."""
    viewer.require("admin")
    by_id = session.get(Account, name, with_for_update=True)
    by_handle = select(Account).where(Account.handle == name).with_for_update()
    account = by_id or session.execute(by_handle).scalar_one_or_none()  # a handle is its owner's choice, an id is not
    if account is None:
        raise UnknownAccountError(f"there is no account `{name}`")
    if account.id == LOCAL_ACCOUNT:
        raise AccountError("The local account is whoever sits at this machine, and cannot be changed.")
    return account


def _require_another_admin(session: Session, account: Account) -> None:
    """The person at the machine can always make an admin; over the network the last one would lock everybody out."""
    if account.role != "admin" or not account.active:
        return
    wait_for_intake(session)  # two admins must not demote each other at once
    others = select(Account.id).where(
        Account.role == "admin", Account.active, Account.id.not_in((account.id, LOCAL_ACCOUNT))
    )
    if session.execute(others.limit(1)).first() is None:
        raise AccountError(f"`{account.handle}` is the last admin: make another one first.")


def _free(session: Session, hint: str) -> str:
    plain = re.sub(r"[^a-z0-9-]+", "-", hint.lower()).strip("-")[:32] or "somebody"
    handle, number = plain, 2
    while session.execute(select(Account.id).where(Account.handle == handle)).first() is not None:
        handle, number = f"{plain}-{number}", number + 1
    return handle
