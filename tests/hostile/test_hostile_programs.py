"""Programs in the real container: none reaches anything, and none outlives its limits."""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import psutil
import pytest
from ground import CANARIES, Ground, Record, ground, train_job
from programs import runs

from dare_platform import trees
from dare_platform.container_profile import own_labels
from dare_platform.errors import OutputError
from dare_platform.launcher import Observed, Order
from dare_platform.outputs import EventReader, read_result

pytestmark = pytest.mark.full

ATTEMPTS = (Path(__file__).parent / "programs" / "attempts.py").read_text()
CASES = re.findall(r'^@case\("(.+)"\)$', ATTEMPTS, re.MULTILINE)


REACHED_ELSEWHERE = {
    "reads the directory of another run",
    "reads the weights of another run",
    "reads the database",
    "reads a test split",
    "looks for a secret everywhere",
    "reads the environment of every process",
    "opens a TCP connection",
    "sends a UDP packet",
    "opens a raw, packet, vsock or netlink socket",
    "writes outside its directory",
    "patches the evaluator and the libraries",
    "lifts its own limits",
    "overwrites its order, its source and what it is given",
    "links out of its directory",
    "makes a file of a terabyte",
    "fills the shared memory",
    "runs a program from /tmp",
    "becomes root",
    "runs a setuid program",
    "raises its capabilities",
    "makes device nodes",
}
"""Cases that succeed in a container of the engine's own making: it is the profile that refuses them. What the others
try, the engine refuses everybody."""


@dataclass(frozen=True)
class Wild:
    """A program, and how its run must end."""

    program: str
    cause: str | None
    words: str = ""
    wall_seconds: float = 30.0
    exit_codes: tuple[int | None, ...] = (-9,)


WILD = {
    "forks without end": Wild(runs.FORKS, "limit", r"had \d+ processes and threads, all that are allowed"),
    "takes all memory": Wild(runs.MEMORY, "oom_host", "needed more memory than the 192 MiB"),
    "takes all memory in its children": Wild(runs.MEMORY_OF_CHILDREN, "oom_host", "192 MiB", exit_codes=(1, -9)),
    "never ends": Wild(runs.LOOP, "timeout", "still working after 4 s, its limit", wall_seconds=4),
    "prints without end": Wild(runs.FLOOD, "limit", "printed more than 65536 bytes"),
    "fills the disk": Wild(runs.DISK, "limit", r"wrote \d+ MiB of files; 64 MiB are allowed", exit_codes=(-9, 1)),
    "makes files without end": Wild(runs.MANY_FILES, "limit", "more than 2000 files"),
    "digs deeper than any path": Wild(runs.DEEP, "limit", "cannot be measured"),
    "makes files without end in /tmp": Wild(runs.TMP_FILES, "oom_host", "192 MiB"),
    "stops the container's first process": Wild(
        runs.STOPS_THE_FIRST, "timeout", "still working after 6 s", wall_seconds=6
    ),
    # by the first process, which hands the signal on, or alone with nobody left to kill, whichever comes first
    "kills whatever it can": Wild(runs.KILLS_ALL, None, exit_codes=(-9, -15, 1)),
    "leaves a process behind": Wild(runs.DETACHES, None, exit_codes=(0,)),
    "puts pipes and links where files are read": Wild(runs.TRAPS, None, exit_codes=(0,)),
}


@dataclass
class Ended:
    """All of them, ended."""

    ground: Ground
    attempts: dict[str, Any]
    wild: dict[str, tuple[Order, Observed]]


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    """A folder of its own: pytest removes its own with a function that a deep tree breaks."""
    folder = Path(tempfile.mkdtemp(prefix="dare-hostile-"))
    folder.chmod(0o755)
    yield folder
    trees.remove(folder)


@pytest.fixture(scope="module")
def ended(engine: str, scratch: Path) -> Iterator[Ended]:
    with ground(scratch / "home", engine) as place:
        probe = place.start("attempts", ATTEMPTS)
        orders = {}
        for number, (name, wild) in enumerate(WILD.items()):
            orders[name] = place.start(f"wild{number}", wild.program, wild.wall_seconds)
        observed = place.wait(probe)
        assert observed.exit_code == 0, place.launcher.logs(probe.name)
        attempts = json.loads((probe.directory / "home" / "observed.json").read_text())
        yield Ended(place, attempts, {name: (order, place.wait(order)) for name, order in orders.items()})


