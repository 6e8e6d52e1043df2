"""Being told when something ends: real receivers on loopback, a real mail server, and every way in which they fail."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Message as MessageHandler
from played import built_in, register, take, work_off
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from dare_platform import deliveries, endings, entries, webhook
from dare_platform.database import Database
from dare_platform.deliveries import MOST_TRIES, plan, send_deliveries
from dare_platform.models import Account, Delivery, Subscription
from dare_platform.settings import Settings
from dare_platform.subscriptions import SubscriptionError, end_subscription, subscribe, subscriptions_of
from dare_platform.viewer import LOCAL, NOBODY, NotAllowedError, Viewer, viewer_of


@dataclass
class Receiver:
    """A web server that remembers what was posted to it, and answers as it is told."""

    url: str
    answers: list[int] = field(default_factory=list)
    posted: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    def said(self) -> list[dict[str, object]]:
        return [json.loads(body) for _, body in self.posted]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver("")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.posted.append((dict(self.headers), body))
            self.send_response(found.answers.pop(0) if found.answers else 204)
            self.send_header("Location", f"{found.url}/elsewhere")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield found
        server.shutdown()
        thread.join()


@pytest.fixture
def allowed(sqlite_settings: Settings) -> Settings:
    """An operator lets messages go to this machine."""
    return replace(sqlite_settings, webhook_hosts=("127.0.0.1",), public_url="https://dare.example")


def submitted(session: Session, name: str = "bgpo", who: Viewer = LOCAL) -> str:
    register(session)
    return entries.submit(session, who, built_in(name), f"key-{name}-{who.account_id}").entry_id


def hook(database: Database, settings: Settings, url: str, each_run: bool = False) -> str:
    with database.write() as session:
        made = subscribe(session, settings, LOCAL, "webhook", url, each_run=each_run)
    assert made.secret is not None
    return made.secret


def due_at_once(database: Database) -> None:
    with database.write() as session:
        session.execute(update(Delivery).values(not_before=0.0))


def test_one_message_comes_when_the_whole_entry_has_ended(
    sqlite: Database, allowed: Settings, receiver: Receiver
) -> None:
    secret = hook(sqlite, allowed, f"{receiver.url}/hook?a=b")
    with sqlite.write() as session:
        entry = submitted(session)
    assert send_deliveries(allowed, sqlite) == 0
    with sqlite.write() as session:
        runs = work_off(session)
    assert runs > 1
    assert send_deliveries(allowed, sqlite) == 1
    assert send_deliveries(allowed, sqlite) == 0
    ((headers, body),) = receiver.posted
    said = json.loads(body)
    assert said["event"] == "entry.ended" == headers["X-DARE-Event"]
    assert said["entry"]["id"] == entry
    assert said["entry"]["status"] == "complete"
    assert said["entry"]["url"] == f"https://dare.example/entry?id={entry}"
    assert headers["X-DARE-Delivery"] == said["delivery"]
    expected = webhook.signature(secret, headers["X-DARE-Timestamp"], body)
    assert headers["X-DARE-Signature"] == f"sha256={expected}"
    assert expected != webhook.signature("another", headers["X-DARE-Timestamp"], body)
    assert secret not in body.decode()


def test_a_message_for_every_run_is_a_choice(sqlite: Database, allowed: Settings, receiver: Receiver) -> None:
    hook(sqlite, allowed, receiver.url, each_run=True)
    with sqlite.write() as session:
        submitted(session)
        runs = work_off(session)
    assert send_deliveries(allowed, sqlite) == runs
    assert {said["event"] for said in receiver.said()} == {"run.ended"}
    assert len({said["delivery"] for said in receiver.said()}) == runs


def test_a_failed_entry_says_why_and_who_pays(sqlite: Database, allowed: Settings, receiver: Receiver) -> None:
    hook(sqlite, allowed, receiver.url)
    with sqlite.write() as session:
        entry = submitted(session)
        claimed = take(session)
        assert claimed is not None
        endings.fail(session, claimed.run_id, "diverged", "NaN in the loss.", actor=claimed.actor, token=claimed.token)
        entries.cancel(session, LOCAL, entry)
    assert send_deliveries(allowed, sqlite) == 1
    (said,) = receiver.said()
    assert said["entry"]["status"] == "failed"  # type: ignore[index]


def test_what_ended_before_somebody_asked_is_not_told(sqlite: Database, allowed: Settings, receiver: Receiver) -> None:
    with sqlite.write() as session:
        submitted(session)
        work_off(session)
    hook(sqlite, allowed, receiver.url)
    assert send_deliveries(allowed, sqlite) == 0


def test_nobody_is_told_of_another_accounts_entries(sqlite: Database, allowed: Settings, receiver: Receiver) -> None:
    hook(sqlite, allowed, receiver.url)
    with sqlite.write() as session:
        other = viewer_of(account(session, "other"), "submitter")
        submitted(session, who=other)
        work_off(session)
    assert send_deliveries(allowed, sqlite) == 0


def account(session: Session, name: str, email: str | None = None) -> str:
    from datetime import UTC, datetime

    session.add(
        Account(
            id=name, handle=name, role="submitter", auth_provider="https://id.example", auth_subject=name, email=email,
            created_at=datetime.now(UTC),
        )
    )  # fmt: skip
    session.flush()
    return name


def test_a_receiver_that_fails_is_tried_again_later_under_the_same_id(
    sqlite: Database, allowed: Settings, receiver: Receiver
) -> None:
    hook(sqlite, allowed, receiver.url)
    with sqlite.write() as session:
        submitted(session)
        work_off(session)
    receiver.answers = [500]
    assert send_deliveries(allowed, sqlite) == 0
    assert send_deliveries(allowed, sqlite) == 0
    assert len(receiver.posted) == 1
    due_at_once(sqlite)
    assert send_deliveries(allowed, sqlite) == 1
    assert len({said["delivery"] for said in receiver.said()}) == 1
    with sqlite.read() as session:
        (view,) = subscriptions_of(session, LOCAL)
    assert (view.sent, view.waiting, view.failed, view.failures) == (1, 0, 0, ())


def test_a_receiver_that_never_answers_well_is_given_up_with_its_reason(
    sqlite: Database, allowed: Settings, receiver: Receiver
) -> None:
    hook(sqlite, allowed, receiver.url)
    with sqlite.write() as session:
        submitted(session)
        work_off(session)
    receiver.answers = [503] * (MOST_TRIES + 1)
    for _ in range(MOST_TRIES + 1):
        send_deliveries(allowed, sqlite)
        due_at_once(sqlite)
    assert len(receiver.posted) == MOST_TRIES
    with sqlite.read() as session:
        (view,) = subscriptions_of(session, LOCAL)
    (failure,) = view.failures
    assert (view.failed, failure.given_up, failure.tries) == (1, True, MOST_TRIES)
    assert failure.problem == "127.0.0.1 answered 503"


def test_a_redirect_is_not_followed(sqlite: Database, allowed: Settings, receiver: Receiver) -> None:
    hook(sqlite, allowed, receiver.url)
    with sqlite.write() as session:
        submitted(session)
        work_off(session)
    receiver.answers = [302]
    assert send_deliveries(allowed, sqlite) == 0
    assert len(receiver.posted) == 1
    with sqlite.read() as session:
        assert "redirects are not followed" in str(session.execute(select(Delivery.problem)).scalar_one())


def test_a_sender_that_dies_sends_again_and_two_at_once_send_once(
    sqlite: Database, allowed: Settings, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook(sqlite, allowed, receiver.url)
    with sqlite.write() as session:
        submitted(session)
        work_off(session)
        assert plan(session) == 1
        assert plan(session) == 0
    seen = deliveries._waiting(sqlite)
    first = deliveries._taken(allowed, sqlite, *seen[0])
    assert first is not None
    assert deliveries._taken(allowed, sqlite, *seen[0]) is None
    assert receiver.posted == []  # the first one died here
    due_at_once(sqlite)
    assert send_deliveries(allowed, sqlite) == 1


def test_nothing_is_sent_after_a_subscription_has_ended(
    sqlite: Database, allowed: Settings, receiver: Receiver
) -> None:
    hook(sqlite, allowed, receiver.url)
    with sqlite.write() as session:
        submitted(session)
        work_off(session)
        plan(session)
        (wish,) = subscriptions_of(session, LOCAL)
        end_subscription(session, LOCAL, wish.id)
    assert send_deliveries(allowed, sqlite) == 0
    assert receiver.posted == []


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://example.org/", "is no address"),
        ("https:///path", "is no address"),
        ("http://example.org/", "is not encrypted"),
        ("https://user:secret@example.org/", "password"),
        ("https://example.org/\r\nHost: other", "is no address"),
        ("https://example.org:99999/", "is no address"),
    ],
)
def test_an_address_that_cannot_be_is_refused_before_it_is_kept(
    sqlite: Database, sqlite_settings: Settings, url: str, why: str
) -> None:
    with sqlite.write() as session, pytest.raises(SubscriptionError, match=why):
        subscribe(session, sqlite_settings, LOCAL, "webhook", url)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "localhost", "10.0.0.8", "192.168.1.1", "169.254.169.254",
     "100.64.0.1", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]", "[fe80::1]", "[fd00::1]", "[64:ff9b::7f00:1]",
     "[2002:7f00:1::]", "224.0.0.1"],
)  # fmt: skip
def test_nothing_is_posted_into_a_private_network(host: str) -> None:
    with pytest.raises((webhook.AddressError, webhook.NotTakenError), match=r"public address|has no address"):
        webhook.receiver(f"https://{host}/hook")


def test_a_private_receiver_of_an_old_wish_is_not_reached_once_it_is_not_allowed(
    sqlite: Database, allowed: Settings, receiver: Receiver
) -> None:
    hook(sqlite, allowed, receiver.url)
    with sqlite.write() as session:
        submitted(session)
        work_off(session)
    assert send_deliveries(replace(allowed, webhook_hosts=()), sqlite) == 0
    assert receiver.posted == []


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A key and a certificate of this machine that nobody vouches for but itself."""
    key, made = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", made],
        check=True, capture_output=True,
    )  # fmt: skip
    return key, made


