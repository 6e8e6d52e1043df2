"""Overlap of training prompts with test items: the fast way finds what comparing every pair finds."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dare.data.overlap import Asked, Words, compare, held_out, sentence, words
from dare.tasks import Item, Task, load_task

PLAIN = replace(load_task("sudoku"), name="plain")
"""A task whose gold says nothing of its question."""
VOCABULARY = "abc"
prompts = st.lists(st.lists(st.sampled_from(VOCABULARY), min_size=0, max_size=7).map(" ".join), max_size=8)


def asked(texts: Sequence[str]) -> list[Asked]:
    return [Asked(str(number), text) for number, text in enumerate(texts)]


def items(texts: Sequence[str]) -> list[Item]:
    return [Item(f"test-{number}", text, {}) for number, text in enumerate(texts)]


def found(training: Sequence[str], tests: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Match and rows by item, of plain texts."""
    report = compare(asked(training), [(PLAIN, items(tests))]).report
    return {one.item: (one.match, ",".join(one.rows)) for one in report.contaminated}


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("What is 3 + 5?", "  what IS\n3+5"),
        ("Ann's cat, Tom.", "ann s cat tom"),
        ("5-3", "5 - 3"),
        ("\uff21\uff22 \u2460", "ab 1"),
        ("well-known", "well known"),
    ],
)
def test_case_white_space_and_punctuation_do_not_count(text: str, same: str) -> None:
    assert words(text) == words(same)


@pytest.mark.parametrize(
    ("one", "other"), [("3+5", "3-5"), ("x=2", "x<2"), ("12", "1 2"), ("2*3", "2/3"), ("5-3", "5 3")]
)
def test_signs_of_arithmetic_count(one: str, other: str) -> None:
    assert words(one) != words(other)


def windows(text: Words, n: int) -> set[Words]:
    return {text[start : start + n] for start in range(len(text) - n + 1)}


def form(texts: Sequence[Words]) -> tuple[int, int]:
    """How many words all distinct texts begin with, and end with."""
    distinct = sorted(set(texts))
    if len(distinct) < 2:
        return 0, 0
    shortest = min(map(len, distinct))
    first = max(k for k in range(shortest + 1) if len({text[:k] for text in distinct}) == 1)
    last = max(k for k in range(shortest + 1) if len({text[len(text) - k :] for text in distinct}) == 1)
    return first, last


def core(text: Words, ends: tuple[int, int]) -> Words:
    return text[ends[0] : max(ends[0], len(text) - ends[1])] or text


@settings(max_examples=150)
@given(training=prompts, tests=prompts, n=st.integers(1, 4), most=st.integers(1, 3))
def test_the_fast_way_finds_what_comparing_every_pair_finds(
    training: list[str], tests: list[str], n: int, most: int
) -> None:
    trained, tested = [words(text) for text in training], [words(text) for text in tests]
    grams = {gram for text in tested for gram in windows(text, n)}
    evidence = {
        gram
        for gram in grams
        if sum(gram in windows(text, n) for text in set(tested)) <= most
        and sum(gram in windows(text, n) for text in set(trained)) <= most
    }
    expected = {}
    for number, text in enumerate(tested):
        exact = {
            row
            for row, other in enumerate(trained)
            if text and (other == text or core(other, form(trained)) == core(text, form(tested)))
        }
        mine = windows(text, n) & evidence
        by_ngram = {row for row, other in enumerate(trained) if mine & windows(other, n)}
        share = sum(any(gram in windows(other, n) for other in trained) for gram in mine) / max(len(mine), 1)
        if exact or by_ngram:
            expected[f"test-{number}"] = ("exact" if exact else "ngram", 1.0 if exact else share, exact | by_ngram)
    overlap = compare(asked(training), [(PLAIN, items(tests))], n=n, form=most)
    got = {
        one.item: (one.match, one.containment, {int(row) for row in one.rows}) for one in overlap.report.contaminated
    }
    assert got == expected
    assert overlap.rows == {row for _, _, rows in expected.values() for row in rows}


def test_a_form_that_all_prompts_share_is_no_evidence_and_hides_no_equal_question() -> None:
    instruction = "Think step by step, write down every step, and give the final number alone in the last line."
    training = [f"{instruction} Q{n}?" for n in range(30)]
    assert found(training, [f"{instruction} R{n}?" for n in range(30)]) == {}
    assert found(training, ["q3", "q99"]) == {"test-0": ("exact", "3")}


def test_an_item_inside_a_longer_prompt_is_found_by_its_ngrams() -> None:
    item = "Ann has five apples and gives two of them to each of her three brothers how many are left"
    assert found([f"Here is a riddle. {item}, do you know?", "nothing of it"], [item, "another one"]) == {
        "test-0": ("ngram", "0")
    }


def test_a_question_is_known_by_its_gold_however_it_is_worded() -> None:
    item = Item("test", "C30 100 93=23", {"numbers": [30, 100, 93], "target": 23})
    training = [
        Asked("a", "Reach 23 from 93, 30 and 100.", "countdown", {"numbers": [93, 30, 100], "target": 23}),
        Asked("b", "Reach 24 from 93, 30 and 100.", "countdown", {"numbers": [93, 30, 100], "target": 24}),
        Asked("c", "Reach 23 from 93, 30 and 100.", None, None),
    ]
    report = compare(training, [(load_task("countdown_published"), [item])]).report
    assert [(one.match, one.rows) for one in report.contaminated] == [("question", ("a",))]
    assert "1 of 1 of countdown_published: test (question)" in sentence(report)


def test_generated_training_splits_give_no_generated_test_item_away() -> None:
    tests, absent = held_out(None)
    assert set(absent) >= {"countdown_published", "sudoku_published"}
    for name in ("countdown", "sudoku"):
        task = load_task(name)
        rows = [Asked(i.id, str(i.prompt), name, i.gold) for i in task.items("train", None)]
        report = compare(rows, tests, absent).report
        assert report.contaminated == ()
        assert "none of" in sentence(report)


def published(path: Path) -> list[str]:
    return [json.loads(line)["question"] for line in path.read_text().splitlines()]


@pytest.mark.shared
def test_three_published_gsm8k_test_questions_share_thirteen_words_with_training_ones(shared: Path) -> None:
    """581, 602 and 632: of the last two, half and a third of the 13-grams stand in one training question."""
    training, tests = (published(shared / f"data/gsm8k/{split}.jsonl") for split in ("train", "test"))
    started = time.monotonic()
    report = compare(asked(training), [(PLAIN, items(tests))]).report
    assert time.monotonic() - started < 60  # 2 s on a free core; comparing every pair takes hours
    assert [(one.item, one.rows) for one in report.contaminated] == [
        ("test-581", ("406",)),
        ("test-602", ("1314", "5162")),
        ("test-632", ("20",)),
    ]


@pytest.mark.shared
def test_a_test_set_that_is_trained_on_is_found_whole_in_every_wording(shared: Path) -> None:
    from dare.data import load_data_set
    from dare.data.preparation import asked as prompts_of

    tests = [one for one in held_out(shared / "data")[0] if one[0].name.endswith("_published")]
    given: list[tuple[Task, Sequence[Item]]] = list(tests)
    for task, rows in (("countdown", 256), ("sudoku", 500)):
        data_set = load_data_set(f"file:{task}/dare_{task}_test.parquet", shared / "data")
        report = compare(prompts_of(data_set), given).report
        assert {one.task: one.contaminated for one in report.compared}[f"{task}_published"] == rows
        assert {one.match for one in report.contaminated} == {"question"}
