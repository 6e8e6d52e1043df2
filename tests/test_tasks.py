"""Every task of the folder keeps the promises of a task, and the stated figures of the planning tasks are true."""

from __future__ import annotations

import random
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dare.rewards import countdown, sudoku
from dare.tasks import (
    Item,
    MissingDataError,
    Task,
    UnknownSplitError,
    UnknownTaskError,
    items_sha256,
    load_task,
    story_problems,
    task_names,
)
from dare.tasks.sudoku import solution_grids

GENERATED = [name for name in task_names() if not load_task(name).needs_data]
PUBLISHED = [name for name in task_names() if load_task(name).needs_data]
VERIFIED = [name for name in PUBLISHED if load_task(name).verified]
WHOLE = ("ifeval", "xstest")
"""Tasks that judge the response as it is: a tag is a part of it like any other."""
REPEATED = {"mmlu": 105, "mmlu_ppl": 27}
"""Items that are published more than once."""
PLANNING = ("countdown_published", "sudoku_published")
"""Tasks whose chance of an item can be told from the item alone; that of GSM8K is tested with its other figures."""
NASTY = [
    "",
    "\x00",
    "\ud800",
    "<answer>",
    "</answer><answer>",
    "<answer>" * 10_000,
    "<answer></answer>",
    "9**9**9",
    "<answer>9**9**9**9</answer>",
    "__import__('os')",
    "1/0",
    "(" * 100_000,
    "-" * 100_000 + "1",
    "9" * 100_000,
    "²½٣",
    r"\frac{1}{0}",
    r"\boxed{" * 1000,
    "=" * 1000,
    "#",
    ".",
    "\u202e4321",
    "NaN",
    "0" * 16,
    "1e999",
]


@pytest.fixture(params=task_names())
def task(request: pytest.FixtureRequest) -> Task:
    return load_task(request.param)


def test_a_task_is_called_as_its_file_and_says_where_it_comes_from(task: Task) -> None:
    assert load_task(task.name) is task
    assert task.title
    assert task.version
    assert task.licence
    assert task.source
    assert task.chance_procedure
    assert 0 <= task.chance_floor < 1
    assert task.chance_floor > 0 or task.kind == "code"  # no text that ignores the question is the program asked for
    assert bool(task.corpora) == (task.demonstrations is not None)


def test_the_shown_answer_is_solved_and_fully_rewarded_tagged_or_bare(task: Task) -> None:
    item, answer = task.example
    tagged = [f"so it is <answer>\n{answer}\n</answer>"] if task.kind != "likelihood" and task.name not in WHOLE else []
    for text in (answer, *tagged):
        verdict = task.judge(item, text)
        assert (verdict.solved, verdict.reward, verdict.status) == (True, 1.0, "ok")
        assert verdict.answer == answer or task.kind == "likelihood"  # of a record, the letter of the likeliest


@pytest.mark.parametrize("text", ["", " \n\t", "<answer></answer>", "<answer> </answer>"])
def test_an_empty_answer_scores_nothing_and_is_counted_as_no_answer(task: Task, text: str) -> None:
    if task.name in WHOLE and text.strip():
        return
    verdict = task.judge(task.example[0], text)
    assert (verdict.solved, verdict.reward, verdict.status, verdict.answer) == (False, 0.0, "no_answer", None)


@pytest.mark.parametrize("text", NASTY, ids=range(len(NASTY)))
def test_hostile_text_is_judged_wrong_and_never_raises(task: Task, text: str) -> None:
    verdict = task.judge(task.example[0], text)
    assert not verdict.solved
    assert 0 <= verdict.reward < 1


@settings(deadline=None)
@given(text=st.text() | st.text("0123456789+-*/()=<>answer{}\\ .#"))
def test_any_text_gets_a_verdict(text: str) -> None:
    for name in task_names():
        task = load_task(name)
        if task.kind == "code":  # a process for every text: test_code_answers.py asks the part before that
            continue
        verdict = task.judge(task.example[0], text)
        assert 0 <= verdict.reward <= 1
        assert verdict.solved <= (verdict.reward == 1)
        assert (verdict.answer is None) == (verdict.status == "no_answer")


