"""The HTTP API: who asks, what they are told when it goes wrong, and that nothing is done twice."""

from __future__ import annotations

import base64
import io
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from played import MY_RULE, register, take
from several_people import account
from sqlalchemy import func, select, update
from starlette.testclient import TestClient

from dare_platform import log_chunks, tokens
from dare_platform.api import Door, alone
from dare_platform.api_messages import MOST_BYTES
from dare_platform.database import Database
from dare_platform.log_chunks import Piece
from dare_platform.models import ApiToken, Entry, Run
from dare_platform.settings import Quota, Settings
from dare_platform.structured_logs import set_up
from dare_platform.viewer import Scope, Viewer

BGPO = {"algorithm": "bgpo", "backbones": ["llada-tiny"]}
FILE = {"name": "my_rule.py", "content": base64.b64encode(MY_RULE.encode()).decode()}
Client = Callable[..., TestClient]


@pytest.fixture
def ada(database: Database) -> Viewer:
    with database.write() as session:
        register(session)
        return account(session, "ada", "ada", "submitter")


@pytest.fixture
def client(settings: Settings) -> Iterator[Client]:
    """A client of the API of a place where people sign in; `is_local` and `sign_in` make it another."""

    doors = ExitStack()

    def make(token: str | None = None, *, is_local: bool = False, sign_in: Any = "oidc", **changed: Any) -> TestClient:
        app = alone(doors.enter_context(Door(replace(settings, sign_in=sign_in, **changed), is_local)))
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return TestClient(app, base_url="http://127.0.0.1:8501/api/v1/", headers=headers)

    with doors:
        yield make


def token_of(database: Database, viewer: Viewer, *scopes: Scope) -> str:
    with database.write() as session:
        return tokens.issue(session, viewer, "test", scopes or ("read", "submit")).token


def submitted(client: TestClient, body: dict[str, Any] | None = None, key: str = "1") -> httpx.Response:
    return client.post("entries", json=BGPO if body is None else body, headers={"Idempotency-Key": key})


def refusal(answer: httpx.Response, status: int) -> tuple[str, str]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == status
    return problem["code"], problem["detail"]


# --- who asks -------------------------------------------------------------------------------------------------------


def test_a_token_is_its_owner_with_its_own_rights(client: Client, database: Database, ada: Viewer) -> None:
    told = client(token_of(database, ada, "read")).get("whoami").json()
    assert (told["handle"], told["role"], told["scopes"]) == ("ada", "submitter", ["read"])
    assert told["quota"]["entries_used"] == 0
    nobody = client().get("whoami").json()
    assert (nobody["handle"], nobody["scopes"], nobody["quota"]) == (None, ["read"], None)


def test_without_a_token_nobody_submits_where_people_sign_in(client: Client, ada: Viewer) -> None:
    for one in (client(), client(is_local=True), client(sign_in="local")):
        code, detail = refusal(submitted(one), 403)
        assert (code, detail) == ("not_allowed", "nobody is signed in: that needs the right to submit")


def test_on_ones_own_machine_nobody_needs_a_token(client: Client, ada: Viewer) -> None:
    assert submitted(client(is_local=True, sign_in="local")).status_code == 201


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:3000"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://["},
        {"Host": "["},
        {"Host": "127.0.0.1.rebound.example:8501"},
        {"Host": "rebound.example:8501"},
        {"Host": "rebound.example:8501", "Origin": "http://rebound.example:8501", "Sec-Fetch-Site": "same-origin"},
    ],
)
def test_a_page_of_another_site_asks_for_nothing_in_my_name(
    headers: dict[str, str], client: Client, ada: Viewer
) -> None:
    one = client(is_local=True, sign_in="local")
    for path in ("entries", "whoami", "queue"):
        assert refusal(one.get(path, headers=headers), 403)[0] == "not_allowed"
    assert refusal(one.post("entries", json=BGPO, headers={**headers, "Idempotency-Key": "1"}), 403)


def test_a_page_of_our_own_asks_as_i_do(client: Client, ada: Viewer) -> None:
    headers = {"Origin": "http://127.0.0.1:8501", "Sec-Fetch-Site": "same-origin"}
    assert client(is_local=True, sign_in="local").get("whoami", headers=headers).json()["handle"] == "local"


def test_a_token_that_opens_nothing_says_why_and_names_nobody(client: Client, database: Database, ada: Viewer) -> None:
    revoked, expired = token_of(database, ada), token_of(database, ada)
    with database.write() as session:
        first, second = (row.id for row in tokens.tokens_of(session, ada))
        session.execute(
            update(ApiToken).where(ApiToken.id == first).values(expires_at=datetime.now(UTC) - timedelta(1))
        )
        tokens.revoke(session, ada, second)
    reasons = {revoked: "was revoked", expired: "expired", "dare_nosuch": "is not known", "Basic": "is not known"}
    for token, reason in reasons.items():
        answer = client(token).get("entries")
        code, detail = refusal(answer, 401)
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert (code, reason in detail, "ada" in detail) == ("bad_token", True, False), detail
    answer = client().get("entries", headers={"Authorization": "Basic YWRhOmFkYQ=="})
    assert refusal(answer, 401) == ("bad_token", "the Authorization header is no `Bearer dare_…`")


