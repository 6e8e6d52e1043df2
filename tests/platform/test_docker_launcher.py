"""Runs as real containers: confined, limited, watched, adopted and ended, and nothing of anybody else is touched."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import psutil
import pytest
from needed import missing

from dare_platform.container_output import ContainerOutput
from dare_platform.container_profile import RUN, TOKEN, own_labels
from dare_platform.docker_launcher import DockerLauncher
from dare_platform.engine import DockerEngine
from dare_platform.errors import LaunchError
from dare_platform.launcher import Observed, Order, Owned
from dare_platform.settings import GIB, MIB, Containers, Limits, Settings

pytestmark = pytest.mark.full

SOCKET = "unix:///var/run/docker.sock"
IMAGE = "python:3.11-slim-bookworm"
TOY = Path(__file__).with_name("toy_runner.py")
HERE = Path(__file__).parents[2]
NAME = "run1-1"
Launch = Callable[..., DockerLauncher]

LIMITS = Limits(
    wall_seconds=60,
    memory_bytes=192 * MIB,
    processes=4,
    directory_bytes=20 * MIB,
    log_bytes=65536,
    free_disk_bytes=1,
    grace_seconds=1.0,
    cpus=1.0,
    shared_memory_bytes=16 * MIB,
)


@pytest.fixture(scope="session")
def engine() -> Any:
    """The machine's engine, with the image."""
    try:
        client = docker.DockerClient(base_url=SOCKET, version="auto")
        client.images.get(IMAGE)
    except docker.errors.DockerException:
        missing("a Docker engine with python:3.11-slim-bookworm")
    yield client
    client.close()


@pytest.fixture
def settings(tmp_path: Path, engine: Any) -> Iterator[Settings]:
    """An installation of its own; whatever it leaves is removed, by its label."""
    containers = Containers(installation=f"t{secrets.token_hex(4)}", images={"llada": IMAGE}, socket=SOCKET)
    made = Settings(home=tmp_path / "home", database_url="", limits=LIMITS, containers=containers)
    yield made
    for left in engine.containers.list(all=True, filters={"label": f"dare.installation={containers.installation}"}):
        left.remove(force=True, v=True)


@pytest.fixture
def launch(settings: Settings) -> Iterator[Launch]:
    """A launcher whose command is a Python program, and the run started; nothing of it is left afterwards."""
    launchers: list[DockerLauncher] = []

    def start(program: str | list[str], wall: float = 60.0, quiet: float = 60.0, **changes: Any) -> DockerLauncher:
        order = order_of(settings, wall, **{key: changes.pop(key) for key in ("kind", "gpu_uuid") if key in changes})
        arguments = program if isinstance(program, list) else ["-c", program]
        limited = replace(settings, limits=replace(settings.limits, **changes))
        launchers.append(DockerLauncher(limited, ["python", *arguments], quiet))
        assert launchers[-1].start(order) == NAME
        return launchers[-1]

    yield start
    for launcher in launchers:
        launcher.remove(NAME)
        assert launcher.list_own() == []
        launcher.close()


def order_of(settings: Settings, wall: float = 60.0, **changes: Any) -> Order:
    directory = settings.jobs / "run1" / "1"
    for folder in ("home", "tmp"):
        (directory / folder).mkdir(parents=True, exist_ok=True)
    shutil.copy(TOY, directory / "home" / "toy.py")
    return replace(Order("run1", 1, directory, wall, "train", "llada", 1), **changes)


def wait(launcher: DockerLauncher, seconds: float = 30) -> Observed:
    deadline = time.monotonic() + seconds
    while (observed := launcher.state(NAME)).running:
        assert time.monotonic() < deadline, "the run does not end"
        time.sleep(0.02)
    return observed


def wait_for_output(launcher: DockerLauncher, words: str) -> None:
    deadline = time.monotonic() + 20
    while words not in launcher.logs(NAME):
        assert time.monotonic() < deadline, launcher.logs(NAME)
        time.sleep(0.02)


