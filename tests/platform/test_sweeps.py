"""A sweep makes several entries or none; each is a try of the method, whatever it is called."""

from __future__ import annotations

from pathlib import Path

import pytest
from played import MY_RULE
from sqlalchemy import func, select
from test_cli import NOT_FOUND, REFUSED, Dare

from dare_platform.database import Database
from dare_platform.models import Algorithm, Entry, Run
from dare_platform.settings import Settings
from dare_platform.sweeps import SweepError, entry_names, read_file, read_sweep, request_of
from dare_platform.tracks import load_track

GRID = """
algorithm: my_rule.py
name: narrow
backbones: [llada-tiny]
hyperparameters: {clip_high: 0.3}
grid: {clip_low: [0.05, 0.1], kl_coef: [0.0, 0.04]}
"""


@pytest.fixture
def dare(sqlite_settings: Settings) -> Dare:
    command = Dare(sqlite_settings)
    command("migrate")
    return command


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    (tmp_path / "my_rule.py").write_text(MY_RULE)
    file = tmp_path / "sweep.yaml"
    file.write_text(GRID)
    return file


def counted(database: Database) -> tuple[int, int]:
    """Entries and runs."""
    with database.read() as session:
        entries, runs = (session.execute(select(func.count()).select_from(row)).scalar_one() for row in (Entry, Run))
    return entries, runs


def test_a_grid_is_every_combination_in_the_order_of_the_file(grid: Path) -> None:
    found = read_sweep(request_of(grid, read_file(grid)), load_track("tiny"), with_data=False)
    assert found.problems == ()
    values = [one.hyperparameters for one in found.submissions]
    expected = [(0.05, 0.0), (0.05, 0.04), (0.1, 0.0), (0.1, 0.04)]
    assert [(v["clip_low"], v["kl_coef"]) for v in values] == expected
    assert {v["clip_high"] for v in values} == {0.3}
    assert found.names[1] == "narrow clip_low 0.05 kl_coef 0.04"
    assert {one.algorithm for one in found.submissions} == {"narrow"}
    assert found.runs == 4 * (1 + 3 + 3)


def test_a_dry_run_prints_entries_and_runs_and_queues_nothing(dare: Dare, sqlite: Database, grid: Path) -> None:
    assert dare("sweep", str(grid), "--dry-run") == ""
    assert "narrow clip_low 0.05 kl_coef 0.04" in dare.errors
    assert "4 entries, 28 runs at most." in dare.errors
    assert dare.json("sweep", str(grid), "--dry-run")["runs"] == 28
    assert counted(sqlite) == (0, 0)


def test_many_runs_are_queued_only_when_someone_says_so(dare: Dare, sqlite: Database, grid: Path) -> None:
    dare("sweep", str(grid), code=REFUSED)
    assert "28 runs are more than 24, say --yes to queue them" in dare.errors
    assert counted(sqlite) == (0, 0)
    done = dare.json("sweep", str(grid), "--yes")
    assert [one["created"] for one in done] == [True] * 4
    assert counted(sqlite)[0] == 4


def test_every_entry_of_a_sweep_is_a_try_of_one_method(dare: Dare, sqlite: Database, grid: Path) -> None:
    first = dare("sweep", str(grid), "--yes").split()
    with sqlite.read() as session:
        assert session.execute(select(Algorithm.slug)).scalars().all() == ["narrow"]
        tries = session.execute(select(Entry.name, Entry.ordinal).order_by(Entry.ordinal)).all()
    assert [ordinal for _, ordinal in tries] == [1, 2, 3, 4]
    assert all(name.startswith("narrow clip_low ") for name, _ in tries)
    before = counted(sqlite)
    assert dare("sweep", str(grid), "--yes").split() == first
    assert "0 runs of 0 new entries queued, each a try; 4 were there." in dare.errors
    assert counted(sqlite) == before
    dare("cancel", first[2])
    again = dare("retry", first[2]).strip()
    with sqlite.read() as session:
        retried = session.get_one(Entry, again)
        assert (retried.ordinal, retried.name) == (5, tries[2][0])
        assert len(session.execute(select(Algorithm.id)).all()) == 1


