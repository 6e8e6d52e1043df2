"""Real answers of LLaDA-8B-Instruct: our scorers' verdicts on them must not move, and the committed study says them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dare.tasks import load_task
from studies.real_answers import (
    D1,
    LEFT_SIDE,
    OPENCOMPASS,
    OURS,
    PAGE,
    PUBLISHED,
    RESULTS,
    SETS,
    SUMMARY,
    Answers,
    by_d1,
    chance,
    masks_left,
    ours,
    read,
    report,
    rows,
    scorers,
    summary,
)

LINES = read(RESULTS)
QUICK = [answers for answers in SETS if answers.task != "math_500"]
SLOW = [answers for answers in SETS if answers.task == "math_500"]
SOLVED = {
    "gsm8k_len128_steps64": (784, 20),
    "gsm8k_len256_steps128": (883, 13),
    "math500_len256_steps128": (178, 14),
    "math500_len512_steps256": (199, 17),
    "countdown_len128_steps64": (48, 0),
    "countdown_len256_steps128": (38, 0),
    "countdown_len512_steps256": (31, 1),
    "sudoku_len128_steps64": (1, 0),
    "sudoku_len256_steps128": (0, 0),
    "sudoku_len512_steps256": (0, 0),
}
"""Solved and without an answer. Whoever changes one of these changes the task's version and says why."""


def name_of(answers: Answers) -> str:
    return answers.name


def check(data: Path, answers: Answers) -> None:
    """Item by item as in the study, and the counts as above."""
    verdicts, _ = ours(data, answers, {})
    [known] = [one for one in LINES if (one.set, one.scorer) == (answers.name, OURS)]
    assert "".join(str(int(verdict.solved)) for verdict in verdicts) == known.solved
    silent = sum(verdict.status == "no_answer" for verdict in verdicts)
    assert (known.solved.count("1"), silent) == SOLVED[answers.name]
    assert known.no_answer == silent
    assert not any(verdict.status == "error" for verdict in verdicts)


@pytest.mark.shared
@pytest.mark.parametrize("answers", QUICK, ids=name_of)
def test_our_verdicts_on_real_answers_have_not_moved(answers: Answers, shared: Path) -> None:
    check(shared / "data", answers)


@pytest.mark.shared
@pytest.mark.full
@pytest.mark.parametrize("answers", SLOW, ids=name_of)
def test_our_verdicts_on_real_formulas_have_not_moved(answers: Answers, shared: Path) -> None:
    check(shared / "data", answers)


@pytest.mark.shared
@pytest.mark.parametrize("answers", [one for one in SETS if "published" in one.task], ids=name_of)
def test_by_its_own_rules_d1_gets_what_it_reports(answers: Answers, shared: Path) -> None:
    """Of the same 256 answers: to the digit that is reported."""
    shares = by_d1(shared / "data", answers)
    assert abs(sum(shares) / len(shares) - PUBLISHED[answers.task][answers.length] / 100) < 0.0005 + 1e-9


@pytest.mark.shared
def test_where_d1_is_kinder_to_a_countdown_a_policy_or_a_missing_tag_is_why(shared: Path) -> None:
    task = load_task("countdown_published")
    for answers in SETS:
        if answers.task != task.name:
            continue
        verdicts, theirs = ours(shared / "data", answers, {})[0], by_d1(shared / "data", answers)
        left_side = ours(shared / "data", answers, {"equation": "left_side_of_equation"})[0]
        for row, verdict, kind, they in zip(rows(shared / "data", answers), verdicts, left_side, theirs, strict=True):
            if row.item.id == "row-073" and answers.length == 128:  # a tag without a box: d1 reads the whole text
                assert verdict.solved
                assert not they
                continue
            assert verdict.solved <= kind.solved <= bool(they)
            if they and not kind.solved:
                box = row.text.rindex(r"\boxed{")
                assert not re.search(r"<answer>\s*\\boxed\{[^{}]*\}\s*</answer>", row.text[box - 20 :])


@pytest.mark.shared
def test_no_real_answer_has_a_mask_left_in_it(shared: Path) -> None:
    assert set(masks_left(shared / "data").values()) == {0}


@pytest.mark.shared
@pytest.mark.full
def test_the_chance_floors_of_the_published_sudokus_are_those_of_their_task(shared: Path) -> None:
    """256 of the 500 puzzles: about the same, which the stated floors of all 500 are."""
    solved, cells = chance(shared / "data", SETS[-1])
    assert solved == pytest.approx(load_task("sudoku_published").chance_floor, rel=0.1)
    assert cells == pytest.approx(0.268, abs=0.005)


def test_every_set_has_every_scorer_and_every_line_says_commit_date_and_machine() -> None:
    for answers in SETS:
        found = [one for one in LINES if one.set == answers.name]
        names = [one.scorer for one in found]
        assert len(names) == len(set(names))
        assert {OURS} | ({LEFT_SIDE} & set(scorers(answers))) | ({D1} & set(scorers(answers))) <= set(names)
        assert sum(name.startswith("lm_eval-0.4.13") for name in names) == {"gsm8k": 2, "math_500": 3}.get(
            answers.task, 0
        )
        assert sum(name.startswith("opencompass-0.5.4") for name in names) == len(OPENCOMPASS.get(answers.task, ()))
    for one in LINES:
        assert re.fullmatch(r"[0-9a-f]{7}", one.commit)
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", one.date)
        assert one.cores > 0
        assert set(one.solved) <= set("01-")


@pytest.mark.shared
@pytest.mark.full
def test_the_tables_of_the_documents_are_those_of_the_results(shared: Path) -> None:
    data = shared / "data"
    assert between(PAGE, "tables") == report(data, LINES)
    assert between(SUMMARY, "real answers") == summary(data, LINES)


def between(page: Path, mark: str) -> str:
    return page.read_text(encoding="utf-8").partition(f"<!-- {mark} -->\n")[2].partition("\n<!-- end -->")[0]