def all_output(launcher: DockerLauncher) -> bytes:
    found = b""
    while piece := launcher.output(NAME, len(found)):
        found += piece
    return found


LOOK = """
import json, os, resource, socket
def attempt(work):
    try:
        return str(work())
    except OSError as error:
        return error.strerror
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
print(json.dumps({
    "uid": os.getuid(), "gid": os.getgid(), "groups": os.getgroups(),
    "capabilities": [status[k].strip() for k in ("CapEff", "CapPrm", "CapBnd", "CapAmb")],
    "no_new_privileges": status["NoNewPrivs"].strip(), "seccomp": status["Seccomp"].strip(),
    "root": attempt(lambda: open("/written", "w")), "etc": attempt(lambda: open("/etc/written", "w")),
    "tmp": attempt(lambda: open("/tmp/written", "w").close()),
    "job": attempt(lambda: open("/job/written", "w").close()),
    "entry": attempt(lambda: open("/job/entry/written", "w")),
    "entry_moved": attempt(lambda: os.rename("/job/entry", "/job/other")),
    "entry_mode": attempt(lambda: os.chmod("/job/entry/algorithm.py", 0o777)),
    "network": attempt(lambda: socket.create_connection(("1.1.1.1", 53), timeout=2)),
    "interfaces": sorted(os.listdir("/sys/class/net")),
    "name": attempt(lambda: socket.gethostbyname("example.org")),
    "processes": sorted(int(p) for p in os.listdir("/proc") if p.isdigit())[:1],
    "jobs": attempt(lambda: os.listdir("/job/..")) != "",
    "core": resource.getrlimit(resource.RLIMIT_CORE)[1],
    "unshare": attempt(lambda: __import__("ctypes").CDLL(None).unshare(0x10000000)),
    "device": attempt(lambda: os.mknod("/tmp/device", 0o60600, os.makedev(8, 0))),
    "chown": attempt(lambda: os.chown("/tmp/written", 0, 0)),
    "engine": os.path.exists("/var/run/docker.sock"),
    "environment": dict(os.environ),
}))
"""


def test_a_container_can_do_nothing_but_its_work(launch: Launch, settings: Settings, monkeypatch: Any) -> None:
    monkeypatch.setenv("DARE_LAUNCHER_SECRET", "canary-of-the-launcher")
    entry = settings.jobs / "run1" / "1" / "entry"
    entry.mkdir(parents=True)
    (entry / "algorithm.py").write_text("pass\n")
    launcher = launch(LOOK)
    assert wait(launcher).exit_code == 0, launcher.logs(NAME)
    seen = json.loads(launcher.logs(NAME))
    owner = (settings.jobs / "run1" / "1").stat()
    assert (seen["uid"], seen["gid"]) == (owner.st_uid, owner.st_gid)
    assert owner.st_uid != 0
    assert set(seen["capabilities"]) == {"0" * 16}
    assert (seen["no_new_privileges"], seen["seccomp"], seen["core"]) == ("1", "2", 0)
    read_only = "Read-only file system"
    assert [seen[key] for key in ("root", "etc", "entry", "entry_mode")] == [read_only] * 4
    assert seen["entry_moved"] == "Device or resource busy"
    assert (seen["tmp"], seen["job"]) == ("None", "None")
    assert seen["network"] == "Network is unreachable"
    assert "known" in seen["name"] or "resolution" in seen["name"]
    assert seen["interfaces"] == ["lo"]
    assert seen["processes"] == [1]
    assert seen["unshare"] == "-1"
    assert seen["device"] == seen["chown"] == "Operation not permitted"
    assert seen["engine"] is False
    assert "canary" not in json.dumps(seen["environment"])


def test_a_good_run_ends_by_itself_and_says_what_it_ran_in(launch: Launch, settings: Settings, engine: Any) -> None:
    launcher = launch(["/job/home/toy.py", "environment"])
    observed = wait(launcher)
    assert (observed.exit_code, observed.cause) == (0, None)
    assert observed.image_id == engine.images.get(IMAGE).id
    assert observed.peak_memory_bytes > MIB
    text = launcher.logs(NAME)
    launcher.remove(NAME)
    assert (settings.jobs / "run1" / "1" / "output.log").read_text() == text
    assert sorted(path.name for path in (settings.jobs / "run1").iterdir()) == ["1"]