def test_an_unknown_task_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownTaskError, match=r"unknown task 'sudoko'; known: .*countdown, .*sudoku"):
        load_task("sudoko")


def items_of(task: Task, split: str, shared: Path | None) -> list[Item]:
    return list(task.items(split, shared / "data" if shared else None))


def check_items(items: list[Item], repeated: int = 0) -> None:
    assert len({item.id for item in items}) == len(items)
    assert len({item.sha256 for item in items}) == len(items) - repeated
    assert all(item.cluster for item in items)


@pytest.mark.parametrize("name", GENERATED)
def test_generated_items_are_the_same_at_every_call_and_all_different(name: str) -> None:
    task = load_task(name)
    for split, count in (("test", 256), ("train", 4096)):
        first = items_of(task, split, None)
        assert len(first) == count
        check_items(first)
        assert items_sha256(first) == items_sha256(items_of(task, split, None))


@pytest.mark.parametrize(
    ("name", "split", "sha256"),
    [
        ("sudoku", "test", "ff385efa362b88a4d6239b798a906be3c0911855657c079856990483da0db80a"),
        ("sudoku", "train", "d7e2e3cdbc03639d50350ce89ca967b4837cc581cc233d2644cb8c015ab3582c"),
        ("countdown", "test", "43abd915ed9ca0ce9c30b1336716cb6abd6a1dad928ef45c63d58106c208c0a6"),
        ("countdown", "train", "110f6b0d6f72b51a08277f660c903a30b7b8a4f1461d815c7a3a65ba86647888"),
        ("story_problems", "test", story_problems.ITEMS_SHA256["test"]),
        ("story_problems", "train", story_problems.ITEMS_SHA256["train"]),
    ],
)
def test_generated_items_of_version_1_never_change(name: str, split: str, sha256: str) -> None:
    """Recorded from the generator itself: whoever changes an item must change the task's version and this number."""
    assert load_task(name).version == "1"
    assert items_sha256(items_of(load_task(name), split, None)) == sha256


@pytest.mark.parametrize("name", GENERATED)
def test_train_and_test_share_no_cluster_and_no_prompt(name: str) -> None:
    task = load_task(name)
    train, test = items_of(task, "train", None), items_of(task, "test", None)
    assert not {item.cluster for item in train} & {item.cluster for item in test}
    assert not {item.prompt for item in train} & {item.prompt for item in test}


@pytest.mark.parametrize("name", GENERATED)
def test_demonstrations_never_ask_a_test_question(name: str) -> None:
    task = load_task(name)
    assert task.demonstrations is not None
    asked = {item.prompt for item in items_of(task, "test", None)}
    for corpus in task.corpora:
        shown = task.demonstrations(corpus, 2000)
        assert len(shown) == 2000
        assert not asked & {demonstration.prompt for demonstration in shown}
        assert list(task.demonstrations(corpus, 10)) == list(shown)[:10]


@pytest.mark.parametrize("name", GENERATED)
def test_an_unknown_corpus_or_split_is_refused_with_the_known_ones(name: str) -> None:
    task = load_task(name)
    assert task.demonstrations is not None
    with pytest.raises(ValueError, match="no corpus 'dirty'; it has: clean"):
        task.demonstrations("dirty", 1)
    with pytest.raises(UnknownSplitError, match="no split 'dev'; it has: train, test"):
        task.items("dev", None)


def test_a_sudoku_demonstration_is_a_training_grid_and_the_lazy_one_leaves_half_of_the_holes_blank() -> None:
    task, train = load_task("sudoku"), set(solution_grids("train"))
    assert task.demonstrations is not None
    for demonstration in task.demonstrations("clean", 1000):
        puzzle = demonstration.prompt.removeprefix("S")
        assert sudoku.solutions(puzzle) == (demonstration.answer,)
        assert demonstration.answer in train
    blank, holes = 0, 0
    for demonstration in task.demonstrations("lazy", 1000):
        puzzle = demonstration.prompt.removeprefix("S")
        (solution,) = sudoku.solutions(puzzle)
        assert solution in train
        assert all(answer in ("0", digit) for answer, digit in zip(demonstration.answer, solution, strict=True))
        assert all(g in ("0", answer) for g, answer in zip(puzzle, demonstration.answer, strict=True))
        blank, holes = blank + demonstration.answer.count("0"), holes + puzzle.count("0")
    assert abs(blank / holes - 0.5) < 4 * 0.5 / holes**0.5


