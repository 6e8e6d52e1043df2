"""An entry that comes as an archive: read member by member from bytes, within limits, and never unpacked to disk.

An archive holds `algorithm.py`, `hyperparameters.yaml` if its author likes, and what goes with a small project: README,
LICENSE, tests. The first two are read, the rest is left out, and whatever is neither is refused with its name.
"""

from __future__ import annotations

import io
import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dare.source import LARGEST_FILE
from dare_platform.errors import PlatformError

SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")
LARGEST_ARCHIVE = LARGEST_FILE
LARGEST_CONTENT = 8_000_000
"""Bytes of all members together, whether they are read or left out."""
MEMBERS = 100
LARGEST_RATIO = 100
"""Bytes out for one byte in. Source text packs to a fifth, a file of zeros to a thousandth."""
SMALL = 65_536
"""A content of this size is let through, however well it packs."""
DEPTH = 8
LONGEST_NAME = 240
ALGORITHM, SETTINGS = "algorithm.py", "hyperparameters.yaml"
TEXTS = frozenset({"", ".cfg", ".ini", ".json", ".md", ".py", ".rst", ".toml", ".txt", ".yaml", ".yml"})
"""Suffixes of files that may lie beside the two and are not read."""
LEFTOVERS = frozenset({"__MACOSX", "__pycache__", ".DS_Store", ".git", ".pytest_cache"})
"""Names that tools leave behind; files of any kind below them are not read."""

_BLOCK = 512
_LOCAL_HEADER = 30  # bytes before a member's name in a zip, at least
_PIECE = 65_536
_LONGEST_HEADER = 65_536  # of a member's extended names


class ArchiveError(PlatformError):
    """An archive that is not read to its end: one Markdown sentence with the member's name."""


@dataclass(frozen=True)
class OpenedEntry:
    """What an archive holds for us."""

    algorithm: bytes
    settings: bytes | None
    left_out: tuple[str, ...]
    """Other members, by name."""


@dataclass(frozen=True)
class _Member:
    name: str
    size: int
    is_folder: bool
    read: Callable[[], bytes]
    """Its bytes; to be asked before the next member is."""


def is_archive(file_name: str) -> bool:
    """Whether a file of this name is read as an archive."""
    return file_name.lower().endswith(SUFFIXES)


def open_entry(file_name: str, content: bytes) -> OpenedEntry:
    """The entry in an archive; ArchiveError for one that is damaged, hostile, too large, or holds something else."""
    shown = f"`{_shown(file_name)}`"
    if len(content) > LARGEST_ARCHIVE:
        raise ArchiveError(f"{shown} is {len(content) / 1e6:.1f} MB; the limit is {LARGEST_ARCHIVE / 1e6:.0f} MB.")
    members = _of_zip(content) if file_name.lower().endswith(".zip") else _of_tar(content)
    try:
        return _entry_among(members, len(content))
    except ArchiveError as error:
        raise ArchiveError(f"{shown}: {error}") from error
    except (zipfile.BadZipFile, zlib.error, struct.error, NotImplementedError, ValueError, OSError, EOFError) as error:
        raise ArchiveError(f"{shown} is damaged, or is no archive of its kind. Pack it again.") from error


def _entry_among(members: Iterator[_Member], packed: int) -> OpenedEntry:
    names = _Names()
    wanted: dict[tuple[str, ...], bytes] = {}
    total = 0
    for count, member in enumerate(members, start=1):
        if count > MEMBERS:
            raise ArchiveError(f"it has more than {MEMBERS} members. Pack the entry's files only.")
        total += member.size
        if total > LARGEST_CONTENT:
            raise ArchiveError(f"its content is larger than {LARGEST_CONTENT / 1e6:.0f} MB, the limit.")
        if total > max(SMALL, LARGEST_RATIO * packed):
            raise ArchiveError(f"its content is more than {LARGEST_RATIO} times as large as the archive.")
        parts = names.take(member)
        if parts and not member.is_folder and len(parts) <= 2 and parts[-1] in (ALGORITHM, SETTINGS):
            wanted[parts] = member.read()
    found = [parts for parts in wanted if parts[-1] == ALGORITHM]
    chosen = (ALGORITHM,) if (ALGORITHM,) in wanted else found[0] if len(found) == 1 else None
    if chosen is None:
        what = f"{len(found)} folders with an `{ALGORITHM}`. Keep one" if found else f"no `{ALGORITHM}`"
        raise ArchiveError(f"it has {what}, at its top or in its one folder.")
    settings = (*chosen[:-1], SETTINGS)
    others = tuple("/".join(parts) for parts in names.files if parts not in (chosen, settings))
    return OpenedEntry(wanted[chosen], wanted.get(settings), others)


# --- names ----------------------------------------------------------------------------------------------------------