def test_a_token_does_no_more_than_it_was_made_for(client: Client, database: Database, ada: Viewer) -> None:
    reads, submits = client(token_of(database, ada, "read")), client(token_of(database, ada, "submit"))
    assert (
        refusal(submitted(reads), 403)[1] == "this account or token (submitter) may not: that needs the right to submit"
    )
    assert refusal(submits.get("entries"), 403)[1].endswith("the right to read")
    assert submitted(submits).status_code == 201


def test_no_token_is_in_any_log(
    client: Client, database: Database, ada: Viewer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    token = token_of(database, ada)
    written = io.StringIO()
    monkeypatch.setattr("sys.stderr", written)
    set_up("api", {})
    with caplog.at_level(logging.DEBUG):
        one = client(token)
        submitted(one)
        one.get("runs", params={"limit": "many"})
        client("dare_" + token).get("entries")
    assert "GET http" in written.getvalue()
    assert token not in written.getvalue()


# --- submitting -----------------------------------------------------------------------------------------------------


def test_the_same_key_is_done_once_and_another_wish_under_it_is_refused(
    client: Client, database: Database, ada: Viewer
) -> None:
    one = client(token_of(database, ada))
    first, again = submitted(one), submitted(one)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["entry_id"] == again.json()["entry_id"]
    assert first.json()["runs"] == 6
    code, detail = refusal(submitted(one, {**BGPO, "algorithm": "d1"}), 409)
    assert code == "key_used"
    assert "Use a new key" in detail
    assert refusal(one.post("entries", json=BGPO), 422) == ("request", "`Idempotency-Key`: Field required.")


def test_one_wish_sent_twice_at_once_is_one_entry(client: Client, database: Database, ada: Viewer) -> None:
    one = client(token_of(database, ada))
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: submitted(one), range(4)))
    assert {answer.status_code for answer in answers} <= {200, 201}
    assert len({answer.json()["entry_id"] for answer in answers}) == 1
    with database.read() as session:
        assert session.execute(select(func.count()).select_from(Entry)).scalar_one() == 1
        assert session.execute(select(func.count()).select_from(Run)).scalar_one() == 6


def test_everything_that_is_wrong_is_said_at_once(client: Client, database: Database, ada: Viewer) -> None:
    one = client(token_of(database, ada))
    body = {**BGPO, "assignments": {"mc_sample": 4}, "backbones": ["nosuch"]}
    answer = submitted(one, body)
    assert refusal(answer, 422)[0] == "problems"
    assert len(answer.json()["problems"]) == 2
    checked = one.post("entries/check", json=body).json()
    assert checked == {"entries": [], "problems": answer.json()["problems"]}
    cost = one.post("entries/check", json=BGPO).json()["entries"]
    assert cost == [{"name": "bgpo", "checks": 0, "trainings": 3, "evaluations": 3}]
    assert one.get("entries").json() == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "give either `algorithm` or `file`"),
        ({**BGPO, "file": FILE}, "give either `algorithm` or `file`"),
        ({**BGPO, "control": True}, "`control` goes with a file"),
        ({**BGPO, "visibility": "secret"}, "`visibility`: Input should be 'private'"),
        ({**BGPO, "backbone": "llada-tiny"}, "`backbone`: Extra inputs are not permitted"),
        ({"file": {"name": "a.py", "content": "a"}}, "`file.content`"),
        ({**BGPO, "assignments": {"mc_samples": 10**400}}, "mc_samples"),
        ({**BGPO, "assignments": {"mc_samples": {"a": [1]}}}, "mc_samples"),
    ],
)
def test_a_body_that_makes_no_sense_is_refused_in_a_sentence(
    body: dict[str, Any], said: str, client: Client, database: Database, ada: Viewer
) -> None:
    assert said in refusal(submitted(client(token_of(database, ada)), body), 422)[1]


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b'{"a": ' + b"1" * 10_000 + b"}", b"\xff", b"{", b'"\\ud800"', b"\x00"]
)
def test_bytes_that_are_no_request_are_refused(content: bytes, client: Client, database: Database, ada: Viewer) -> None:
    headers = {"Idempotency-Key": "1", "Content-Type": "application/json"}
    answer = client(token_of(database, ada)).post("entries", content=content, headers=headers)
    assert answer.status_code in (400, 422), answer.text
    assert answer.json()["code"] in ("unreadable", "request")


