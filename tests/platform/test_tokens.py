"""Keys for programs: shown once, never stored, never more than their owner, and over when they are over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from dare_platform import accounts, tokens
from dare_platform.database import Database
from dare_platform.models import Account, ApiToken, AuditLog
from dare_platform.settings import Settings
from dare_platform.tokens import BadTokenError, TokenError, UnknownTokenError
from dare_platform.viewer import LOCAL, NOBODY, NotAllowedError, Scope, Viewer, viewer_of

ISSUER = "https://id.example"


def person(session: Session, name: str, role: str = "submitter") -> Viewer:
    account = accounts.signed_in(session, ISSUER, name, name, f"{name}@example.org")
    account.role = role  # type: ignore[assignment]
    session.flush()
    return viewer_of(account.id, account.role)


def test_a_token_is_its_owner_with_the_rights_that_were_asked_for(database: Database) -> None:
    with database.write() as session:
        ada = person(session, "ada", "operator")
        made = tokens.issue(session, ada, " laptop ", ["read", "submit"])
        (seen,) = tokens.tokens_of(session, ada)
        assert (seen.id, seen.name, seen.scopes, seen.last_used_at) == (made.id, "laptop", ("read", "submit"), None)
        who = tokens.viewer_by_token(session, made.token)
        assert (who.account_id, who.role, who.scopes) == (ada.account_id, "operator", {"read", "submit"})
        assert who.until is not None
        assert timedelta(days=89) < who.until - datetime.now(UTC) <= timedelta(days=90)


def test_the_token_itself_is_stored_nowhere(sqlite: Database, sqlite_settings: Settings) -> None:
    with sqlite.write() as session:
        made = tokens.issue(session, LOCAL, "laptop", ["read"])
    with sqlite.read() as session:
        assert session.execute(select(ApiToken.token_sha256)).scalar_one() != made.token
    files = [path for path in sqlite_settings.home.parent.rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert made.token.encode() not in path.read_bytes(), path


def revoked(session: Session, ada: Viewer, id: str) -> None:
    tokens.revoke(session, ada, id)


def expired(session: Session, ada: Viewer, id: str) -> None:
    over = datetime.now(UTC) - timedelta(seconds=1)
    session.execute(update(ApiToken).where(ApiToken.id == id).values(expires_at=over))


def switched_off(session: Session, ada: Viewer, id: str) -> None:
    accounts.switch_off(session, LOCAL, "ada")


def erased(session: Session, ada: Viewer, id: str) -> None:
    accounts.erase(session, LOCAL, "ada")


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (revoked, "this token was revoked"),
        (expired, "this token expired on "),
        (switched_off, "is switched off"),
        (erased, "this token was revoked"),
    ],
)
def test_a_token_that_is_over_opens_nothing_and_names_nobody(database: Database, ended: object, words: str) -> None:
    with database.write() as session:
        ada = person(session, "ada")
        made = tokens.issue(session, ada, "laptop", ["read"])
        ended(session, ada, made.id)  # type: ignore[operator]
        session.expire_all()
        with pytest.raises(BadTokenError, match=words) as refused:
            tokens.viewer_by_token(session, made.token)
        assert "ada" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "dare_", "dare_" + "x" * 43, "Bearer dare_x", "\ud800", "x" * 100_000])
def test_what_is_no_token_opens_nothing(sqlite: Database, text: str) -> None:
    with sqlite.read() as session, pytest.raises(BadTokenError, match="is not known"):
        tokens.viewer_by_token(session, text)


def test_a_demoted_owner_takes_the_tokens_along(sqlite: Database) -> None:
    with sqlite.write() as session:
        ada = person(session, "ada", "operator")
        made = tokens.issue(session, ada, "laptop", ["read", "submit", "operate"])
        accounts.set_role(session, LOCAL, "ada", "viewer")
        assert tokens.viewer_by_token(session, made.token).scopes == {"read"}


@pytest.mark.parametrize("wanted", get_args(Scope))
def test_nobody_gives_more_than_they_have(sqlite: Database, wanted: Scope) -> None:
    with sqlite.write() as session:
        ada = person(session, "ada")
        if ada.may(wanted):
            tokens.issue(session, ada, "laptop", [wanted])
            return
        with pytest.raises(NotAllowedError, match=f"`{wanted}` is more"):
            tokens.issue(session, ada, "laptop", [wanted])
        with pytest.raises(NotAllowedError, match="nobody is signed in"):
            tokens.issue(session, NOBODY, "laptop", ["read"])


def test_a_token_makes_none_that_lives_longer_or_does_more_and_ends_none(sqlite: Database) -> None:
    with sqlite.write() as session:
        ada = person(session, "ada", "operator")
        whole = tokens.issue(session, ada, "whole", ["read", "submit", "operate"], 10)
        small = tokens.viewer_by_token(session, tokens.issue(session, ada, "small", ["read", "submit"], 1).token)
        child = tokens.issue(session, small, "child", ["read"], 300)
        ends = {one.name: one.expires_at for one in tokens.tokens_of(session, ada)}
        assert ends["child"] == ends["small"]
        assert tokens.viewer_by_token(session, child.token).scopes == {"read"}
        with pytest.raises(NotAllowedError, match="may do more than this one"):
            tokens.revoke(session, small, whole.id)


@pytest.mark.parametrize(
    ("name", "scopes", "days", "words"),
    [
        ("", ["read"], 1, "needs a name of 1 to 60"),
        ("x" * 61, ["read"], 1, "needs a name"),
        ("a\x1bb", ["read"], 1, "printable"),
        ("laptop", [], 1, "needs a right; there are: read, submit, operate, admin"),
        ("laptop", ["write"], 1, "'write' is no right"),
        ("laptop", ["read"], 0, "more than 0 and at most 366 days, not 0"),
        ("laptop", ["read"], 367, "not 367"),
        ("laptop", ["read"], float("nan"), "not nan"),
    ],
)
def test_what_cannot_be_is_said(sqlite: Database, name: str, scopes: list[Scope], days: float, words: str) -> None:
    with sqlite.write() as session, pytest.raises(TokenError, match=words):
        tokens.issue(session, LOCAL, name, scopes, days)


def test_an_endless_token_is_an_operators(sqlite: Database) -> None:
    with sqlite.write() as session:
        assert tokens.issue(session, LOCAL, "machine", ["read"], None)
        with pytest.raises(NotAllowedError, match="may be without end"):
            tokens.issue(session, person(session, "ada"), "machine", ["read"], None)


def test_another_persons_token_is_unknown_and_an_operators_to_end(sqlite: Database) -> None:
    with sqlite.write() as session:
        ada, bob = person(session, "ada"), person(session, "bob")
        made = tokens.issue(session, ada, "laptop", ["read"])
        for who in (bob, NOBODY):
            assert tokens.tokens_of(session, who) == ()
            with pytest.raises(UnknownTokenError, match="there is no token"):
                tokens.revoke(session, who, made.id)
        tokens.revoke(session, LOCAL, made.id)
        assert tokens.tokens_of(session, ada) == ()
        log = session.execute(select(AuditLog.action, AuditLog.subject, AuditLog.actor_id)).all()
        assert [tuple(row) for row in log] == [
            ("issue token", made.id, ada.account_id),
            ("revoke token", made.id, "local"),
        ]


def test_use_is_noted_once_a_minute(sqlite: Database) -> None:
    with sqlite.write() as session:
        made = tokens.issue(session, LOCAL, "laptop", ["read"])
    assert tokens.admit(sqlite, made.token).account_id == "local"
    with sqlite.write() as session:
        first = session.execute(select(ApiToken.last_used_at)).scalar_one()
        assert first is not None
        tokens.touch(session, made.token)
        assert session.execute(select(ApiToken.last_used_at)).scalar_one() == first
        long_ago = datetime.now(UTC) - timedelta(minutes=2)
        session.execute(update(ApiToken).values(last_used_at=long_ago))
    tokens.admit(sqlite, made.token)
    with sqlite.read() as session:
        again = session.execute(select(ApiToken.last_used_at)).scalar_one()
        assert again is not None
        assert again > long_ago
        assert session.execute(select(Account.id)).scalars().all() == ["local"]
