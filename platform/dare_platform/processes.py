"""Finds every process of a run, also those that left its group, and kills them for certain.

A run's processes carry `DARE_RUN=<run>-<token>` in their environment and pass it on to their children.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import psutil

MARKER = "DARE_RUN"
KILL_SECONDS = 10.0


def marked() -> Iterator[tuple[psutil.Process, str]]:
    """Processes of runs on this host, with their marker. Those of other users cannot be read and are left out."""
    for process in psutil.process_iter():
        try:
            marker = process.environ().get(MARKER)
            alive = process.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, OSError):  # gone, or not ours to read
            continue
        if marker and alive:
            yield process, marker


def members(name: str, leader: int | None) -> list[psutil.Process]:
    """All processes of the run `name`: descendants of `leader`, its session, and whoever carries the marker."""
    found = {process.pid: process for process, marker in marked() if marker == name}
    if leader is not None:
        found |= {process.pid: process for process in family(leader)}
    return list(found.values())


def family(leader: int) -> list[psutil.Process]:
    """The leader and its descendants: quick, but blind for those whose parents have ended."""
    try:
        process = psutil.Process(leader)
        return [one for one in (process, *process.children(recursive=True)) if _lives(one)]
    except psutil.Error:
        return []


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def resident_bytes(processes: Sequence[psutil.Process], exact_above: int) -> int:
    """Resident memory of all of them together.

    Quick, with shared pages counted once for each; a sum above `exact_above` is taken again with pages divided among
    those that share them, so that many small children are not mistaken for much memory.
    """
    total = sum(_bytes(process, _resident) for process in processes)
    return total if total <= exact_above else sum(_bytes(process, _share) for process in processes)


def _bytes(process: psutil.Process, measure: Callable[[psutil.Process], int]) -> int:
    try:
        return measure(process)
    except psutil.Error:  # it ended in between
        return 0


def _resident(process: psutil.Process) -> int:
    return int(process.memory_info().rss)


def _share(process: psutil.Process) -> int:
    try:
        found = process.memory_full_info()
    except psutil.AccessDenied:
        return _resident(process)
    return int(getattr(found, "pss", found.rss))


def kill_all(find: Callable[[], list[psutil.Process]], seconds: float = KILL_SECONDS) -> list[psutil.Process]:
    """Kill whatever `find` finds until it finds nothing. Returns what is still there after `seconds`.

    All are stopped before any is killed, so that none can fork while the others die.
    """
    deadline = time.monotonic() + seconds
    while found := find():
        for act in (psutil.Process.suspend, psutil.Process.kill):
            for process in found:
                try:
                    act(process)
                except psutil.Error:  # it ended in between
                    continue
        if time.monotonic() > deadline:
            return found
        time.sleep(0.02)
    return []