def test_a_list_of_entries_and_a_built_in_method(dare: Dare, sqlite: Database, tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "algorithm: bgpo\nbackbones: [llada-tiny]\nentries: [{mc_samples: 2}, {mc_samples: 4, advantage: centred}]\n"
    )
    dare("submit", "bgpo", "-b", "llada-tiny")
    assert len(dare("sweep", str(file)).split()) == 2
    with sqlite.read() as session:
        tries = session.execute(select(Entry.name, Entry.ordinal).order_by(Entry.ordinal)).all()
    assert tries == [("bgpo", 1), ("bgpo mc_samples 2", 2), ("bgpo mc_samples 4 advantage centred", 3)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("grid: {clip_low: [0.05, wrong]}", '`clip_low` is the text "wrong", a number is needed'),
        ("grid: {clip_lo: [0.05, 0.1]}", "unknown hyperparameter `clip_lo`. Did you mean `clip_low`?"),
        ("grid: {clip_low: [0.05, 0.05]}", "`narrow 2` is the same as `narrow 1`"),
        ("entries: [{clip_low: 0.2}, {}]\nbackbones: [nosuch]", "Track tiny 1.0 has no backbone `nosuch`."),
    ],
)
def test_one_entry_that_will_not_do_keeps_all_of_them_out(
    text: str,
    sentence: str,
    dare: Dare,
    sqlite: Database,
    grid: Path,
) -> None:
    grid.write_text(f"algorithm: my_rule.py\nname: narrow\n{text}\n")
    assert dare("sweep", str(grid), "--yes", code=REFUSED) == ""
    assert sentence in dare.errors
    assert dare.errors.count(sentence) == 1
    assert counted(sqlite) == (0, 0)


def test_a_refusal_of_the_last_entry_takes_the_first_ones_back(dare: Dare, sqlite: Database, grid: Path) -> None:
    dare("submit", "d1", "-b", "llada-tiny", "--name", "narrow clip_low 0.1 kl_coef 0.04")
    before = counted(sqlite)
    dare("sweep", str(grid), "--yes", code=REFUSED)
    assert "stands for another algorithm" in dare.errors
    assert counted(sqlite) == before


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("algorithm: d1", "give either `grid` or `entries`"),
        ("algorithm: d1\ngrid: {clip_low: []}", "each of them at least one value"),
        ("algorithm: d1\ngrid: {}", "needs at least one hyperparameter"),
        ("algorithm: d1\nentries: []", "`entries` is empty"),
        ("algorithm: d1\ngrids: {clip_low: [1]}", "grids: Extra inputs are not permitted"),
        ("algorithm: d1\ngrid: {clip_low: 0.5}", "grid.clip_low: Input should be a valid list"),
        ("- 1", "Input should be a valid dictionary"),
        ("a: [", "cannot be read"),
        (f"algorithm: d1\ngrid: {{clip_low: {list(range(40))}, clip_high: {list(range(40))}}}", "makes 1600 entries"),
        ("algorithm: untouched\nentries: [{}]", "has no hyperparameters to sweep over"),
        ("algorithm: nosuch.py\nentries: [{}]", "there is no file"),
        ("algorithm: d1\nhyperparameters: nosuch.yaml\nentries: [{}]", "there is no file"),
        ("algorithm: d1\nhyperparameters: {clip_low: 1}\ngrid: {clip_low: [2]}", "and is swept over; keep one"),
    ],
)
def test_a_file_that_describes_no_sweep_is_refused_in_a_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(text)
    with pytest.raises(SweepError) as caught:
        request_of(file, read_file(file))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_that_cannot_be_spelled_are_numbered() -> None:
    points = [{"advantage": "x/y"}, {"advantage": "z"}]
    assert entry_names("mine", points) == ("mine 1", "mine 2")
    assert entry_names("mine", [{"clip_low": 1e-05}, {"flag": True}]) == ("mine clip_low 1e-05", "mine flag true")
    assert entry_names("mine", [{"x" * 60: n} for n in range(10)])[0] == "mine 01"


def test_a_sweep_that_is_not_there_is_not_found(dare: Dare) -> None:
    dare("sweep", "nosuch.yaml", code=NOT_FOUND)
    assert "there is no file nosuch.yaml" in dare.errors