@pytest.mark.parametrize(("mode", "code"), [("raise", 1), ("segfault", -11)])
def test_the_exit_code_is_that_of_the_program(launch: Launch, mode: str, code: int) -> None:
    assert wait(launch(["/job/home/toy.py", mode])).exit_code == code


@pytest.mark.parametrize(
    ("mode", "changes", "cause", "words"),
    [
        ("sleep", {"wall": 0.5}, "timeout", "after 0.5 s"),
        ("allocate", {}, "oom_host", "192 MiB that are allowed"),
        ("flood", {}, "limit", "printed more than 65536 bytes"),
        ("fills-disk", {}, "limit", "20 MiB are allowed"),
        ("sleep", {"free_disk_bytes": 2**60}, "disk", "has only"),
    ],
)
def test_each_limit_ends_the_run_with_its_cause(
    launch: Launch, mode: str, changes: dict[str, Any], cause: str, words: str
) -> None:
    observed = wait(launch(["/job/home/toy.py", mode], **changes))
    assert observed.cause == cause
    assert words in str(observed.sentence)


def test_a_fork_bomb_stops_at_its_limit_and_ends_with_it(launch: Launch) -> None:
    bomb = "import os, time\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        time.sleep(0.1)"
    observed = wait(launch(bomb))
    assert observed.cause == "limit"
    assert "32 processes and threads" in str(observed.sentence)


@pytest.mark.parametrize(("code", "cause"), [(3, "oom_host"), (0, None)])
def test_a_child_that_was_killed_for_memory_counts_when_the_run_did_not_survive_it(
    launch: Launch, code: int, cause: str | None
) -> None:
    child = "x = bytearray(400 << 20); x[::4096] = x[::4096]"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}]); sys.exit({code})"
    observed = wait(launch(program))
    assert (observed.exit_code, observed.cause) == (code, cause)


def test_a_run_is_asked_to_end_before_it_is_killed(launch: Launch) -> None:
    polite = "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(42))\nprint('ready')\ntime.sleep(600)"
    launcher = launch(polite)
    wait_for_output(launcher, "ready")
    launcher.stop(NAME)
    observed = launcher.state(NAME)
    assert (observed.running, observed.exit_code, observed.cause) == (False, 42, None)


def test_a_deaf_run_is_killed_after_the_grace(launch: Launch) -> None:
    launcher = launch(["/job/home/toy.py", "deaf"])
    wait_for_output(launcher, "deaf")
    began = time.monotonic()
    launcher.stop(NAME)
    assert 1.0 <= time.monotonic() - began < 5
    assert launcher.state(NAME).exit_code == -9


def test_a_second_start_starts_nothing(launch: Launch, settings: Settings, engine: Any) -> None:
    launcher = launch("print('once'); import time; time.sleep(600)")
    wait_for_output(launcher, "once")
    another = DockerLauncher(settings)
    for one in (launcher, another):
        assert one.start(order_of(settings)) == NAME
    assert another.state(NAME).running
    wait_for_output(another, "once")
    mine = f"dare.installation={settings.containers.installation}"
    assert another.logs(NAME) == "once\n"
    assert len(engine.containers.list(all=True, filters={"label": mine})) == 1
    another.close()


@pytest.mark.parametrize("verb", ["start", "adopt"])
def test_what_was_created_and_never_started_is_made_anew(settings: Settings, engine: Any, verb: str) -> None:
    labels = {**own_labels(settings), RUN: "run1", TOKEN: "1"}
    name = f"dare-{settings.containers.installation}-{NAME}"
    dead = engine.containers.create(IMAGE, ["true"], name=name, labels=labels)
    launcher = DockerLauncher(settings, ["python", "-c", "print('anew')"])
    assert launcher.list_own() == [Owned("run1", 1, adoptable=True)]
    assert launcher.adopt_all() == 1  # of no use: there is nothing to watch
    with pytest.raises(LaunchError, match="never started"):
        launcher.state(NAME)
    assert getattr(launcher, verb)(order_of(settings)) == NAME
    assert wait(launcher).exit_code == 0
    assert launcher.logs(NAME) == "anew\n"
    with pytest.raises(docker.errors.NotFound):
        engine.containers.get(dead.id)
    launcher.remove(NAME)
    launcher.close()


