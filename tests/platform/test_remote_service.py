"""`dare --server URL` does and says what `dare` does and says on the server's own machine."""

from __future__ import annotations

import http.server
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from played import MY_RULE, register, steps, succeed, take, work_off
from serving import served
from several_people import account
from test_cli import FAILED, REFUSED, USAGE, Dare
from typer.testing import CliRunner

from dare_platform import log_chunks, tokens
from dare_platform.api import Door, alone
from dare_platform.asking import SubmitRequest
from dare_platform.cli import app
from dare_platform.cli.following import FOLLOW_SECONDS
from dare_platform.database import Database
from dare_platform.errors import SettingsError
from dare_platform.log_chunks import Piece
from dare_platform.models import Run
from dare_platform.quotas import QuotaError
from dare_platform.remote_service import TRIES, RemoteService, ServerError
from dare_platform.service import AwayError
from dare_platform.settings import Quota, Settings
from dare_platform.tokens import BadTokenError
from dare_platform.viewer import NotAllowedError

BGPO = SubmitRequest(algorithm="bgpo", backbones=("llada-tiny",))
CHANGES = re.compile(
    r"\b[0-9a-hjkmnp-z]{26}\b|\b[0-9a-f]{8}(?:[0-9a-f]{56})?\b|\b1[0-9]{9}\.[0-9]+|\b[0-9.]+e?-?[0-9]* (?:s|min)\b"
    r"|[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9:.+]+|\"[a-z_]*(?:seconds|at)\": [0-9.e-]+|[A-Za-z0-9_-]{43}"
)
"""Ids, hashes, moments, durations and secrets, which are others each time."""


class Said(NamedTuple):
    """What a command left."""

    code: int
    out: str
    err: str


class Remote:
    """The command far from the database, with the server's address."""

    def __init__(self, url: str, token: str = "") -> None:
        self._url = url
        self._environment = {"DARE_HOME": "/nonexistent", "DARE_TOKEN": token, "COLUMNS": "200", "DARE_DATA": ""}

    def __call__(self, *arguments: str) -> Said:
        return said(["--server", self._url, *arguments], self._environment)


def said(arguments: list[str], environment: dict[str, str]) -> Said:
    result = CliRunner().invoke(app, arguments, env=environment)
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return Said(result.exit_code, result.stdout, result.stderr)


@pytest.fixture
def far(tmp_path: Path, sqlite_settings: Settings) -> Settings:
    """A home like the one nearby, whose database is reached through the server only."""
    home = tmp_path / "far"
    shutil.copytree(sqlite_settings.home, home)
    return Settings.from_environment({"DARE_HOME": str(home)})


def work(settings: Settings) -> None:
    """Do all that waits; the first run prints something."""
    with Database(settings.database_url) as database, database.write() as session:
        first = take(session)
        assert first is not None
        if first.job.kind == "train":
            steps(session, first, 3)
        log_chunks.keep(session, first.run_id, first.token, [Piece(0, "löwe\nlast line\n".encode())])
        succeed(session, first, lambda run, task: 0.5)
        work_off(session, {"untouched": 0.2, "bgpo": 0.6, "d1": 0.4})


def ids(settings: Settings) -> dict[str, str]:
    """What a scenario names, by a word that is the same in both homes."""
    with Database(settings.database_url) as database, database.read() as session:
        runs = session.query(Run).order_by(Run.created_at, Run.id).all()
        entries = dict.fromkeys(run.entry_id for run in runs)
        named = {f"<entry {number}>": id for number, id in enumerate(entries)}
        return named | {f"<run {number}>": run.id for number, run in enumerate(runs)}


