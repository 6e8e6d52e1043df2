"""An entry may come as an archive, and no archive does anything but hold an entry."""

from __future__ import annotations

import contextlib
import gzip
import io
import stat
import struct
import tarfile
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from played import MY_RULE
from typer.testing import CliRunner

from dare_platform import archives
from dare_platform.archives import ArchiveError, open_entry
from dare_platform.cli import app
from dare_platform.settings import Settings
from dare_platform.tracks import load_track
from dare_platform.uploads import read_upload

RULE = MY_RULE.encode()
SETTINGS = b"clip_low: 0.05\n"
GOOD = {
    "my-rule/README.md": b"# My rule\n",
    "my-rule/algorithm.py": RULE,
    "my-rule/hyperparameters.yaml": SETTINGS,
    "my-rule/tests/test_rule.py": b"def test_it(): assert True\n",
    "__MACOSX/my-rule/._algorithm.py": b"\x00\x05\x16\x07",
}


def zipped(members: Iterable[tuple[str | zipfile.ZipInfo, bytes]], packed: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", packed) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


def tarred(members: Iterable[tuple[str | tarfile.TarInfo, bytes]], form: int = tarfile.PAX_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name) if isinstance(name, str) else name
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def special(name: str, kind: bytes, **more: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    for key, value in more.items():
        setattr(info, key, value)
    return info


def with_mode(name: str, mode: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


def with_header(name: bytes, size: bytes = b"00000000000", kind: bytes = b"0") -> bytes:
    """One tar header made by hand, with its right checksum, and the end of an archive."""
    header = bytearray(name.ljust(100, b"\0") + b"0000644\0" * 3 + size.ljust(12, b"\0") + b"0" * 11 + b"\0")
    header += b" " * 8 + kind + b"\0" * 100 + b"ustar\x0000" + b"\0" * 247
    assert len(header) == 512
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    return bytes(header)


def overlapping(members: int, content: bytes) -> bytes:
    """Many names for one packed content: 42 kB that call themselves gigabytes, without an archive in the archive."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = squeeze.compress(content) + squeeze.flush()
    sizes = struct.pack("<LLL", zlib.crc32(content), len(packed), len(content))
    local = b"PK\x03\x04" + struct.pack("<HHHHH", 20, 0, 8, 0, 0) + sizes + struct.pack("<HH", 4, 0) + b"0000" + packed
    listing = b""
    for number in range(members):
        listing += b"PK\x01\x02" + struct.pack("<HHHHHH", 20, 20, 0, 8, 0, 0) + sizes
        listing += struct.pack("<HHHHHLL", 4, 0, 0, 0, 0, 0, 0) + f"{number:04}".encode()
    end = struct.pack("<HHHHLLH", 0, 0, members, members, len(listing), len(local), 0)
    return local + listing + b"PK\x05\x06" + end


def encrypted() -> bytes:
    content = bytearray(zipped([("algorithm.py", RULE)]))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(signature) + offset] |= 1
    return bytes(content)


def lying(content: bytes, size: int) -> bytes:
    """A zip whose listing gives its last member another size."""
    changed = bytearray(content)
    where = changed.rindex(b"PK\x01\x02") + 24
    changed[where : where + 4] = struct.pack("<L", size)
    return bytes(changed)


MORE = (("algorithm.py", RULE),)
ZEROS = bytes(3_000_000)

HOSTILE: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "a path that leads out": ("e.zip", lambda: zipped([*MORE, ("../../algorithm.py", b"")]), "no path inside"),
    "a path that leads out of a tar": ("e.tar", lambda: tarred([*MORE, ("a/../../b.py", b"")]), "no path inside"),
    "an absolute path": ("e.zip", lambda: zipped([*MORE, ("/etc/passwd", b"")]), "no path inside"),
    "an absolute path in a tar": ("e.tgz", lambda: gzip.compress(tarred([("/etc/passwd", b"")])), "no path inside"),
    "an absolute path in an extended header": (
        "e.tar",
        lambda: tarred([(special("x", tarfile.REGTYPE, pax_headers={"path": "/etc/passwd"}), b"")]),
        "no path inside",
    ),
    "a path with backslashes": ("e.zip", lambda: zipped([("..\\..\\algorithm.py", RULE)]), "no path inside"),
    "a path with a drive": ("e.zip", lambda: zipped([("C:/algorithm.py", RULE)]), "no path inside"),
    "a path with a dot": ("e.zip", lambda: zipped([*MORE, ("./tests/./x.py", b"")]), "no path inside"),
    "a link": ("e.zip", lambda: zipped([(with_mode("algorithm.py", stat.S_IFLNK | 0o777), b"/etc/passwd")]), "a link"),
    "a device": ("e.zip", lambda: zipped([*MORE, (with_mode("x.py", stat.S_IFCHR | 0o666), b"")]), "a device"),
    "a soft link in a tar": (
        "e.tar.gz",
        lambda: gzip.compress(tarred([(special("algorithm.py", tarfile.SYMTYPE, linkname="/etc/passwd"), b"")])),
        "is a link",
    ),
    "a hard link in a tar": (
        "e.tar",
        lambda: tarred([*MORE, (special("b.py", tarfile.LNKTYPE, linkname="algorithm.py"), b"")]),
        "is a link",
    ),
    "a character device in a tar": ("e.tar", lambda: tarred([(special("z.py", tarfile.CHRTYPE), b"")]), "a device"),
    "a block device in a tar": ("e.tar", lambda: tarred([(special("z.py", tarfile.BLKTYPE), b"")]), "a device"),
    "a pipe in a tar": ("e.tar", lambda: tarred([(special("algorithm.py", tarfile.FIFOTYPE), b"")]), "a device"),
    "a sparse file in a tar": ("e.tar", lambda: tarred([(special("z.py", tarfile.GNUTYPE_SPARSE), b"")]), "stranger"),
    "a sparse file by extended headers": (
        "e.tar",
        lambda: tarred([(special("z.py", tarfile.REGTYPE, pax_headers={"GNU.sparse.major": "1"}), b"")]),
        "stranger",
    ),
    "another size in an extended header": (
        "e.tar",
        lambda: tarred([(special("z.py", tarfile.REGTYPE, pax_headers={"size": "99999999999"}), b"")]),
        "stranger",
    ),
    "one name for all": (
        "e.tar",
        lambda: with_header(b"g", b"00000000015", b"g") + b"13 path=b.py\n".ljust(512, b"\0") + tarred(MORE),
        "one name to all",
    ),
    "two names that differ in case": ("e.zip", lambda: zipped([*MORE, ("Algorithm.PY", b"")]), "only in case"),
    "two folders that differ in case": ("e.tar", lambda: tarred([("a/x.py", b""), ("A/y.py", b"")]), "only in case"),
    "two names that some disks cannot tell apart": (
        "e.zip",
        lambda: zipped([("rul\u00e9.py", b""), ("rule\u0301.py", b"")]),
        "only in case",
    ),
    "one name twice": ("e.tar", lambda: tarred([*MORE, *MORE]), "twice"),
    "a file that is a folder": ("e.tar", lambda: tarred([("x", b""), ("x/algorithm.py", RULE)]), "a file and a folder"),
    "a folder that is a file": ("e.tar", lambda: tarred([("x/algorithm.py", RULE), ("x", b"")]), "a file and a folder"),
    "a password": ("e.zip", encrypted, "encrypted"),
    "a name with a control character": ("e.zip", lambda: zipped([("al\x1b[2Jgo.py", RULE)]), "cannot be seen"),
    "a name that is written backwards": ("e.tar", lambda: tarred([("yp.\u202emhtirogla", RULE)]), "cannot be seen"),
    "a name with a NUL": (
        "e.zip",
        lambda: zipped([("algorithm.py#.png", RULE)]).replace(b"algorithm.py#", b"algorithm.py\0"),
        "cannot be seen",
    ),
    "a name without end": ("e.tar", lambda: tarred([("x" * 300 + ".py", RULE)], tarfile.GNU_FORMAT), "longer than"),
    "a header without end": (
        "e.tar",
        lambda: tarred([(special("z.py", tarfile.REGTYPE, pax_headers={"comment": "c" * 100_000}), b"")]),
        "header without end",
    ),
    "extended headers without end": (
        "e.tar.gz",
        lambda: gzip.compress((with_header(b"x", b"00000000015", b"x") + b"13 mtime=1.0\n".ljust(512, b"\0")) * 7000),
        "header without end",
    ),
    "digits that a pattern would read for hours": (
        "e.tar.gz",
        lambda: gzip.compress(with_header(b"x", f"{4 * 1024**2:011o}".encode(), b"x") + b"0" * (4 * 1024**2)),
        "header without end",
    ),
    "folders without end": ("e.zip", lambda: zipped([*MORE, ("/".join("abcdefghijk") + ".py", b"")]), "deep"),
    "members without end": ("e.zip", lambda: zipped((f"tests/{n}.py", b"") for n in range(3000)), "100 members"),
    "an archive in the archive": ("e.zip", lambda: zipped([*MORE, ("more.zip", zipped(MORE))]), "does not belong"),
    "weights": ("e.zip", lambda: zipped([*MORE, ("model.safetensors", b"0")]), "does not belong"),
    "a program": ("e.tar", lambda: tarred([*MORE, ("tests/run.so", b"\x7fELF")]), "does not belong"),
    "a megabyte too many": ("e.zip", lambda: zipped([("algorithm.py", ZEROS)], zipfile.ZIP_STORED), "limit is 1 MB"),
    "zeros that pack well": ("e.zip", lambda: zipped([*MORE, ("tests/zeros.txt", ZEROS)]), "100 times"),
    "zeros in a tar": ("e.tar.gz", lambda: gzip.compress(tarred([("zeros.txt", ZEROS * 2)])), "100 times"),
    "42 kB that are 4 GB": ("e.zip", lambda: overlapping(100, bytes(42_000_000)), "100 times"),
    "many names for one content": (
        "e.zip",
        lambda: overlapping(100, bytes(range(256)) * 250),
        "shares its bytes with another",
    ),
    "a way to pack that takes memory": ("e.zip", lambda: zipped(MORE, zipfile.ZIP_LZMA), "is not read here"),
    "a smaller size than it has": ("e.zip", lambda: lying(zipped(MORE), 10), "damaged"),
    "a larger size than it has": ("e.zip", lambda: lying(zipped(MORE), 9000), "damaged"),
    "a negative size": ("e.tar", lambda: with_header(b"x.py", b"-0000000777"), "damaged"),
    "a size in base 256": ("e.tar", lambda: with_header(b"x.py", b"\xff" * 11), "damaged"),
    "a size that is not there": ("e.tar", lambda: with_header(b"x.py", b"00000077777"), "damaged"),
    "a size of gigabytes": ("e.tar", lambda: with_header(b"x.py", b"77777777777"), "larger than 8 MB"),
    "a wrong checksum": ("e.tar", lambda: with_header(b"x.py").replace(b"x.py", b"y.py"), "damaged"),
    "a tar cut off": ("e.tar.gz", lambda: gzip.compress(tarred(MORE))[:-20], "damaged"),
    "a zip cut off": ("e.zip", lambda: zipped(MORE)[:-30], "damaged"),
    "a zip behind a program": ("e.zip", lambda: b"#!/bin/sh\n" + zipped(MORE), "damaged"),
    "a text": ("e.zip", lambda: RULE, "damaged"),
    "nothing": ("e.tar", lambda: b"", "damaged"),
    "no entry": ("e.zip", lambda: zipped([("rule.py", RULE)]), "no `algorithm.py`"),
    "two entries": ("e.tar", lambda: tarred([("a/algorithm.py", RULE), ("b/algorithm.py", RULE)]), "2 folders"),
    "an entry too deep": ("e.zip", lambda: zipped([("a/b/algorithm.py", RULE)]), "no `algorithm.py`"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_ends_in_one_sentence(name: str) -> None:
    file_name, build, words = HOSTILE[name]
    content = build()
    started = time.thread_time()
    with pytest.raises(ArchiveError) as refused:
        open_entry(file_name, content)
    assert time.thread_time() - started < 1
    sentence = str(refused.value)
    assert words in sentence
    assert sentence.startswith("`e.")
    assert sentence.endswith(".")
    assert sentence.isprintable()
    assert len(sentence) < 300


@pytest.mark.parametrize("pack", ["e.zip", "e.tar", "e.tar.gz", "E.TGZ", "gnu.tar", "ustar.tar"])
def test_an_archive_with_an_entry_is_read(pack: str) -> None:
    forms = {"gnu.tar": tarfile.GNU_FORMAT, "ustar.tar": tarfile.USTAR_FORMAT}
    content = zipped(GOOD.items()) if pack == "e.zip" else tarred(GOOD.items(), forms.get(pack, tarfile.PAX_FORMAT))
    if pack.lower().endswith("gz"):
        content = gzip.compress(content)
    opened = open_entry(pack, content)
    assert (opened.algorithm, opened.settings) == (RULE, SETTINGS)
    assert opened.left_out == ("my-rule/README.md", "my-rule/tests/test_rule.py")


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_a_folder_packed_by_tar_is_read_with_its_long_names(form: int, tmp_path: Path) -> None:
    long = "tests/" + "x" * 60 + "/" + "y" * 60 + ".py"
    for name, content in {"algorithm.py": RULE, long: b"", "tests/z.py": b"pass\n" * 300}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        archive.add(tmp_path, ".")
    opened = open_entry("e.tar", file.getvalue())
    assert (opened.algorithm, opened.settings) == (RULE, None)
    assert set(opened.left_out) == {long, "tests/z.py"}


def test_a_bomb_takes_neither_memory_nor_time() -> None:
    squeeze = zlib.compressobj(9, wbits=31)
    bomb = b"".join(squeeze.compress(bytes(2**20)) for _ in range(800)) + squeeze.flush()  # as large as one may come
    header = gzip.compress(with_header(b"algorithm.py", b"00000001000"))
    assert 800_000 < len(bomb) < archives.LARGEST_ARCHIVE
    for content in (bomb, header + bomb, overlapping(100, bytes(42_000_000))):
        tracemalloc.start()
        started = time.thread_time()
        with pytest.raises(ArchiveError):
            open_entry("e.tar.gz" if content[:2] == b"\x1f\x8b" else "e.zip", content)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert time.thread_time() - started < 1
        assert peak < 24_000_000


@given(st.sampled_from(["e.zip", "e.tar", "e.tar.gz"]), st.lists(st.tuples(st.integers(0), st.integers(0, 255))))
def test_whatever_is_changed_in_an_archive_it_is_read_or_refused(name: str, changes: list[tuple[int, int]]) -> None:
    small = {"algorithm.py": b"pass\n" * 20, "README": b""}
    content = bytearray(zipped(small.items()) if name == "e.zip" else tarred(small.items())[:2560])
    for place, value in changes:
        content[place % len(content)] = value
    packed = gzip.compress(bytes(content), 1) if name == "e.tar.gz" else bytes(content)
    with contextlib.suppress(ArchiveError):
        assert isinstance(open_entry(name, packed).algorithm, bytes)


def test_an_upload_may_be_an_archive() -> None:
    track = load_track("tiny")
    report = read_upload("e.zip", zipped(GOOD.items()), None, track, ["llada-tiny"], name="mine")
    plain = read_upload("algorithm.py", RULE, SETTINGS.decode(), track, ["llada-tiny"], name="mine")
    assert plain.submission is not None
    assert report.submission == plain.submission
    assert report.bytes == len(zipped(GOOD.items()))  # of what was handed in, which its author can compare
    assert report.submission.hyperparameters["clip_low"] == 0.05


def test_what_is_wrong_with_an_archive_is_a_problem_to_mend() -> None:
    track = load_track("tiny")
    bad = read_upload("e.zip", zipped([*MORE, ("../x.py", b"")]), None, track, ["llada-tiny"])
    assert bad.submission is None
    assert [(problem.code, problem.line) for problem in bad.problems] == [("archive", None)]
    assert "`../x.py` is no path inside the archive" in bad.problems[0].text
    twice = read_upload("e.zip", zipped(GOOD.items()), "clip_low: 0.1", track, ["llada-tiny"])
    assert "Give them once" in twice.problems[0].text


def test_the_command_line_takes_an_archive(
    sqlite_settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.tar.gz").write_bytes(gzip.compress(tarred([(special("a.py", tarfile.SYMTYPE), b"")])))
    monkeypatch.setenv("DARE_HOME", str(sqlite_settings.home))
    monkeypatch.setenv("DARE_DATABASE_URL", sqlite_settings.database_url)
    ended = CliRunner().invoke(app, ["submit", str(tmp_path / "bad.tar.gz")])
    assert ended.exit_code == 4
    assert "`a.py` is a link" in ended.output + ended.stderr
