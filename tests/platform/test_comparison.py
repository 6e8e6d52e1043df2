"""Two entries beside one another: algorithms by their seeds, checkpoints by their items, and nothing of the hidden."""

from __future__ import annotations

import numpy as np
import pytest
from evaluated import Answers, answer, held, judged, outputs_of, right, track
from played import given
from toy_runner import work

from dare.rewards.sudoku import solutions
from dare.tasks import Item
from dare_platform import entries
from dare_platform.database import Database
from dare_platform.job_directory import write_job_directory
from dare_platform.models import Run
from dare_platform.registry import register_track
from dare_platform.results import ProcessReport, finish, store_artifacts
from dare_platform.settings import Settings
from dare_platform.statistics import pooled_spread, welch_p
from dare_platform.tracks import Track
from dare_platform.uploads import read_builtin
from dare_platform.viewer import LOCAL, NOBODY
from dare_platform.views.comparison import ComparisonView, comparison


def better(item: Item, sample: int) -> str:
    """Solves one item more than `right`."""
    return solutions(item.gold["puzzle"])[0] if item.id.endswith("1") else right(item, sample)


def rules(seeds: tuple[int, ...] = (0, 1)) -> Track:
    made = track("sudoku", seeds=seeds, seeds_required=len(seeds))
    return made.model_copy(update={"tasks": (made.tasks[0].model_copy(update={"limit": 12}),)})


@pytest.fixture
def two(sqlite: Database, sqlite_settings: Settings) -> tuple[str, str]:
    """Two methods with two seeds, trained by nobody: their evaluations are answered as told."""
    chosen = rules()
    with sqlite.write() as session:
        register_track(session, chosen)
        ids = [
            entries.submit(session, LOCAL, given(read_builtin(name, None, chosen, ["llada-tiny"])), name).entry_id
            for name in ("bgpo", "d1")
        ]
    answered: dict[str, Answers] = {ids[0]: better, ids[1]: right}
    for _ in range(8):
        with sqlite.write() as session:
            claimed = held(session)
            of = session.get_one(Run, claimed.run_id).entry_id
        directory = write_job_directory(sqlite_settings, claimed, ())
        if claimed.job.kind == "train":
            work(directory)
        else:
            answer(directory, claimed.job, answered[of])
            judged(directory, claimed.job)
        outputs = outputs_of(sqlite, directory, claimed.job)
        store_artifacts(sqlite_settings, directory, outputs.artifacts)
        with sqlite.write() as session:
            report = ProcessReport(exit_code=0)
            assert finish(session, claimed.run_id, claimed.token, outputs, report, actor="t") == "succeeded"
    return ids[0], ids[1]


def seen(database: Database, ids: tuple[str, str], **asked: object) -> ComparisonView:
    with database.read() as session:
        found = comparison(session, ids, rules(), "llada-tiny", "sudoku", LOCAL, **asked)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_items_are_counted_and_those_that_divide_the_two_are_shown_first(
    sqlite: Database, two: tuple[str, str]
) -> None:
    found = seen(sqlite, two)
    assert (found.counts, found.seed, found.of_items) == ((6, 2, 0, 4), 0, 2)
    assert [(one.item_id, one.solved) for one in found.items] == [
        ("test-0001", (True, False)), ("test-0011", (True, False)),
    ]  # fmt: skip
    assert found.items[0].outputs[1].startswith("line one")
    assert found.checkpoints is not None
    assert found.checkpoints.difference == pytest.approx(2 / 12)
    assert found.checkpoints.p == pytest.approx(0.5), "two items of a coin"
    assert seen(sqlite, two, shown="both-wrong").of_items == 4
    assert seen(sqlite, two, shown="all", page=2).items == ()
    assert seen(sqlite, (two[1], two[0])).counts == (6, 0, 2, 4)


def test_algorithms_are_compared_by_seeds(sqlite: Database, two: tuple[str, str]) -> None:
    found = seen(sqlite, two)
    assert (found.a.by_seed, found.b.by_seed) == ({0: 8 / 12, 1: 8 / 12}, {0: 0.5, 1: 0.5})
    assert found.algorithms is not None
    assert found.algorithms.p == welch_p([8 / 12, 8 / 12], [0.5, 0.5])
    assert found.algorithms.settling.seeds == 2


def test_settings_and_source_that_differ_are_shown(sqlite: Database, two: tuple[str, str]) -> None:
    found = seen(sqlite, two)
    assert "mc_samples" in {name for name, _, _ in found.settings}
    assert found.source_diff is not None
    assert "-class BGPO" in found.source_diff
    same = seen(sqlite, (two[0], two[0]))
    assert (same.settings, same.source_diff, same.of_items) == ((), "", 0)


def test_what_is_hidden_or_of_another_track_is_compared_with_nothing(sqlite: Database, two: tuple[str, str]) -> None:
    with sqlite.read() as session:
        assert comparison(session, (two[0], "nosuch"), rules(), "llada-tiny", "sudoku", LOCAL) is None
        other = rules().model_copy(update={"track": "other"})
        assert comparison(session, two, other, "llada-tiny", "sudoku", LOCAL) is None
        assert comparison(session, two, rules(), "llada-tiny", "sudoku", NOBODY) is not None
    with sqlite.write() as session:
        submission = given(read_builtin("spg", None, rules(), ["llada-tiny"]))
        hidden = entries.submit(session, LOCAL, submission, "key", "private").entry_id
    with sqlite.read() as session:
        assert comparison(session, (two[0], hidden), rules(), "llada-tiny", "sudoku", NOBODY) is None
        alone = comparison(session, (two[0], hidden), rules(), "llada-tiny", "sudoku", LOCAL)
        assert alone is not None
        assert (alone.algorithms, alone.checkpoints, alone.items) == (None, None, ())


def test_the_spread_of_two_samples_is_pooled() -> None:
    a, b = [0.1, 0.2, 0.4], [0.3, 0.3, 0.5, 0.9]
    pooled = np.sqrt((2 * np.var(a, ddof=1) + 3 * np.var(b, ddof=1)) / 5)
    assert pooled_spread(a, b) == pytest.approx(pooled)