@pytest.mark.full
def test_every_command_of_people_says_the_same_from_far(
    sqlite_settings: Settings, far: Settings, tmp_path: Path
) -> None:
    near = sqlite_settings
    for settings in (near, far):
        with Database(settings.database_url) as database, database.write() as session:
            register(session)
    (tmp_path / "my_rule.py").write_text(MY_RULE)
    (tmp_path / "bad.py").write_text("import os\n" + MY_RULE)
    (tmp_path / "settings.yaml").write_text("clip_low: 0.05\n")
    (tmp_path / "sweep.yaml").write_text(
        "algorithm: my_rule.py\nbackbones: [llada-tiny]\ngrid: {clip_low: [0.05, 0.2]}\n"
    )
    rule, yaml, sweep = (str(tmp_path / name) for name in ("my_rule.py", "settings.yaml", "sweep.yaml"))
    first = [
        ["entries"], ["runs"], ["queue"], ["leaderboard"],
        *(["submit", name, "-b", "llada-tiny"] for name in ("untouched", "bgpo", "d1")),
        ["submit", "bgpo", "-b", "llada-tiny"],
        ["submit", "bgpo", "--json", "-b", "llada-tiny", "--set", "mc_samples=4", "--visibility", "private"],
        ["submit", rule, "--settings", yaml, "-b", "llada-tiny", "--name", "narrow", "--control"],
        ["submit", "bgpo", "--set", "mc_sample=4"], ["submit", "bgpo", "--set", "mc_samples=nan"],
        ["submit", "bgop"], ["submit", "bgpo", "--control"], ["submit", "d1", "--name", "bgpo"],
        ["submit", "bgpo", "--track", "nosuch"], ["submit", str(tmp_path / "bad.py")], ["submit", "nosuch.py"],
        ["sweep", sweep, "--dry-run"], ["sweep", sweep, "--dry-run", "--json"], ["sweep", sweep, "--yes"],
        ["sweep", sweep, "--json"], ["sweep", "nosuch.yaml"],
        ["queue"], ["queue", "--json"], ["logs", "<run 0>"], ["entries", "<entry 1>"],
        ["notify", "list"], ["notify", "webhook", "https://example.org/dare"], ["notify", "webhook", "http://10.0.0.1/"],
        ["notify", "mail", "ada@example.org"], ["notify", "list", "--json"], ["notify", "end", "nosuch"],
    ]  # fmt: skip
    then = [
        ["entries"], ["entries", "--track", "tiny", "--json"], ["entries", "--track", "nosuch"],
        ["entries", "<entry 1>"], ["entries", "<entry 1>", "--json"], ["runs", "--limit", "3", "--json"],
        ["runs", "--entry", "<entry 2>"], ["runs", "<run 1>"], ["runs", "<run 1>", "--json"],
        ["logs", "<run 0>"], ["logs", "<run 0>", "--lines", "1"], ["logs", "<run 0>", "--json"],
        ["leaderboard", "-b", "llada-tiny"], ["leaderboard", "--json"], ["leaderboard", "-b", "nosuch"],
        *(["export", "-f", name] for name in ("csv", "json", "latex")), ["export", "--track", "nosuch"],
        ["cancel", "<entry 0>"], ["cancel", "<run 0>", "--json"], ["retry", "<entry 0>"],
        ["withdraw", "<entry 2>", "--reason", "a test"], ["withdraw", "<entry 2>"], ["withdraw", "<run 0>"],
        ["retry", "<entry 2>"], ["retry", "<entry 2>", "--json"],
        *([command, "no such ?é"] for command in ("entries", "runs", "logs", "cancel", "retry", "withdraw")),
        ["logs", "nosuch", "-f"],
    ]  # fmt: skip
    local = {"DARE_HOME": str(near.home), "DARE_DATA": "", "COLUMNS": "200", "DARE_BROKER_URL": ""}
    with Door(far, is_local=True) as door, served(alone(door)) as url:
        remote = Remote(url)
        for commands in (first, then):
            for command in commands:
                here, there = ([names.get(word, word) for word in command] for names in (ids(near), ids(far)))
                expected, found = said(here, local), remote(*there)
                assert [CHANGES.sub("…", str(part)) for part in found] == [
                    CHANGES.sub("…", str(part)) for part in expected
                ], command
            if commands is first:
                work(near)
                work(far)


def test_a_server_gives_the_very_same_data(sqlite_settings: Settings) -> None:
    dare = Dare(sqlite_settings)
    dare("migrate")
    for name in ("untouched", "bgpo"):
        dare("submit", name, "-b", "llada-tiny")
    with Database(sqlite_settings.database_url) as database, database.write() as session:
        work_off(session, {"untouched": 1 / 3, "bgpo": 2 / 3})
    with Door(sqlite_settings, is_local=True) as door, served(alone(door)) as url:
        for command in (["entries"], ["runs"], ["leaderboard"]):
            near, far = dare.json(*command), json.loads(Remote(url)(*command, "--json").out)
            assert without_moment(near) == without_moment(far)
        for run in dare.json("runs"):
            assert json.loads(Remote(url)("runs", run["id"], "--json").out) == dare.json("runs", run["id"])


