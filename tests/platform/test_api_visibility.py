"""What is private or anonymous is met behind no address of the API, whoever asks, whatever else was asked before."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from several_people import People, fill
from sqlalchemy import select
from starlette.testclient import TestClient

from dare_platform import log_chunks, subscriptions, tokens
from dare_platform.api import Door, alone
from dare_platform.database import Database
from dare_platform.log_chunks import Piece
from dare_platform.models import Attempt, Entry, Run
from dare_platform.settings import Settings
from dare_platform.viewer import Viewer


@dataclass(frozen=True)
class Scene:
    """A filled place, and a client for each of its people."""

    people: People
    clients: dict[str, TestClient]
    database: Database
    subscription: str
    """Of the author, for the private entry."""

    def ids(self, runs: int | None = None) -> list[str]:
        """All ids that there are, or those of so many runs of each entry only."""
        chosen = [run for of_entry in self.people.runs.values() for run in of_entry[:runs]]
        return [*self.people.all_entries, *chosen, self.subscription]


@pytest.fixture(scope="module")
def scene(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    home = tmp_path_factory.mktemp("people")
    shutil.copy(sqlite_template, home / "dare.sqlite")
    settings = replace(Settings.from_environment({"DARE_HOME": str(home)}), sign_in="oidc")
    door = Door(settings, is_local=False)
    app = alone(door)

    def client(session: Any, viewer: Viewer | None) -> TestClient:
        headers = {}
        if viewer is not None:
            headers = {"Authorization": f"Bearer {tokens.issue(session, viewer, 'test', viewer.scopes).token}"}
        return TestClient(app, base_url="http://dare.example/api/v1/", headers=headers)

    with door, Database(settings.database_url) as database:
        with database.write() as session:
            people = fill(session)
            told = subscriptions.subscribe(
                session, settings, people.author, "webhook", "https://example.org/zebra-hook", people.private["zebra"]
            )
            who = {"nobody": None, "other": people.other, "author": people.author, "operator": people.operator}
            for run, token, tail in session.execute(select(Attempt.run_id, Attempt.token, Attempt.log_tail)).all():
                log_chunks.keep(session, run, token, [Piece(0, tail.encode())])
            clients = {name: client(session, viewer) for name, viewer in who.items()}
        yield Scene(people, clients, database, told.id)


def questions(scene: Scene, runs: int | None = 1) -> Iterator[tuple[str, str, dict[str, Any], Any]]:
    """Every route with everything that there is to put into it: method, path, parameters, body."""
    document = scene.clients["nobody"].get("openapi.json").json()
    for path, methods in document["paths"].items():
        for method in methods:
            if (method, path) not in ASKED:
                raise AssertionError(f"{method} {path} is asked by no test: say with what in ASKED")
            for body, parameters in ASKED[method, path]:
                for id in scene.ids(runs) if "{id}" in path else [""]:
                    asked = path.removeprefix("/v1/").format(id=id, track="tiny")
                    yield method, asked, parameters, body(id) if callable(body) else body


BUILT_IN = {"algorithm": "bgpo", "assignments": {"mc_samples": 3}, "backbones": ["llada-tiny"], "visibility": "private"}
BODILESS: tuple[Any, dict[str, Any]] = (None, {})
ASKED: dict[tuple[str, str], list[tuple[Any, dict[str, Any]]]] = {
    ("get", "/v1/health"): [BODILESS],
    ("get", "/v1/whoami"): [BODILESS],
    ("get", "/v1/entries"): [BODILESS, (None, {"track": "tiny"})],
    ("get", "/v1/entries/{id}"): [BODILESS],
    ("get", "/v1/runs"): [(None, {"limit": 1000})],
    ("get", "/v1/runs/{id}"): [BODILESS],
    ("get", "/v1/runs/{id}/log"): [BODILESS, (None, {"token": 1, "offset": 0}), (None, {"token": 1, "offset": 3})],
    ("get", "/v1/queue"): [BODILESS],
    ("get", "/v1/boards/{track}"): [BODILESS],
    ("get", "/v1/boards/{track}/export"): [(None, {"format": name}) for name in ("csv", "json", "latex")],
    ("get", "/v1/subscriptions"): [BODILESS],
    ("post", "/v1/entries/check"): [(BUILT_IN, {})],
    ("post", "/v1/entries"): [(BUILT_IN, {})],
    ("post", "/v1/sweeps/check"): [({"shared": BUILT_IN, "points": [{"name": "own", "assignments": {}}]}, {})],
    ("post", "/v1/sweeps"): [({"shared": BUILT_IN, "points": [{"name": "own", "assignments": {}}]}, {})],
    ("post", "/v1/entries/{id}/retry"): [BODILESS],
    ("post", "/v1/entries/{id}/cancel"): [BODILESS],
    ("post", "/v1/entries/{id}/withdraw"): [({"reason": "mine now"}, {})],
    ("put", "/v1/entries/{id}/visibility"): [({"visibility": "public"}, {})],
    ("post", "/v1/subscriptions"): [
        ({"channel": "webhook", "target": "https://example.org/", "entry": "nosuch"}, {}),
    ],
    ("delete", "/v1/subscriptions/{id}"): [BODILESS],
}


def ask(client: TestClient, method: str, path: str, parameters: dict[str, Any], body: Any) -> httpx.Response:
    headers = {"Idempotency-Key": "stranger"} if method == "post" else {}
    answer: httpx.Response = client.request(method, path, params=parameters, json=body, headers=headers)
    return answer


def bytes_of(answer: httpx.Response, asked: str) -> str:
    """Everything that was sent back, logs decoded, but for what the question itself held."""
    text = answer.text
    for part in asked.split("/"):
        if len(part) > 20:
            text = text.replace(part, "")
    if answer.status_code == 200 and answer.url.path.endswith("/log"):
        text += base64.b64decode(answer.json()["content"]).decode()
    return text + str(answer.headers)


def state_of(scene: Scene) -> list[Any]:
    """What strangers must not change: every entry that is not theirs, and its runs."""
    with scene.database.read() as session:
        columns = (Entry.id, Entry.visibility, Entry.gate, Run.id, Run.state, Run.cancel_requested_at)
        theirs = Entry.submitted_by != scene.people.other.account_id
        return [tuple(row) for row in session.execute(select(*columns).join(Run).where(theirs).order_by(Run.id))]


def test_no_route_shows_or_gives_a_stranger_what_is_private_or_anonymous(scene: Scene) -> None:
    before = state_of(scene)
    marks = scene.people.marks_of_private() + scene.people.marks_of_anonymous()
    marks += ["zebra-hook", scene.subscription]
    count = 0
    for method, path, parameters, body in questions(scene):
        for who in ("author", "nobody", "other"):  # the author first: nothing of the answer is kept for the next one
            if who == "author" and method != "get":
                continue
            answer = ask(scene.clients[who], method, path, parameters, body)
            assert answer.status_code < 500, (method, path, answer.text)
            if who == "author":
                continue
            count += 1
            shown = bytes_of(answer, path)
            for mark in marks:
                assert mark not in shown, (who, method, path, mark)
    assert count > 150
    assert state_of(scene) == before


def test_private_and_unknown_are_the_same_answer(scene: Scene) -> None:
    private = [id for entry in scene.people.private.values() for id in (entry, *scene.people.runs[entry])]
    for method, path, parameters, body in questions(scene):
        id = next((one for one in private if one in path), None)
        if id is None:
            continue
        for who in ("nobody", "other"):
            answer = ask(scene.clients[who], method, path, parameters, body)
            unknown = ask(scene.clients[who], method, path.replace(id, "nosuch"), parameters, body)
            assert answer.status_code == unknown.status_code
            assert answer.text.replace(id, "nosuch") == unknown.text, (who, method, path)


@pytest.mark.full
def test_the_author_and_an_operator_meet_all_of_it(scene: Scene) -> None:
    for who in ("author", "operator"):
        seen = "".join(
            bytes_of(ask(scene.clients[who], method, path, parameters, body), "")
            for method, path, parameters, body in questions(scene, runs=None)
            if method == "get"
        )
        for mark in scene.people.marks_of_private() + scene.people.marks_of_anonymous():
            assert mark in seen or mark == "account-of-quagga", (who, mark)


def test_an_anonymous_log_is_refused_and_its_run_is_not(scene: Scene) -> None:
    run = scene.people.runs[scene.people.anonymous][0]
    assert scene.clients["other"].get(f"runs/{run}").json()["withheld"]
    answer = scene.clients["other"].get(f"runs/{run}/log")
    assert (answer.status_code, answer.json()["code"]) == (403, "not_allowed")
    own = scene.clients["author"].get(f"runs/{run}/log")
    assert "lynx-log" in bytes_of(own, "")
