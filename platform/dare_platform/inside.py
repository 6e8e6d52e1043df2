"""Reads files of a job directory as written by somebody we do not trust: no links, no devices, no more than asked."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from dare_platform.errors import OutputError

CHUNK = 1024 * 1024


def relative_parts(relative: str) -> tuple[str, ...]:
    """The parts of a path that stays inside; OutputError for any other."""
    path = PurePosixPath(relative)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\x00" in relative:
        raise OutputError(f"the path {relative!r} does not lie in the job directory")
    return path.parts


@contextmanager
def open_inside(directory: Path, relative: str) -> Iterator[BinaryIO]:
    """A regular file below `directory`, reached without following any link; OutputError when it is anything else."""
    parts = relative_parts(relative)
    opened: list[int] = []
    try:
        opened.append(os.open(directory, os.O_RDONLY | os.O_DIRECTORY))
        for part in parts[:-1]:
            opened.append(os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=opened[-1]))
        # a pipe without a writer would block the platform for ever
        number = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=opened[-1])
    except FileNotFoundError as error:
        raise OutputError(f"the file {relative} is missing") from error
    except OSError as error:
        raise OutputError(f"the file {relative} cannot be read: {error.strerror}") from error
    finally:
        for descriptor in opened:
            os.close(descriptor)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OutputError(f"{relative} is not a plain file")
    with os.fdopen(number, "rb") as file:
        yield file


def is_inside(directory: Path, relative: str) -> bool:
    """Whether anything has that name, of whatever kind."""
    return os.path.lexists(directory.joinpath(*relative_parts(relative)))


def read_inside(directory: Path, relative: str, limit: int) -> bytes:
    """A whole file of at most `limit` bytes."""
    with open_inside(directory, relative) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OutputError(f"the file {relative} is larger than {limit} bytes")
    return content


def hash_inside(directory: Path, relative: str) -> tuple[str, int]:
    """SHA-256 and size of a file."""
    digest, size = hashlib.sha256(), 0
    with open_inside(directory, relative) as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return digest.hexdigest(), size


def hash_declared(directory: Path, relative: str, size: int) -> str:
    """SHA-256 of a file that has this size and no other name; OutputError for another one, before a byte is read."""
    digest = hashlib.sha256()
    with open_inside(directory, relative) as file:
        _is_declared(file, relative, size)
        for chunk in _exactly(file, relative, size):
            digest.update(chunk)
    return digest.hexdigest()


def copy_inside(directory: Path, relative: str, target: Path, size: int) -> str:
    """Copy a file of this size to a new one, and say the SHA-256 of what was copied: nobody can swap it in between."""
    digest = hashlib.sha256()
    with open_inside(directory, relative) as file, target.open("xb") as copy:
        for chunk in _exactly(file, relative, size):
            digest.update(chunk)
            copy.write(chunk)
    return digest.hexdigest()


def _is_declared(file: BinaryIO, relative: str, size: int) -> None:
    found = os.fstat(file.fileno())
    if found.st_size != size:
        raise OutputError(f"the file {relative} has {found.st_size} bytes, not the {size} that are declared")
    if found.st_nlink != 1:
        raise OutputError(f"the file {relative} has a second name elsewhere; leave a copy")


def _exactly(file: BinaryIO, relative: str, size: int) -> Iterator[bytes]:
    """The bytes of a file, which are so many; OutputError where somebody changes it meanwhile."""
    left = size
    while chunk := file.read(min(CHUNK, left + 1)):
        left -= len(chunk)
        if left < 0:
            break
        yield chunk
    if left:
        raise OutputError(f"the file {relative} changed while it was read")


def lines_inside(directory: Path, relative: str, limit: int, line_limit: int) -> Iterator[bytes]:
    """Lines of a file, each of at most `line_limit` bytes, `limit` bytes in all."""
    with open_inside(directory, relative) as file:
        seen = 0
        while line := file.readline(line_limit + 1):
            seen += len(line)
            if len(line) > line_limit:
                raise OutputError(f"the file {relative} has a line of more than {line_limit} bytes")
            if seen > limit:
                raise OutputError(f"the file {relative} is larger than {limit} bytes")
            yield line


def plain_text(text: str) -> str:
    """Text that both databases can hold: no NUL, no half of a surrogate pair."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
