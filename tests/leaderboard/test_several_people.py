"""Pages for several people: what one keeps to themselves is on no page of anybody else; who may not act is told so."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import streamlit as st
from filled_database import Site, home_at
from several_people import ISSUER, People, fill
from sqlalchemy import func, select, update
from streamlit.testing.v1 import AppTest
from streamlit.util import calc_hash

from dare_platform import accounts, tokens
from dare_platform.database import Database, open_database
from dare_platform.models import Account, Entry
from dare_platform.viewer import LOCAL, Viewer, viewer_of
from leaderboard import serving, texts


@pytest.fixture(scope="module")
def filled(empty_home: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, People]:
    folder = tmp_path_factory.mktemp("several")
    shutil.copytree(empty_home, folder, dirs_exist_ok=True)
    with open_database(home_at(folder)) as database, database.write() as session:
        return folder, fill(session)


@pytest.fixture
def people(
    filled: tuple[Path, People], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Database, People]]:
    """A site where people sign in, and what there is."""
    folder, found = filled
    shutil.copytree(folder, tmp_path / "home")
    monkeypatch.setenv("DARE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DARE_DATABASE_URL", raising=False)
    monkeypatch.setenv("DARE_SIGN_IN", "oidc")
    monkeypatch.setenv(serving.ADDRESS_VARIABLE, "0.0.0.0")
    with open_database(home_at(tmp_path / "home")) as database:
        yield database, found
    st.cache_resource.clear()


def opened(who: Viewer | None, page: str = "", **query: str) -> AppTest:
    """One page of the whole site, as somebody sees it."""
    test = AppTest.from_file(str(serving.SCRIPT), default_timeout=30)
    test.user = {"is_logged_in": False}
    if who is not None and who.account_id is not None:
        test.user = {"is_logged_in": True, "iss": ISSUER, "sub": who.account_id, "email": f"{who.account_id}@x.org"}
    for name, value in query.items():
        test.query_params[name] = value
    if page:
        test._page_hash = calc_hash(page)
    test.run()
    assert not test.exception, test.exception
    return test


def everything(test: AppTest) -> str:
    """All that was sent to the browser, charts and files to download included."""
    found: list[str] = []

    def walk(node: object) -> None:
        found.append(str(getattr(node, "proto", "")))
        for child in getattr(node, "children", {}).values():
            walk(child)

    walk(test._tree)
    return "\n".join(found)


def pages(people: People) -> list[tuple[str, dict[str, str]]]:
    """Every page there is, with every id that it can be asked for."""
    found: list[tuple[str, dict[str, str]]] = [
        ("", {}), ("", {"backbone": "sdar-tiny"}), ("", {"backbone": "all"}), ("submit", {}), ("queue", {}),
        ("rules", {}), ("account", {}), ("cost", {}), ("task", {"id": "sudoku"}), ("task", {"id": "countdown"}),
        ("backbone", {"id": "llada-tiny"}), ("backbone", {"id": "sdar-tiny"}),
    ]  # fmt: skip
    for entry in (*people.private.values(), people.anonymous):
        found += [("entry", {"id": entry, "view": view}) for view in ("results", "method", "runs", "history")]
        found += [("submit", {"from": entry}), ("compare", {"a": entry, "b": people.public}), ("curves", {"a": entry})]
        by_kind = dict.fromkeys(people.runs[entry][:4])
        found += [("run", {"id": run}) for run in by_kind]
    return found


@pytest.mark.full
def test_nothing_private_or_anonymous_stands_on_any_page_of_a_stranger(people: tuple[Database, People]) -> None:
    _, found = people
    for name, who in found.strangers.items():
        for page, query in pages(found):
            sent = everything(opened(who, page, **query))
            asked = set(query.values())  # the page of an unknown id repeats the id that the link has
            for mark in (*found.marks_of_private(), *found.marks_of_anonymous()):
                assert mark in asked or mark not in sent, (name, page, query, mark)


@pytest.mark.full
def test_the_author_finds_all_of_it_on_the_same_pages(people: tuple[Database, People]) -> None:
    _, found = people
    sent = "\n".join(everything(opened(found.author, page, **query)) for page, query in pages(found))
    for mark in ("zebra", "okapi", "ZebraRule", "ZebraSetting", "zebra-log", "LynxRule", "lynx-log"):
        assert mark in sent, mark
    assert texts.WHO_SEES["private"] in sent
    assert texts.WHO_SEES["anonymous"] in sent


def test_a_private_entry_and_one_that_there_is_not_are_the_same_page(people: tuple[Database, People]) -> None:
    _, found = people
    private = found.private["zebra"]
    other = opened(found.other, "entry", id=private)
    nosuch = opened(found.other, "entry", id="nosuch")
    assert everything(other).replace(private, "ID") == everything(nosuch).replace("nosuch", "ID")


@pytest.mark.full
def test_two_people_on_one_server_never_meet_each_others_page(people: tuple[Database, People]) -> None:
    _, found = people
    for _ in range(2):  # whatever the first one has warmed up
        assert "zebra" in everything(opened(found.author, "queue"))
        assert "zebra" not in everything(opened(found.other, "queue"))
        assert "zebra" not in everything(opened(None, "queue"))


def test_who_has_not_signed_in_reads_and_is_told_what_submitting_needs(people: tuple[Database, People]) -> None:
    page = opened(None, "submit")
    assert texts.SIGN_IN_TO_SUBMIT in everything(page)
    assert [button.key for button in page.button] == ["sign-in"]
    _, found = people
    assert not [button for button in opened(None, "entry", id=found.public).button if button.key in ("cancel", "again")]


@pytest.mark.full
def test_a_viewer_is_told_which_right_is_missing(people: tuple[Database, People]) -> None:
    database, found = people
    with database.write() as session:
        session.execute(update(Account).where(Account.id == found.other.account_id).values(role="viewer"))
    page = everything(opened(found.other, "submit"))
    assert "**Your role is viewer, which may read.**" in page
    with database.write() as session:
        session.execute(update(Account).where(Account.id == found.other.account_id).values(active=False))
    assert "This account is closed." in everything(opened(found.other, "submit"))


@pytest.mark.full
def test_an_entry_is_submitted_to_whom_its_author_chose_and_opened_by_its_author(
    people: tuple[Database, People],
) -> None:
    database, found = people
    test = opened(found.author, "submit")
    group = next(group for group in test.get("button_group") if group.key == "seen_by")
    group.set_value("private")
    test.run()
    assert texts.WHO_SEES["private"] in everything(test)
    test.text_input(key="name").set_value("gazelle").run()
    test.button(key="queue").click().run()
    with database.read() as session:
        entry = session.execute(select(Entry).where(Entry.name == "gazelle")).scalar_one()
    assert (entry.visibility, entry.submitted_by) == ("private", found.author.account_id)
    assert "There is no entry" in everything(opened(found.other, "entry", id=entry.id))
    own = opened(found.author, "entry", id=entry.id)
    own.button(key="show-public").click().run()
    assert "gazelle" in everything(opened(None, "entry", id=entry.id))


@pytest.mark.full
def test_a_stranger_cannot_act_by_pressing_what_is_not_there(people: tuple[Database, People]) -> None:
    _, found = people
    for page, id in (("entry", found.anonymous), ("run", found.runs[found.anonymous][0])):
        keys = {button.key for button in opened(found.other, page, id=id).button}
        assert not keys & {"cancel", "again", "show-public"}


@pytest.mark.full
def test_the_first_sign_in_makes_an_account_and_later_ones_find_it(people: tuple[Database, People]) -> None:
    database, _ = people
    for _ in range(2):
        opened(viewer_of("somebody new", "submitter"), "account")
    with database.read() as session:
        number = session.execute(
            select(func.count()).select_from(Account).where(Account.auth_subject == "somebody new")
        ).scalar_one()
    assert number == 1


@pytest.mark.full
def test_a_webhook_is_asked_for_its_secret_shown_once_and_ended(people: tuple[Database, People]) -> None:
    _, found = people
    test = opened(found.author, "account")
    assert texts.NO_MESSAGES in everything(test)
    test.text_input(key="target").set_value("http://example.org/")
    test.button(key="tell").click().run()
    assert "is not encrypted" in everything(test)
    test.text_input(key="target").set_value("https://example.org/hook")
    test.button(key="tell").click().run()
    assert texts.SHOWN_ONCE in everything(test)
    secret = test.code[0].value
    assert len(secret) > 30
    test.run()
    assert secret not in everything(test)
    assert "https://example.org/hook" in everything(test)
    assert "https://example.org/hook" not in everything(opened(found.other, "account"))
    ending = next(button for button in test.button if str(button.key).startswith("end-"))
    ending.click().run()
    assert texts.NO_MESSAGES in everything(test)


@pytest.mark.full
def test_where_there_is_one_person_nothing_speaks_of_signing_in(site: Site) -> None:
    for page, query in (("", {}), ("submit", {}), ("queue", {}), ("entry", {"id": site.entries["bgpo"]})):
        test = AppTest.from_file(str(serving.SCRIPT), default_timeout=30)
        for name, value in query.items():
            test.query_params[name] = value
        if page:
            test._page_hash = calc_hash(page)
        test.run()
        sent = everything(test)
        for word in ("Sign in", "sign in", "Who sees it", "private", "Account"):
            assert word not in sent, (page, word)


def test_a_token_is_shown_once_and_revoked_on_the_account_page(people: tuple[Database, People]) -> None:
    database, found = people
    page = opened(found.author, "account")
    page.text_input(key="token-name").set_value("board reader")
    page.button(key="make-token").click().run()
    (token,) = [code.value for code in page.get("code") if code.value.startswith("dare_")]
    with database.read() as session:
        assert tokens.viewer_by_token(session, token).account_id == found.author.account_id
    assert not [code for code in page.run().get("code") if code.value.startswith("dare_")]
    assert "**board reader** · read, submit · until" in everything(page)
    (revoke,) = [button for button in page.button if button.key.startswith("revoke-")]
    revoke.click().run()
    assert "board reader" not in everything(page)
    with database.read() as session, pytest.raises(tokens.BadTokenError):
        tokens.viewer_by_token(session, token)


def test_the_form_says_what_is_left_of_a_quota(people: tuple[Database, People]) -> None:
    database, found = people
    with database.write() as session:
        accounts.set_quota(session, LOCAL, str(found.author.account_id), 5, None)
    page = opened(found.author, "submit")
    assert "Used: 3 of 5 entries in 24 h." in everything(page)
    assert "Used: 3 of 5 entries in 24 h." in everything(opened(found.author, "account"))
    assert "entries in 24 h" not in everything(opened(found.other, "account"))


def test_an_admin_changes_an_account_and_nobody_else_sees_any(people: tuple[Database, People]) -> None:
    database, found = people
    for who in (found.author, found.operator):
        assert "Accounts" not in [header.value for header in opened(who, "account").header]
    with database.write() as session:
        accounts.set_role(session, LOCAL, str(found.operator.account_id), "admin")
    page = opened(found.operator, "account")
    assert "Accounts" in [header.value for header in page.header]
    page.selectbox(key="whom").select("quagga").run()
    page.selectbox(key=f"role-{found.author.account_id}").select("viewer")
    page.number_input(key=f"entries-{found.author.account_id}").set_value(7)
    page.button(key="save-account").click().run()
    page.button(key="switch-account").click().run()
    with database.read() as session:
        account = session.get_one(Account, str(found.author.account_id))
        assert (account.role, account.entries_per_day, account.active) == ("viewer", 7, False)
    assert "This account is closed" in everything(opened(found.author, "account"))
