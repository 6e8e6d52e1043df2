"""Accounts: made at the first sign-in, changed by admins only, never removed, and forgotten when they are erased."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from played import built_in, register
from sqlalchemy import select
from sqlalchemy.orm import Session

from dare_platform import accounts, entries, subscriptions, tokens
from dare_platform.accounts import AccountError, UnknownAccountError
from dare_platform.database import Database
from dare_platform.models import Account, AuditLog, Entry, Role
from dare_platform.settings import Settings
from dare_platform.viewer import LOCAL, MAY, NOBODY, NotAllowedError, Viewer, viewer_of

ISSUER = "https://id.example"


def person(session: Session, name: str, role: Role = "submitter") -> Viewer:
    account = accounts.signed_in(session, ISSUER, name, name, f"{name}@example.org")
    account.role = role
    session.flush()
    return viewer_of(account.id, role)


def account(session: Session, name: str) -> Account:
    return session.execute(select(Account).where(Account.auth_subject == name)).scalar_one()


def test_the_same_person_is_one_account_with_the_address_that_the_provider_vouches_for(database: Database) -> None:
    with database.write() as session:
        first = accounts.signed_in(session, ISSUER, "1", "Ada Lovelace", "ada@example.org")
        again = accounts.signed_in(session, ISSUER, "1", "Somebody Else", "new@example.org")
        other = accounts.signed_in(session, "https://other.example", "1", "Ada Lovelace", None)
        assert (first.id, again.handle, again.email) == (again.id, "ada-lovelace", "new@example.org")
        assert (other.handle, other.role) == ("ada-lovelace-2", "submitter")


def test_admins_are_named_by_issuer_and_subject_and_by_nothing_that_one_can_choose(sqlite: Database) -> None:
    admins = ((ISSUER, "1"),)
    with sqlite.write() as session:
        assert accounts.signed_in(session, ISSUER, "1", "ada", None, admins).role == "admin"
        assert accounts.signed_in(session, "https://other.example", "1", "ada", None, admins).role == "submitter"
        assert accounts.signed_in(session, ISSUER, "2", "1", "1", admins).role == "submitter"
        notes = session.execute(select(AuditLog.action, AuditLog.note)).all()
        assert [tuple(row) for row in notes] == [("set role", "admin, by DARE_ADMINS")]


def test_a_switched_off_account_is_made_no_admin(sqlite: Database) -> None:
    with sqlite.write() as session:
        person(session, "1")
        accounts.switch_off(session, LOCAL, "1")
        assert accounts.signed_in(session, ISSUER, "1", "ada", None, ((ISSUER, "1"),)).role == "submitter"


def test_a_handle_that_is_somebody_elses_id_names_nobody_else(sqlite: Database) -> None:
    with sqlite.write() as session:
        ada = person(session, "ada")
        twin = accounts.signed_in(session, ISSUER, "2", str(ada.account_id), None)
        assert twin.handle == ada.account_id
        accounts.set_role(session, LOCAL, twin.handle, "operator")
        assert (account(session, "ada").role, twin.role) == ("operator", "submitter")
        accounts.set_role(session, LOCAL, twin.id, "viewer")
        assert twin.role == "viewer"


CHANGES: dict[str, Callable[[Session, Viewer, str], object]] = {
    "list": lambda session, who, name: accounts.accounts(session, who),
    "role": lambda session, who, name: accounts.set_role(session, who, name, "operator"),
    "off": accounts.switch_off,
    "on": accounts.switch_on,
    "quota": lambda session, who, name: accounts.set_quota(session, who, name, 1, 1.0),
    "erase": accounts.erase,
}


@pytest.mark.parametrize("change", CHANGES)
def test_only_admins_look_after_accounts_and_nobody_else_learns_who_is_there(sqlite: Database, change: str) -> None:
    with sqlite.write() as session:
        person(session, "ada")
        for who in (NOBODY, *(person(session, role, role) for role in MAY if role != "admin")):
            for name in ("ada", "nobody"):
                with pytest.raises(NotAllowedError, match="needs the right to admin"):
                    CHANGES[change](session, who, name)
        if change != "list":
            with pytest.raises(UnknownAccountError, match="there is no account `nobody`"):
                CHANGES[change](session, LOCAL, "nobody")
            with pytest.raises(AccountError, match="whoever sits at this machine"):
                CHANGES[change](session, LOCAL, "local")


def test_every_change_is_one_line_of_the_audit_log_and_none_is_none(sqlite: Database) -> None:
    with sqlite.write() as session:
        ada = person(session, "ada")
        for _ in range(2):
            accounts.set_role(session, LOCAL, "ada", "operator")
        for _ in range(2):
            accounts.switch_off(session, LOCAL, "ada")
        accounts.switch_on(session, LOCAL, "ada")
        accounts.set_quota(session, LOCAL, "ada", 5, None)
        log = session.execute(select(AuditLog.action, AuditLog.note, AuditLog.subject, AuditLog.actor_id)).all()
        assert [row.action for row in log] == ["set role", "switch off", "switch on", "set quota"]
        assert [row.note for row in log] == [
            "submitter to operator", None, None, "entries a day 5, hours a week the installation's",
        ]  # fmt: skip
        assert {(row.subject, row.actor_id) for row in log} == {(ada.account_id, "local")}


def test_the_last_admin_stays_one_until_there_is_another(sqlite: Database) -> None:
    with sqlite.write() as session:
        ada = person(session, "ada", "admin")
        for change in (
            lambda: accounts.set_role(session, ada, "ada", "viewer"),
            lambda: accounts.switch_off(session, ada, "ada"),
            lambda: accounts.erase(session, LOCAL, "ada"),
        ):
            with pytest.raises(AccountError, match="`ada` is the last admin: make another one first"):
                change()
        person(session, "bob", "admin")
        accounts.set_role(session, ada, "ada", "viewer")
        assert account(session, "ada").role == "viewer"


@pytest.mark.parametrize(("entries_per_day", "hours"), [(-1, None), (10**9, None), (None, -1.0), (None, float("nan"))])
def test_a_quota_that_cannot_be_is_refused(sqlite: Database, entries_per_day: int | None, hours: float | None) -> None:
    with sqlite.write() as session:
        person(session, "ada")
        with pytest.raises(AccountError, match="cannot be: 0 to"):
            accounts.set_quota(session, LOCAL, "ada", entries_per_day, hours)


def test_an_erased_account_keeps_its_entries_and_nothing_that_says_whose_they_were(
    sqlite: Database, sqlite_settings: Settings
) -> None:
    with sqlite.write() as session:
        register(session)
        ada = person(session, "ada-lovelace")
        entry = entries.submit(session, ada, built_in("bgpo"), "key").entry_id
        token = tokens.issue(session, ada, "laptop of ada-lovelace", ["read"])
        told = "https://ada-lovelace.example.org/x"
        subscriptions.subscribe(session, sqlite_settings, ada, "webhook", told)
        accounts.erase(session, LOCAL, "ada-lovelace")
        accounts.erase(session, LOCAL, str(ada.account_id))  # twice changes nothing
        kept = session.get_one(Account, str(ada.account_id))
        assert (kept.active, kept.role, kept.email) == (False, "viewer", None)
        assert session.get_one(Entry, entry).submitted_by == kept.id
        with pytest.raises(tokens.BadTokenError):
            tokens.viewer_by_token(session, token.token)
        with pytest.raises(AccountError, match="was erased"):
            accounts.switch_on(session, LOCAL, kept.id)
        again = accounts.signed_in(session, ISSUER, "ada-lovelace", "ada-lovelace", None)
        assert again.id != kept.id
        accounts.erase(session, LOCAL, again.id)
    with sqlite.read() as session:
        connection = session.connection()
        for table in connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'table'").scalars().all():
            for row in connection.exec_driver_sql(f"SELECT * FROM {table}").all():
                assert "ada-lovelace" not in str(row), table
