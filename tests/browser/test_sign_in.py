"""Signing in at a real provider with a real browser: what one person keeps private, the next one is not shown."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from filled_database import prepared
from playwright.sync_api import Browser, Page, expect
from sqlalchemy import select
from watching import SCREENSHOTS, Site, wait_for

from dare_platform.database import open_database
from dare_platform.models import Account, Delivery, Entry, Run, Subscription
from dare_platform.settings import Settings

pytestmark = pytest.mark.full

CLIENT_SECRET, COOKIE_SECRET = "client-secret-canary", "cookie-secret-canary-of-32-letters"
PEOPLE = [
    {"sub": "subject-ada", "preferred_username": "ada", "email": "ada@example.org"},
    {"sub": "subject-ben", "preferred_username": "ben", "email": "ben@example.org"},
]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An OpenID Connect provider that knows two people."""
    port = free_port()
    claims = [part for person in PEOPLE for part in ("--user-claims", json.dumps(person))]
    log = tmp_path_factory.mktemp("provider") / "log"
    command = [sys.executable, "-W", "ignore", "-m", "oidc_provider_mock", "--port", str(port), *claims]
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as running:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"{url}/.well-known/openid-configuration", timeout=2):
                    break
            except OSError:
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.2)
        yield url
        running.terminate()


@pytest.fixture(scope="module")
def several(provider: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, subprocess.Popen[bytes]]]:
    """A site where people sign in, with an empty board."""
    home = tmp_path_factory.mktemp("several")
    settings = Settings.from_environment({"DARE_HOME": str(home)})
    prepared(settings).close()
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    secret = home / "client-secret"
    secret.write_text(CLIENT_SECRET)
    environment = {
        **os.environ,
        "DARE_HOME": str(home),
        "DARE_SIGN_IN": "oidc",
        "DARE_PUBLIC_URL": url,
        "DARE_OIDC_ISSUER": provider,
        "DARE_OIDC_CLIENT_ID": "dare",
        "DARE_OIDC_CLIENT_SECRET_FILE": str(secret),
        "DARE_OIDC_COOKIE_SECRET": COOKIE_SECRET,
        "TMPDIR": str(home),
    }
    environment.pop("DARE_DATABASE_URL", None)
    command = [sys.executable, "-m", "leaderboard", "--port", str(port)]
    with (
        (home / "site.log").open("w") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log) as run,
    ):
        try:
            wait_for(url, home / "site.log")
            with open_database(settings) as database:
                yield Site(url, database, {}), run
        finally:
            run.terminate()
            run.wait(20)
    said = (home / "site.log").read_text()
    assert CLIENT_SECRET not in said
    assert COOKIE_SECRET not in said
    assert not list(home.glob("dare-site-*")), "the file with the secrets is gone"


def settled(page: Page) -> None:
    page.get_by_test_id("stHeading").first.wait_for()
    page.wait_for_function("document.querySelector('.stApp')?.getAttribute('data-test-script-state') === 'notRunning'")
    page.wait_for_timeout(300)


def sign_in(page: Page, site: Site, subject: str, handle: str) -> None:
    page.goto(f"{site.url}/account")
    settled(page)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("button", name=subject).click()
    expect(page.get_by_role("link", name=handle, exact=True).first).to_be_visible()