@pytest.mark.parametrize("case", CASES)
def test_what_a_run_must_not_reach_it_does_not_reach(ended: Ended, record: Record, case: str) -> None:
    found = ended.attempts[case]
    assert found["reached"] == []
    assert found["saw"], "a case that tried nothing shows nothing"
    record("attempt", case, "; ".join(found["saw"]))


def test_the_same_attempts_reach_a_lot_in_an_ordinary_container(ended: Ended, record: Record) -> None:
    ordinary = ended.ground.in_an_ordinary_container(ATTEMPTS)
    reached = [case for case in CASES if ordinary[case]["reached"]]
    assert set(reached) >= REACHED_ELSEWHERE
    record(
        "control",
        "the same attempts as root, with a network and the home in sight",
        f"{len(reached)} cases reach something",
    )


@pytest.mark.parametrize("name", WILD)
def test_a_wild_program_is_ended_by_its_name(ended: Ended, record: Record, name: str) -> None:
    wild, (order, observed) = WILD[name], ended.wild[name]
    log = ended.ground.launcher.logs(order.name)
    assert (observed.running, observed.cause) == (False, wild.cause), (observed, log[-500:])
    assert re.search(wild.words, observed.sentence or ""), observed
    assert observed.exit_code in wild.exit_codes, (observed, log[-500:])
    said = observed.sentence or f"ended by itself, exit code {observed.exit_code}; its processes are gone"
    record("program", name, said)


def test_a_flood_and_a_bomb_cost_the_platform_little(ended: Ended) -> None:
    flood, _ = ended.wild["prints without end"]
    assert len(ended.ground.launcher.logs(flood.name)) < 70_000
    for name in ("fills the disk", "makes files without end"):
        order, _ = ended.wild[name]
        taken = trees.measure(order.directory)
        assert taken.bytes < 400 * 2**20
        assert taken.files < 200_000


def test_who_is_deaf_is_killed_after_the_grace(ended: Ended, record: Record) -> None:
    place = ended.ground
    order = place.start("deaf", runs.DEAF)
    deadline = time.monotonic() + 30
    while "deaf" not in place.launcher.logs(order.name):
        assert time.monotonic() < deadline, place.launcher.state(order.name)
        time.sleep(0.1)
    started = time.monotonic()
    place.launcher.stop(order.name)
    took = time.monotonic() - started
    assert not place.launcher.state(order.name).running
    assert took < place.settings.limits.grace_seconds + 5
    record("program", "ignores the request to end", f"killed {took:.1f} s after it, the grace is 1 s")


def test_pipes_and_links_where_files_are_read_stop_nobody(ended: Ended) -> None:
    order, _ = ended.wild["puts pipes and links where files are read"]
    assert EventReader(order.directory).read() == []
    with pytest.raises(OutputError, match="not a plain file"):
        read_result(order.directory, train_job())
    ended.ground.launcher.remove(order.name)
    trees.remove(order.directory)
    assert Path("/etc/passwd").exists()


def test_no_process_and_no_container_is_left(ended: Ended, engine: str) -> None:
    sleepers = [one.pid for one in psutil.process_iter(["cmdline"]) if runs.SLEEPER in (one.info["cmdline"] or ())]
    assert sleepers == []
    launcher = ended.ground.launcher
    for owned in launcher.list_own():
        launcher.remove(owned.name)
    client = docker.DockerClient(base_url=engine)
    labels = [f"{key}={value}" for key, value in own_labels(ended.ground.settings).items()]
    left = client.containers.list(all=True, filters={"label": labels})
    client.close()
    assert left == []


def test_no_canary_comes_out(ended: Ended, record: Record) -> None:
    home = ended.ground.settings.home
    for planted in CANARIES:
        assert ended.ground.canary in (home / planted).read_text()
    assert ended.ground.leaks() == []
    record(
        "attempt", "carries a secret out", "no canary in any file or log of a run: secret, weights, data, others' files"
    )