@dataclass
class _Names:
    """Names of members so far, which must be different files on every kind of disk."""

    files: list[tuple[str, ...]] = field(default_factory=list)
    _file_keys: dict[str, str] = field(default_factory=dict)
    _folder_keys: dict[str, str] = field(default_factory=dict)

    def take(self, member: _Member) -> tuple[str, ...]:
        """The parts of a member's name; empty for the top folder itself. ArchiveError for a name that is not taken."""
        parts = _parts(member.name)
        if not parts:
            if member.is_folder:
                return ()
            raise ArchiveError("it has a file without a name.")
        folders = parts if member.is_folder else parts[:-1]
        for depth in range(1, len(folders) + 1):
            self._take_folder(folders[:depth])
        if not member.is_folder:
            self._take_file(parts)
            if not LEFTOVERS.intersection(parts) and not parts[-1].startswith("._"):
                _is_no_burden(parts)
                self.files.append(parts)
        return parts

    def _take_folder(self, parts: tuple[str, ...]) -> None:
        key, name = _key(parts), "/".join(parts)
        if key in self._file_keys:
            raise ArchiveError(f"`{_shown(name)}` is a file and a folder.")
        other = self._folder_keys.setdefault(key, name)
        if other != name:
            raise ArchiveError(f"the folders `{_shown(other)}` and `{_shown(name)}` differ only in case.")

    def _take_file(self, parts: tuple[str, ...]) -> None:
        key, name = _key(parts), "/".join(parts)
        if key in self._folder_keys:
            raise ArchiveError(f"`{_shown(name)}` is a file and a folder.")
        other = self._file_keys.get(key)
        if other == name:
            raise ArchiveError(f"it has `{_shown(name)}` twice.")
        if other is not None:
            raise ArchiveError(f"`{_shown(other)}` and `{_shown(name)}` differ only in case. Rename one.")
        self._file_keys[key] = name


def _parts(name: str) -> tuple[str, ...]:
    if not name.isprintable():
        raise ArchiveError(f"the name `{_shown(name)}` holds characters that cannot be seen.")
    if len(name.encode()) > LONGEST_NAME:
        raise ArchiveError(f"the name `{_shown(name)}` is longer than {LONGEST_NAME} bytes.")
    if name.startswith("/") or "\\" in name or ":" in name:
        raise ArchiveError(f"`{_shown(name)}` is no path inside the archive: no drive, no backslash, no `/` in front.")
    bare = name.removeprefix("./").removesuffix("/")
    if bare in ("", "."):
        return ()
    parts = tuple(bare.split("/"))
    if {"", ".", ".."}.intersection(parts):
        raise ArchiveError(f"`{_shown(name)}` is no path inside the archive. Pack the entry's own folder.")
    if len(parts) > DEPTH:
        raise ArchiveError(f"`{_shown(name)}` lies {len(parts)} folders deep; {DEPTH} are allowed.")
    return parts


def _is_no_burden(parts: tuple[str, ...]) -> None:
    """Refuse what has no place in an entry: weights, data, programs, and archives in the archive."""
    stem, dot, suffix = parts[-1].rpartition(".")
    if (dot + suffix.lower() if stem else "") not in TEXTS:
        raise ArchiveError(
            f"`{_shown('/'.join(parts))}` does not belong in an entry. It may hold `{ALGORITHM}`, `{SETTINGS}`, "
            "and texts and tests beside them."
        )


