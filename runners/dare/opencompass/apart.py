"""A part of the child's work in namespaces of its own, for evaluators that execute what a model wrote.

OpenCompass runs programs in copies of its own process. Here that process has no network, sees no other process, cannot
write anywhere but in its scratch folder, has no privileges to regain, and takes everything it started with it when it
ends. That keeps the machine from the programs. It does not keep a program from the evaluator, which stands in the same
process: for that there is `dare.sandbox`, where our own scorer runs them.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dare.sandbox import kernel
from dare.tasks import NotScoredError

MEMORY_BYTES = 4 << 30
"""Beyond what the process has when it starts."""
FILE_BYTES = 64 << 20
SHORT = "/dev/shm"
"""Where temporary files go in there: the evaluators' processes talk over sockets, whose paths have to be short."""


class ApartError(RuntimeError):
    """The work failed in there, or took too long."""


def apart(work: Callable[[], Any], scratch: Path, seconds: float) -> Any:
    """What `work` returns, as JSON has it. NotScoredError where this machine cannot keep it apart."""
    reading, writing = os.pipe()
    middle = os.fork()
    if not middle:
        os.close(reading)
        os.setpgid(0, 0)
        _enter(work, scratch, writing)  # never returns
    os.close(writing)
    try:
        content = _read(reading, time.monotonic() + seconds)
    finally:
        os.close(reading)
        _end(middle)
    if content is None:
        raise ApartError(f"it had not ended after {seconds:.0f} s")
    try:
        said = json.loads(content)
    except ValueError:
        raise ApartError("its process ended without a result") from None
    if "refused" in said:
        raise NotScoredError(f"nothing keeps a program apart here: {said['refused']}")
    if "failed" in said:
        raise ApartError(said["failed"])
    return said["result"]


def _read(descriptor: int, deadline: float) -> bytes | None:
    content = b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            return None
        more = os.read(descriptor, 1 << 16)
        if not more:
            return content
        content += more


def _end(process: int) -> None:
    """It is the parent of the first process of the namespace, which dies with it, and everything else with that one."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def _enter(work: Callable[[], Any], scratch: Path, writing: int) -> None:
    try:
        uid, gid = os.geteuid(), os.getegid()
        kernel.unshare(kernel.NEWUSER)
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1\n")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1\n")
        kernel.unshare(kernel.NEWNS | kernel.NEWNET | kernel.NEWIPC | kernel.NEWUTS | kernel.NEWPID)
        first = os.fork()
        if first:
            os.close(writing)
            os.waitpid(first, 0)
            os._exit(0)
        kernel.die_with_parent()
        _seal_all_but(scratch)
        kernel.give_up_capabilities()
        kernel.clear_capabilities()
    except OSError as error:
        _leave(writing, {"refused": str(error)})
    try:
        _limit()
        said = {"result": work()}
    except NotScoredError as error:
        said = {"refused": str(error)}
    except BaseException as error:  # nobody else would hear of it
        traceback.print_exc()
        said = {"failed": f"{type(error).__name__}: {error}"}
    _leave(writing, said)


def _leave(writing: int, said: dict[str, Any]) -> None:
    content = json.dumps(said).encode()
    while content:
        content = content[os.write(writing, content) :]
    os._exit(0)


def _seal_all_but(scratch: Path) -> None:
    """Every mount read-only; a fresh /proc and shared memory for the evaluator's own processes."""
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount(str(scratch), str(scratch), None, kernel.MS_BIND)
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        point = line.split()[4].decode("unicode_escape").encode("latin-1").decode(errors="surrogateescape")
        if point != str(scratch) and os.path.exists(point):  # noqa: PTH110 - what a mount covers is out of reach
            kernel.seal(point)
    kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV)
    if Path(SHORT).is_dir():
        kernel.mount("shm", SHORT, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=256m")
        tempfile.tempdir = SHORT
    os.chdir(scratch)


def _limit() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    memory = pages * resource.getpagesize() + MEMORY_BYTES
    for what, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, FILE_BYTES), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(what, (most, most))
