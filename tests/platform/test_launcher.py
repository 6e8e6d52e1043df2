"""Every way in which a run's process can go wrong ends in its cause, and nothing of it lives on."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from world import World, train_job

from dare.catalog import added_root
from dare.spec import BackboneRef
from dare_platform.isolation import NAMESPACES, NONE, isolate
from dare_platform.launcher import Observed, Order, Owned
from dare_platform.process_launcher import ProcessLauncher
from dare_platform.process_log import ProcessLog
from dare_platform.processes import marked
from dare_platform.settings import MIB, Limits, Settings

TOY = Path(__file__).with_name("toy_runner.py")
WORLD = World("", "", "", BackboneRef(name="b", family="llada", revision="r", weights_sha256="", tokenizer_sha256=""))
Launch = Callable[..., tuple[ProcessLauncher, str, Path]]


@pytest.fixture
def limits() -> Limits:
    return Limits(
        wall_seconds=20,
        memory_bytes=300 * MIB,
        processes=12,
        directory_bytes=20 * MIB,
        log_bytes=65536,
        free_disk_bytes=1,
        grace_seconds=0.5,
    )


@pytest.fixture
def launch(tmp_path: Path, limits: Limits) -> Iterator[Launch]:
    """Start the toy in a mode; whatever is left at the end of the test is a failure of the test."""
    launchers: list[ProcessLauncher] = []

    def start(mode: str, wall: float = 20, **changes: object) -> tuple[ProcessLauncher, str, Path]:
        settings = Settings(home=tmp_path, database_url="", limits=replace(limits, **changes))
        directory = tmp_path / "jobs" / "run1" / "1"
        for folder in ("home", "tmp"):
            (directory / folder).mkdir(parents=True)
        (directory / "job.json").write_text(train_job(WORLD).model_dump_json())
        launcher = ProcessLauncher(settings, (sys.executable, str(TOY), mode))
        launchers.append(launcher)
        name = launcher.start(Order(f"run{os.getpid()}", 1, directory, wall, "train", "llada", 1))
        return launcher, name, directory

    yield start
    for launcher in launchers:
        launcher.remove(f"run{os.getpid()}-1")
    assert alive() == []


def alive() -> list[psutil.Process]:
    return [process for process, marker in marked() if marker == f"run{os.getpid()}-1"]


def wait(launcher: ProcessLauncher, name: str, seconds: float = 20) -> Observed:
    deadline = time.monotonic() + seconds
    while (observed := launcher.state(name)).running:
        assert time.monotonic() < deadline, "the run does not end"
        time.sleep(0.02)
    return observed


def test_a_good_run_ends_by_itself(launch: Launch) -> None:
    launcher, name, directory = launch("good")
    observed = wait(launcher, name)
    assert (observed.exit_code, observed.cause) == (0, None)
    assert launcher.logs(name) == "step 0\nstep 1\nstep 2\n"
    assert (directory / "result.json").exists()
    launcher.remove(name)
    assert (directory / "output.log").read_text() == "step 0\nstep 1\nstep 2\n"


@pytest.mark.parametrize(("mode", "code"), [("raise", 1), ("exit0", 0), ("segfault", -11)])
def test_the_exit_code_is_that_of_the_program(launch: Launch, mode: str, code: int) -> None:
    launcher, name, _ = launch(mode)
    assert wait(launcher, name).exit_code == code
    if mode == "raise":
        assert "RuntimeError: the entry is wrong" in launcher.logs(name)


@pytest.mark.parametrize(
    ("mode", "changes", "cause", "words"),
    [
        ("sleep", {"wall": 0.5}, "timeout", "after 0.5 s"),
        ("spin", {"wall": 0.5}, "timeout", "after 0.5 s"),
        ("allocate", {}, "oom_host", "300 MiB are allowed"),
        ("flood", {}, "limit", "printed more than 65536 bytes"),
        ("forks", {}, "limit", "12 are allowed"),
        ("fills-disk", {}, "limit", "20 MiB are allowed"),
        ("sleep", {"free_disk_bytes": 2**60}, "disk", "has only"),
    ],
)
def test_each_limit_ends_the_run_with_its_cause(
    launch: Launch, mode: str, changes: dict[str, float], cause: str, words: str
) -> None:
    launcher, name, _ = launch(mode, **changes)
    observed = wait(launcher, name)
    assert observed.cause == cause
    assert words in str(observed.sentence)
    assert alive() == []


def test_a_flood_keeps_its_first_and_last_words(launch: Launch) -> None:
    launcher, name, directory = launch("flood")
    wait(launcher, name)
    text = launcher.logs(name)
    assert text.startswith("the first words\n")
    assert "bytes left out" in text
    assert text.endswith("xxxx")
    assert len(text) < 70_000
    launcher.remove(name)
    assert (directory / "output.log").stat().st_size == len(text)


def test_output_without_newline_and_without_sense_is_kept(launch: Launch) -> None:
    launcher, name, _ = launch("one-line")
    assert wait(launcher, name).exit_code == 0
    assert launcher.logs(name).startswith("\ufffd\ufffdyyyy")


def test_a_grandchild_that_left_the_session_is_found_and_killed(launch: Launch) -> None:
    launcher, name, _ = launch("escapes")
    observed = wait(launcher, name)
    assert (observed.exit_code, observed.cause) == (0, None)
    assert alive() == []


def test_a_run_that_ignores_the_request_to_end_is_killed(launch: Launch) -> None:
    launcher, name, _ = launch("deaf")
    while "deaf" not in launcher.logs(name):
        time.sleep(0.02)
    started = time.monotonic()
    launcher.stop(name)
    assert 0.4 < time.monotonic() - started < 8
    assert launcher.state(name).exit_code == -9
    assert alive() == []


def test_another_launcher_finds_and_removes_what_a_dead_one_left(launch: Launch, tmp_path: Path) -> None:
    _, name, _ = launch("sleep")
    other = ProcessLauncher(Settings(home=tmp_path, database_url=""), (sys.executable, str(TOY), "good"))
    assert Owned(f"run{os.getpid()}", 1) in other.list_own()
    other.remove(name)
    assert alive() == []
    assert Owned(f"run{os.getpid()}", 1) not in other.list_own()


def test_the_environment_holds_no_secret(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DARE_DATABASE_URL", "postgresql://user:canary-5150@host/db")
    monkeypatch.setenv("API_TOKEN", "canary-5150")
    launcher, name, directory = launch("environment")
    wait(launcher, name)
    text = launcher.logs(name)
    assert "canary-5150" not in text
    environment = json.loads(text)
    assert environment["HOME"] == str(directory / "home")
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "1"
    assert environment["DARE_BACKBONES"] == str(added_root())
    assert environment["DARE_DATA"] == str(directory / "data")
    assert set(environment) <= {
        "DARE_BACKBONES",
        "DARE_DATA",
        "PATH",
        "HOME",
        "TMPDIR",
        "LANG",
        "LC_CTYPE",
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "PYTHONDONTWRITEBYTECODE",
        "DARE_RUN",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
    }


def test_isolation_does_what_its_sentence_says(launch: Launch, tmp_path: Path) -> None:
    launcher, name, _ = launch("trespass")
    wait(launcher, name)
    Path("/dev/shm/dare-trespassed").unlink(missing_ok=True)
    wrote = "wrote" in launcher.logs(name)
    assert launcher.isolation == (NONE if wrote else NAMESPACES)


TALK = """
import socket, sys
for name, address in (("host", ("127.0.0.1", int(sys.argv[1]))), ("outside", ("192.0.2.1", 80))):
    try:
        socket.create_connection(address, timeout=2).close()
        print(name, "answers")
    except OSError as error:
        print(name, "cannot be reached")