def test_a_container_of_somebody_else_is_never_touched(settings: Settings, engine: Any) -> None:
    other = own_labels(replace(settings, containers=replace(settings.containers, installation="another")))
    name = f"dare-{settings.containers.installation}-{NAME}"
    theirs = engine.containers.create(
        IMAGE, ["true"], name=name, labels={**other, RUN: "run1", TOKEN: "1", "dare.test": "theirs"}
    )
    try:
        launcher = DockerLauncher(settings)
        assert launcher.list_own() == []
        for touch in (
            lambda: launcher.start(order_of(settings)),
            lambda: launcher.adopt(order_of(settings)),
            lambda: launcher.state(NAME),
            lambda: launcher.stop(NAME),
            lambda: launcher.remove(NAME),
        ):
            with pytest.raises(LaunchError, match="none of ours"):
                touch()
        theirs.reload()
        assert theirs.status == "created"
        launcher.close()
    finally:
        theirs.remove(force=True)


def test_a_sweep_removes_what_is_ours_alone(launch: Launch, settings: Settings, engine: Any) -> None:
    launcher = launch("import time; time.sleep(600)")
    theirs = {"app": "dare", "dare.installation": "another"}
    bystander = engine.containers.run(IMAGE, ["sleep", "600"], detach=True, labels=theirs, network_mode="none")
    try:
        for owned in launcher.list_own():
            launcher.remove(owned.name)
        assert launcher.list_own() == []
        bystander.reload()
        assert bystander.status == "running"
    finally:
        bystander.remove(force=True)


COUNT = "import time\nfor i in range(400):\n    print('line', i, flush=True)\n    time.sleep(0.005)\n"
COUNTED = "".join(f"line {i}\n" for i in range(400)).encode()


def test_a_run_is_adopted_with_its_deadline_and_all_of_its_output(launch: Launch, settings: Settings) -> None:
    first = launch(COUNT + "time.sleep(600)", wall=4.0)
    wait_for_output(first, "line 50")
    taken = all_output(first)
    second = DockerLauncher(settings)  # the first one is gone, for all it knows
    assert second.list_own() == [Owned("run1", 1, adoptable=True)]
    assert second.adopt(order_of(settings, lease_token=2)) == NAME
    assert second.state(NAME).running
    assert second.output(NAME, 0)[: len(taken)] == taken[: len(second.output(NAME, 0))]
    observed = wait(second)
    assert (observed.cause, observed.sentence) == ("timeout", "The run was still working after 4 s, its limit.")
    assert all_output(second) == COUNTED
    second.close()


def test_a_launcher_that_is_started_again_watches_what_it_finds(launch: Launch, settings: Settings) -> None:
    launch("import time; time.sleep(600)", wall=2.0)
    again = DockerLauncher(settings)
    assert again.adopt_all() == 1
    observed = wait(again)
    assert (observed.cause, observed.sentence) == ("timeout", "The run was still working after 2 s, its limit.")
    third = DockerLauncher(settings)  # finds it dead, and what was written before it died
    assert third.state(NAME).cause == "timeout" or wait(third).cause == "timeout"
    for one in (again, third):
        one.close()


def test_what_has_no_container_cannot_be_adopted(settings: Settings) -> None:
    launcher = DockerLauncher(settings)
    with pytest.raises(LaunchError, match="no container to go on with"):
        launcher.adopt(order_of(settings))
    with pytest.raises(LaunchError, match="has no container"):
        launcher.state(NAME)
    launcher.stop(NAME)
    launcher.remove(NAME)
    launcher.close()