def without_moment(value: Any) -> Any:
    if isinstance(value, dict) and "board" in value:
        value["board"].pop("made_at")
    return value


def test_a_log_is_followed_from_far_through_an_absence_of_the_server(
    sqlite_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    Dare(sqlite_settings)("migrate")
    with Database(sqlite_settings.database_url) as database:
        with database.write() as session:
            register(session)
        Dare(sqlite_settings)("submit", "bgpo", "-b", "llada-tiny")
        with database.write() as session:
            claimed = take(session)
            assert claimed is not None
            log_chunks.keep(session, claimed.run_id, claimed.token, [Piece(0, b"first\n")])

        waited = iter(range(10))

        def go_on(seconds: float) -> None:
            """The run prints and ends while somebody waits for the first time."""
            if next(waited) > 0:
                return
            with database.write() as session:
                log_chunks.keep(session, claimed.run_id, claimed.token, [Piece(0, b"first\nsecond\n")])
                succeed(session, claimed, lambda run, task: 0.5)

        monkeypatch.setattr("dare_platform.cli.following.time.sleep", go_on)
        assert FOLLOW_SECONDS < 1
        door = Door(sqlite_settings, is_local=True)
        api = alone(door)
        asked = 0

        async def now_and_then(scope: Any, receive: Any, send: Any) -> None:
            """Each second question about the log finds nobody."""
            nonlocal asked
            if scope["path"].endswith("/log"):
                asked += 1
                if asked == 2:
                    await send({"type": "http.response.start", "status": 503, "headers": [(b"dare-api", b"1")]})
                    away = b'{"status": 503, "code": "away", "title": "", "detail": "away"}'
                    await send({"type": "http.response.body", "body": away})
                    return
            await api(scope, receive, send)

        with door, served(now_and_then) as url:
            followed = Remote(url)("logs", claimed.run_id, "-f")
    assert (followed.code, followed.out) == (0, "first\nsecond\n")
    assert "The server is away; waiting." in followed.err


# --- tokens and errors ----------------------------------------------------------------------------------------------


@pytest.fixture
def place(sqlite_settings: Settings, sqlite: Database) -> Iterator[tuple[str, str, str]]:
    """A place where people sign in: its address, and tokens of one of them to submit and to read."""
    with sqlite.write() as session:
        register(session)
        ada = account(session, "ada", "ada", "submitter")
        submits = tokens.issue(session, ada, "submits", ["read", "submit"]).token
        reads = tokens.issue(session, ada, "reads", ["read"]).token
    settings = replace(sqlite_settings, sign_in="oidc", quota=Quota(entries_per_day=1))
    with Door(settings, is_local=False) as door, served(alone(door)) as url:
        yield url, submits, reads


def test_a_token_comes_from_the_environment_or_a_file_and_is_shown_nowhere(
    place: tuple[str, str, str], tmp_path: Path
) -> None:
    url, submits, _ = place
    (tmp_path / "token").write_text(submits + "\n")
    command = ["--server", url, "submit", "bgpo", "-b", "llada-tiny", "--visibility", "private"]
    by_file = said(command, {"DARE_TOKEN_FILE": str(tmp_path / "token"), "DARE_TOKEN": ""})
    by_value = Remote(url, submits)("entries")
    assert (by_file.code, by_value.code) == (0, 0)
    assert by_file.out.strip() in by_value.out
    assert "No entry yet" in Remote(url)("entries").err
    refused = Remote(url, "dare_wrong")("entries")
    assert (refused.code, refused.err) == (
        FAILED, "dare: this token is not known: make one with `dare tokens new` or on the account page\n",
    )  # fmt: skip
    assert submits not in "".join(map(str, (by_file, by_value)))
    assert "dare_wrong" not in str(refused)


def test_the_same_exceptions_come_back(place: tuple[str, str, str]) -> None:
    url, submits, reads = place
    with RemoteService(url, submits) as one, RemoteService(url, reads) as reader, RemoteService(url, "x") as stranger:
        assert one.whoami().handle == "ada"
        with pytest.raises(NotAllowedError, match="that needs the right to submit"):
            reader.submit(BGPO, "1")
        with pytest.raises(BadTokenError, match="is not known"):
            stranger.entries()
        first = one.submit(BGPO, "1")
        assert one.submit(BGPO, "1").entry_id == first.entry_id
        with pytest.raises(QuotaError, match="1 of 1 entries in 24 h"):
            one.submit(SubmitRequest(algorithm="d1", backbones=("llada-tiny",)), "2")
        one.cancel(first.entry_id)
        one.show_to(first.entry_id, "public")


def test_a_token_does_not_travel_in_the_open(place: tuple[str, str, str]) -> None:
    with pytest.raises(SettingsError, match=r"would travel to dare\.example in the open"):
        RemoteService("http://dare.example:8501", place[1])
    for wrong in ("dare.example", "ftp://dare.example", "http://ada:secret@dare.example", "http://a:port", "http://["):
        with pytest.raises(SettingsError, match="must be http://HOST:PORT") as refused:
            RemoteService(wrong)
        assert "secret" not in str(refused.value)


def test_a_file_that_no_server_takes_is_refused_before_it_travels(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text("#" * 3_500_000)
    answer = Remote("http://127.0.0.1:1")("submit", str(tmp_path / "large.py"))
    assert answer == (REFUSED, "", "dare: a request has at most 4 MB, and a submitted file 1 MB\n")


# --- servers that are none ------------------------------------------------------------------------------------------


def test_nobody_at_the_address_is_a_sentence() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    assert Remote(url)("runs") == (
        FAILED, "", f"dare: no server answers at {url}: is the address right, and is it running?\n"
    )  # fmt: skip


def test_another_server_at_the_address_is_a_sentence() -> None:
    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the library's name
            self.send_response(404)
            self.end_headers()

        def log_message(self, format: str, *arguments: Any) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Other) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{other.server_port}"
        answer = Remote(url)("runs")
        other.shutdown()
        thread.join()
    assert answer.err == f"dare: {url} is no DARE server: it answered 404 to /api/v1\n"


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (
            httpx.Response(200, headers={"DARE-API": "2"}, json=[]),
            "speaks version 2 of the API, this program version 1",
        ),
        (httpx.Response(200, headers={"DARE-API": "1"}, json={"a": 1}), "does not understand what"),
        (httpx.Response(502, headers={"DARE-API": "1"}, text="<html>"), "does not understand what"),
    ],
)
def test_a_server_of_another_time_is_a_sentence(answer: httpx.Response, sentence: str) -> None:
    with (
        RemoteService("http://127.0.0.1:1", transport=httpx.MockTransport(lambda _: answer)) as one,
        pytest.raises(ServerError, match=sentence),
    ):
        one.entries()