with socket.create_server(("127.0.0.1", 0)) as server:
    client = socket.create_connection(server.getsockname(), timeout=2)
    accepted, _ = server.accept()
    accepted.sendall(b"hello")
    print("own loopback says", client.recv(5).decode())
try:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        import fcntl, struct
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH22x", b"lo", 0))
    print("took it down")
except PermissionError:
    print("may not configure it")
"""


def test_an_isolated_run_reaches_its_own_loopback_and_nothing_else(tmp_path: Path) -> None:
    isolation = isolate(Settings(home=tmp_path, database_url=""), wanted=True)
    if isolation.sentence == NONE:
        pytest.skip("this machine has no namespaces to isolate with")
    (directory := tmp_path / "run").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as host:
        command = (sys.executable, "-I", "-c", TALK, str(host.getsockname()[1]))
        ended = subprocess.run(isolation.wrap(command, directory), capture_output=True, text=True, timeout=20)
    assert ended.stdout.splitlines() == [
        "host cannot be reached",
        "outside cannot be reached",
        "own loopback says hello",
        "may not configure it",
    ], ended.stderr


def test_an_isolated_run_can_keep_a_program_apart_in_its_turn(tmp_path: Path) -> None:
    """As programs in answers are; and nothing of the kernel's own files can be written on the way."""
    isolation = isolate(Settings(home=tmp_path, database_url=""), wanted=True)
    if isolation.sentence == NONE:
        pytest.skip("this machine has no namespaces to isolate with")
    (directory := tmp_path / "run").mkdir()
    apart = "unshare --user --map-current-user --mount --net --pid --fork sh -c 'echo apart'"
    kernel = (
        "for file in /proc/sys/kernel/hostname /proc/sysrq-trigger; do (: >> $file) 2>/dev/null && echo $file; done"
    )
    ended = subprocess.run(
        isolation.wrap(("sh", "-c", f"{apart}; {kernel}; ls -d /proc/{os.getpid()}"), directory),
        capture_output=True, text=True, timeout=20,
    )  # fmt: skip
    assert ended.stdout.splitlines() == ["apart"], ended.stderr


def test_isolation_can_be_done_without(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, database_url="")
    assert isolate(settings, wanted=False).sentence.startswith("No file isolation: ")


def test_a_log_stays_small_whatever_is_written(tmp_path: Path) -> None:
    read, write = os.pipe()
    log = ProcessLog(os.fdopen(read, "rb"), tmp_path / "output.log", 1000)
    with os.fdopen(write, "wb") as pipe:
        for number in range(20_000):
            pipe.write(b"%09d\n" % number)
    log.close()
    text = log.text()
    assert text.startswith("000000000\n")
    assert text.endswith("000019999\n")
    assert f"[... {200_000 - 1000} bytes left out ...]" in text
    assert (tmp_path / "output.log").read_text() == text
