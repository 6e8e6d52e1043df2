"""The multiple-choice tasks, declared and verified: rows in their published layout, prompts, golds, and no data."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from dare.data_record import NAME, DataRecord, FileRecord
from dare.rewards.choice import LETTERS
from dare.tasks import (
    Item,
    MissingDataError,
    Task,
    countdown,
    countdown_published,
    is_recorded,
    items_sha256,
    load_task,
    mmlu,
    story_problems,
    sudoku,
    sudoku_published,
    task_names,
    text_of,
)
from dare.weights.hashes import file_sha256

CHOICES = ("arc_c", "gpqa", "hellaswag", "mmlu", "mmlu_pro")
DECLARED = [name for name in task_names() if not load_task(name).verified]
OWN = ("arc_c", "countdown", "countdown_published", "gpqa", "hellaswag", "ifeval", "mmlu", "mmlu_pro", "story_problems",
       "sudoku", "sudoku_published", "xstest")  # fmt: skip


def record(folder: Path, *names: str) -> Path:
    """The record that `dare data fetch` would have written of these files."""
    files = {
        name: FileRecord(
            sha256=file_sha256(folder / name), bytes=(folder / name).stat().st_size, rows=None, address=None,
            revision=None, date="2026-01-01T00:00:00Z",
        )
        for name in names
    }  # fmt: skip
    (folder / NAME).write_text(DataRecord(files=files).model_dump_json())
    return folder


def put(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return record(folder, name)


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def check(task: Task, item: Item, gold: str) -> None:
    """The prompt shows every option with its letter and the form of the answer, and only the gold is solved."""
    options = item.gold["options"]
    assert item.gold["letter"] == gold
    for letter, option in zip(LETTERS, options, strict=False):
        assert f"\n{letter}. {option}\n" in text_of(item.prompt)
        assert task.judge(item, letter).solved == (letter == gold)
        assert task.judge(item, f"<answer>\n{option}\n</answer>").solved == (letter == gold)
    assert "<answer>\n" in text_of(item.prompt)
    assert task.judge(item, "A or B").status == "no_answer"


def test_arc_is_read_in_its_published_layout_with_letters_for_numbered_options(tmp_path: Path) -> None:
    def row(id: str, labels: str, key: str) -> dict[str, Any]:
        choices = [{"text": f"option {label} of {id}", "label": label} for label in labels]
        return {"id": id, "question": {"stem": f"Which, {id}?", "choices": choices}, "answerKey": key}

    data = put(
        tmp_path,
        "ARC/ARC-c/ARC-Challenge-Test.jsonl",
        lines(row("q1", "ABCD", "C"), row("q2", "1234", "4"), row("q3", "ABC", "A")),
    )
    task = load_task("arc_c")
    items = task.items("test", data)
    assert [item.id for item in items] == ["q1", "q2", "q3"]
    for item, gold in zip(items, "CDA", strict=True):
        check(task, item, gold)


def test_hellaswag_is_read_in_the_layout_of_opencompass(tmp_path: Path) -> None:
    rows = [
        {"query": f"Cooking: A man takes pan {n}. He", "choices": [f"ends {n}{x}" for x in "abcd"], "gold": n}
        for n in range(4)
    ]
    task = load_task("hellaswag")
    items = task.items("test", put(tmp_path, "hellaswag/hellaswag.jsonl", lines(*rows)))
    for item, gold in zip(items, "ABCD", strict=True):
        check(task, item, gold)
    assert "A man takes pan 0. He" in text_of(items[0].prompt)


def test_gpqa_shuffles_the_options_of_every_question_by_a_seed_and_keeps_no_row(tmp_path: Path) -> None:
    out = io.StringIO()
    columns = [
        "Record ID",
        "Question",
        "Correct Answer",
        "Incorrect Answer 1",
        "Incorrect Answer 2",
        "Incorrect Answer 3",
    ]
    writer = csv.DictWriter(out, columns)
    writer.writeheader()
    writer.writerows(
        dict(
            zip(columns, (f"rec{n}", f"What is {n},\n{n}?", f"right {n}", "wrong 1", "wrong 2", "wrong 3"), strict=True)
        )
        for n in range(200)
    )
    data = put(tmp_path, "gpqa/gpqa_diamond.csv", out.getvalue())
    task = load_task("gpqa")
    items = task.items("test", data)
    assert len(items) == 200
    assert items_sha256(items) == items_sha256(task.items("test", data))
    for item in items[:10]:
        gold = item.gold["letter"]
        assert item.gold["options"][LETTERS.index(gold)].startswith("right")
        check(task, item, gold)
    counts = Counter(item.gold["letter"] for item in items)
    assert all(25 < counts[letter] < 75 for letter in "ABCD")
    assert not any(item.row for item in items)


def test_mmlu_pro_is_read_from_parquet_with_up_to_ten_options(tmp_path: Path) -> None:
    rows = [
        {
            "question_id": n, "question": f"Which of {n}?", "options": [f"choice {n}-{k}" for k in range(n)],
            "answer": LETTERS[n - 1],
            "answer_index": n - 1, "cot_content": "A: Let's think.", "category": "physics", "src": "made by hand",
        }
        for n in (3, 10)
    ]  # fmt: skip
    rows[0]["options"] += ["N/A"] * 2
    out = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), out)
    task = load_task("mmlu_pro")
    items = task.items("test", put(tmp_path, "mmlu_pro/data/test-00000-of-00001.parquet", out.getvalue()))
    for item, gold in zip(items, "CJ", strict=True):
        check(task, item, gold)
    assert [len(item.gold["options"]) for item in items] == [3, 10]
    assert items[0].row["subject"] == "physics"


@pytest.mark.shared
def test_mmlu_has_57_subjects_whose_every_gold_solves_its_item(shared: Path) -> None:
    task, data = load_task("mmlu"), shared / "data"
    items = task.items("test", data)
    assert len(items) == task.count == 14_042
    assert len(mmlu.SUBJECTS) == 57
    assert len(task.items("dev", data)) == 285
    assert sum(file.rows or 0 for file in task.files) == 14_042 + 285
    golds = Counter(item.gold["letter"] for item in items)
    assert (golds["D"], golds["A"]) == (3776, 3222)
    for item in items[::5]:
        letter = item.gold["letter"]
        assert task.judge(item, letter).solved
        assert task.judge(item, f"{letter}. {item.gold['options'][LETTERS.index(letter)]}").solved
    texts = Counter((item.row["question"], *item.gold["options"], item.gold["letter"]) for item in items)
    assert sum(count - 1 for count in texts.values()) == 105
    assert sum(len(set(item.gold["options"])) < 4 for item in items) == 9
    within = Counter((item.row["subject"], item.row["question"], *item.gold["options"]) for item in items)
    assert sum(count - 1 for count in within.values()) == 105 - 78


@pytest.mark.shared
def test_questions_on_one_passage_are_one_cluster(shared: Path) -> None:
    items = load_task("mmlu").items("test", shared / "data")
    history = [item for item in items if item.row["subject"] == "high_school_european_history"]
    assert len({item.cluster for item in history}) < len(history) / 2
    algebra = [item for item in items if item.row["subject"] == "abstract_algebra"]
    assert len({item.cluster for item in algebra}) == len(algebra)


@pytest.mark.shared
def test_the_five_shot_prompt_shows_the_five_worked_examples_of_its_own_subject(shared: Path) -> None:
    task, data = load_task("mmlu"), shared / "data"
    item = task.items("test", data)[-1]
    prompt = text_of(task.asked["hendrycks_5shot"](item, data))
    worked = [row for row in task.items("dev", data) if row.row["subject"] == "world_religions"]
    assert prompt.startswith("The following are multiple choice questions (with answers) about world religions.\n\n")
    assert [prompt.count(row.row["question"]) for row in worked] == [1] * 5
    assert prompt.count("\nAnswer:") == 6
    assert prompt.endswith("\nAnswer:")


@pytest.mark.shared
def test_no_mean_over_subjects_is_made_where_one_item_has_no_score(shared: Path) -> None:
    items = load_task("mmlu").items("test", shared / "data")
    scores = {item.id: float(item.row["subject"] == "anatomy") for item in items}
    assert mmlu.macro_average(scores, items) == pytest.approx(1 / 57)
    del scores["virology-0000"]
    with pytest.raises(mmlu.IncompleteError, match="no mean over 57 subjects: without scores are virology"):
        mmlu.macro_average(scores, items)
    three = [item for item in items if item.row["subject"] in ("anatomy", "virology", "astronomy")]
    with pytest.raises(mmlu.IncompleteError, match="without scores are abstract_algebra, business_ethics"):
        mmlu.macro_average({item.id: 1.0 for item in three}, three)


@pytest.mark.shared
def test_a_changed_or_reordered_file_of_mmlu_is_refused_by_its_name(shared: Path, tmp_path: Path) -> None:
    name = "mmlu/test/abstract_algebra_test.csv"
    content = (shared / "data" / name).read_bytes().splitlines(keepends=True)
    put(tmp_path, name, b"".join(reversed(content)))
    with pytest.raises(
        MissingDataError, match=r"abstract_algebra_test.csv is not the file that task 'mmlu' needs: its SHA-256"
    ):
        load_task("mmlu").items("test", tmp_path)


# Declared tasks


@pytest.mark.parametrize("name", DECLARED)
def test_a_declared_task_states_no_count_and_is_neither_verified_nor_recorded_before_it_is_fetched(
    name: str, tmp_path: Path
) -> None:
    task = load_task(name)
    if not task.files:
        pytest.skip("its files are not stated")
    assert task.count is None
    assert not task.verified
    assert not is_recorded(task, None)
    assert not is_recorded(task, tmp_path)
    with pytest.raises(MissingDataError, match=f"or get it with `dare data fetch {name.removesuffix('_ppl')}"):
        task.items("test", tmp_path)


def test_a_declared_file_that_nobody_recorded_is_not_read_and_one_that_changed_since_is_refused(tmp_path: Path) -> None:
    task = load_task("hellaswag")
    row = {"query": "x", "choices": ["a", "b", "c", "d"], "gold": 0}
    data = put(tmp_path, "hellaswag/hellaswag.jsonl", lines(row))
    assert len(task.items("test", data)) == 1
    assert is_recorded(task, data)
    assert not task.verified
    (data / NAME).unlink()
    with pytest.raises(
        MissingDataError, match=r"nothing says which hellaswag/hellaswag.jsonl lies in .*`dare data fetch"
    ):
        task.items("test", data)
    put(tmp_path, "hellaswag/hellaswag.jsonl", lines(row))
    (data / "hellaswag/hellaswag.jsonl").write_text(lines(row | {"gold": 1}))
    with pytest.raises(MissingDataError, match="is not the file that task 'hellaswag' needs"):
        task.items("test", data)
    assert not is_recorded(task, data)
    (data / NAME).write_text("{")
    with pytest.raises(MissingDataError, match=r"dare-data\.json cannot be read as a record"):
        task.items("test", data)


@pytest.mark.parametrize("name", OWN)
def test_a_task_states_its_licence_source_count_chance_floor_example_and_contamination(name: str) -> None:
    task = load_task(name)
    assert task.licence
    assert task.source
    assert task.contamination
    assert task.notes
    assert task.chance_procedure
    assert 0 < task.chance_floor < 1
    assert (task.count is None) == (not task.verified)
    assert task.judge(*task.example).solved
    assert bool(task.files) == task.needs_data
    assert all(file.address or file.note or file.sha256 for file in task.files)


@pytest.mark.parametrize("name", [name for name in OWN if load_task(name).kind == "answer"])
def test_every_prompt_of_ours_states_the_form_that_its_judge_reads(name: str) -> None:
    prompt = text_of(load_task(name).example[0].prompt)
    bare = ("countdown", "countdown_published", "sudoku", "sudoku_published")  # for backbones of single characters
    whole = ("ifeval", "xstest")  # the response itself is judged
    assert ("<answer>" in prompt) != (name in bare + whole)


def test_the_recorded_hashes_of_generated_item_lists_are_those_of_the_lists_and_in_their_source() -> None:
    for module in (countdown, sudoku, story_problems):
        assert items_sha256(module.items("test")) == module.ITEMS_SHA256["test"]
        assert module.ITEMS_SHA256["test"] in module.TASK.source
        assert len(module.items("test")) == module.TASK.count == 256


# Policies and published prompts of the planning tasks


@pytest.mark.shared
def test_the_policies_of_the_planning_tasks_give_the_published_verdicts(shared: Path) -> None:
    wanted = {
        ("C3-1", "equation", "expression_only"): "wrong",
        ("C3-1", "equation", "left_side_of_equation"): "correct",
        ("C3-1", "equation", "one_side_of_equation"): "correct",
        ("C3-2", "equation", "one_side_of_equation"): "wrong",
        ("C3-3", "equation", "expression_only"): "wrong",
        ("C3-3", "equation", "left_side_of_equation"): "wrong",
        ("C3-3", "equation", "one_side_of_equation"): "correct",
        ("A13-3", "tags", "required"): "no_answer",
        ("A13-3", "tags", "optional"): "correct",
        ("A13-4", "which", "last_tag"): "correct",
        ("A13-4", "which", "first_tag"): "wrong",
    }
    rows = {row["id"]: row for row in json.loads((shared / "goldens/rewards/planning.json").read_text())}
    for (case, policy, value), verdict in wanted.items():
        row = rows[case]
        task = load_task(row["task"])
        item = Item(case, "", row["gold"])
        judged = task.judging({policy: value})(item, row["input"])
        got = "no_answer" if judged.status == "no_answer" else "correct" if judged.solved else "wrong"
        assert got == verdict, (case, policy, value)
        if value == task.policies[policy][0]:
            assert judged == task.judge(item, row["input"])


def test_the_published_sets_are_judged_under_the_policies_of_their_generated_kin() -> None:
    for published, generated in ((countdown_published, countdown), (sudoku_published, sudoku)):
        assert published.TASK.policies == generated.TASK.policies
        assert published.TASK.judge_under is generated.TASK.judge_under


@pytest.mark.shared
@pytest.mark.parametrize("name", ["countdown", "sudoku"])
def test_dares_prompts_are_its_published_ones_byte_for_byte(name: str, shared: Path) -> None:
    task, data = load_task(f"{name}_published"), shared / "data"
    published = parquet.read_table(data / name / f"dare_{name}_test.parquet").to_pylist()
    items = task.items("test", data)
    assert [text_of(task.asked["dare"](item, data)) for item in items] == [
        row["prompt"][0]["content"] for row in published
    ]


@pytest.mark.shared
def test_d1s_prompts_are_its_instruction_and_the_question_in_one_turn(shared: Path) -> None:
    task, data = load_task("countdown_published"), shared / "data"
    prompt = text_of(task.asked["d1"](task.items("test", data)[0], data))
    assert prompt.startswith("Using only the provided numbers, create an arithmetic expression")
    assert prompt.endswith("\\boxed{...}\n</answer>\n\nNumbers: [30, 100, 93]\nTarget: 23")
    task = load_task("sudoku_published")
    prompt = text_of(task.asked["d1"](task.items("test", data)[0], data))
    assert prompt.startswith("\nPlease solve the following 4x4 Sudoku puzzle.")
    assert prompt.endswith("</answer>\n\n\nSolve the following Sudoku puzzle: 3102200002100320\n")


# Story problems


def test_every_demonstration_of_a_story_problem_is_right_in_every_step() -> None:
    task = load_task("story_problems")
    assert task.demonstrations is not None
    items = {item.prompt: item for item in (*story_problems.items("train"), *story_problems.items("test"))}
    for shown in task.demonstrations("clean", 2000):
        calculations = [
            text.rpartition(" is ")[2] for text in shown.answer.replace("there are", "is").split("\n") if "=" in text
        ]
        assert calculations
        for calculation in calculations:
            left, _, right = calculation.partition(" = ")
            words = left.split()[-3:] if not left[0].isdigit() else left.split()
            a, sign, b = int(words[0]), words[1], int(words[2])
            exact = {"*": a * b, "+": a + b, "-": a - b, "/": a / b}[sign]
            assert exact == int("".join(filter(str.isdigit, right))), shown.answer
        if shown.prompt in items:
            assert task.judge(items[shown.prompt], shown.answer).solved


def test_story_problems_have_positive_whole_answers_and_each_story_about_equally_often() -> None:
    items = story_problems.items("test")
    assert all(int(item.gold["answer"]) > 0 for item in items)
    stories = Counter((item.cluster or "").partition(" ")[0] for item in items)
    assert len(stories) == 8
    assert max(stories.values()) - min(stories.values()) <= 4


def test_a_box_outside_a_closed_tag_answers_a_countdown_only_where_the_protocol_says_so() -> None:
    task = load_task("countdown_published")
    item = task.example[0]
    text = r"<answer>\boxed{30-(100-93)} and this tag is never closed"
    assert not task.judge(item, text).solved
    assert task.judging({"boxed": "anywhere"})(item, text).solved
    assert task.judging({"boxed": "anywhere"})(item, f"<answer>{task.example[1]}</answer>").solved
    assert task.judging({"boxed": "anywhere"})(item, "I give up").status == task.judge(item, "I give up").status
