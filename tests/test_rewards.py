"""The judges: what counts as an answer, exact arithmetic, the rules of Sudoku."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, permutations, product
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dare.rewards import countdown, sudoku
from dare.rewards.answer import extract
from dare.rewards.countdown import ExpressionError, ExpressionPolicy

EVERYTHING_ALLOWED = ExpressionPolicy(
    equation="one_side", implicit_product=True, comments=True, unicode_digits=True, max_depth=None
)


@dataclass(frozen=True)
class Reading:
    """One way to read an answer: what a golden row calls a policy."""

    tags: Literal["required", "optional"] = "required"
    which: Literal["last", "first"] = "last"
    expression: ExpressionPolicy = countdown.DEFAULT_POLICY


READINGS = {
    "expression_only": Reading(),
    "left_side_of_equation": Reading(expression=ExpressionPolicy(equation="left_side")),
    "one_side_of_equation": Reading(expression=ExpressionPolicy(equation="one_side")),
    "depth_limited": Reading(),
    "unbounded": Reading(expression=ExpressionPolicy(max_depth=None)),
    "decimal_digits": Reading(),
    "python_literals": Reading(expression=ExpressionPolicy(leading_zeros=False)),
    "unary_signs": Reading(),
    "sentence_dot_stripped": Reading(),
    "comment_stripped": Reading(expression=ExpressionPolicy(comments=True)),
    "unicode_digits": Reading(expression=ExpressionPolicy(unicode_digits=True)),
    "ascii_only": Reading(),
    "tag_required": Reading(),
    "any_16_digits": Reading(tags="optional"),
    "last_tag": Reading(),
    "first_tag": Reading(which="first"),
    ("C7-2", "allowed"): Reading(expression=ExpressionPolicy(implicit_product=True)),
    ("C7-2", "refused"): Reading(),
    ("C7-3", "refused"): Reading(expression=ExpressionPolicy(repeated_signs=False)),
    ("C7-4", "refused"): Reading(expression=ExpressionPolicy(sentence_dot=False)),
    ("C7-5", "refused"): Reading(),
}


def verdict(row: dict[str, Any], reading: Reading) -> str:
    answer = extract(row["input"], tags=reading.tags, which=reading.which)
    if answer is None:
        return "no_answer"
    gold = row["gold"]
    if row["task"] == "sudoku":
        solved = sudoku.grade(gold["puzzle"], answer).solved
    else:
        solved = countdown.solves(answer, tuple(gold["numbers"]), gold["target"], reading.expression)
    return "correct" if solved else "wrong"


def expectations(row: dict[str, Any]) -> Iterator[tuple[str, Reading]]:
    if row["verdict"] is not None:
        yield row["verdict"], Reading()
    for policy, wanted in row.get("policy", {}).items():
        yield wanted, READINGS.get((row["id"], policy)) or READINGS[policy]


@pytest.mark.shared
def test_every_published_planning_case_gets_its_verdict_under_every_policy_within_a_second(shared: Path) -> None:
    rows = json.loads((shared / "goldens/rewards/planning.json").read_text())
    for row in rows:
        for wanted, reading in expectations(row):
            started = time.process_time()
            assert verdict(row, reading) == wanted, (row["id"], reading)
            assert time.process_time() - started < 1, row["id"]
    assert len(rows) == 42


@pytest.mark.shared
def test_every_reward_vector_gets_the_right_verdict_which_is_not_always_the_legacy_score(shared: Path) -> None:
    items = json.loads((shared / "goldens/algorithms/reward_vectors.json").read_text())["items"]
    rows = [row for row in items if row["task"] in ("countdown", "sudoku")]
    for row in rows:
        for wanted, reading in expectations(row):
            got = verdict(row, reading)
            # this file knows no verdict "no_answer": a missing answer is wrong there
            assert ("wrong" if got == "no_answer" else got) == wanted, (row["id"], reading)
    assert len(rows) == 24


@pytest.mark.shared
def test_cells_equals_the_public_shaped_score_wherever_the_answer_is_a_grid(shared: Path) -> None:
    items = json.loads((shared / "goldens/algorithms/reward_vectors.json").read_text())["items"]
    for row in items:
        if row["task"] != "sudoku":
            continue
        answer = extract(row["input"], tags="required")
        cells = sudoku.grade(row["gold"]["puzzle"], answer).cells if answer else 0.0
        is_grid = answer is not None and sudoku.read_grid(answer) is not None
        assert cells == (pytest.approx(row["legacy_score"]) if is_grid else 0.0), row["id"]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer> 3 \n</answer>", "3"),
        ("<answer>1</answer> no: <answer>2</answer>", "2"),
        ("<answer>1</answer> and <answer>2", "1"),
        ("<answer>1<answer>2</answer>", "2"),
        ("<answer>1</answer></answer>", "1"),
        ("</answer>1<answer>", None),
        ("<answer>  </answer>", None),
        ("<ANSWER>1</ANSWER>", None),
        ("", None),
    ],
)
def test_the_answer_is_what_the_last_closed_tag_holds(text: str, answer: str | None) -> None:
    assert extract(text, tags="required") == answer


def test_without_a_closed_tag_the_whole_text_is_the_answer_where_tags_are_optional() -> None:
    assert extract(" 3+4\n", tags="optional") == "3+4"
    assert extract(" 3+4\n", tags="required") is None
    assert extract("x <answer>1</answer>", tags="optional") == "1"
    assert extract(" \n", tags="optional") is None


def test_extraction_of_a_million_unclosed_tags_takes_no_time() -> None:
    started = time.process_time()
    extract("<answer>" * 1_000_000, tags="required")
    extract("</answer>" * 1_000_000, tags="required")
    extract("</answer>" + "<answer>" * 1_000_000, tags="optional", which="first")
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("2+3*4", 14),
        ("(2+3)*4", 20),
        ("8-3-2", 3),
        ("8/4/2", 1),
        ("-3*-4", 12),
        ("2--3*4", 14),
        ("-(2+3)", -5),
        (r"\frac{1+2}{4}\times 8", 6),
        (r"\left(1+2\right)\div 3", 1),
        (r"\dfrac{\frac{1}{2}}{3}", Fraction(1, 6)),
        ("12 − 4 ⋅ 2", 4),
        ("+5", 5),
        ("1/3+2/3", 1),
    ],
)
def test_an_expression_has_its_exact_value(text: str, result: Fraction | int) -> None:
    assert countdown.value(countdown.parse(text)) == result


@pytest.mark.parametrize(
    "text",
    [
        "",
        "()",
        "3+",
        "*3",
        "3 4",
        "(3",
        "3)",
        "3**4",
        "3//4",
        "4(2)",
        "(4)2",
        "3.5",
        "3e4",
        "1_0",
        "3²",
        "½",
        "x",
        "3%2",
        "(3}",
        r"\frac{3)}{4}",
        r"\frac(3)(4)",
        r"\frac{3}",
        r"\frac{3}4",
        "{3}",
        "\\",
        "3,4",
        "9" * 5000,
        "3=3",
        "0x3",
    ],
)
def test_a_text_outside_the_grammar_is_an_expression_error(text: str) -> None:
    with pytest.raises(ExpressionError):
        countdown.parse(text)


def test_a_long_or_deep_answer_is_wrong_and_fast() -> None:
    started = time.process_time()
    for text in ("(" * 5000 + "3+4" + ")" * 5000, "-" * 9000 + "3+4", "1/" * 5000 + "1", "9" * 10**6, "3+4" * 10**6):
        assert not countdown.solves(text, (3, 4), 8)
    assert countdown.solves("(" * 4000 + "3+4" + ")" * 4000, (3, 4), 7, EVERYTHING_ALLOWED)
    assert time.process_time() - started < 1


def test_a_box_around_the_answer_is_typography_and_can_be_refused() -> None:
    assert countdown.solves(r"\boxed{(86 \times 21) \div 74}.", (86, 21, 74), 24) is False  # 1806/74 is 24.4
    assert countdown.solves(r"\boxed{5 \times 4}", (4, 5), 20)
    assert not countdown.solves(r"\boxed{5 \times 4}", (4, 5), 20, ExpressionPolicy(boxed=False))


def test_the_other_side_of_an_equation_must_be_the_target_as_a_number() -> None:
    assert not countdown.solves("3+4=3+4", (3, 4), 7, EVERYTHING_ALLOWED)
    assert not countdown.solves("3+4=7=7", (3, 4), 7, EVERYTHING_ALLOWED)
    assert not countdown.solves("7=3+4", (3, 4), 7, ExpressionPolicy(equation="left_side"))
    assert not countdown.solves("=7", (3, 4), 7, EVERYTHING_ALLOWED)


expressions = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*/"), inner).map("".join),
        inner.map(lambda text: f"({text})"),
        inner.map(lambda text: f"(-{text})"),
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(expressions)
def test_values_agree_with_python_on_fractions(text: str) -> None:
    """Python is the oracle for text that this test wrote itself; every number becomes an exact Fraction first."""
    digits = "".join(c if c in "0123456789" else f" {c} " for c in text).split()
    exact = "".join(f"Fraction({token})" if token.isdigit() else token for token in digits)
    try:
        expected = eval(exact, {"Fraction": Fraction})
    except ZeroDivisionError:
        with pytest.raises(ExpressionError, match="division by zero"):
            countdown.value(countdown.parse(text))
    else:
        assert countdown.value(countdown.parse(text)) == expected


@settings(deadline=None)
@given(st.text() | st.text("0123456789+-*/()={}#. \\frac÷×٣boxed"))
def test_no_text_makes_a_judge_raise(text: str) -> None:
    for policy in (countdown.DEFAULT_POLICY, EVERYTHING_ALLOWED):
        assert countdown.solves(text, (1, 2, 3), 5000, policy) is False
    grade = sudoku.grade("0321003004002100", text)
    assert 0 <= grade.cells <= 1
    for which in ("last", "first"):
        extract(text, tags="optional", which=which)


@settings(deadline=None)
@given(st.tuples(*[st.integers(1, 100)] * 3))
def test_the_enumerated_forms_mean_what_they_say_and_use_every_number(numbers: tuple[int, int, int]) -> None:
    forms = countdown.forms(numbers)
    assert len(forms) == 192
    for text, result in forms:
        expression = countdown.parse(text)
        assert sorted(token for token in expression if isinstance(token, int)) == sorted(numbers)
        try:
            exact = countdown.value(expression)
        except ExpressionError:
            assert result is None
        else:
            assert result == (exact if exact.denominator == 1 else None)
    for target, text in countdown.shortest(numbers).items():
        assert countdown.solves(text, numbers, target)
        assert len(text) == min(len(other) for other, result in forms if result == target)


def test_the_chance_of_a_form_counts_the_forms_that_reach_the_target() -> None:
    assert countdown.chance((1, 1, 1), 3) == 12 / 192  # only +, + : 6 orders x 2 groupings
    assert countdown.chance((1, 1, 1), 99) == 0


def obeys_the_rules(rows: tuple[str, ...]) -> bool:
    """By the definition: every row, column and box holds four different digits."""
    columns = zip(*rows, strict=True)
    boxes = (rows[r][c : c + 2] + rows[r + 1][c : c + 2] for r in (0, 2) for c in (0, 2))
    return all(len(set(unit)) == 4 for unit in chain(columns, boxes, rows))


def test_there_are_288_grids_and_they_are_all_that_obey_the_rules() -> None:
    rows = ["".join(digits) for digits in permutations("1234")]
    assert tuple("".join(four) for four in product(rows, repeat=4) if obeys_the_rules(four)) == sudoku.grids()
    assert len(sudoku.grids()) == 288


@settings(deadline=None)
@given(st.integers(0, 287), st.lists(st.booleans(), min_size=16, max_size=16))
def test_the_solver_finds_every_grid_that_keeps_the_givens(number: int, hidden: list[bool]) -> None:
    grid = sudoku.grids()[number]
    puzzle = "".join("0" if hide else digit for hide, digit in zip(hidden, grid, strict=True))
    brute = tuple(g for g in sudoku.grids() if all(p in ("0", d) for p, d in zip(puzzle, g, strict=True)))
    assert sudoku.solutions(puzzle) == brute
    assert all(sudoku.grade(puzzle, solution) == (True, 1.0) for solution in brute)


def test_a_generated_puzzle_has_its_holes_and_one_solution() -> None:
    generator = random.Random(0)
    for holes in range(1, 13):
        puzzle = sudoku.random_puzzle(generator, sudoku.grids()[7], holes)
        assert puzzle.count("0") == holes
        assert sudoku.solutions(puzzle) == (sudoku.grids()[7],)


def test_any_solution_is_right_and_cells_follow_the_one_that_agrees_best() -> None:
    puzzle = "0000003004002100"
    several = sudoku.solutions(puzzle)
    assert len(several) > 1
    for solution in several:
        assert sudoku.grade(puzzle, solution) == (True, 1.0)
        blank = solution.replace(solution[0], "0")
        agreement = max(sum(puzzle[i] == "0" and blank[i] == s[i] for i in range(16)) for s in several)
        assert sudoku.grade(puzzle, blank) == (False, agreement / puzzle.count("0"))


def test_a_valid_grid_that_overwrites_a_given_is_not_solved() -> None:
    puzzle, solution = "0321003004002100", "4321123434122143"
    other = next(grid for grid in sudoku.grids() if grid not in sudoku.solutions(puzzle))
    assert not sudoku.grade(puzzle, other).solved
    assert sudoku.grade(puzzle, solution[0] + "2" + solution[2:]) == (False, 1.0)


def test_a_contradictory_puzzle_has_no_right_answer() -> None:
    assert sudoku.solutions("1100000000000000") == ()
    assert sudoku.grade("1100000000000000", sudoku.grids()[0]) == (False, 0.0)


def test_a_puzzle_without_holes_is_right_or_worth_nothing() -> None:
    grid = sudoku.grids()[0]
    assert sudoku.grade(grid, grid) == (True, 1.0)
    assert sudoku.grade(grid, sudoku.grids()[1]) == (False, 0.0)


@pytest.mark.parametrize("digits", [15, 17, 18])
def test_a_wrong_length_is_no_grid(digits: int) -> None:
    text = ("4321123434122143" * 2)[:digits]
    assert sudoku.grade("0321003004002100", text) == (False, 0.0)
