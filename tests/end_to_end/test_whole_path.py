"""From a submission to a row of the board: real runner, real backbone, real worker, real database."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from small import BACKBONE, EXAMPLE, alive, built_in, home_with, leftovers, runs_of, small_track, submit, uploaded
from sqlalchemy import func, select

from dare.source import read_source
from dare_platform.database import open_database
from dare_platform.models import Attempt, Result
from dare_platform.rankings import board
from dare_platform.worker import Worker


@pytest.mark.full
def test_three_entries_go_the_whole_way_to_measured_rows_and_submitting_them_again_doubles_nothing(
    tmp_path: Path,
) -> None:
    track = small_track()
    settings = home_with(tmp_path / "home", track)
    wanted = [built_in(track, "untouched"), built_in(track, "d1"), uploaded(track)]
    with open_database(settings) as database:
        first = [submit(database, submission) for submission in wanted]
        assert [submitted.runs for submitted in first] == [1, 2, 3]
        assert Worker(settings, ["sdar"]).run(until_idle=True) == 6

        with database.read() as session:
            made = board(session, track, BACKBONE)
        assert {row.name: row.status for row in made.rows} == dict.fromkeys(
            ("untouched", "d1", "gentle-d1"), "complete"
        )
        for row in made.rows:
            assert {task: cell.state for task, cell in row.cells.items()} == {
                "sudoku": "measured",
                "countdown": "measured",
            }
            assert [cell.items for cell in row.cells.values()] == [8, 8]
            assert row.cells["sudoku"].sampled is not None
            assert row.gain is not None
        trained = [row.cost for row in made.rows if row.kind == "method"]
        assert [cost.optimiser_steps for cost in trained if cost] == [4, 4]  # two inner epochs of two steps
        assert all(cost and cost.train_device_seconds > 0 for cost in trained)

        again = [submit(database, submission, f"again-{number}") for number, submission in enumerate(wanted)]
        assert [(s.entry_id, s.created, s.runs) for s in again] == [(s.entry_id, False, 0) for s in first]
        assert Worker(settings, ["sdar"]).run(until_idle=True) == 0
        with database.read() as session:
            counts = [session.execute(select(func.count()).select_from(t)).scalar_one() for t in (Attempt, Result)]
            assert board(session, track, BACKBONE).digest == made.digest
        assert counts == [6, 3 * 6]  # sudoku solved and reward, greedy and sampled; countdown greedily only
        assert alive([run.id for run in runs_of(database)]) == []
        assert leftovers(settings, database) == []


class Closing:
    """Garbage in a circle; its finaliser lets other threads run, as closing a connection does."""

    def __init__(self) -> None:
        self.circle = self

    def __del__(self) -> None:
        time.sleep(0.0001)


def test_many_people_may_have_their_files_read_at_once() -> None:
    content = (EXAMPLE / "algorithm.py").read_bytes() * 10

    def read(_: int) -> str | None:
        for _ in range(3):
            Closing()
        found = read_source(content, "mine").algorithm
        return found and found.class_name

    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(read, range(200))) == {"GentleD1"}
