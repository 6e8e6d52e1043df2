"""The stack of compose.yaml: a method submitted in a browser, its row, down and up again, backup and restore."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from containers import Stack, bake, built, engine, revision
from playwright.sync_api import Browser
from small import ARTEFACTS
from watching import Site, fresh_page

pytestmark = pytest.mark.full

FAMILY = "sdar"
ROW_SECONDS = 150
PAGE_SECONDS = 120
"""For a page: hostile programs may be at work on the other core."""
NO_TORCH = """
import pathlib
for folder in pathlib.Path("/proc").iterdir():
    if folder.name.isdigit():
        assert "/torch/" not in (folder / "maps").read_text(), folder
"""
OUTWARD = """
import socket
try:
    socket.create_connection(("192.0.2.1", 80), timeout=2)
except OSError as error:
    print(error.strerror)
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Everything but the workers of three families, which are like the fourth."""
    engine()
    bake("web", "evaluator", FAMILY)
    made = Stack(tmp_path_factory.mktemp("stack"), ("web", "control", f"worker-{FAMILY}"))
    yield made
    made.remove()


def inspected(stack: Stack) -> dict[str, dict[str, Any]]:
    """What the engine says of each service's container."""
    found = engine().containers.list(all=True, filters={"label": f"com.docker.compose.project={stack.name}"})
    return {one.labels["com.docker.compose.service"]: one.attrs for one in found}


def runs(stack: Stack, **wanted: Any) -> list[dict[str, Any]]:
    """Runs as `dare runs --json` lists them, oldest first."""
    listed = reversed(json.loads(stack.dare("runs", "--json")))
    return [one for one in listed if all(one[key] == value for key, value in wanted.items())]


def files(stack: Stack) -> set[str]:
    """What is kept of runs."""
    return set(stack.compose("exec", "-T", "control", "find", "/var/lib/dare/artifacts", "-type", "f").split())


def wait_for(what: str, seconds: float, condition: Any) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, f"no {what} after {seconds} s"
        time.sleep(1.0)
    return time.monotonic() - began


def row(browser: Browser, url: str) -> str:
    """The method's row of the board, as a reader sees it; empty while there is none."""
    with fresh_page(browser, Site(url, None, {}), 1280, "light") as watched:  # type: ignore[arg-type]
        watched.open(f"?backbone={FAMILY}-tiny")
        found = watched.page.locator(".board tbody tr.method")
        return " ".join(found.first.inner_text().split()) if found.count() else ""


def test_a_stack_goes_the_whole_way_and_comes_back_with_everything(
    stack: Stack, browser: Browser, tmp_path: Path
) -> None:
    figures = {"empty to healthy": stack.up()}
    services = inspected(stack)
    check_what_is_let_out(stack, services)
    check_what_a_worker_can_reach(stack)

    began = time.monotonic()
    with fresh_page(browser, Site(stack.url, None, {}), 1280, "light") as watched:  # type: ignore[arg-type]
        watched.page.set_default_timeout(PAGE_SECONDS * 1000)
        page = watched.open(f"submit?backbones={FAMILY}-tiny")
        page.get_by_label("Built-in method").click()
        page.get_by_role("option", name="bgpo", exact=True).click()
        page.get_by_role("button", name="Queue 6 runs").click()
        page.wait_for_url("**/entry?id=*")
        watched.settle()
        assert page.get_by_text("6 runs queued").is_visible()
    wait_for("job container", 60, stack.jobs)
    check_a_job(stack.jobs()[0].attrs)
    wait_for("evaluation", ROW_SECONDS, lambda: runs(stack, kind="evaluate", state="succeeded"))
    seen = row(browser, stack.url)
    figures["submit to row"] = time.monotonic() - began
    assert re.match(r"\S+ bgpo .*1 of 3 seeds", seen), seen

    at_work: list[dict[str, Any]] = []
    wait_for("second training run", 120, lambda: at_work.extend(runs(stack, kind="train", state="working")) or at_work)
    (working,) = at_work
    figures["down, while a run works"] = stack.down()
    assert inspected(stack) == {}
    assert stack.jobs() == []

    figures["up again"] = stack.up()
    assert row(browser, stack.url)[:40] == seen[:40]
    figures |= waits_of(stack)
    assert [entry["name"] for entry in from_outside(stack, "entries")] == ["bgpo"]
    wait_for("end of the run", 180, lambda: runs(stack, id=working["id"], state="succeeded"))
    made_by = dict(json.loads(stack.dare("runs", working["id"], "--json"))["provenance"])
    assert (made_by["source revision"], made_by["image"]) == (revision(), built(FAMILY))

    before, kept = {one["id"] for one in runs(stack, state="succeeded")}, files(stack)
    began = time.monotonic()
    stack.make("backup", f"TO={tmp_path / 'saved'}")
    figures["backup"] = time.monotonic() - began
    stack.remove()
    began = time.monotonic()
    stack.make("restore", f"FROM={tmp_path / 'saved'}")
    figures["restore"] = time.monotonic() - began
    stack.up()
    assert " bgpo " in row(browser, stack.url)
    assert before <= {one["id"] for one in runs(stack, state="succeeded")}
    assert kept
    assert kept <= files(stack)
    ARTEFACTS.mkdir(exist_ok=True)
    (ARTEFACTS / "compose.json").write_text(json.dumps({key: round(value, 1) for key, value in figures.items()}))


