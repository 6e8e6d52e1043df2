"""Folders that somebody filled whom we do not trust: measured, copied and removed, however deep and however many.

A tree may be deeper than a path can be long or than Python can recurse, may hold a million empty files, files of a
terabyte without content, links, pipes, and folders that nobody may look into. Nothing is copied or removed through a
link.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dare_platform.errors import OutputError
from dare_platform.inside import copy_inside

DEEPEST = 48
"""Folders within folders. Caches of compilers, the deepest that a run needs, have a dozen."""


@dataclass(frozen=True)
class Taken:
    """What a tree takes."""

    files: int
    """Whatever has a name in it, folders too."""
    bytes: int
    """On disk: a file of a terabyte without content takes nothing."""
    hidden: str | None = None
    """A folder that could not be looked into, and why; what lies below it is not counted."""


def measure(directory: Path, most_files: int | None = None) -> Taken:
    """Count a tree while it may change. It stops where there are more than `most_files`."""
    files = size = 0
    hidden = None
    for path, found in _walk(directory):
        if isinstance(found, str):
            hidden = hidden or f"{_relative(directory, path)} {found}"
            continue
        files += 1
        size += found.st_blocks * 512
        if most_files is not None and files > most_files:
            break
    return Taken(files, size, hidden)


def sizes_below(directory: Path) -> Iterator[os.stat_result]:
    """Of everything in a tree that is no folder, as far as it can be looked into."""
    for _, found in _walk(directory):
        if not isinstance(found, str) and not stat.S_ISDIR(found.st_mode):
            yield found


def copy_plain(source: Path, target: Path, most_bytes: int, most_files: int) -> bool:
    """Copy folders and plain files to a new folder. False, and nothing is left, when it is more than that."""
    target.mkdir()
    size = 0
    for files, (path, found) in enumerate(_walk(source), start=1):
        hidden = isinstance(found, str)
        if not isinstance(found, str):
            size += found.st_size if stat.S_ISREG(found.st_mode) else 0
        if hidden or files > most_files or size > most_bytes:
            remove(target)
            return False
        assert not isinstance(found, str)
        relative = _relative(source, path)
        if stat.S_ISDIR(found.st_mode):
            (target / relative).mkdir()
        elif stat.S_ISREG(found.st_mode):
            try:
                copy_inside(source, relative, target / relative, found.st_size)
            except OutputError:  # another file by now: somebody still writes there
                remove(target)
                return False
    return True


def remove(directory: Path) -> None:
    """Remove a tree. Folders inside folders are brought to its top first, so that no path is ever long."""
    if not directory.is_dir() or directory.is_symlink():
        directory.unlink(missing_ok=True)
        return
    directory.chmod(0o700)
    top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fresh = (f".{number}" for number in itertools.count())
        while names := os.listdir(top):  # noqa: PTH208  # by descriptor
            for name in names:
                if _is_folder(name, top):
                    _empty(name, top, fresh)
                    os.rmdir(name, dir_fd=top)
                else:
                    os.unlink(name, dir_fd=top)
    finally:
        os.close(top)
    directory.rmdir()


def _empty(name: str, top: int, fresh: Iterator[str]) -> None:
    """Remove the files of one folder in `top`, and bring its folders into `top` under new names."""
    os.chmod(name, 0o700, dir_fd=top)  # its maker may have locked it
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
    try:
        for inner in os.listdir(folder):  # noqa: PTH208
            if not _is_folder(inner, folder):
                os.unlink(inner, dir_fd=folder)
                continue
            os.chmod(inner, 0o700, dir_fd=folder)
            free = next(new for new in fresh if not _exists(new, top))
            os.rename(inner, free, src_dir_fd=folder, dst_dir_fd=top)
    finally:
        os.close(folder)


def _is_folder(name: str, parent: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def _exists(name: str, parent: int) -> bool:
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _walk(directory: Path) -> Iterator[tuple[str, os.stat_result | str]]:
    """Every path of a tree with what it is, folders before what is in them; or why a folder is not looked into."""
    waiting = [(str(directory), 0)]
    while waiting:
        folder, depth = waiting.pop()
        if depth > DEEPEST:
            yield folder, f"lies more than {DEEPEST} folders deep"
            continue
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    try:
                        found = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:  # removed in between
                        continue
                    if stat.S_ISDIR(found.st_mode):
                        waiting.append((entry.path, depth + 1))
                    yield entry.path, found
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            yield folder, f"cannot be read ({error.strerror})"


def _relative(directory: Path, path: str) -> str:
    return os.path.relpath(path, directory)
