"""How a board is cited, and what is said of what changed."""

from __future__ import annotations

from dataclasses import replace

from board_samples import BGPO, D1, board

from dare_platform.snapshots import changes
from leaderboard.snapshot_parts import bibtex, changes_table


def test_a_citation_names_board_day_and_hash_and_leads_there() -> None:
    made = board(BGPO)
    text = bibtex(made, "https://dare.example.org")
    assert text.startswith("@misc{dare-9f3c01ab,")
    assert "title = {DARE leaderboard, track tiny 1.0, llada-tiny}" in text
    assert f"url = {{https://dare.example.org/snapshot?hash={made.digest}}}" in text
    assert "2026-09-21" in text
    assert "url" not in bibtex(made, None)


def test_a_name_cannot_leave_its_braces() -> None:
    text = bibtex(replace(board(BGPO), backbone="a}_%{{"), None)
    assert r"a\textbraceright{}\_\%\textbraceleft{}" in text
    assert text.count("{") == text.count("}")


def test_what_changed_is_shown_in_the_units_of_the_board() -> None:
    before, after = board(BGPO, D1), board(replace(BGPO, rank=(2, 3)))
    html = changes_table(changes(before, after), before, after)
    assert "d1" in html
    assert "left" in html
    assert "1–2" in html
    assert "2–3" in html
