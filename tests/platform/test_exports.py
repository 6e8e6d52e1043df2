"""A board as CSV, JSON and LaTeX: full precision in files, the page's rounding in print, nothing a spreadsheet runs."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace

import pytest
from board_cases import REFERENCE, board, entry, unfinished

from dare_platform import exports
from dare_platform.board import Board
from dare_platform.board_facts import RunFact

HOSTILE = (
    "=1+1",
    "+cmd|' /C calc'!A0",
    "@SUM(A1)",
    "-2",
    "\t=1",
    '"quoted", with comma',
    "<script>",
    "naïve 🙂",
    "a_b & 50% {x}",
)
MADE = board(REFERENCE, entry("bgpo", [0.60, 0.62, 1 / 3 + 0.28]), unfinished("late", RunFact("train", 0, "queued")))


def lines(made: Board) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(exports.csv(made))))


def named(name: str) -> Board:
    return board(REFERENCE, replace(entry("bgpo", [0.6, 0.6, 0.6]), name=name))


def test_the_csv_has_every_row_in_full_precision() -> None:
    rows = lines(MADE)
    assert [row["name"] for row in rows] == ["untouched", "bgpo", "late"]
    first = MADE.rows[1]
    assert first.gain is not None
    assert float(rows[1]["gain"]) == first.gain.value
    assert float(rows[1]["gain_half_width"]) == first.gain.half_width
    assert (rows[1]["rank_low"], rows[1]["rank_high"], rows[1]["sudoku_seeds"]) == ("1", "1", "3")
    assert (rows[2]["gain"], rows[2]["rank_low"], rows[2]["sudoku_state"], rows[2]["sudoku_solved"]) == (
        "",
        "",
        "queued",
        "",
    )


def test_no_number_is_written_as_nan() -> None:
    assert "nan" not in exports.csv(MADE).lower()
    assert not math.isnan(float(lines(MADE)[0]["sudoku_solved"]))


@pytest.mark.parametrize("name", HOSTILE)
def test_no_cell_is_a_formula_and_text_survives(name: str) -> None:
    cell = lines(named(name))[1]["name"]
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    assert cell.removeprefix("'") == name


def test_negative_numbers_stay_numbers() -> None:
    row = lines(board(REFERENCE, entry("bad", [0.1, 0.1, 0.1])))[1]
    assert float(row["gain"]) == pytest.approx(-0.1)


def test_the_csv_says_what_its_columns_mean() -> None:
    header = exports.csv(MADE).splitlines()[0].split(",")
    assert set(header) == set(exports.column_dictionary(MADE))
    assert all(text.endswith(".") for text in exports.column_dictionary(MADE).values())


def test_the_json_is_the_whole_board_with_its_dictionary() -> None:
    content = json.loads(exports.json(MADE))
    assert content["board"]["digest"] == MADE.digest
    assert content["board"]["rows"][1]["gain"]["value"] == MADE.rows[1].gain.value  # type: ignore[union-attr]
    assert content["columns"] == exports.column_dictionary(MADE)


def test_the_latex_table_rounds_like_the_page() -> None:
    text = exports.latex(board(REFERENCE, entry("bgpo", [0.60, 0.62, 0.61])))
    assert r"1 & bgpo & $+41.0 \pm 2.5$ & $61.0 \pm 2.5$ & $61.0 \pm 2.5$ \\" in text
    assert r"ref & untouched & 0 & $20.0 \pm 0.0$ & $20.0 \pm 0.0$ \\" in text
    assert text.startswith("% DARE, track tiny 1.0, backbone llada-tiny, board ")
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == 1


def test_latex_shows_what_is_missing() -> None:
    assert r"-- & late & -- & queued & queued \\" in exports.latex(MADE)


EARLY = board(REFERENCE, entry("early", [0.5]), unfinished("half", RunFact("train", 2, "working"), done=[0.4, 0.5]))


def test_preliminary_numbers_are_named_and_claim_nothing() -> None:
    found = {row["name"]: row for row in lines(EARLY)}
    early, half = found["early"], found["half"]
    assert (early["sudoku_state"], early["sudoku_solved"], early["sudoku_seeds"]) == ("preliminary", "0.5", "1")
    assert (half["sudoku_state"], half["sudoku_seeds"]) == ("running", "2")
    assert float(early["preliminary_gain"]) == pytest.approx(0.3)
    assert early["gain"] == early["rank_low"] == early["sudoku_significant"] == early["sudoku_at_or_below_chance"] == ""
    text = exports.latex(EARLY)
    assert r"-- & early & -- & $50.0$ (1 of 3 seeds) & $50.0$ (1 of 3 seeds) \\" in text
    assert r"-- & half & -- & $45.0$ (2 of 3 seeds) & $45.0$ (2 of 3 seeds) \\" in text


def test_latex_is_escaped() -> None:
    text = exports.latex(named("a_b & 50% {x}"))
    assert r"a\_b \& 50\% \{x\}" in text


def test_an_empty_board_exports() -> None:
    empty = board()
    assert lines(empty) == []
    assert json.loads(exports.json(empty))["board"]["rows"] == []
    assert r"\midrule" in exports.latex(empty)
