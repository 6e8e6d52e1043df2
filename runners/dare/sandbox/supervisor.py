"""The process that keeps programs apart: it enters namespaces once, then starts every program afresh inside them.

It sees a root of its own with Python's library and nothing else, read-only, and no network. For each program it forks
the tests, which start the program as the first process of a further namespace of processes, with an empty folder in
memory. From there the program cannot see, signal or read the tests. When the tests have ended, so does the program,
with whatever it left behind. Questions come on standard input, verdicts leave on standard output.
"""

from __future__ import annotations

import json
import marshal
import os
import random
import resource
import selectors
import signal
import socket
import string
import struct
import sys
import sysconfig
import time
import typing
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from dare.sandbox import harness, kernel

PYTHON = os.path.realpath(sys.executable)
NOBODY = 65534
FOLDER = "/tmp"
"""The only place where a program can write."""
SHARE = 0.8
"""Of a limit of processor time: the kernel enforces it by its ticks and reports what it measured, which is less."""
_STARTED_WITH = "import marshal;exec(marshal.loads(open('/candidate','rb').read()))"
_USED_BY_TESTS = (random, string, struct, typing)
"""Loaded before the tests are forked, not by each of them."""


def main() -> None:
    """Enters, says `ready` or why not, and works until its input ends."""
    settings = json.loads(sys.argv[1])
    try:
        _enter_namespaces()
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
        kernel.die_with_parent()
        _make_root()
    except OSError as error:
        _say({"ready": False, "why": str(error)})
        os._exit(1)
    _say({"ready": True})
    Supervisor(settings).work()
    os._exit(0)


def _say(message: Mapping[str, Any]) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]


# ---- entering


def _enter_namespaces() -> None:
    uid, gid = os.geteuid(), os.getegid()
    me = Path("/proc/self").readlink()  # of the mounted /proc, which may be that of an outer namespace
    mine, theirs = socket.socketpair()
    writer = os.fork()
    if not writer:  # who maps several ids has to stand outside
        mine.close()
        if not theirs.recv(1):
            os._exit(1)  # there are no namespaces here
        try:
            for name, own in (("uid_map", uid), ("gid_map", gid)):
                Path(f"/proc/{me}/{name}").write_text(f"{own} {own} 1\n{NOBODY} {NOBODY} 1\n")
            theirs.send(b"+")
        except OSError:
            theirs.send(b"-")
        os._exit(0)
    theirs.close()
    try:
        kernel.unshare(kernel.NEWUSER)
    except OSError:
        mine.close()
        os.waitpid(writer, 0)
        raise
    mine.send(b".")
    several = mine.recv(1) == b"+"
    os.waitpid(writer, 0)
    if not several:
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1\n")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1\n")
    kernel.unshare(kernel.NEWNS | kernel.NEWNET | kernel.NEWIPC | kernel.NEWUTS | kernel.NEWPID)


def _make_root() -> None:
    staging = next((path for path in ("/sys", "/mnt", "/srv", "/media", "/tmp") if Path(path).is_dir()), "/tmp")
    visible = [path for path in _visible() if not path.startswith(staging + "/")]
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("sandbox", staging, "tmpfs", kernel.MS_NOSUID, "mode=755,size=4m")
    Path(f"{staging}/candidate").write_bytes(marshal.dumps(_candidate()))
    Path(staging + FOLDER).mkdir()
    for path in visible:
        inside = Path(staging + path)
        inside.parent.mkdir(parents=True, exist_ok=True)
        if Path(path).is_dir():
            inside.mkdir(exist_ok=True)
        else:
            inside.touch()
        kernel.mount(path, str(inside), None, kernel.MS_BIND | kernel.MS_REC)
    for link in ("/lib", "/lib32", "/lib64", "/libx32"):
        if Path(link).is_symlink():
            Path(staging + link).symlink_to(Path(link).readlink())
    for path in visible:  # what is installed there may hold published tests
        inside = Path(staging + path)
        for packages in (*inside.glob("*-packages"), *inside.glob("python3*/*-packages")):
            if packages.is_dir() and not packages.is_symlink():
                options = "mode=755,size=4k"
                kernel.mount("none", str(packages), "tmpfs", kernel.MS_NOSUID | kernel.MS_RDONLY, options)
    for point in _mounts_of(staging):
        kernel.seal(point)
    kernel.enter_root(staging)
    # Only what is read-only may be imported from here on: the tests share the folder of the program.
    sys.path[:] = [path for path in sys.path if Path(path).exists() and not f"{path}/".startswith(f"{FOLDER}/")]
    sys.path_importer_cache.clear()