def test_a_reader_whose_connection_dies_misses_nothing_and_repeats_nothing(
    launch: Launch, settings: Settings, engine: Any, tmp_path: Path
) -> None:
    launcher = launch(COUNT)
    container = engine.containers.get(f"dare-{settings.containers.installation}-{NAME}")
    plain = DockerEngine(SOCKET)
    cut = 0

    def torn(follow: bool) -> Iterator[bytes]:
        nonlocal cut
        for number, frame in enumerate(plain.output(container.id, follow)):
            yield frame
            if follow and number > 20 * cut:  # a little further each time
                cut += 1
                raise LaunchError("cut")

    output = ContainerOutput(torn, tmp_path / "torn.log", 65536)
    assert wait(launcher).exit_code == 0
    output.close()
    assert cut > 2
    assert output.piece(0, 65536) == COUNTED == all_output(launcher)
    assert (tmp_path / "torn.log").read_bytes() == COUNTED
    plain.close()


@pytest.mark.parametrize(("quiet", "silence"), [(1.0, 5.0), (60.0, 90.0)])
def test_a_silent_container_is_heard_again(launch: Launch, quiet: float, silence: float) -> None:
    if silence > 60 and not os.environ.get("CI"):
        pytest.skip("takes 90 s; CI has them")
    program = f"import time\nprint('before', flush=True)\ntime.sleep({silence})\nprint('after')\ntime.sleep(0.5)"
    launcher = launch(program, wall=120.0, quiet=quiet)
    assert wait(launcher, 120).exit_code == 0
    assert all_output(launcher) == b"before\nafter\n"


def test_a_gigabyte_without_a_newline_costs_neither_memory_nor_disk(launch: Launch, settings: Settings) -> None:
    program = "import os, time\nos.write(1, b'first \\xff\\xfe ')\ntime.sleep(1)\n"
    program += "for _ in range(1024):\n    os.write(1, b'\\xf0' * 1048576)"
    before = psutil.Process().memory_info().rss
    launcher = launch(program)
    most = before
    while launcher.state(NAME).running:
        most = max(most, psutil.Process().memory_info().rss)
        time.sleep(0.02)
    observed = wait(launcher)
    assert most - before < 64 * MIB
    assert observed.cause == "limit"
    assert "printed more than 65536 bytes" in str(observed.sentence)
    assert all_output(launcher) == b"first \xff\xfe ".ljust(32768, b"\xf0")
    text = launcher.logs(NAME)
    assert text.startswith("first \ufffd\ufffd ")
    assert "bytes left out" in text
    launcher.remove(NAME)
    assert (settings.jobs / "run1" / "1" / "output.log").stat().st_size < 65536 + 100


def test_a_gpu_without_a_driver_is_one_sentence(launch: Launch) -> None:
    observed = wait(launch("print('never')", gpu_uuid="GPU-3b1c8f0a-0000-4000-8000-000000000001"))
    assert (observed.cause, observed.exit_code) == ("gpu_fault", None)
    assert observed.sentence == "This host's container engine has no driver for GPUs: install its toolkit."


def test_an_image_that_is_not_there_is_one_sentence(settings: Settings) -> None:
    absent = replace(settings, containers=replace(settings.containers, images={"llada": "dare-absent:0"}))
    launcher = DockerLauncher(absent)
    launcher.start(order_of(settings))
    observed = launcher.state(NAME)
    assert (observed.cause, observed.sentence) == ("image", "The image dare-absent:0 is not on this host.")
    launcher.remove(NAME)
    launcher.close()


def test_a_removed_container_is_the_hosts_fault(launch: Launch, settings: Settings, engine: Any) -> None:
    launcher = launch("import time; time.sleep(600)")
    engine.containers.get(f"dare-{settings.containers.installation}-{NAME}").remove(force=True)
    observed = wait(launcher)
    assert observed.cause == "lost_worker"


def test_an_engine_that_is_not_there_is_one_sentence(settings: Settings, tmp_path: Path) -> None:
    nowhere = replace(settings, containers=replace(settings.containers, socket=f"unix://{tmp_path}/nothing.sock"))
    with pytest.raises(LaunchError, match="the container engine does not answer"):
        DockerLauncher(nowhere)