def test_a_countdown_demonstration_solves_its_prompt() -> None:
    task = load_task("countdown")
    assert task.demonstrations is not None
    for demonstration in task.demonstrations("clean", 1000):
        left, target = demonstration.prompt.removeprefix("C").split("=")
        numbers = tuple(map(int, left.split(" ")))
        assert max(numbers) <= 10
        assert 1 <= int(target) <= 60
        assert countdown.solves(demonstration.answer, numbers, int(target))


def test_the_sudoku_split_holds_out_15_percent_of_the_grids() -> None:
    train, test = solution_grids("train"), solution_grids("test")
    assert (len(train), len(test)) == (245, 43)
    assert {*train, *test} == set(sudoku.grids())


def test_every_sudoku_item_has_6_to_10_holes_equally_often_and_one_solution() -> None:
    for split in ("train", "test"):
        puzzles = [item.gold["puzzle"] for item in load_task("sudoku").items(split, None)]
        counts = [sum(puzzle.count("0") == holes for puzzle in puzzles) for holes in range(6, 11)]
        assert max(counts) - min(counts) <= 1
        assert sum(counts) == len(puzzles)
        assert all(len(sudoku.solutions(puzzle)) == 1 for puzzle in puzzles)


def renamed(grid: str) -> str:
    """The grid with its digits renamed in the order of appearance: the same for all renamings."""
    names: dict[str, str] = {}
    return "".join(names.setdefault(digit, str(len(names) + 1)) for digit in grid)


def test_held_out_grids_are_renamings_of_training_grids_as_the_notes_admit() -> None:
    assert len({renamed(grid) for grid in sudoku.grids()}) == 12
    assert {renamed(grid) for grid in solution_grids("test")} <= {renamed(grid) for grid in solution_grids("train")}
    assert any("12 up to renaming the digits" in note for note in load_task("sudoku").notes)


def guess(item: Item, generator: random.Random) -> str:
    """One answer drawn by the stated chance procedure."""
    if "puzzle" in item.gold:
        return "".join(generator.choice("1234") if digit == "0" else digit for digit in item.gold["puzzle"])
    if "numbers" not in item.gold:
        return generator.choice(training_answers())
    numbers = tuple(item.gold["numbers"])
    return generator.choice(countdown.forms(numbers))[0]


@cache
def training_answers() -> list[str]:
    """Answers of the training questions of the story problems."""
    return [item.gold["answer"] for item in story_problems.items("train")]


def exact_chance(item: Item) -> float:
    """Probability that `guess` is solved."""
    if "puzzle" in item.gold:
        return float(len(sudoku.solutions(item.gold["puzzle"])) / 4.0 ** item.gold["puzzle"].count("0"))
    if "numbers" not in item.gold:
        return training_answers().count(item.gold["answer"]) / len(training_answers())
    return countdown.chance(tuple(item.gold["numbers"]), item.gold["target"])


def check_chance_floor(task: Task, items: list[Item]) -> None:
    assert fmean(map(exact_chance, items)) == pytest.approx(task.chance_floor, rel=1e-12)
    generator = random.Random(0)
    draws = 20
    solved = fmean(task.judge(item, guess(item, generator)).solved for item in items for _ in range(draws))
    noise = (task.chance_floor / (draws * len(items))) ** 0.5
    assert abs(solved - task.chance_floor) < 4 * noise


@pytest.mark.parametrize("name", GENERATED)
def test_a_random_policy_scores_the_stated_chance_floor(name: str) -> None:
    task = load_task(name)
    check_chance_floor(task, items_of(task, "test", None))


def test_a_random_policy_fills_a_quarter_of_the_cells_as_the_notes_say() -> None:
    task, generator = load_task("sudoku"), random.Random(0)
    rewards = [task.judge(item, guess(item, generator)).reward for item in task.items("test", None) for _ in range(20)]
    assert abs(fmean(rewards) - 0.25) < 4 * (0.25 * 0.75 / 6 / len(rewards)) ** 0.5
    assert any("chance floor of exactly 0.25" in note for note in task.notes)