class Breaking(httpx.BaseTransport):
    """Breaks off every connection after the question was sent."""

    def __init__(self) -> None:
        self.asked = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        raise httpx.ReadError("broken")


def test_only_what_may_be_done_twice_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dare_platform.remote_service.PAUSE_SECONDS", 0)
    with RemoteService("http://127.0.0.1:1", transport=(broken := Breaking())) as one:
        with pytest.raises(AwayError, match=r"broke off$"):
            one.queue()
        with pytest.raises(AwayError, match=r"broke off$"):
            one.submit(BGPO, "1")
        assert broken.asked == 2 * TRIES
        with pytest.raises(AwayError, match="look whether it was done before you ask again"):
            one.cancel("x")
        assert broken.asked == 2 * TRIES + 1


@pytest.mark.full
def test_dare_api_answers_until_it_is_told_to_end(sqlite_settings: Settings) -> None:
    Dare(sqlite_settings)("migrate")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "DARE_HOME": str(sqlite_settings.home)}
    command = [sys.executable, "-m", "dare_platform", "api", "--port", str(port)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as server:
        deadline = time.monotonic() + 60
        while (answer := Remote(f"http://127.0.0.1:{port}")("queue")).code != 0:
            assert time.monotonic() < deadline, answer
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=20)
    assert answer.out.startswith("Nothing is waiting.")
    assert errors == f"The API: http://127.0.0.1:{port}/api/v1/openapi.json\n"
    assert server.returncode == 0


# --- commands of this machine ---------------------------------------------------------------------------------------


def test_what_is_about_this_machine_is_refused_with_a_server() -> None:
    for command in (["worker"], ["migrate"], ["doctor"], ["clean"], ["purge"], ["metrics"], ["control"], ["gpus"],
                    ["snapshot"], ["verify"], ["api"], ["notify", "send"], ["backup", "x"]):  # fmt: skip
        answer = Remote("http://127.0.0.1:1")(*command)
        assert answer == (
            USAGE, "", "dare: this command is about this machine: leave out --server, and DARE_SERVER\n"
        ), command  # fmt: skip
