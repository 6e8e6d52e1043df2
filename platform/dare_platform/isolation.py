"""Keeps a process from writing outside its directory, from the network and from outliving its run.

Needs a kernel that offers namespaces. In its own process namespace the run is the first process: when it ends, so does
everything that it started, however well hidden. Its network namespace holds one device, a loopback of its own: what
runs together there can talk, to nobody else.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dare_platform.settings import Settings

NONE = "No file isolation: the run could write wherever this user can, and reach the network."
NAMESPACES = (
    "The run could write only into its own directory and had no network but a loopback of its own, "
    "but could read what this user can."
)

# The first thing that runs in the new namespaces: arguments are the directory and the command.
#
# Everything is remounted read-only except the directory, which is bound onto itself first, and what belongs to the
# run's own processes in a fresh /proc: a program that the run keeps apart in its turn needs that. What else can be
# written there is bound onto itself, and becomes read-only with the rest; where no fresh /proc can be had, all does.
# The loopback device of a new network namespace is down, and `ip` is not everywhere: two ioctls raise it. Then the
# right to undo any of this is given up. Only root keeps one, to set file capabilities, which its files could have
# anyhow: without it the kernel lets nobody keep a program of root's apart.
_ENTER = r"""
import contextlib, ctypes, fcntl, os, re, resource, socket, stat, struct, sys

RDONLY, REMOUNT, BIND, REC, PRIVATE = 1, 32, 4096, 16384, 1 << 18
KEPT = {"nosuid": 2, "nodev": 4, "noexec": 8, "noatime": 1024, "nodiratime": 2048, "relatime": 1 << 21}
libc = ctypes.CDLL(None, use_errno=True)
directory, *command = sys.argv[1:]


def mount(source, target, kind, flags):
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    if libc.mount(*words, ctypes.c_ulong(flags), None):
        raise OSError(ctypes.get_errno(), "mount", target)


def mounted():
    with open("/proc/self/mountinfo", "rb") as listing:
        for line in listing:
            words = line.split(b" ")
            point = re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), words[4])
            yield os.fsdecode(point), sum(KEPT.get(word, 0) for word in words[5].decode().split(","))


resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
mount(None, "/", None, REC | PRIVATE)
mount(directory, directory, None, BIND)
writable = {directory}
with contextlib.suppress(OSError):
    mount("proc", "/proc", "proc", KEPT["nosuid"] | KEPT["nodev"] | KEPT["noexec"])
    for entry in list(os.scandir("/proc")):
        if not entry.name.isdigit() and not entry.is_symlink():
            if entry.is_dir() or stat.S_IMODE(entry.stat().st_mode) & 0o222:
                mount(entry.path, entry.path, None, BIND)
    writable.add("/proc")  # now that what nobody may write can be told apart
for point, kept in list(mounted()):
    if point not in writable:
        with contextlib.suppress(OSError):
            mount(None, point, None, REMOUNT | BIND | RDONLY | kept)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    found = fcntl.ioctl(any_socket, 0x8913, struct.pack("16sH22x", b"lo", 0))  # SIOCGIFFLAGS
    flags = struct.unpack_from("H", found, 16)[0]
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH22x", b"lo", flags | 1))  # SIOCSIFFLAGS, IFF_UP
os.chdir(directory)
left = "-all,+setfcap" if os.getuid() == 0 else "-all"
caps = [f"--{kind}={left}" for kind in ("inh-caps", "ambient-caps", "bounding-set")]
os.execvp("setpriv", ["setpriv", "--no-new-privs", *caps, "--", *command])
"""


@dataclass(frozen=True)
class Isolation:
    """How commands are wrapped, and what that gives."""

    sentence: str
    prefix: tuple[str, ...] = ()

    def wrap(self, command: Sequence[str], directory: Path) -> tuple[str, ...]:
        """The command that runs `command` apart from the host."""
        return (*self.prefix, str(directory), *command) if self.prefix else tuple(command)


def isolate(settings: Settings, wanted: bool) -> Isolation:
    """The best that this machine offers; proven once, by trying to write outside."""
    unshare = shutil.which("unshare")
    if not wanted or unshare is None or shutil.which("setpriv") is None:
        return Isolation(NONE)
    spaces = ("--user", "--map-current-user", "--keep-caps", "--mount", "--net", "--pid", "--fork", "--kill-child")
    prefix = (unshare, *spaces, sys.executable, "-I", "-S", "-c", _ENTER)
    settings.home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".isolation-", dir=settings.home) as scratch:
        return Isolation(NAMESPACES, prefix) if _holds(prefix, Path(scratch)) else Isolation(NONE)


# Writes into its directory, and says on standard output what of the rest it could not do.
_PROBE = """
import socket, sys
from pathlib import Path

directory, outside, port = sys.argv[1:]
Path(directory, "inside").touch()
try:
    Path(outside).touch()
except OSError:
    print("not outside")
for setting in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"):
    try:
        Path(setting).open("r+b").close()
    except OSError:
        continue
    sys.exit(setting)
print("not the kernel")
with socket.create_server(("127.0.0.1", 0)) as server:
    socket.create_connection(server.getsockname(), timeout=2).close()
    print("own loopback")
try:
    socket.create_connection(("127.0.0.1", int(port)), timeout=2).close()
except OSError:
    print("not the host")
"""


def _holds(prefix: Sequence[str], scratch: Path) -> bool:
    """A wrapped program could write into its directory and not beside it, reach its own loopback and not the host's."""
    directory, outside = scratch / "directory", scratch / "outside"
    directory.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as host:
        asked = (str(directory), str(outside), str(host.getsockname()[1]))
        probe = (sys.executable, "-I", "-S", "-c", _PROBE, *asked)
        try:
            ended = subprocess.run(
                (*prefix, str(directory), *probe), capture_output=True, timeout=10, check=False, text=True,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return False
    said = ended.stdout.splitlines() == ["not outside", "not the kernel", "own loopback", "not the host"]
    return said and ended.returncode == 0 and (directory / "inside").exists() and not outside.exists()
