"""`dare doctor` against a platform of several parts: each that is not well is named, with what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from sqlalchemy import update
from world import add_train_run, add_worker, build

from dare_platform.database import Database, now
from dare_platform.diagnosis import Finding, diagnose
from dare_platform.models import Run
from dare_platform.settings import Settings


def found(settings: Settings) -> dict[str, Finding]:
    return {finding.subject: finding for finding in diagnose(settings)}


@contextmanager
def service(status: int) -> Iterator[str]:
    """An HTTP server that answers everything with one status."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the library's name
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_queue_that_nobody_serves_is_named(settings: Settings) -> None:
    settings.home.mkdir(exist_ok=True)
    with Database(settings.database_url) as database, database.write() as session:
        world = build(session)
        add_train_run(session, world)
        add_worker(session, families="dream")
        long_ago = now(session) - 1000
        session.execute(update(Run).values(created_at=long_ago, enqueued_at=long_ago))
    said = found(settings)
    assert said["queue family_llada"].state == "bad"
    assert said["queue family_llada"].remedy == "start a worker of llada"
    assert said["workers of dream"].finding.startswith("1 alive, last sign ")
    assert said["clock"].state == "ok"
    assert said["outbox"].finding.startswith("1 messages pending")


def test_the_launcher_service_is_asked(sqlite_settings: Settings) -> None:
    with service(200) as address:
        assert found(replace(sqlite_settings, launcher=address))["launcher"].state == "ok"
    with service(503) as address:
        assert "not well (503)" in found(replace(sqlite_settings, launcher=address))["launcher"].finding
    gone = found(replace(sqlite_settings, launcher=address))["launcher"]
    assert gone.state == "bad"
    assert "dare launcher" in gone.remedy


def test_settings_of_sign_in_that_are_missing_are_named(
    sqlite_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DARE_OIDC_CLIENT_ID", "dare")
    said = found(replace(sqlite_settings, sign_in="oidc"))["sign-in"]
    assert said.state == "bad"
    assert "DARE_OIDC_ISSUER" in said.finding
    assert "DARE_OIDC_CLIENT_ID" not in said.finding


def test_the_artifact_store_is_tried(sqlite_settings: Settings, tmp_path: Path) -> None:
    good = replace(sqlite_settings, artifact_store=f"file://{tmp_path}/elsewhere")
    assert found(good)["artifact store"].state == "ok"
    (tmp_path / "file").touch()
    bad = found(replace(sqlite_settings, artifact_store=f"file://{tmp_path}/file/below"))["artifact store"]
    assert bad.state == "bad"


def test_mail_without_an_address_of_the_site_is_noted(sqlite_settings: Settings) -> None:
    assert found(replace(sqlite_settings, smtp_url="smtp://mail"))["mail"].remedy == "set DARE_PUBLIC_URL"