def test_the_engine_must_see_the_folders_as_we_do(settings: Settings, engine: Any) -> None:
    launcher = DockerLauncher(settings)
    launcher.prove()
    launcher.close()
    volume = f"{settings.containers.installation}-volume"
    elsewhere = replace(settings, containers=replace(settings.containers, volume=volume))
    launcher = DockerLauncher(elsewhere)
    try:
        with pytest.raises(LaunchError, match="does not see"):
            launcher.prove()  # an empty volume
        assert list(settings.jobs.iterdir()) == []
    finally:
        launcher.close()
        engine.volumes.get(volume).remove()


def test_on_a_volume_a_run_gets_its_own_part(settings: Settings, engine: Any, tmp_path: Path) -> None:
    """The volume is a folder of ours under a name, so that this process sees what the engine mounts."""
    settings.home.mkdir()
    volume = engine.volumes.create(
        f"{settings.containers.installation}-home",
        driver="local",
        driver_opts={"type": "none", "o": "bind", "device": str(settings.home)},
    )
    on_volume = replace(settings, containers=replace(settings.containers, volume=volume.name))
    order = order_of(on_volume)
    (settings.jobs / "run2").mkdir()
    launcher = DockerLauncher(on_volume, ["python", "-c", "import os; print(sorted(os.listdir('/job')))"])
    try:
        launcher.prove()
        launcher.start(order)
        assert wait(launcher).exit_code == 0
        assert launcher.logs(NAME) == "['home', 'tmp']\n"
    finally:
        launcher.remove(NAME)
        launcher.close()
        volume.remove()


CANARIES = """
import json, sys
sys.path.insert(0, "/job/home")
from dare.sandbox import Program, Sandbox, canaries
right = "def add(a, b):\\n    return a + b\\n"
wrong = "def add(a, b):\\n    return a - b\\n"
tests = "assert add(1, 2) == 3\\nassert add(-1, 1) == 0\\n"
curious = "import os\\ndef add(a, b):\\n    return os.listdir('/job')\\n"
starts = "import subprocess\\ndef add(a, b):\\n    subprocess.run(['true'])\\n    return a + b\\n"
calls = '''
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def refused(number, *arguments):
    return libc.syscall(number, *arguments) == -1 and ctypes.get_errno() in (1, 38)
def add(a, b):
    # unshare, mount, ptrace, setns, bpf, keyctl, userfaultfd, io_uring_setup, perf_event_open
    held = all(refused(n, 0x10000000, 0, 0, 0, 0) for n in (272, 165, 101, 308, 321, 250, 323, 425, 298))
    return a + b if held else None
'''
with_nested = [Program(source, tests, "add") for source in (right, wrong, curious, starts, calls)]
known = canaries()
sandbox = Sandbox()
found = sandbox.run([*with_nested, *(program for program, _ in known)])
print(json.dumps([sandbox.workers, *(outcome.status for outcome in found)]))
"""
DIRECTLY = """
import ctypes, json, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    return libc.syscall(number, *arguments) >= 0 or os.strerror(ctypes.get_errno())
def wire(family, kind):
    try:
        socket.socket(family, kind).close()
    except OSError as error:
        return error.strerror
    return True
print(json.dumps({
    "mount outside": libc.mount(b"none", b"/tmp", b"tmpfs", 0, None),
    "ptrace": call(101, 16, os.getppid(), 0, 0), "bpf": call(321, 0, 0, 0), "setns": call(308, 0, 0),
    "keyctl": call(250, 0, -3, 0), "io_uring": call(425, 1, 0), "perf": call(298, 0, 0, 0, 0, 0),
    "userfaultfd": call(323, 0), "module": call(175, 0, 0, 0), "clock": call(164, 0, 0),
    "fsopen": call(430, b"tmpfs", 0),
    "vsock": wire(40, socket.SOCK_STREAM), "alg": wire(38, socket.SOCK_SEQPACKET),
    "unix": wire(socket.AF_UNIX, socket.SOCK_STREAM),
    "user namespace": libc.unshare(0x10000000),
    "capabilities outside": [l.split()[1] for l in open("/proc/1/status") if l.startswith(("CapEff", "CapBnd"))],
    "host": [w for w in ("/var/run/docker.sock", "/job/weights", "/job/entry") if os.path.exists(w)],
}))
"""