def _key(parts: tuple[str, ...]) -> str:
    """Equal for names that some disk cannot tell apart."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", "/".join(parts)).casefold())


def _shown(name: str) -> str:
    """A name as it may stand in a sentence: a line of printable characters, not too long, no Markdown of its own."""
    plain = name.encode("unicode_escape").decode() if not name.isprintable() else name
    return (plain if len(plain) <= 80 else plain[:77] + "...").replace("`", "'")


# --- the two formats ------------------------------------------------------------------------------------------------


def _of_zip(content: bytes) -> Iterator[_Member]:
    if not content.startswith(b"PK\x03\x04"):  # an empty archive, or one that begins with something else
        raise zipfile.BadZipFile
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        end = 0
        for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
            if info.header_offset < end:  # how 42 kB become gigabytes without any archive in the archive
                raise ArchiveError(f"`{_shown(info.orig_filename)}` shares its bytes with another member.")
            end = info.header_offset + _LOCAL_HEADER + info.compress_size
            yield _zip_member(archive, info)


def _zip_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Member:
    name = info.orig_filename
    if info.flag_bits & 0x41:
        raise ArchiveError(f"`{_shown(name)}` is encrypted. Pack it without a password.")
    if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise ArchiveError(f"`{_shown(name)}` is a link or a device. Pack files only.")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ArchiveError(f"`{_shown(name)}` is packed in a way that is not read here. Use the usual one, deflate.")
    if info.file_size > max(SMALL, LARGEST_RATIO * info.compress_size):
        raise ArchiveError(f"`{_shown(name)}` unpacks to more than {LARGEST_RATIO} times its size.")

    def read() -> bytes:
        with archive.open(info) as file:
            content = file.read(info.file_size + 1)  # to its end, where its checksum is compared
        if len(content) != info.file_size:
            raise zipfile.BadZipFile
        return content

    return _Member(name, info.file_size, name.endswith("/"), read)


class _Unpacked:
    """The bytes of a tar in order, unpacked as they are asked for, a little more than LARGEST_CONTENT at most."""

    def __init__(self, content: bytes) -> None:
        self._zipped = content.startswith(b"\x1f\x8b")
        self._unzip = zlib.decompressobj(wbits=31)
        self._packed = content
        self._ahead = bytearray() if self._zipped else bytearray(content)
        self._left = LARGEST_CONTENT + (2 * MEMBERS + 20) * _BLOCK + MEMBERS * _LONGEST_HEADER
        self._most = max(2 * SMALL, 2 * LARGEST_RATIO * len(content))

    def take(self, count: int) -> bytes:
        """Exactly so many bytes."""
        while len(self._ahead) < count and self._unpack():
            pass
        if len(self._ahead) < count:
            raise EOFError
        taken = bytes(self._ahead[:count])
        del self._ahead[:count]
        return taken

    def drain(self) -> None:
        """Go to the end, where the checksum is compared."""
        self._ahead.clear()
        while self._unpack():
            self._ahead.clear()
        if self._zipped and not self._unzip.eof:
            raise EOFError

    def _unpack(self) -> bool:
        if not self._zipped or self._unzip.eof:
            return False
        piece = self._unzip.decompress(self._packed, _PIECE)
        self._packed = self._unzip.unconsumed_tail
        self._ahead += piece
        self._left -= len(piece)
        self._most -= len(piece)
        if self._left < 0:
            raise ArchiveError(f"its content is larger than {LARGEST_CONTENT / 1e6:.0f} MB, the limit.")
        if self._most < 0:
            raise ArchiveError(f"its content is more than {LARGEST_RATIO} times as large as the archive.")
        return bool(piece)


def _of_tar(content: bytes) -> Iterator[_Member]:
    """The members of a tar, read here: a header of a few megabytes can keep the standard library busy for hours.

    Known are plain files, folders, and the two ways to write a long name.
    """
    stream = _Unpacked(content)
    long_name: str | None = None
    extended = 0
    while any(header := stream.take(_BLOCK)):
        kind, size = header[156:157], _octal(header[124:136])
        if sum(header) - sum(header[148:156]) + 8 * 0x20 != _octal(header[148:156]):
            raise ValueError("checksum")
        name = long_name if long_name is not None else _tar_name(header)
        if kind in (b"x", b"g", b"L"):
            extended += 1
            if size > _LONGEST_HEADER or extended > 2 * MEMBERS:
                raise ArchiveError(f"`{_shown(name)}` has a header without end.")
            block = stream.take(_padded(size))[:size]
            if kind != b"g":
                given = block.rstrip(b"\0").decode() if kind == b"L" else _extended(block, name).get("path")
                long_name = given if given is not None else long_name
            elif _extended(block, name).get("path") is not None:
                raise ArchiveError("it gives one name to all its members.")
            continue
        long_name = None
        if kind not in (b"0", b"\0", b"5"):
            raise ArchiveError(f"`{_shown(name)}` is a link, a device or something stranger. Pack files only.")
        if size > LARGEST_CONTENT:
            raise ArchiveError(f"its content is larger than {LARGEST_CONTENT / 1e6:.0f} MB, the limit.")
        taken: list[bytes] = []

        def read(size: int = size, taken: list[bytes] = taken) -> bytes:
            taken.append(stream.take(_padded(size)))
            return taken[0][:size]

        yield _Member(name, size, kind == b"5" or name.endswith("/"), read)
        if not taken:
            stream.take(_padded(size))
    stream.drain()


def _tar_name(header: bytes) -> str:
    name = header[:100].partition(b"\0")[0]
    prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return (prefix + b"/" + name if prefix else name).decode()


def _octal(field: bytes) -> int:
    """A number of a header; ValueError for one that is none, is negative, or has more than eleven digits."""
    digits = field.strip(b" \0")
    if digits.strip(b"01234567"):
        raise ValueError("octal")
    return int(digits or b"0", 8)


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _extended(block: bytes, name: str) -> dict[str, str]:
    """`LENGTH KEY=VALUE` lines. A size or a link given here would contradict the header that is checked."""
    found = {}
    while block:
        digits, space, _ = block[:12].partition(b" ")
        length = int(digits) if space and digits.isdigit() else 0
        line = block[len(digits) + 1 : length]
        key, equals, value = line.partition(b"=")
        if not equals or not value.endswith(b"\n") or length > len(block):
            raise ValueError("extended header")
        if key in (b"size", b"linkpath") or key.startswith(b"GNU.sparse"):
            raise ArchiveError(f"`{_shown(name)}` is a link, a device or something stranger. Pack files only.")
        found[key.decode()] = value[:-1].decode()
        block = block[length:]
    return found
