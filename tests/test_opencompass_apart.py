"""What an evaluator that runs programs can do to this machine while it is kept apart: nothing that stays."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from dare.opencompass.apart import ApartError, apart
from dare.sandbox import kernel
from dare.tasks import NotScoredError


def done(work: Callable[[], Any], scratch: Path, seconds: float = 20.0) -> Any:
    try:
        return apart(work, scratch, seconds)
    except NotScoredError as error:
        pytest.skip(f"{error}")


def refusal(work: Callable[[], object]) -> str:
    """By which exception something is refused; empty where it is not."""
    try:
        work()
    except (OSError, MemoryError) as error:
        return type(error).__name__
    return ""


def test_what_is_returned_comes_back_and_scratch_can_be_written(tmp_path: Path) -> None:
    def work() -> list[int]:
        (tmp_path / "inside").write_text("x")
        return [1, 2]

    assert done(work, tmp_path) == [1, 2]
    assert (tmp_path / "inside").read_text() == "x"


def test_nothing_else_can_be_written(tmp_path: Path) -> None:
    scratch, beside = tmp_path / "scratch", tmp_path / "beside"
    scratch.mkdir()
    beside.write_text("as it was")
    places = [beside, tmp_path / "new", Path.home() / "new", Path("/tmp/new-of-a-program")]

    def work() -> list[str]:
        remount = lambda: kernel.mount("none", "/", None, kernel.MS_REMOUNT | kernel.MS_BIND)  # noqa: E731
        return [*(refusal(lambda p=place: p.write_text("evil")) for place in places), refusal(remount)]

    assert done(work, scratch) == ["OSError"] * len(places) + ["PermissionError"]
    assert beside.read_text() == "as it was"


def test_there_is_no_network_and_nobody_to_see(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def work() -> tuple[str, list[str], str]:
            others = [path.name for path in Path("/proc").iterdir() if path.name.isdigit()]
            return refusal(lambda: socket.create_connection(("127.0.0.1", port), 1)), others, socket.gethostname()

        assert done(work, tmp_path)[:2] == ["OSError", ["1"]]


def test_memory_has_an_end(tmp_path: Path) -> None:
    assert done(lambda: refusal(lambda: bytearray(64 << 30)), tmp_path) == "MemoryError"


def test_what_it_leaves_running_ends_with_it(tmp_path: Path) -> None:
    name = f"left-behind-{os.getpid()}"

    def work() -> str:
        if not os.fork():
            os.execvp("sleep", [name, "60"])
        time.sleep(0.1)
        return "left"

    assert done(work, tmp_path) == "left"
    assert not [one for one in psutil.process_iter(["cmdline"]) if name in (one.info["cmdline"] or [])]


def test_a_failure_comes_back_with_its_name(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        raise IndexError("list index out of range")

    with pytest.raises(ApartError, match="IndexError: list index out of range"):
        done(work, tmp_path)
    assert capfd.readouterr().out == ""


def test_an_exit_and_a_sleep_are_failures_too(tmp_path: Path) -> None:
    with pytest.raises(ApartError, match="ended without a result"):
        done(lambda: os._exit(0), tmp_path)
    with pytest.raises(ApartError, match="had not ended after 0 s"):
        done(lambda: time.sleep(60), tmp_path, 0.2)


def test_where_nothing_can_be_kept_apart_nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: int) -> None:
        raise PermissionError(1, "unshare: Operation not permitted")

    monkeypatch.setattr(kernel, "unshare", refused)
    with pytest.raises(NotScoredError, match=r"nothing keeps a program apart here: .*unshare"):
        apart(lambda: (tmp_path / "run").write_text("x"), tmp_path, 20.0)
    assert not (tmp_path / "run").exists()
