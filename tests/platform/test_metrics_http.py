"""The metrics over HTTP: a real server, read as Prometheus reads it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import event
from world import add_train_run, build

from dare_platform import metrics_http
from dare_platform.control import Chore, Control
from dare_platform.database import Database
from dare_platform.errors import SettingsError
from dare_platform.metrics import Metrics
from dare_platform.metrics_http import reading, serving
from dare_platform.settings import Settings


@pytest.fixture
def metrics(sqlite_settings: Settings, sqlite: Database) -> Metrics:
    return Metrics(sqlite_settings, sqlite)


@pytest.fixture
def address(metrics: Metrics) -> Iterator[str]:
    with serving(metrics, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def figures(address: str) -> dict[str, float]:
    with urlopen(f"{address}/metrics", timeout=3) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        found = text_string_to_metric_families(answer.read().decode())
        return {sample.name: sample.value for family in found for sample in family.samples}


def refusal(address: str, path: str = "/metrics", method: str = "GET") -> tuple[int, str]:
    with pytest.raises(HTTPError) as refused:
        urlopen(Request(f"{address}{path}", method=method), timeout=3)
    with refused.value as answer:
        return answer.code, answer.read().decode()


def test_a_prometheus_server_reads_what_the_housekeeper_read(settings: Settings, database: Database) -> None:
    with database.write() as session:
        add_train_run(session, build(session))
    metrics = Metrics(settings, database)
    metrics.read()
    with serving(metrics, "127.0.0.1", 0) as server:
        found = figures(f"http://127.0.0.1:{server.server_port}")
    assert (found["dare_database_up"], found["dare_runs"], found["dare_queue_ready"]) == (1, 1, 1)
    assert found["dare_disk_free_bytes"] > 0


def test_there_is_nothing_but_metrics_and_nothing_to_be_done(metrics: Metrics, address: str) -> None:
    metrics.read()
    for path in ("/", "/metrics/", "/metrics/../settings", "/favicon.ico"):
        assert refusal(address, path) == (404, "there is nothing here but /metrics\n")
    assert refusal(address, method="POST")[0] == 405


def test_a_database_that_is_away_is_a_503_until_it_is_back(
    metrics: Metrics, address: str, sqlite: Database, tmp_path: Path
) -> None:
    file = Path(sqlite.url.database or "")
    metrics.read()
    assert figures(address)["dare_database_up"] == 1
    sqlite.close()
    elsewhere = file.rename(tmp_path / "elsewhere")
    file.mkdir()
    metrics.read()
    code, sentence = refusal(address)
    assert (code, sentence.count("\n")) == (503, 1)
    file.rmdir()
    elsewhere.rename(file)
    metrics.read()
    assert figures(address)["dare_database_up"] == 1


def test_a_question_is_answered_while_the_database_takes_its_time_and_costs_it_nothing(
    metrics: Metrics, address: str, sqlite: Database
) -> None:
    metrics.read()
    asked, released, done = [], threading.Event(), threading.Event()

    @event.listens_for(sqlite.engine, "before_cursor_execute")
    def slowly(_connection: object, _cursor: object, statement: str, *_more: object) -> None:
        asked.append(statement)
        released.wait(20)

    house = Control([reading(metrics), Chore("another", 0.01, done.set)])
    thread = threading.Thread(target=house.run)
    thread.start()
    while not asked:
        time.sleep(0.01)
    began = time.monotonic()
    for _ in range(20):
        assert figures(address)["dare_database_up"] == 1
    assert time.monotonic() - began < 3
    assert len(asked) == 1
    assert done.wait(3)
    house.stop()
    released.set()
    thread.join(10)
    assert not thread.is_alive()


def test_figures_that_are_too_old_are_not_told(metrics: Metrics, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(address)[0] == 503  # nothing was read yet
    metrics.read()
    assert figures(address)["dare_database_up"] == 1
    monkeypatch.setattr("dare_platform.metrics.STALE_SECONDS", 0.0)
    assert refusal(address)[0] == 503


def test_who_connects_and_says_nothing_is_let_go(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metrics_http._Connection, "timeout", 0.05)
    with (
        serving(metrics, "127.0.0.1", 0) as server,
        socket.create_connection(("127.0.0.1", server.server_port), timeout=3) as silent,
    ):
        assert silent.recv(1) == b""
    assert capfd.readouterr().err == ""


def test_an_address_that_cannot_be_had_is_one_sentence(metrics: Metrics) -> None:
    with (
        serving(metrics, "127.0.0.1", 0) as first,
        pytest.raises(SettingsError, match=rf"127\.0\.0\.1:{first.server_port} .*choose another --metrics-port"),
        serving(metrics, "127.0.0.1", first.server_port),
    ):
        pass


def test_a_port_is_a_number_and_without_one_nobody_is_answered() -> None:
    assert Settings.from_environment({}).metrics_port is None
    assert Settings.from_environment({"DARE_METRICS_PORT": "9464"}).metrics_port == 9464
    for text in ("0", "65536", "-1", "nine", "9464.0"):
        with pytest.raises(SettingsError, match="DARE_METRICS_PORT"):
            Settings.from_environment({"DARE_METRICS_PORT": text})


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_dare_control_answers_until_it_is_told_to_stop(sqlite_settings: Settings) -> None:
    port = free_port()
    command = [sys.executable, "-m", "dare_platform", "control", "--metrics-port", str(port)]
    environment = {**os.environ, "DARE_HOME": str(sqlite_settings.home), "DARE_BROKER_URL": ""}
    house = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert house.stderr is not None
        assert house.stderr.readline() == f"Metrics: http://127.0.0.1:{port}/metrics\n"
        assert "read the metrics" in house.stderr.readline()
        deadline = time.monotonic() + 20
        while True:
            try:
                assert figures(f"http://127.0.0.1:{port}")["dare_database_up"] == 1
                break
            except HTTPError:  # nothing was read yet
                assert time.monotonic() < deadline
                time.sleep(0.05)
        house.terminate()
        assert house.wait(20) == 0
    finally:
        house.kill()
        house.communicate()
