"""A board that was kept never changes, is found by its hash, and says what came after it; an altered row is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from board_cases import REFERENCE, board, entry
from evaluated import evaluated, track
from played import built_in, register, succeed, take
from sqlalchemy import func, select, text
from sqlalchemy.exc import DatabaseError
from sqlalchemy.orm import Session

from dare_platform import entries, rankings, snapshots
from dare_platform.artifact_store import storage_key
from dare_platform.board import Board
from dare_platform.database import Database
from dare_platform.errors import UnknownRunError
from dare_platform.models import Artifact, Run, Snapshot
from dare_platform.settings import Settings
from dare_platform.snapshots import Change, UnknownSnapshotError, changes
from dare_platform.tracks import load_track
from dare_platform.verification import verify, verify_run
from dare_platform.viewer import LOCAL

TINY = load_track("tiny")


def finish_all(session: Session, solved: float) -> None:
    while (claimed := take(session)) is not None:
        succeed(session, claimed, lambda run, task: solved)


def submit(session: Session, name: str, visibility: str = "public") -> None:
    entries.submit(session, LOCAL, built_in(name), f"{name}-key", visibility)  # type: ignore[arg-type]


def test_an_unchanged_board_is_one_snapshot_and_a_new_number_makes_another(database: Database) -> None:
    with database.write() as session:
        register(session)
        submit(session, "untouched")
        finish_all(session, 0.25)
        first = snapshots.take(session, TINY, "llada-tiny")
        assert snapshots.take(session, TINY, "llada-tiny") == first
        submit(session, "bgpo")
        finish_all(session, 0.5)
        second = snapshots.take(session, TINY, "llada-tiny")
        assert [sha256 for sha256, _ in snapshots.listed(session, TINY, "llada-tiny")] == [second, first]
        before, after = snapshots.find(session, first[:8]), snapshots.find(session, second)
        assert before.is_intact
        assert [row.name for row in before.board.rows] == ["untouched"]
        assert replace(after.board, made_at=0.0) == replace(rankings.board(session, TINY, "llada-tiny"), made_at=0.0), (
            "what is read back is what was shown"
        )
        assert [(change.name, change.what) for change in changes(before.board, after.board)] == [("bgpo", "entered")]
        assert len(after.runs) == 6


def test_a_kept_board_cannot_be_altered_and_one_that_was_is_seen(sqlite: Database) -> None:
    with sqlite.write() as session:
        register(session)
        submit(session, "untouched")
        finish_all(session, 0.25)
        sha256 = snapshots.take(session, TINY, "llada-tiny")
    with pytest.raises(DatabaseError, match="never changed nor deleted"), sqlite.write() as session:
        session.execute(text("UPDATE snapshot SET board_json = replace(board_json, '0.25', '0.75')"))
    with sqlite.write() as session:
        session.execute(text("DROP TRIGGER tr_snapshot_no_update"))
        session.execute(text("UPDATE snapshot SET board_json = replace(board_json, '0.25', '0.75')"))
    with sqlite.read() as session:
        assert not snapshots.find(session, sha256).is_intact


@pytest.mark.parametrize("given", ["", "9f3c", "not-a-hash", "9f3c01a%", "9f3c01ab"])
def test_what_is_no_hash_of_a_snapshot_finds_none(sqlite: Database, given: str) -> None:
    with sqlite.read() as session, pytest.raises(UnknownSnapshotError, match=r"is no hash|there is no snapshot"):
        snapshots.find(session, given)


def test_a_private_entry_is_in_no_snapshot(sqlite: Database) -> None:
    with sqlite.write() as session:
        register(session)
        submit(session, "untouched")
        submit(session, "bgpo", "private")
        finish_all(session, 0.25)
        snapshots.take(session, TINY, "llada-tiny")
        assert "bgpo" not in session.execute(select(Snapshot.board_json)).scalar_one()


def test_boards_that_have_a_new_number_are_kept_by_themselves(sqlite: Database) -> None:
    seen: dict[tuple[str, str], float] = {}
    with sqlite.write() as session:
        register(session)
        submit(session, "untouched")
        assert snapshots.take_what_changed(session, seen) == []
        finish_all(session, 0.25)
        (first,) = snapshots.take_what_changed(session, seen)
        assert snapshots.find(session, first).board.backbone == "llada-tiny"
        assert snapshots.take_what_changed(session, seen) == []
        assert snapshots.take_what_changed(session, {}) == [first], "after a restart nothing is kept twice"
        assert session.execute(select(func.count()).select_from(Snapshot)).scalar_one() == 1


def shown(*rows: object, scorer: str = "dare-1") -> Board:
    return replace(board(REFERENCE, *rows), scorer=scorer)  # type: ignore[arg-type]


def test_changes_name_rows_ranks_and_values_with_their_cause() -> None:
    old = shown(entry("bgpo", [0.60, 0.61, 0.62]), entry("d1", [0.50, 0.51, 0.52]))
    new = shown(entry("bgpo", [0.60, 0.61, 0.62]), entry("spg", [0.90, 0.91, 0.92]), scorer="dare-2")
    found = changes(old, new)
    assert [(change.name, change.what) for change in found if change.what in ("entered", "left")] == [
        ("spg", "entered"),
        ("d1", "left"),
    ]
    assert Change("bgpo", "rank", (1, 1), (2, 2), "scorer dare-1 → dare-2") in found
    assert changes(old, old) == ()


# --- verification ---------------------------------------------------------------------------------------------------


def problems(session: Session, settings: Settings, name: str = "") -> list[tuple[str, str | None]]:
    return [(one.what, one.problem) for one in verify(session, settings, name) if one.problem]


@pytest.fixture
def run(sqlite: Database, sqlite_settings: Settings) -> str:
    return evaluated(sqlite, sqlite_settings, track("sudoku"))


def test_what_is_as_it_was_has_no_problem(sqlite: Database, sqlite_settings: Settings, run: str) -> None:
    with sqlite.read() as session:
        found = list(verify_run(session, sqlite_settings, run))
        assert [one.what for one in found] == [
            "job", "answers to sudoku", "sudoku reward, greedy, by dare-1", "sudoku reward, sampled, by dare-1",
            "sudoku solved, greedy, by dare-1", "sudoku solved, sampled, by dare-1", "predictions/sudoku.jsonl",
        ]  # fmt: skip
        assert not any(one.problem for one in found)


@pytest.mark.parametrize(
    ("table", "change", "what", "words"),
    [
        ("prediction", "output = 'better'", "answers to sudoku", None),
        ("score_item", "score = 1.0", "sudoku solved, greedy, by dare-1", "its verdicts say 1.000000"),
        ("result", "value = 0.9", "sudoku solved, greedy, by dare-1", "recorded is 0.900000"),
        ("run", "job_json = replace(job_json, 'llada', 'other')", "job", "has not the recorded hash"),
    ],
)
def test_whoever_changes_a_row_is_found_out(
    sqlite: Database, sqlite_settings: Settings, run: str, table: str, change: str, what: str, words: str | None
) -> None:
    for path in sqlite_settings.artifacts.rglob("*"):
        if path.is_file():
            path.unlink()
    with sqlite.write() as session:
        if table != "run":
            session.execute(text(f"DROP TRIGGER tr_{table}_no_update"))
        session.execute(text(f"UPDATE {table} SET {change}"))
    with sqlite.read() as session:
        found = dict(problems(session, sqlite_settings, run))
        assert (words or "is not the one that was stored") in str(found[what])
        assert "is missing in" in str(found["predictions/sudoku.jsonl"])


def test_a_file_that_was_altered_is_named(sqlite: Database, sqlite_settings: Settings, run: str) -> None:
    with sqlite.read() as session:
        sha256 = session.execute(select(Artifact.sha256)).scalar_one()
    path = sqlite_settings.home / storage_key(sha256)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b" ")
    with sqlite.read() as session:
        found = dict(problems(session, sqlite_settings))
        assert set(found) == {"answers to sudoku", "predictions/sudoku.jsonl"}, "one answer is only in that file"


def test_a_board_whose_numbers_moved_under_it_is_said(sqlite: Database, sqlite_settings: Settings) -> None:
    with sqlite.write() as session:
        register(session)
        submit(session, "untouched")
        finish_all(session, 0.25)
        sha256 = snapshots.take(session, TINY, "llada-tiny")
        session.execute(text("DROP TRIGGER tr_result_no_update"))
        session.execute(text("UPDATE result SET value = 0.26 WHERE metric = 'solved'"))
    with sqlite.read() as session:
        found = dict(problems(session, sqlite_settings, sha256))
        assert found["numbers"] == "the numbers of its 3 runs are not those it was made of"
        assert "content" not in found


def test_an_unknown_run_is_not_verified(sqlite: Database, sqlite_settings: Settings, tmp_path: Path) -> None:
    with sqlite.read() as session, pytest.raises(UnknownRunError):
        list(verify_run(session, sqlite_settings, "nosuch"))
    with sqlite.read() as session:
        assert session.execute(select(func.count()).select_from(Run)).scalar_one() == 0
