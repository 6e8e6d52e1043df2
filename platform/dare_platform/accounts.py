"""Accounts: found, or made for whom a provider vouches for the first time."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from dare_platform.ids import new_id
from dare_platform.models import Account


def signed_in(session: Session, provider: str, subject: str, handle_hint: str, email: str | None) -> Account:
    """The account of somebody whom a provider vouches for; new ones may submit."""
    known = session.execute(
        select(Account).where(Account.auth_provider == provider, Account.auth_subject == subject)
    ).scalar_one_or_none()
    if known is None:
        known = Account(
            id=new_id(), handle=_free(session, handle_hint), role="submitter", auth_provider=provider,
            auth_subject=subject, created_at=datetime.now(UTC),
        )  # fmt: skip
        session.add(known)
    known.email = email
    session.flush()
    return known


def _free(session: Session, hint: str) -> str:
    plain = re.sub(r"[^a-z0-9-]+", "-", hint.lower()).strip("-")[:32] or "somebody"
    handle, number = plain, 2
    while session.execute(select(Account.id).where(Account.handle == handle)).first() is not None:
        handle, number = f"{plain}-{number}", number + 1
    return handle