def _mounts_of(staging: str) -> list[str]:
    """The last mount there and all in it; what it covers is out of reach anyhow."""
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_bytes().splitlines()]
    points = {
        line[0]: line[4].decode("unicode_escape").encode("latin-1").decode(errors="surrogateescape") for line in lines
    }
    inside = [line[0] for line in lines if points[line[0]] == staging][-1:]
    for identity in inside:
        inside += [line[0] for line in lines if line[1] == identity]
    return [points[identity] for identity in inside]


def _visible() -> list[str]:
    """What of the host a program may read: the interpreter, its libraries, those of the system, four devices."""
    paths = sysconfig.get_paths()
    mapped = [line.split()[-1] for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()]
    wanted = [
        PYTHON,
        *(path for path in mapped if path.startswith("/") and ".so" in path),  # of an interpreter with its own library
        *(os.path.realpath(paths[name]) for name in ("stdlib", "platstdlib")),
        *("/lib", "/lib32", "/lib64", "/libx32", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/local/lib"),
        "/etc/ld.so.cache",
        *("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"),
    ]
    found: list[str] = []
    for path in sorted(set(wanted), key=len):
        if Path(path).exists() and not Path(path).is_symlink() and not any(path.startswith(f"{p}/") for p in found):
            found.append(path)
    return found


def _candidate() -> Any:
    path = Path(__file__).with_name("candidate.py")
    return compile(path.read_text(encoding="utf-8"), "<candidate>", "exec", dont_inherit=True, optimize=2)


# ---- working


@dataclass
class Running:
    """One program under way."""

    program: Mapping[str, Any]
    tests: int
    """The process of the tests."""
    since: float
    said: bytearray = field(default_factory=bytearray)


class Supervisor:
    """Takes programs from its input, a few at a time."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.limits: Mapping[str, Any] = settings["limits"]
        self.workers: int = settings["workers"]
        self.waiting: deque[Mapping[str, Any]] = deque()
        self.running: dict[int, Running] = {}
        self.selector = selectors.DefaultSelector()
        self.read = bytearray()

    def work(self) -> None:
        """Until its input ends; then everything in its namespace ends with it."""
        self.selector.register(0, selectors.EVENT_READ)
        while True:
            while self.waiting and len(self.running) < self.workers:
                self._start(self.waiting.popleft())
            ends = [running.since + self.limits["wall_seconds"] for running in self.running.values()]
            left = max(0.0, min(ends) - time.monotonic()) if ends else None
            for key, _ in self.selector.select(left):
                if key.fd != 0:
                    self._hear(key.fd)
                elif not self._take():
                    return
            for pipe, running in list(self.running.items()):
                if time.monotonic() >= running.since + self.limits["wall_seconds"]:
                    self._end(pipe, over=True)

    def _take(self) -> bool:
        data = os.read(0, 1 << 20)
        self.read += data
        *lines, rest = self.read.split(b"\n") if b"\n" in data else [self.read]
        self.read = bytearray(rest)
        self.waiting += [json.loads(line) for line in lines]
        return bool(data)

    def _start(self, program: Mapping[str, Any]) -> None:
        reading, writing = os.pipe()
        since = time.monotonic()
        child = os.fork()
        if not child:
            try:
                os.close(reading)
                _test(program, writing, self.limits)
            finally:
                os._exit(1)
        os.close(writing)
        self.running[reading] = Running(program, child, since)
        self.selector.register(reading, selectors.EVENT_READ)

    def _hear(self, pipe: int) -> None:
        data = os.read(pipe, 1 << 16)
        self.running[pipe].said += data
        if not data:
            self._end(pipe, over=False)

    def _end(self, pipe: int, over: bool) -> None:
        """Ends what is left of a program and says how it went."""
        running = self.running.pop(pipe)
        self.selector.unregister(pipe)
        if over:
            os.kill(running.tests, signal.SIGKILL)
        _, _, tests = os.wait4(running.tests, 0)
        if over:
            while data := os.read(pipe, 1 << 16):
                running.said += data
        os.close(pipe)
        lines = running.said.split(b"\n")
        spent = 0.0
        if len(lines) > 1:
            first = int(lines[0])
            os.kill(first, signal.SIGKILL)  # a child of ours since the tests ended: at least a zombie
            _, _, usage = os.wait4(first, 0)
            spent = usage.ru_utime + usage.ru_stime
        limit = SHARE * self.limits["cpu_seconds"]
        said = json.loads(lines[1]) if len(lines) > 2 else {"status": "error", "why": "the tests ended without a word"}
        if said["status"] == "died" and spent >= limit:
            said = {"status": "timeout", "why": f"more than {self.limits['cpu_seconds']} s of processor time"}
        elif said["status"] == "error" and tests.ru_utime + tests.ru_stime >= limit:
            said = {"status": "timeout", "why": "the tests ran over their processor time"}
        elif over:
            said = {"status": "timeout", "why": f"more than {self.limits['wall_seconds']} s"}
        seconds = time.monotonic() - running.since
        _say({"id": running.program["id"], "nonce": None, **said, "seconds": seconds, "cpu_seconds": spent})


# ---- one program


def _test(program: Mapping[str, Any], verdict: int, limits: Mapping[str, Any]) -> NoReturn:
    """The process of the tests. Its first line is the number of the program's process, its second the verdict."""
    kernel.unshare(kernel.NEWNS | kernel.NEWPID | kernel.NEWIPC)
    options = f"mode=1777,size={limits['file_bytes']},nr_inodes=1024"
    kernel.mount("folder", FOLDER, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
    mine, theirs = socket.socketpair()
    null = os.open("/dev/null", os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    child = os.fork()
    if not child:
        try:
            _become(theirs.fileno(), limits)
        finally:
            os._exit(1)
    theirs.close()
    os.write(verdict, b"%d\n" % child)
    _limit(limits, memory=2 * limits["memory_bytes"])
    _give_up()
    kernel.clear_capabilities()
    found = harness.examine(mine, program)
    nonce = program["nonce"] if found.status == "passed" else None  # not before the last assertion
    os.write(verdict, json.dumps({"status": found.status, "why": found.why, "nonce": nonce}).encode() + b"\n")
    os._exit(0)


def _become(channel: int, limits: Mapping[str, Any]) -> None:
    """Becomes the process of the program: nothing in it is left of ours but the channel."""
    os.dup2(channel, 3, inheritable=True)
    os.closerange(4, 1024)
    os.chdir(FOLDER)
    os.setsid()
    _limit(limits, memory=limits["memory_bytes"])
    _give_up()
    kernel.die_with_parent()
    kernel.forbid()
    environment = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}  # a set has the same order for everybody
    os.execve(PYTHON, [PYTHON, "-s", "-S", "-P", "-B", "-c", _STARTED_WITH], environment)


def _limit(limits: Mapping[str, Any], memory: int) -> None:
    for kind, most in (
        (resource.RLIMIT_CPU, limits["cpu_seconds"]),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_NPROC, 64),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))


def _give_up() -> None:
    """Capabilities and, where a second user is mapped, the user."""
    kernel.give_up_capabilities()
    if os.geteuid() == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        except OSError:
            return  # only one user is mapped: it stays, without capabilities
