"""The board of all backbones: nothing is averaged over them, and what is missing is said."""

from __future__ import annotations

from dataclasses import replace

from board_samples import board, measured, method

from dare_platform.board import Board, Estimate, Row
from leaderboard.across import across_table, carries_over

BGPO = method("bgpo", measured(0.60))


def on(backbone: str, *rows: Row) -> Board:
    return board(*rows, backbone=backbone)


def gaining(name: str, points: float, half: float = 0.02) -> Row:
    return replace(BGPO, name=name, gain=Estimate(points / 100, half, 3), rank=(1, 2))


def test_every_entry_has_a_cell_on_every_backbone_and_no_mean() -> None:
    html = across_table([on("a", gaining("bgpo", 14.8), gaining("d1", 3.0)), on("b", gaining("bgpo", -6.0))])
    assert html.count('<th scope="col"') == 3
    assert "+14.8" in html
    assert "\u22126.0" in html
    assert "Not entered on this backbone." in html
    assert 'class="number better3"' in html
    assert 'class="number worse2"' in html
    assert html.index("bgpo") < html.index("d1"), "on more backbones comes first"


def test_a_gain_within_noise_has_no_tint() -> None:
    html = across_table([on("a", gaining("bgpo", 6.0, half=0.08))])
    assert "better" not in html.split("<tbody>")[1].split("</tbody>")[0]


def test_an_entry_that_is_not_ranked_shows_what_there_is() -> None:
    rows = [replace(gaining("few", 0), gain=None, rank=None, preliminary_gain=Estimate(0.05, None, 1))]
    html = across_table([on("a", *rows)])
    assert "preliminary" in html
    assert "+5.0" in html


def test_names_are_text() -> None:
    html = across_table([on("a", gaining("<b>bold</b>", 1.0))])
    assert "<b>bold" not in html


def test_a_finding_needs_two_backbones_and_both_intervals() -> None:
    assert carries_over([on("a"), on("b")]) == "**Nothing can be said yet:** no backbone has a ranked method."
    assert "only a has" in carries_over([on("a", gaining("bgpo", 9)), on("b")])
    both = [on("a", gaining("bgpo", 9), gaining("d1", 9)), on("b", gaining("bgpo", 9), gaining("d1", 1))]
    assert carries_over(both) == (
        "**bgpo** is above the untouched model beyond noise on all 2 backbones with ranked methods."
    )
    assert carries_over([on("a", gaining("bgpo", 9)), on("b", gaining("bgpo", -9))]) == (
        "**No method is above the untouched model beyond noise on all 2 backbones with ranked methods.**"
    )