def test_a_message_travels_encrypted_and_only_to_a_certificate_that_is_known(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    posted: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """A client that hangs up on an unknown certificate is what is tested."""

    key, made = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    message = {"delivery": "d", "event": "entry.ended"}
    with Server(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        url = f"https://localhost:{server.server_port}/hook"
        try:
            with pytest.raises(webhook.NotTakenError, match="CERTIFICATE_VERIFY_FAILED"):
                webhook.post(url, "secret", message, "1", ("localhost",))
            assert posted == []
            monkeypatch.setenv("SSL_CERT_FILE", str(made))
            webhook.post(url, "secret", message, "1", ("localhost",))
        finally:
            server.shutdown()
            thread.join()
    assert json.loads(posted[0]) == message


class Inbox(MessageHandler):
    def __init__(self) -> None:
        super().__init__()
        self.mails: list[tuple[str, str, str, str]] = []

    def handle_message(self, message: object) -> None:
        self.mails.append(
            (message["To"], message["Subject"], message["Message-ID"], message.get_payload())  # type: ignore[index, attr-defined]
        )


@pytest.fixture
def inbox(unused_port: int) -> Iterator[tuple[Inbox, str]]:
    found = Inbox()
    controller = Controller(found, hostname="127.0.0.1", port=unused_port)
    controller.start()
    yield found, f"smtp://127.0.0.1:{unused_port}"
    controller.stop()


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def test_a_mail_comes_when_an_entry_has_ended(sqlite: Database, allowed: Settings, inbox: tuple[Inbox, str]) -> None:
    found, server = inbox
    mailing = replace(allowed, smtp_url=server)
    with sqlite.write() as session:
        subscribe(session, mailing, LOCAL, "mail", "me@example.org")
        entry = submitted(session)
        work_off(session)
    assert send_deliveries(mailing, sqlite) == 1
    ((to, subject, message_id, text),) = found.mails
    assert (to, subject) == ("me@example.org", "[DARE] bgpo: complete")
    assert message_id.endswith("@localhost>")
    assert text.startswith("Complete. ")
    assert f"https://dare.example/entry?id={entry}" in text


def test_a_mail_server_that_is_away_delays_a_mail(sqlite: Database, allowed: Settings, unused_port: int) -> None:
    mailing = replace(allowed, smtp_url=f"smtp://127.0.0.1:{unused_port}")
    with sqlite.write() as session:
        subscribe(session, mailing, LOCAL, "mail", "me@example.org")
        submitted(session)
        work_off(session)
    assert send_deliveries(mailing, sqlite) == 0
    with sqlite.read() as session:
        (view,) = subscriptions_of(session, LOCAL)
    assert view.waiting == 1
    assert "the mail server did not take it" in view.failures[0].problem


@pytest.mark.parametrize("text", ["me", "a@b, c@d", "me@x\nBcc: you@y", "<me@x>", "me@x y"])
def test_a_mail_address_is_one_plain_address(sqlite: Database, allowed: Settings, text: str) -> None:
    mailing = replace(allowed, smtp_url="smtp://127.0.0.1")
    with sqlite.write() as session, pytest.raises(SubscriptionError, match="is no mail address"):
        subscribe(session, mailing, LOCAL, "mail", text)


def test_where_people_sign_in_mail_goes_to_their_own_address_only(sqlite: Database, allowed: Settings) -> None:
    mailing = replace(allowed, smtp_url="smtp://127.0.0.1", sign_in="oidc")
    with sqlite.write() as session:
        me = viewer_of(account(session, "me", "me@example.org"), "submitter")
        subscribe(session, mailing, me, "mail", "me@example.org")
        with pytest.raises(SubscriptionError, match="to no other"):
            subscribe(session, mailing, me, "mail", "you@example.org")


def test_only_those_who_may_submit_are_told_and_of_their_own(sqlite: Database, allowed: Settings) -> None:
    with sqlite.write() as session:
        me = viewer_of(account(session, "me"), "submitter")
        theirs = submitted(session)
        with pytest.raises(NotAllowedError):
            subscribe(session, allowed, NOBODY, "webhook", "https://example.org/")
        with pytest.raises(SubscriptionError, match="no entry"):
            subscribe(session, allowed, me, "webhook", "https://example.org/", entry_id=theirs)
        wish = subscribe(session, allowed, LOCAL, "webhook", "https://example.org/", entry_id=theirs)
        with pytest.raises(SubscriptionError, match="no subscription"):
            end_subscription(session, me, wish.id)
        assert subscriptions_of(session, me) == ()
        assert session.get_one(Subscription, wish.id).ended_at is None


def test_the_command_asks_lists_and_ends(sqlite_settings: Settings) -> None:
    from typer.testing import CliRunner

    from dare_platform.cli import app

    def dare(*arguments: str, code: int = 0) -> tuple[str, str]:
        environment = {"DARE_HOME": str(sqlite_settings.home), "COLUMNS": "200"}
        result = CliRunner().invoke(app, ["notify", *arguments], env=environment)
        assert result.exit_code == code, result.output
        return result.stdout, result.stderr

    assert "You are told of nothing." in dare("list")[1]
    assert "is not encrypted" in dare("webhook", "http://example.org/", code=1)[1]
    assert "sends no mail" in dare("mail", "me@example.org", code=1)[1]
    secret, said = dare("webhook", "https://example.org/dare", "--each-run")
    assert len(secret.strip()) > 30
    assert "not shown again" in said
    (one,) = json.loads(dare("list", "--json")[0])
    assert (one["target"], one["each_run"]) == ("https://example.org/dare", True)
    assert secret.strip() not in dare("list")[0]
    assert "0 messages sent." in dare("send")[1]
    dare("end", one["id"])
    assert "You are told of nothing." in dare("list")[1]