def test_a_file_is_taken_where_it_runs_apart_or_nobody_else_is_here(
    client: Client, database: Database, ada: Viewer
) -> None:
    token = token_of(database, ada)
    body = {"file": FILE, "backbones": ["llada-tiny"]}
    assert "takes built-in methods only" in refusal(submitted(client(token), body), 403)[1]
    assert submitted(client(token, launcher="docker"), body).status_code == 201
    assert submitted(client(token, is_local=True), body).status_code == 200


def test_a_large_body_is_refused_while_it_is_read(client: Client, database: Database, ada: Viewer) -> None:
    sent = 0

    def pieces() -> Any:
        nonlocal sent
        for _ in range(100):
            sent += 1
            yield b"x" * (MOST_BYTES // 10)

    headers = {"Idempotency-Key": "1", "Content-Type": "application/json"}
    assert refusal(client(token_of(database, ada)).post("entries", content=pieces(), headers=headers), 413) == (
        "too_large", "a request has at most 4 MB, and a submitted file 1 MB",
    )  # fmt: skip


def test_a_used_up_quota_says_when_to_come_back(client: Client, database: Database, ada: Viewer) -> None:
    one = client(token_of(database, ada), quota=Quota(entries_per_day=1))
    assert submitted(one).status_code == 201
    answer = submitted(one, {**BGPO, "algorithm": "d1"}, key="2")
    code, detail = refusal(answer, 429)
    assert code == "quota"
    assert "1 of 1 entries in 24 h" in detail
    assert 86_000 < int(answer.headers["retry-after"]) <= 86_401


def test_a_sweep_is_all_or_none(client: Client, database: Database, ada: Viewer) -> None:
    one = client(token_of(database, ada))
    points = [{"name": f"bgpo {n}", "assignments": {"mc_samples": n}} for n in (2, 3)]
    body = {"shared": {**BGPO, "name": "bgpo"}, "points": points}
    assert one.post("sweeps/check", json=body).json()["entries"][1]["trainings"] == 3
    wrong = {**body, "points": [*points, {"name": "bgpo 4", "assignments": {"mc_samples": "many"}}]}
    assert refusal(one.post("sweeps", json=wrong, headers={"Idempotency-Key": "1"}), 422)[0] == "problems"
    assert one.get("entries").json() == []
    done = one.post("sweeps", json=body, headers={"Idempotency-Key": "1"}).json()
    again = one.post("sweeps", json=body, headers={"Idempotency-Key": "1"}).json()
    assert [entry["created"] for entry in done + again] == [True, True, False, False]


# --- the rest -------------------------------------------------------------------------------------------------------


def test_a_log_is_read_on_from_where_it_ended(client: Client, database: Database, ada: Viewer) -> None:
    one = client(token_of(database, ada))
    submitted(one)
    run = one.get("runs").json()[-1]["id"]
    assert one.get(f"runs/{run}/log").json() == {
        "is_over": False, "token": None, "offset": 0, "content": "", "is_new": False,
    }  # fmt: skip
    with database.write() as session:
        claimed = take(session)
        assert claimed is not None
        pieces = [Piece(0, "first löwe\n".encode()[:9]), Piece(9, "first löwe\n".encode()[9:])]
        log_chunks.keep(session, claimed.run_id, claimed.token, pieces)
    read, place = b"", {}
    for _ in range(3):
        piece = one.get(f"runs/{claimed.run_id}/log", params=place).json()
        read += base64.b64decode(piece["content"])
        place = {"token": piece["token"], "offset": piece["offset"]}
    assert read.decode() == "first löwe\n"
    assert place["offset"] == len(read)


def test_nothing_of_another_address_or_method_is_answered(client: Client, ada: Viewer) -> None:
    assert refusal(client().get("nosuch"), 404)[0] == "no_such_path"
    assert refusal(client().delete("entries"), 405)[0] == "no_such_method"


def test_a_database_that_is_away_is_said_so_and_found_again(client: Client, database: Database, tmp_path: Any) -> None:
    with database.write() as session:
        register(session)
    one = client(database_url=f"sqlite:///{tmp_path / 'new' / 'dare.sqlite'}")
    answer = one.get("entries")
    code, detail = refusal(answer, 503)
    assert code == "not_prepared"
    assert "dare migrate" in detail
    assert str(tmp_path) not in answer.text
    assert answer.headers["retry-after"]
    assert one.get("health").status_code == 503
    assert client().get("health").json() == {"status": "ok"}


def test_a_mistake_of_ours_shows_no_trace(client: Client, ada: Viewer, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr("dare_platform.views.queue_view", broken)
    one = client()
    loud = TestClient(one.app, base_url=str(one.base_url), raise_server_exceptions=False)
    answer = loud.get("queue")
    assert refusal(answer, 500)[0] == "internal"
    assert "secret detail" not in answer.text


def test_every_answer_is_for_the_one_who_asked_only(client: Client, ada: Viewer) -> None:
    for path in ("entries", "health", "openapi.json", "nosuch"):
        headers = client().get(path).headers
        assert (headers["cache-control"], headers["vary"], headers["dare-api"]) == ("no-store", "Authorization", "1")
