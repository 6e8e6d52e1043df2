"""What an engine has of a container's output is taken once, whoever reads, from wherever a connection broke."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dare_platform import container_output
from dare_platform.container_output import ContainerOutput, engine_log_bytes
from dare_platform.engine import _frames
from dare_platform.errors import LaunchError
from dare_platform.kept_output import KeptOutput

Frames = Callable[[bool], Iterator[bytes]]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_output, "AGAIN_SECONDS", 0.001)


def breaking(pieces: list[bytes], breaks: list[int]) -> Frames:
    """An engine whose connections break after so many frames each, and whose last one does not."""
    left = list(breaks)

    def frames(follow: bool) -> Iterator[bytes]:
        until = left.pop(0) if left else len(pieces)
        yield from pieces[:until]
        if until < len(pieces):
            raise LaunchError("cut")

    return frames


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@given(
    st.lists(st.binary(max_size=9), max_size=12),
    st.lists(st.integers(0, 12), max_size=4),
    st.integers(1, 60),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_no_break_costs_a_gap_or_a_repeat(tmp_path: Path, pieces: list[bytes], breaks: list[int], limit: int) -> None:
    file = tmp_path / "log"
    file.unlink(missing_ok=True)
    whole = b"".join(pieces)
    output = ContainerOutput(breaking(pieces, breaks), file, limit)
    output.close()
    kept = KeptOutput(limit)
    kept.add(whole)
    assert output.piece(0, 1000) == whole[: max(1, limit // 2)]
    assert output.is_flood == (len(whole) > limit)
    assert file.read_bytes().startswith(bytes(kept.first))
    if len(whole) <= limit:
        assert output.text() == whole.decode("utf-8", "replace")
        assert file.read_bytes() == whole


@given(st.binary(max_size=60), st.integers(0, 60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_another_reader_goes_on_where_the_first_one_died(tmp_path: Path, whole: bytes, died: int) -> None:
    file = tmp_path / "log"
    file.write_bytes(whole[:died])  # the first half of 200, as far as the first reader came
    output = ContainerOutput(lambda follow: iter([whole]), file, 200)
    output.close()
    assert output.piece(0, 1000) == whole
    assert file.read_bytes() == whole


def test_two_readers_write_one_file(tmp_path: Path) -> None:
    pieces = [b"%d\n" % number for number in range(200)]
    both = [ContainerOutput(breaking(pieces, [7, 90]), tmp_path / "log", 65536) for _ in range(2)]
    for output in both:
        output.close()
        assert output.piece(0, 65536) == b"".join(pieces)
    assert (tmp_path / "log").read_bytes() == b"".join(pieces)


def test_many_short_lines_are_a_flood_before_the_engine_forgets_the_first(tmp_path: Path) -> None:
    lines = engine_log_bytes(1000) // 65 + 1

    def frames(follow: bool) -> Iterator[bytes]:
        for _ in range(lines):
            yield b"\n"

    output = ContainerOutput(frames, tmp_path / "log", 1 << 20)
    wait_until(lambda: output.is_flood)
    output.close()
    assert len(output.piece(0, 1 << 20)) < 1 << 19


def test_a_full_disk_costs_the_file_and_not_the_output(tmp_path: Path) -> None:
    """A limit on files stands for the disk: what does not fit is refused in the same way."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6, before[1]))
    try:
        output = ContainerOutput(breaking([b"one ", b"two ", b"three"], []), tmp_path / "log", 100)
        output.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert output.text() == "one two three"
    assert (tmp_path / "log").read_bytes() == b"one "


def test_a_link_in_the_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    (tmp_path / "log").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic links"):
        ContainerOutput(lambda follow: iter([b"theirs"]), tmp_path / "log", 100)
    assert (tmp_path / "target").read_text() == "mine"


@given(st.lists(st.binary(max_size=20), max_size=8), st.integers(1, 40))
def test_frames_are_found_however_they_are_cut(contents: list[bytes], size: int) -> None:
    stream = b"".join(b"\x01\0\0\0" + len(content).to_bytes(4, "big") + content for content in contents)
    chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert list(_frames(iter(chunks))) == [content for content in contents if content]
    torn = [chunk for chunk in [stream[:-1]] if contents and contents[-1]]
    assert list(_frames(iter(torn))) == [content for content in contents[:-1] if content and torn]