def sign_out(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/account")
    settled(page)
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_timeout(1500)
    page.goto(site.url)
    settled(page)
    expect(page.get_by_role("link", name="Sign in", exact=True).first).to_be_visible()


def test_what_one_person_keeps_private_is_not_there_for_the_next(
    browser: Browser, several: tuple[Site, subprocess.Popen[bytes]]
) -> None:
    site, _ = several
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(30_000)
    page = context.new_page()

    page.goto(f"{site.url}/submit")
    settled(page)
    expect(page.get_by_text("Reading needs no account.")).to_be_visible()
    expect(page.get_by_role("button", name="Queue")).to_have_count(0)
    picture(page, "submit-signed-out")
    page.goto(f"{site.url}/account")
    settled(page)
    picture(page, "account-signed-out")

    sign_in(page, site, "subject-ada", "ada")
    page.goto(f"{site.url}/submit")
    settled(page)
    page.get_by_role("radio", name="private").or_(page.get_by_role("button", name="private")).first.click()
    settled(page)
    page.get_by_label("Name on the board").fill("gazelle")
    page.get_by_label("Name on the board").press("Enter")
    settled(page)
    picture(page, "submit-several")
    page.get_by_role("button", name="Queue").click()
    expect(page.get_by_role("heading", name="gazelle")).to_be_visible()
    settled(page)
    picture(page, "entry-private")
    with site.database.read() as session:
        entry = session.execute(select(Entry).where(Entry.name == "gazelle")).scalar_one()
        account = session.execute(select(Account).where(Account.auth_subject == "subject-ada")).scalar_one()
    assert (entry.visibility, entry.submitted_by, account.email) == ("private", account.id, "ada@example.org")
    page.goto(f"{site.url}/account")
    settled(page)
    ask_by_keyboard(page, "https://example.org/dare")
    expect(page.get_by_text("The webhook's secret.")).to_be_visible()
    with site.database.write() as session:
        run = session.execute(select(Run.id).where(Run.entry_id == entry.id).limit(1)).scalar_one()
        wish = session.execute(select(Subscription.id)).scalar_one()
        problem = "example.org answered 503"
        session.add(Delivery(subscription_id=wish, run_id=run, state="failed", tries=6, problem=problem))
    page.reload()
    settled(page)
    expect(page.get_by_text(problem)).to_be_visible()
    picture(page, "account")

    sign_out(page, site)
    for subject, handle in (("", ""), ("subject-ben", "ben")):
        if subject:
            sign_in(page, site, subject, handle)
        page.goto(f"{site.url}/entry?id={entry.id}")
        settled(page)
        expect(page.get_by_text("It may be private or the link may be cut.")).to_be_visible()
        page.goto(f"{site.url}/queue")
        settled(page)
        assert "gazelle" not in page.content()
        expect(page.get_by_text("private entry").first).to_be_visible()
    context.close()


def ask_by_keyboard(page: Page, address: str) -> None:
    """From the top of the page to the button, with nothing but Tab, text and Enter."""
    reached = ""
    for _ in range(40):
        page.keyboard.press("Tab")
        reached = page.evaluate(
            "document.activeElement.getAttribute('aria-label') || document.activeElement.innerText || ''"
        )
        if reached == "Address of the webhook":
            page.keyboard.type(address)
        if reached.strip() == "Tell me":
            page.keyboard.press("Enter")
            return
    pytest.fail(f"Tab does not lead to the button; it ended at {reached!r}")


def test_the_identity_is_in_a_cookie_that_no_script_reads_and_the_secrets_are_in_a_closed_file(
    browser: Browser, several: tuple[Site, subprocess.Popen[bytes]]
) -> None:
    site, running = several
    context = browser.new_context()
    context.set_default_timeout(30_000)
    page = context.new_page()
    sign_in(page, site, "subject-ada", "ada")
    user = [cookie for cookie in context.cookies() if cookie["name"].startswith("_streamlit_user")]
    assert user
    assert all(cookie["httpOnly"] for cookie in user)
    assert CLIENT_SECRET not in page.content()
    context.close()
    files = list(site_home(running).glob("dare-site-*/secrets.toml"))
    assert len(files) == 1
    assert stat.S_IMODE(files[0].stat().st_mode) == 0o600
    assert stat.S_IMODE(files[0].parent.stat().st_mode) == 0o700
    arguments = Path(f"/proc/{running.pid}/cmdline").read_bytes()
    assert CLIENT_SECRET.encode() not in arguments


def site_home(running: subprocess.Popen[bytes]) -> Path:
    pairs = Path(f"/proc/{running.pid}/environ").read_bytes().split(b"\0")
    return Path(next(pair for pair in pairs if pair.startswith(b"TMPDIR=")).partition(b"=")[2].decode())


def picture(page: Page, name: str) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    size = page.viewport_size
    for width in (400, 1280):
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 1400})
            page.wait_for_timeout(500)
            widths = page.evaluate(
                "[document.documentElement, document.querySelector('[data-testid=stMain]')]"
                ".map(element => element.scrollWidth - element.clientWidth)"
            )
            assert widths == [0, 0], (name, width)
            page.screenshot(path=SCREENSHOTS / f"{name}-{width}-{scheme}.png")
    page.emulate_media(color_scheme="light")
    if size:
        page.set_viewport_size(size)
