"""Who looks at the site, and why somebody may not do something."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st
from sqlalchemy import select

from dare_platform.accounts import signed_in
from dare_platform.models import Account
from dare_platform.viewer import LOCAL, NOBODY, Scope, Viewer, viewer_of
from leaderboard import reading, texts

KNOWN = "signed_in_as"
"""Key of the identity whose account is known to exist, for this session of the browser."""


@dataclass(frozen=True)
class Person:
    """Somebody with an account, as the site shows them to themselves."""

    handle: str
    role: str
    email: str | None
    issuer: str
    subject: str
    active: bool


def has_sign_in() -> bool:
    """Whether people sign in here. Otherwise there is one person, at this machine."""
    return reading.settings().sign_in == "oidc"


def viewer() -> Viewer:
    """Who looks: asked anew on every run of a page, since a role may be given or taken at any time."""
    if not has_sign_in():
        return LOCAL if reading.is_loopback() else NOBODY
    account = _account()
    return viewer_of(account.id, account.role) if account is not None and account.active else NOBODY


def person() -> Person | None:
    """The account that is signed in; None for nobody, and where nobody signs in."""
    account = _account() if has_sign_in() else None
    if account is None:
        return None
    return Person(
        account.handle, account.role, account.email, account.auth_provider, account.auth_subject, account.active
    )  # fmt: skip


def _account() -> Account | None:
    """The account of whom the provider vouches for, made when they come for the first time."""
    if not st.user.get("is_logged_in"):
        return None
    claims = st.user.to_dict()
    issuer, subject = str(claims.get("iss") or ""), str(claims.get("sub") or "")
    if not issuer or not subject:
        return None
    if st.session_state.get(KNOWN) != (issuer, subject):
        email = str(claims.get("email") or "") if claims.get("email_verified") is not False else ""
        hint = str(claims.get("preferred_username") or claims.get("nickname") or claims.get("name") or "")
        with reading.database().write() as session:
            signed_in(session, issuer, subject, hint, email or None, reading.settings().admins)
        st.session_state[KNOWN] = (issuer, subject)
    with reading.database().read() as session:
        return session.execute(
            select(Account).where(Account.auth_provider == issuer, Account.auth_subject == subject)
        ).scalar_one_or_none()


def why_not(who: Viewer, scope: Scope) -> str | None:
    """Why somebody may not act so, and what to do about it; None when they may. Markdown."""
    if who.may(scope):
        return None
    if not has_sign_in():
        return texts.READING_ONLY
    account = person()
    if account is None:
        return texts.SIGN_IN_TO_SUBMIT
    return texts.role_lacks(account.role, account.active)


def sign_in_button(key: str) -> None:
    """The way to the provider, where that helps."""
    if has_sign_in() and person() is None and st.button("Sign in", type="primary", key=key):
        st.login()