def waits_of(stack: Stack) -> dict[str, float]:
    """How long the first run waited for a worker, and for its container."""
    first = min(runs(stack, kind="train"), key=lambda run: run["created_at"])
    history = json.loads(stack.dare("runs", first["id"], "--json"))["history"]
    at = {event["sentence"]: event["at"] for event in history}
    return {
        "submit to claim": at["queued → leased"] - first["created_at"],
        "submit to start": at["preparing → working"] - first["created_at"],
    }


def from_outside(stack: Stack, *command: str) -> Any:
    """What the command says that is installed on the stack's host."""
    asked = [sys.executable, "-m", "dare_platform", "--server", stack.url, *command, "--json"]
    return json.loads(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)


def check_what_is_let_out(stack: Stack, services: dict[str, dict[str, Any]]) -> None:
    ports = {name: [*filter(None, one["NetworkSettings"]["Ports"].values())] for name, one in services.items()}
    published = {name: bindings for name, bindings in ports.items() if bindings}
    assert list(published) == ["web"]
    assert [binding["HostIp"] for bindings in published["web"] for binding in bindings] == ["127.0.0.1"]
    holders = {name for name, one in services.items() if any("docker.sock" in m["Source"] for m in one["Mounts"])}
    assert holders == {"launcher"}
    for name, one in services.items():
        host = one["HostConfig"]
        assert host["ReadonlyRootfs"], name
        assert host["CapDrop"] == ["ALL"], name
        assert not host["CapAdd"], name
        assert host["SecurityOpt"] == ["no-new-privileges:true"], name
        assert one["Config"]["User"] not in ("", "root", "0"), name
    secret = next(line for line in stack.env.read_text().splitlines() if line.startswith("DARE_LAUNCHER_SECRET="))
    knows = {name for name, one in services.items() if secret in one["Config"]["Env"]}
    assert knows == {"launcher", f"worker-{FAMILY}"}


def check_what_a_worker_can_reach(stack: Stack) -> None:
    worker = ("exec", "-T", f"worker-{FAMILY}", "python", "-")
    assert stack.compose(*worker, given=OUTWARD).strip() == "Network is unreachable"
    stack.compose(*worker, given=NO_TORCH)


def check_a_job(one: dict[str, Any]) -> None:
    host = one["HostConfig"]
    assert (host["NetworkMode"], host["ReadonlyRootfs"], host["CapDrop"]) == ("none", True, ["ALL"])
    assert one["Config"]["User"] == "10001:10001"
    assert not [said for said in one["Config"]["Env"] if re.search("SECRET|PASSWORD|postgres|redis", said)]
