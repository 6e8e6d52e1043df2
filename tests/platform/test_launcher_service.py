"""The launcher service starts what the database says is held, for its holder, and nothing that a request describes."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import update
from world import add_train_run, add_worker, build

from dare_platform import orders
from dare_platform.database import Database
from dare_platform.errors import LaunchError, SettingsError
from dare_platform.launcher_service import (
    Hold,
    LauncherService,
    Named,
    Part,
    RequestError,
    launcher_app,
    parse,
    require_private,
)
from dare_platform.launchers import launcher_of
from dare_platform.lease import claim
from dare_platform.models import Run
from dare_platform.process_launcher import ProcessLauncher
from dare_platform.remote_launcher import RemoteLauncher
from dare_platform.settings import Settings

TOY = Path(__file__).with_name("toy_runner.py")
SECRET = "correct horse"


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return replace(sqlite_settings, limits=replace(sqlite_settings.limits, free_disk_bytes=1))


@pytest.fixture
def held(settings: Settings, sqlite: Database) -> tuple[str, int]:
    """A run that a worker holds, its directory made, and the lease token."""
    with sqlite.write() as session:
        run = add_train_run(session, build(session)).id
        worker = add_worker(session)
        claimed = claim(session, worker, 30)
        assert claimed is not None
    directory = settings.jobs / run / "1"
    for folder in ("home", "tmp"):
        (directory / folder).mkdir(parents=True)
    (directory / "job.json").write_text(claimed.job_json)
    return run, claimed.token


@pytest.fixture
def service(settings: Settings, sqlite: Database, held: tuple[str, int]) -> Iterator[Callable[[str], TestClient]]:
    """The service over a launcher of processes that run the toy in a mode."""
    launchers: list[ProcessLauncher] = []

    def make(mode: str) -> TestClient:
        launchers.append(ProcessLauncher(settings, (sys.executable, str(TOY), mode), isolated=False))
        app = launcher_app(LauncherService(settings, sqlite, launchers[-1]), SECRET)
        return TestClient(app, headers={"Authorization": f"Bearer {SECRET}"})

    yield make
    for launcher in launchers:
        launcher.remove(f"{held[0]}-1")


def own(client: TestClient, run: str) -> list[dict[str, Any]]:
    """What of a run is there; processes of other tests on this machine are found too."""
    return [owned for owned in client.post("/own", json={}).json()["own"] if owned["run_id"] == run]


def hold_by_another(database: Database, run: str, token: int) -> None:
    with database.write() as session:
        session.execute(update(Run).where(Run.id == run).values(lease_token=token))


def test_a_held_run_is_started_watched_and_removed(service: Callable[[str], TestClient], held: tuple[str, int]) -> None:
    run, lease = held
    client = service("good")
    assert client.post("/start", json={"run_id": run, "lease_token": lease}).json() == {"name": f"{run}-1"}
    named = {"run_id": run, "token": 1, "lease_token": lease}
    deadline = time.monotonic() + 20
    while (state := client.post("/state", json=named).json())["running"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert (state["exit_code"], state["cause"]) == (0, None)
    assert client.post("/logs", json=named).json() == {"text": "step 0\nstep 1\nstep 2\n"}
    assert client.post("/output", json={**named, "offset": 14}).content == b"step 2\n"
    assert client.post("/remove", json=named).json() == {}
    assert own(client, run) == []
    assert client.get("/health").json() == {"status": "ok"}


@pytest.mark.parametrize("verb", ["start", "adopt"])
@pytest.mark.parametrize(("run", "lease"), [("0", 1), (None, 2)])
def test_what_is_not_held_is_not_started(
    service: Callable[[str], TestClient], held: tuple[str, int], verb: str, run: str | None, lease: int
) -> None:
    client = service("sleep")
    answer = client.post(f"/{verb}", json={"run_id": run or held[0], "lease_token": lease})
    assert answer.status_code == 409
    assert answer.json() == {"sentence": f"run {run or held[0]} is not held under token {lease}"}
    assert own(client, held[0]) == []


@pytest.mark.parametrize("verb", ["state", "logs", "stop", "remove"])
def test_a_held_run_is_its_holders_alone(
    service: Callable[[str], TestClient], held: tuple[str, int], sqlite: Database, verb: str
) -> None:
    run, lease = held
    client = service("sleep")
    client.post("/start", json={"run_id": run, "lease_token": lease})
    hold_by_another(sqlite, run, lease + 1)
    for token in (lease, None):
        answer = client.post(f"/{verb}", json={"run_id": run, "token": 1, "lease_token": token})
        assert answer.status_code == 403
        assert "is held under another token" in answer.json()["sentence"]
    assert client.post("/state", json={"run_id": run, "token": 1, "lease_token": lease + 1}).json()["running"]


def test_whoever_sweeps_may_end_what_nobody_holds(
    service: Callable[[str], TestClient], held: tuple[str, int], sqlite: Database
) -> None:
    run, lease = held
    client = service("sleep")
    client.post("/start", json={"run_id": run, "lease_token": lease})
    with sqlite.write() as session:  # taken back, and held again with a directory and process of its own
        session.execute(update(Run).where(Run.id == run).values(lease_token=5, job_token=5))
    assert own(client, run) == [{"run_id": run, "token": 1, "adoptable": False}]
    assert client.post("/remove", json={"run_id": run, "token": 1}).status_code == 200
    assert own(client, run) == []


def test_a_run_of_another_database_is_none_of_our_business(service: Callable[[str], TestClient]) -> None:
    answer = service("sleep").post("/remove", json={"run_id": "0abc", "token": 1})
    assert (answer.status_code, answer.json()) == (403, {"sentence": "run 0abc is unknown here"})


def test_without_the_secret_nothing_is_answered(service: Callable[[str], TestClient]) -> None:
    client = service("sleep")
    refused = {"sentence": "the launcher wants another secret"}
    for path in ("start", "adopt", "state", "logs", "output", "stop", "remove", "own"):
        for authorization in (None, "Bearer wrong", "Bearer", SECRET, f"Basic {SECRET}", f"Bearer {SECRET}!"):
            request = client.build_request("POST", f"/{path}", json={})
            del request.headers["authorization"]
            if authorization is not None:
                request.headers["authorization"] = authorization
            answer = client.send(request)
            assert (answer.status_code, answer.json()) == (401, refused)


STRANGE = (
    b"", b"null", b"[]", b'"x"', b"{", b"\xff\xfe", b"[" * 3000,
    b'{"run_id": "a", "lease_token": 1, "image": "evil"}',
    b'{"run_id": "a", "lease_token": 1, "run_id": "b"}',
    b'{"run_id": "../../etc", "lease_token": 1}',
    b'{"run_id": "a", "lease_token": "1"}',
    b'{"run_id": "a", "lease_token": 1.0}',
    b'{"run_id": "a", "lease_token": true}',
    b'{"run_id": "a", "lease_token": NaN}',
    b'{"run_id": "a", "lease_token": -1}',
    b'{"run_id": "a", "lease_token": 1e400}',
    b'{"run_id": "a"}',
    b'{"run_id": "' + b"a" * 5000 + b'", "lease_token": 1}',
    b'{"run_id": "a", "lease_token": 1, "HostConfig": {"B\\u0069nds": ["/:/host"], "Privileged": true}}',
)  # fmt: skip


def test_a_request_that_is_none_of_ours_is_refused_with_one_sentence(service: Callable[[str], TestClient]) -> None:
    client = service("sleep")
    for body in STRANGE:
        answer = client.post("/start", content=body)
        assert answer.status_code == 400, body
        assert "\n" not in answer.json()["sentence"]


KEYS = st.sampled_from(["run_id", "token", "lease_token", "offset", "x"])
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=6,
)


@given(ANY)
def test_any_json_is_parsed_or_refused(value: Any) -> None:
    for kind in (Hold, Named, Part):
        try:
            found = parse(kind, json.dumps(value).encode())
        except RequestError:
            continue
        assert found.model_dump(exclude_unset=True) == value


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "::", "launcher"])
def test_an_open_service_listens_on_this_machine_only(host: str) -> None:
    with pytest.raises(SettingsError, match="DARE_LAUNCHER_SECRET is not set"):
        require_private(None, host)
    require_private(SECRET, host)
    for own in ("127.0.0.1", "localhost", "::1", "127.8.8.8"):
        require_private(None, own)


@contextmanager
def listening(app: Any, port: int) -> Iterator[None]:
    """The app on a real port."""
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    deadline = time.monotonic() + 10
    while not server.started:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def remote(settings: Settings) -> Iterator[RemoteLauncher]:
    settings = replace(settings, launcher=f"http://127.0.0.1:{free_port()}", launcher_secret=SECRET)
    launcher = RemoteLauncher(settings, patience_seconds=10.0)
    yield launcher
    launcher.close()


def port_of(remote: RemoteLauncher) -> int:
    port = remote._client.base_url.port
    assert port is not None
    return port


def app_of(service: Callable[[str], TestClient], mode: str) -> Any:
    return service(mode).app


def test_a_worker_asks_over_http_what_it_would_ask_in_its_own_process(
    service: Callable[[str], TestClient], held: tuple[str, int], settings: Settings, sqlite: Database,
    remote: RemoteLauncher,
) -> None:  # fmt: skip
    run, lease = held
    with sqlite.read() as session:
        order = orders.order_of(session, settings, run, lease)
    with listening(app_of(service, "good"), port_of(remote)):
        name = remote.start(order)
        deadline = time.monotonic() + 20
        while (observed := remote.state(name)).running:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert (observed.exit_code, observed.cause) == (0, None)
        assert observed.peak_memory_bytes > 0
        assert remote.logs(name) == "step 0\nstep 1\nstep 2\n"
        assert remote.output(name, 0) == b"step 0\nstep 1\nstep 2\n"
        with pytest.raises(LaunchError, match="cannot be adopted"):
            remote.adopt(order)
        remote.stop(name)
        remote.remove(name)
        assert run not in [owned.run_id for owned in remote.list_own()]
        with pytest.raises(LaunchError, match="is not held under token 9"):
            remote.start(replace(order, lease_token=9))


def test_a_service_that_comes_back_costs_nothing(
    service: Callable[[str], TestClient], held: tuple[str, int], settings: Settings, sqlite: Database,
    remote: RemoteLauncher,
) -> None:  # fmt: skip
    run, lease = held
    with sqlite.read() as session:
        order = orders.order_of(session, settings, run, lease)
    app = app_of(service, "sleep")
    names: list[str] = []
    asking = threading.Thread(target=lambda: names.append(remote.start(order)))
    asking.start()
    time.sleep(0.3)
    with listening(app, port_of(remote)):
        asking.join()
    assert names == [order.name]
    asking = threading.Thread(target=lambda: names.append(str(remote.state(order.name).running)))
    asking.start()
    time.sleep(0.3)
    with listening(app, port_of(remote)):
        asking.join()
        assert names == [order.name, "True"]
        remote.remove(order.name)


def test_what_another_holds_by_now_is_left_to_them(
    service: Callable[[str], TestClient], held: tuple[str, int], settings: Settings, sqlite: Database,
    remote: RemoteLauncher,
) -> None:  # fmt: skip
    run, lease = held
    with sqlite.read() as session:
        order = orders.order_of(session, settings, run, lease)
    with listening(app_of(service, "sleep"), port_of(remote)):
        name = remote.start(order)
        hold_by_another(sqlite, run, lease + 1)
        remote.stop(name)
        remote.remove(name)
        assert name in [owned.name for owned in remote.list_own()]
        with pytest.raises(LaunchError, match="held under another token"):
            remote.state(name)


def test_a_service_that_stays_away_is_one_sentence(remote: RemoteLauncher) -> None:
    impatient = RemoteLauncher(Settings(Path("/nowhere"), "", launcher=str(remote._client.base_url)), 0.3)
    began = time.monotonic()
    with pytest.raises(LaunchError, match=r"has not answered for 0\.3 s"):
        impatient.list_own()
    assert time.monotonic() - began < 5
    impatient.close()


def test_an_answer_of_something_else_is_one_sentence(remote: RemoteLauncher) -> None:
    async def strange(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"<html>"})

    with listening(strange, port_of(remote)):
        with pytest.raises(LaunchError, match="something else than was asked"):
            remote.state("run1-1")
        assert httpx.post(f"http://127.0.0.1:{port_of(remote)}/state", trust_env=False).text == "<html>"


def test_settings_name_the_launcher(settings: Settings) -> None:
    assert isinstance(launcher_of(settings), ProcessLauncher)
    remote = launcher_of(replace(settings, launcher="http://launcher:8520"))
    assert isinstance(remote, RemoteLauncher)
    remote.close()