def with_sandbox(settings: Settings) -> None:
    target = settings.jobs / "run1" / "1" / "home" / "dare"
    target.mkdir(parents=True)
    (target / "__init__.py").touch()
    shutil.copytree(HERE / "runners/dare/sandbox", target / "sandbox", ignore=shutil.ignore_patterns("__pycache__"))


def test_programs_are_kept_apart_in_a_score_container(launch: Launch, settings: Settings) -> None:
    with_sandbox(settings)
    launcher = launch(CANARIES, kind="score", memory_bytes=GIB, processes=16)
    observed = wait(launcher)
    assert observed.exit_code == 0, launcher.logs(NAME)
    workers, right, wrong, curious, starts, calls, *known = json.loads(launcher.logs(NAME))
    assert workers == 2  # of one core, however many the host has
    assert (right, wrong, calls) == ("passed", "failed", "passed")
    assert "passed" not in (curious, starts)
    assert known == ["passed", "failed", "failed"]


def test_programs_are_not_run_at_all_in_any_other_container(launch: Launch, settings: Settings) -> None:
    with_sandbox(settings)
    launcher = launch(CANARIES, kind="evaluate")
    assert wait(launcher).exit_code == 1
    assert "NoSandboxError: this machine cannot keep a program apart" in launcher.logs(NAME)


def test_what_a_score_container_may_not_do(launch: Launch) -> None:
    launcher = launch(DIRECTLY, kind="score")
    assert wait(launcher).exit_code == 0, launcher.logs(NAME)
    seen = json.loads(launcher.logs(NAME))
    others = ("unix", "user namespace", "mount outside", "capabilities outside", "host")
    assert {said for key, said in seen.items() if key not in others} == {"Operation not permitted"}
    assert (seen["unix"], seen["user namespace"], seen["mount outside"]) == (True, 0, -1)
    assert set(seen["capabilities outside"]) == {"0" * 16}
    assert seen["host"] == []


def test_a_killed_launcher_process_costs_its_runs_nothing(settings: Settings) -> None:
    """Started by a process that is killed with SIGKILL in the middle of a run's output, ended by another."""
    order_of(settings)
    program = f"""
import sys, time
from dataclasses import replace
from pathlib import Path
from dare_platform.docker_launcher import DockerLauncher
from dare_platform.launcher import Order
from dare_platform.settings import Containers, Settings
settings = Settings(home=Path({str(settings.home)!r}), database_url="", containers=Containers(
    installation={settings.containers.installation!r}, images={{"llada": {IMAGE!r}}}, socket={SOCKET!r}))
launcher = DockerLauncher(settings, ["python", "-c", {COUNT!r}])
launcher.start(Order("run1", 1, Path({str(settings.jobs / "run1" / "1")!r}), 60.0, "train", "llada", 1))
while "line 30" not in launcher.logs("run1-1"):
    time.sleep(0.02)
print("now", flush=True)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env={**os.environ})
    assert process.stdout is not None
    assert process.stdout.readline() == b"now\n"
    process.kill()
    process.wait()
    process.stdout.close()
    launcher = DockerLauncher(replace(settings, limits=replace(LIMITS, log_bytes=4 * MIB)))
    assert launcher.adopt(order_of(settings, lease_token=2)) == NAME
    assert wait(launcher).exit_code == 0
    assert all_output(launcher) == COUNTED
    launcher.remove(NAME)
    launcher.close()


def test_no_thread_is_left_behind(launch: Launch) -> None:
    launcher = launch("print('done')")
    wait(launcher)
    launcher.remove(NAME)
    deadline = time.monotonic() + 5
    while left := [one.name for one in threading.enumerate() if one.name.startswith(("watch-", "output-"))]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
