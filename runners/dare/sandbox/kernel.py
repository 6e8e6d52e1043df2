"""The calls of the Linux kernel that keep a process apart and that Python 3.11 does not offer. Raises OSError.

Numbers are those of the kernel's own headers, for the two machines that it knows here.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
_KEPT = (MS_RDONLY, MS_NOSUID, MS_NODEV, 8, 1024, 2048, 1 << 21)
"""Flags of a mount that a remount has to repeat. `statvfs` gives all but the last, relatime, under other numbers."""
_STATVFS = (1, 2, 4, 8, 1024, 2048, 4096)
_DETACH = 2
_PDEATHSIG, _SECCOMP, _CAPBSET_DROP, _NO_NEW_PRIVS = 1, 22, 24, 38
_FILTER = 2
_LAST_CAPABILITY = 63

# What a program that is judged has no business with: other processes, other namespaces, memory that no limit counts,
# the kernel's larger doors. By machine: the audit number, then the numbers of `clone`, `clone3`, `pivot_root` and the
# refused ones.
_MACHINES: dict[str, tuple[int, int, int, int, tuple[int, ...]]] = {
    "x86_64": (
        0xC000003E, 56, 435, 155,
        (57, 58, 101, 155, 161, 165, 166, 175, 176, 246, 248, 249, 250, 272, 298, 303, 304, 308, 310, 311, 313, 319,
         320, 321, 323, 425, 426, 427, 428, 429, 430, 431, 432, 434, 438, 442, 447),
    ),
    "aarch64": (
        0xC00000B7, 220, 435, 41,
        (39, 40, 41, 51, 97, 104, 105, 106, 117, 217, 218, 219, 241, 264, 265, 268, 270, 271, 273, 279, 280, 282, 294,
         425, 426, 427, 428, 429, 430, 431, 432, 434, 438, 442, 447),
    ),
}  # fmt: skip
_THREAD = 0x10000
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x50000
_EPERM, _ENOSYS = 1, 38

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """New namespaces for this process; the one of processes is for its children."""
    _checked(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """As mount(2)."""
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    _checked(_libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]), f"mount {target}")


def seal(target: str) -> None:
    """Makes a mount read-only, without set-user-id programs, and leaves its other flags."""
    found = os.statvfs(target).f_flag
    kept = sum(flag for flag, number in zip(_KEPT, _STATVFS, strict=True) if found & number)
    mount("none", target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | kept)


def enter_root(folder: str) -> None:
    """Makes a mounted folder the root and lets the old one go."""
    os.chdir(folder)
    number = _machine()[3]
    _checked(_libc.syscall(ctypes.c_long(number), b".", b"."), "pivot_root")
    _checked(_libc.umount2(b".", _DETACH), "umount")
    os.chdir("/")


def die_with_parent() -> None:
    """SIGKILL when the process that started this one ends."""
    _checked(_libc.prctl(_PDEATHSIG, ctypes.c_ulong(9), 0, 0, 0), "prctl")


def give_up_capabilities() -> None:
    """For good: those it has and those that a program it executes could bring."""
    for capability in range(_LAST_CAPABILITY + 1):
        _libc.prctl(_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0)  # numbers that the kernel does not know fail
    _checked(_libc.prctl(_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0), "prctl")


def clear_capabilities() -> None:
    """Of this process, now."""
    header, data = struct.pack("Ii", 0x20080522, 0), struct.pack("6I", 0, 0, 0, 0, 0, 0)
    _checked(_libc.capset(header, data), "capset")


def forbid() -> None:
    """From here on this process can start threads and no processes, and what `_MACHINES` lists is refused.

    Refused calls fail with EPERM and the program goes on. `clone3` does not exist, so that the C library starts its
    threads with `clone`, whose flags can be seen.
    """
    audit, clone, clone3, _, refused = _machine()
    program = [
        (0x20, 0, 0, 4),  # the architecture
        (0x15, 1, 0, audit),
        (0x06, 0, 0, _KILL),
        (0x20, 0, 0, 0),  # the number of the call
        (0x35, 0, 1, 0x40000000),  # the second set of numbers of x86-64
        (0x06, 0, 0, _KILL),
        (0x15, 0, 1, clone3),
        (0x06, 0, 0, _ERRNO | _ENOSYS),
        (0x15, 0, 4, clone),
        (0x20, 0, 0, 16),  # the lower half of its first argument, the flags
        (0x45, 1, 0, _THREAD),
        (0x06, 0, 0, _ERRNO | _EPERM),
        (0x06, 0, 0, _ALLOW),
    ]
    for number in refused:
        program += [(0x15, 0, 1, number), (0x06, 0, 0, _ERRNO | _EPERM)]
    program.append((0x06, 0, 0, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    whole = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    _checked(_libc.prctl(_SECCOMP, ctypes.c_ulong(_FILTER), whole, 0, 0), "seccomp")


def _machine() -> tuple[int, int, int, int, tuple[int, ...]]:
    machine = platform.machine()
    if machine not in _MACHINES:
        raise OSError(f"the sandbox does not know the system calls of {machine!r}; known: {', '.join(_MACHINES)}")
    return _MACHINES[machine]
