"""Flags: what must be said beside a number is found in what is stored; where nothing is stored, nothing is said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
from board_cases import REFERENCE, board, entry
from played import built_in, register, steps, succeed, take, work_off
from sqlalchemy import update
from sqlalchemy.orm import Session

from dare_platform import entries, exports, rankings
from dare_platform.board import Estimate, Row
from dare_platform.board_flags import EntryRecord, Flag, FlagCode, FlagFacts, Sibling, Told, flags
from dare_platform.database import Database
from dare_platform.models import Attempt
from dare_platform.viewer import LOCAL
from dare_platform.views.flags import flag_facts

BGPO = entry("bgpo", [0.60, 0.62, 0.61])


def codes(found: tuple[Flag, ...]) -> list[tuple[FlagCode, str, str | None]]:
    return [(flag.code, flag.where.entry_id, flag.where.task) for flag in found]


def facts(**records: EntryRecord) -> FlagFacts:
    return FlagFacts(entries={f"id-{name}": record for name, record in records.items()})


def test_a_board_without_anything_odd_has_no_flag() -> None:
    assert flags(board(REFERENCE, BGPO), FlagFacts()) == ()


def test_zero_and_chance_are_flagged_where_the_cell_says_so() -> None:
    made = board(REFERENCE, entry("nothing", [0.0, 0.0, 0.0], [0.1, 0.1, 0.1]))
    assert codes(flags(made, FlagFacts())) == [
        ("exactly_0", "id-nothing", "sudoku"),
        ("at_or_below_chance", "id-nothing", "countdown"),
    ]


def credited(row: Row, reward: float, solved: float, greedy: float) -> Row:
    sampled, sampled_solved, best = (Estimate(value, 0.01, 3) for value in (reward, solved, greedy))
    cells: Mapping[str, object] = {
        task: replace(cell, sampled=sampled, sampled_solved=sampled_solved, greedy=best)
        for task, cell in row.cells.items()
        if task == "sudoku"
    }
    return replace(row, cells={**row.cells, **cells})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("reward", "greedy", "is_flagged"),
    [(0.69, 0.2, False), (0.72, 0.2, True), (0.72, 0.9, False)],
    ids=["the reward rose by 9 points more", "by 12 points more", "as much as greedy answers did"],
)
def test_a_reward_that_rose_without_solved_items_is_credit_for_form(
    reward: float, greedy: float, is_flagged: bool
) -> None:
    """Untouched: 0.4 reward, 0.1 solved either way. Sampled answers solve 0.3 afterwards, a rise of 20 points."""
    made = board(REFERENCE, BGPO)
    reference, method = made.rows
    shown = replace(made, rows=(credited(reference, 0.4, 0.1, 0.1), credited(method, reward, 0.3, greedy)))
    wanted = [("format_credit", "id-bgpo", "sudoku")] if is_flagged else []
    assert codes(flags(shown, FlagFacts())) == wanted


def test_the_device_that_most_entries_have_is_not_flagged() -> None:
    made = board(REFERENCE, BGPO, entry("d1", [0.5, 0.5, 0.5]), entry("spg", [0.4, 0.4, 0.4]))
    h200, a100 = EntryRecord(frozenset({"H200"})), EntryRecord(frozenset({"A100"}))
    found = flags(made, facts(bgpo=h200, d1=h200, spg=a100))
    assert [(flag.code, flag.where.entry_id, flag.sentence) for flag in found] == [
        ("other_hardware", "id-spg", "Trained on A100; most entries here on H200.")
    ]


def test_a_number_of_another_scorer_alone_is_flagged() -> None:
    record = EntryRecord(scorers={"sudoku": frozenset({"opencompass-0.5.4"}), "countdown": frozenset({"dare-1", "x"})})
    assert codes(flags(board(REFERENCE, BGPO), facts(bgpo=record))) == [("other_scorer", "id-bgpo", "sudoku")]


def test_alarms_of_several_seeds_are_told_once_for_each_sentence() -> None:
    record = EntryRecord(
        alarms=(
            Told(0, "overlap", "3 of 256 of sudoku"),
            Told(1, "overlap", "3 of 256 of sudoku"),
            Told(2, "collapse", "the mean reward fell from 0.612 to 0.031."),
            Told(2, "kl", "the KL penalty is 12.0 nats a token"),
        )
    )
    assert [(flag.code, flag.sentence) for flag in flags(board(REFERENCE, BGPO), facts(bgpo=record))] == [
        ("contaminated", "Seed 0: 3 of 256 of sudoku."),
        ("collapse", "Seed 2: the mean reward fell from 0.612 to 0.031."),
    ]


@pytest.mark.parametrize(("share", "found"), [(None, []), (0.5, []), (0.6, ["zero_advantage"])])
def test_silent_groups_are_flagged_when_they_are_most_and_not_where_nobody_logged_them(
    share: float | None, found: list[FlagCode]
) -> None:
    record = EntryRecord(zero_advantage=share)
    assert [flag.code for flag in flags(board(REFERENCE, BGPO), facts(bgpo=record))] == found


@pytest.mark.parametrize(
    ("parameters", "theirs", "is_flagged"), [(300, 0.3, True), (300, 0.24, False), (120, 0.9, False)]
)
def test_an_untouched_backbone_far_below_a_smaller_sibling_is_flagged(
    parameters: int, theirs: float, is_flagged: bool
) -> None:
    known = FlagFacts(parameters=parameters, siblings=(Sibling("small", 100, {"sudoku": theirs}),))
    wanted = [("larger_sibling", "id-untouched", "sudoku")] if is_flagged else []
    assert codes(flags(board(REFERENCE, BGPO), known)) == wanted


def test_files_have_the_flags() -> None:
    shown = board(REFERENCE, entry("nothing", [0.0, 0.0, 0.0], [0.1, 0.1, 0.1]))
    found = flags(shown, FlagFacts())
    assert "exactly_0:sudoku at_or_below_chance:countdown" in exports.csv(shown, found)
    assert '"code": "exactly_0"' in exports.json(shown, found)
    assert "% exactly_0:sudoku id-nothing: None of 200 items is solved in any seed." in exports.latex(shown, found)


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    with database.write() as opened:
        register(opened)
        yield opened


def test_the_database_knows_devices_alarms_and_silent_groups(session: Session) -> None:
    entries.submit(session, LOCAL, built_in("untouched"), "key-untouched")
    for name in ("bgpo", "d1"):
        entries.submit(session, LOCAL, built_in(name), f"key-{name}")
    claimed = take(session)
    while claimed is not None and claimed.job.kind != "train":
        succeed(session, claimed, lambda run, task: 0.3)
        claimed = take(session)
    assert claimed is not None
    steps(session, claimed, 3)
    succeed(session, claimed, lambda run, task: 0.3)
    session.execute(update(Attempt).where(Attempt.run_id == claimed.run_id).values(hardware="another processor"))
    work_off(session)
    shown = rankings.board(session, "tiny 1.0", "llada-tiny")
    found = {(flag.code, flag.sentence) for flag in flags(shown, flag_facts(session, shown))}
    assert ("collapse", "Seed 0: 96 % of groups without signal.") in found
    assert (
        "other_hardware",
        "Trained on a processor and another processor; most entries here on a processor.",
    ) in found
