"""What a run prints is kept byte for byte while it runs, and read on from any byte without gaps or repeats."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_cli import Dare
from test_worker import Running, add_pair, state, wait_for, worker_of
from world import add_train_run, add_worker, build

from dare_platform import endings, orders
from dare_platform.adoption import LeftBehind, adopt
from dare_platform.cli.following import Lines
from dare_platform.database import Database
from dare_platform.ingest import ingest
from dare_platform.lease import claim, reap
from dare_platform.log_chunks import SMALL_BYTES, Collector, Piece, Place, is_over, newest, read_on
from dare_platform.models import LOG_CHUNK_BYTES
from dare_platform.settings import Settings


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endings, "FIRST_BACK_OFF_SECONDS", 0.1)
    monkeypatch.setattr(orders, "START_SECONDS", 0.0)


@pytest.fixture
def dare(sqlite_settings: Settings) -> Dare:
    return Dare(sqlite_settings)


@given(st.lists(st.binary(max_size=200_000), max_size=8), st.integers(0, 400_000))
def test_rows_hold_every_byte_once_up_to_the_limit(outputs: list[bytes], limit: int) -> None:
    collector, rows = Collector(limit), dict[int, bytes]()
    for output in outputs:
        rows |= {piece.offset: piece.content for piece in collector.add(output)}
    whole = b"".join(outputs)[:limit]
    assert b"".join(rows[offset] for offset in sorted(rows)) == whole
    assert sorted(rows) == [sum(len(rows[before]) for before in rows if before < offset) for offset in sorted(rows)]
    assert all(0 < len(content) <= LOG_CHUNK_BYTES for content in rows.values())
    assert collector.offset == len(whole)
    assert collector.is_full == (len(whole) == limit)


def test_a_run_that_prints_line_by_line_makes_few_rows() -> None:
    collector, rows = Collector(10**6), dict[int, bytes]()
    for number in range(1000):
        rows |= {piece.offset: piece.content for piece in collector.add(f"step {number}\n".encode())}
    assert len(rows) <= 8890 // SMALL_BYTES + 1


def read_all(database: Database, run: str, place: Place | None = None) -> bytes:
    """As a follower does, until there is nothing more at the moment."""
    found = b""
    with database.read() as session:
        place = place or newest(session, run)
        while place is not None and (read := read_on(session, run, place)) is not None:
            found, place = found + read.content, read.place
    return found


def test_pieces_are_written_under_the_lease_and_again_without_harm(database: Database) -> None:
    with database.write() as session:
        run = add_train_run(session, build(session))
        assert claim(session, add_worker(session), 60) is not None
        first = [Piece(0, b"one ")]
        for _ in range(2):  # a commit that was repeated
            assert ingest(session, run.id, 1, [], "", actor="t", output=first)
        assert ingest(session, run.id, 1, [], "", actor="t", output=[Piece(0, b"one \xfftwo "), Piece(9, b"three")])
        assert not ingest(session, run.id, 0, [], "", actor="t", output=[Piece(14, b"of nobody")])
    assert read_all(database, run.id) == b"one \xfftwo three"
    assert read_all(database, run.id, Place(1, 11)) == b"ree"


def test_a_follower_sees_no_difference_when_a_process_is_adopted_and_the_next_process_when_it_is_lost(
    database: Database,
) -> None:
    with database.write() as session:
        run = add_train_run(session, build(session))
        assert newest(session, run.id) is None
        assert claim(session, add_worker(session, "one"), 60) is not None
        assert ingest(session, run.id, 1, [], "", actor="t", output=[Piece(0, b"abcdef")])
    with database.read() as session:
        read = read_on(session, run.id, Place(1))
        assert read is not None
        assert (read.content, read.place, read.is_new) == (b"abcdef", Place(1, 6), False)
    with database.write() as session:
        two = add_worker(session, "two")
        assert adopt(session, two, LeftBehind(run.id, 1, 1), -1) is not None
        assert ingest(session, run.id, 2, [], "", actor="t", output=[Piece(0, b"abc")])
    with database.read() as session:
        assert read_on(session, run.id, Place(1, 6)) is None  # it has not come so far again
        assert newest(session, run.id) == Place(1)
    with database.write() as session:
        assert ingest(session, run.id, 2, [], "", actor="t", output=[Piece(0, b"abcdefgh")])
    with database.read() as session:
        read = read_on(session, run.id, Place(1, 6))
        assert read is not None
        assert read.content == b"gh"
        assert not is_over(session, run.id)
    with database.write() as session:
        assert reap(session, 60) == [run.id]
        assert read_on(session, run.id, Place(1, 8)) is None
        session.connection().exec_driver_sql("UPDATE run SET not_before = 0")
        assert claim(session, two, 60) is not None
    with database.read() as session:
        read = read_on(session, run.id, Place(1, 8))
        assert read is not None
        assert (read.content, read.place, read.is_new) == (b"", Place(4), True)


def test_of_a_flood_the_beginning_and_the_end_are_kept(sqlite_settings: Settings, sqlite: Database) -> None:
    train, _ = add_pair(sqlite)
    worker_of(sqlite_settings, "flood").run(until_idle=True)
    limit = sqlite_settings.limits.log_bytes
    printed = read_all(sqlite, train)
    assert limit <= len(printed) < limit + 100
    assert printed.startswith(b"the first words\nxxxx")
    assert b"bytes left out" in printed[limit // 2 : limit // 2 + 100]
    assert printed.endswith(b"xxxx")


def test_a_long_log_within_the_limit_is_kept_whole(sqlite_settings: Settings, sqlite: Database) -> None:
    train, _ = add_pair(sqlite)
    settings = replace(sqlite_settings, limits=replace(sqlite_settings.limits, log_bytes=1200))
    worker_of(settings, "one-line").run(until_idle=True)
    assert read_all(sqlite, train) == b"\xff\xfe" + b"y" * 1000 + b"step 0\nstep 1\nstep 2\n"


# --- dare logs -f --------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=20), max_size=10))
def test_lines_do_not_depend_on_where_pieces_end(pieces: list[bytes]) -> None:
    one, many = Lines(), Lines()
    whole = one.take(b"".join(pieces)) + one.end()
    assert "".join(many.take(piece) for piece in pieces) + many.end() == whole
    assert all(letter in "\n\t" or letter.isprintable() for letter in whole)


def test_codes_for_a_terminal_and_bytes_that_are_no_text_do_no_harm() -> None:
    lines = Lines()
    shown = lines.take(b"\x1b[31mred\x1b[0m \x1b]0;title\x07\xff\xfe na\xc3")
    shown += lines.take(b"\xafve\r\nbar\rbaz\n\x00end") + lines.end()
    assert shown == "red \ufffd\ufffd naïve\nbar\nbaz\nend"


def test_a_line_without_an_end_is_shown_all_the_same() -> None:
    lines = Lines()
    shown = [lines.take(b"y" * 10_000) for _ in range(8)]
    assert len("".join(shown)) == 70_000
    assert shown[0] == ""


@pytest.mark.full
def test_following_shows_every_line_once_while_the_run_works_and_ends_as_it_did(
    sqlite_settings: Settings, sqlite: Database, dare: Dare
) -> None:
    train, _ = add_pair(sqlite)
    with subprocess.Popen(
        [sys.executable, "-m", "dare_platform", "logs", "-f", train],
        stdout=subprocess.PIPE,
        env={**dare.environment, "PATH": "", "DARE_DATABASE_URL": sqlite_settings.database_url},
        text=True,
    ) as follower:
        time.sleep(1)  # it waits for a run that waits itself
        running = Running(worker_of(sqlite_settings, "good:40:0.05"))
        try:
            assert follower.stdout is not None
            first = follower.stdout.readline()
            seen_while = state(sqlite, train)
            printed = follower.stdout.read()
            code = follower.wait(20)
        finally:
            running.stop()
    assert (first + printed).splitlines() == [f"step {number}" for number in range(40)]
    assert seen_while == "working"
    assert code == 0


def test_following_a_run_that_failed_ends_with_1_and_goes_over_all_attempts_that_follow(
    sqlite_settings: Settings, sqlite: Database, dare: Dare
) -> None:
    train, _ = add_pair(sqlite, source="builtin")
    seen: list[str] = []
    worker = worker_of(sqlite_settings, "environment")
    running = Running(worker)
    try:
        wait_for(lambda: state(sqlite, train) != "queued")
        seen = dare("logs", train, "-f", code=1).splitlines()
    finally:
        running.stop()
    assert 1 <= len(seen) <= 3
    assert all(line.startswith("{") for line in seen)
    assert dare.errors.count("The run begins again") == len(seen) - 1
    assert "without an acceptable result" in dare.errors
    assert dare("logs", "nothing", "-f", code=3) == ""
    began = time.monotonic()
    assert dare("logs", train, "-f", code=1).splitlines() == seen[-1:]
    assert time.monotonic() - began < 3
    assert dare("logs", train).startswith("{")


def test_an_attempt_whose_pieces_are_gone_shows_the_end_of_its_log(sqlite: Database, dare: Dare) -> None:
    with sqlite.write() as session:
        run = add_train_run(session, build(session))
        held = claim(session, add_worker(session), 60)
        assert held is not None
        assert ingest(session, run.id, 1, [], "the end\n", actor="t")
        assert endings.fail(session, run.id, "diverged", actor="t", token=1) == "failed"
    assert dare("logs", run.id, "-f", code=1) == "the end\n"