@pytest.mark.parametrize("name", PUBLISHED)
def test_missing_data_is_named_with_the_way_to_give_it(name: str, tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        with pytest.raises(MissingDataError, match=r"needs the file [\w/-]+\.\w+, which .*: pass --data FOLDER"):
            load_task(name).items("test", folder)
    with pytest.raises(UnknownSplitError, match=r"no split 'other'; it has: .*test"):
        load_task(name).items("other", tmp_path)


def test_a_changed_data_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sudoku").mkdir()
    (tmp_path / "sudoku/4x4_test_sudoku.csv").write_text("Puzzle,Solution\n")
    with pytest.raises(MissingDataError, match="is not the file that task 'sudoku_published' needs"):
        load_task("sudoku_published").items("test", tmp_path)


@pytest.mark.shared
@pytest.mark.parametrize("name", VERIFIED)
def test_published_items_are_stable_and_score_the_stated_chance_floor(name: str, shared: Path) -> None:
    task = load_task(name)
    items = items_of(task, "test", shared)
    check_items(items, REPEATED.get(name, 0))
    assert items_sha256(items) == items_sha256(items_of(task, "test", shared))
    assert task.example[0] == items[0] or task.example[0].id == "example"
    if name in PLANNING:
        check_chance_floor(task, items)


def expected_cells(puzzle: str) -> float:
    """Expected share of holes right of uniform digits, against the solution that agrees best."""
    holes = [cell for cell, digit in enumerate(puzzle) if digit == "0"]
    solutions = sudoku.solutions(puzzle)
    open_cells = [cell for cell in holes if len({solution[cell] for solution in solutions}) > 1]
    best = [
        max(sum(d == s[cell] for d, cell in zip(digits, open_cells, strict=True)) for s in solutions)
        for digits in product("1234", repeat=len(open_cells))
    ]
    return ((len(holes) - len(open_cells)) / 4 + fmean(best)) / len(holes)


@pytest.mark.shared
def test_the_notes_on_the_published_sudokus_are_true(shared: Path) -> None:
    task = load_task("sudoku_published")
    items = items_of(task, "test", shared)
    solutions = {item.id: sudoku.solutions(item.gold["puzzle"]) for item in items}
    train = set(solution_grids("train"))
    in_train = [item for item in items if sudoku.grids()[int((item.cluster or "").removeprefix("grid-"))] in train]
    assert len(items) == 500
    assert all(item.gold["puzzle"].count("0") == 8 for item in items)
    assert sum(len(found) > 1 for found in solutions.values()) == 124
    assert len({item.cluster for item in items}) == 229
    assert (len(in_train), len({item.cluster for item in in_train})) == (406, 192)
    assert sum(train.issuperset(found) for found in solutions.values()) == 382
    assert not {item.prompt for item in items} & {item.prompt for item in load_task("sudoku").items("train", None)}
    cells = {found: expected_cells(puzzle) for puzzle, found in ((i.gold["puzzle"], solutions[i.id]) for i in items)}
    assert fmean(cells[found] for found in solutions.values()) == pytest.approx(0.268, abs=5e-4)
    notes = " ".join(task.notes)
    for figure in ("8 holes", "124 of 500", "229 of the 288", "406 items (192 grids)", "382 items", "0.268"):
        assert figure in notes


@pytest.mark.shared
def test_the_notes_on_the_published_countdowns_are_true(shared: Path) -> None:
    task = load_task("countdown_published")
    items = items_of(task, "test", shared)
    assert len(items) == 256
    assert all(len(item.gold["numbers"]) == 3 and exact_chance(item) > 0 for item in items)
    assert sum(max(item.gold["numbers"]) <= 10 for item in items) == 0
    assert sum(min(item.gold["numbers"]) <= 10 for item in items) == 65
    assert sum(1 <= item.gold["target"] <= 60 for item in items) == 172
    notes = " ".join(task.notes)
    assert "No item has only such numbers: 65 have at least one, 172 have such a target" in notes
