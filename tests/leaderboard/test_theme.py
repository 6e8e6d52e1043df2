from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from leaderboard import theme
from leaderboard.theme import Shade


def luminance(colour: str) -> float:
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    brighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


def both(ink: Shade, ground: Shade) -> float:
    return min(contrast(ink.light, ground.light), contrast(ink.dark, ground.dark))


GROUNDS = (theme.BACKGROUND, theme.PANEL)


@pytest.mark.parametrize("ground", GROUNDS)
@pytest.mark.parametrize(
    "ink", [theme.TEXT, theme.SECONDARY, theme.LINK, theme.ATTENTION, theme.POSITIVE, theme.ACCENT]
)
def test_text_is_legible_on_both_grounds(ink: Shade, ground: Shade) -> None:
    assert both(ink, ground) >= 4.5


@pytest.mark.parametrize("band", theme.BANDS.values(), ids=list(theme.BANDS))
def test_text_is_legible_on_every_tint(band: Shade) -> None:
    assert both(theme.TEXT, band) >= 7
    assert both(theme.SECONDARY, band) >= 4.65
    assert both(theme.ATTENTION, band) >= 4.5


def test_lines_and_series_stand_out_from_the_ground() -> None:
    assert both(theme.AXIS, theme.BACKGROUND) >= 3
    for slot in (*theme.SLOTS, theme.OTHER_SERIES):
        assert both(slot, theme.BACKGROUND) >= 3
    assert both(theme.ATTENTION, theme.ATTENTION_GROUND) >= 4.5
    assert both(theme.BACKGROUND, theme.ACCENT) >= 4.5  # text of the primary button


@pytest.mark.parametrize(
    ("points", "band"),
    [
        (-12.0, "worse3"),
        (-11.9, "worse2"),
        (-5.0, "worse2"),
        (-1.0, "worse1"),
        (-0.9, None),
        (0.0, None),
        (1.0, "better1"),
        (5.0, "better2"),
        (12.0, "better3"),
    ],
)
def test_bands_deepen_at_their_edges(points: float, band: str | None) -> None:
    assert theme.band_of(points) == band


def test_bands_grow_darker_on_light_and_brighter_on_dark_ground() -> None:
    for side in ("better", "worse"):
        shades = [theme.BANDS[f"{side}{depth}"] for depth in (1, 2, 3)]
        for lighter, deeper in pairwise(shades):
            assert luminance(lighter.light) > luminance(deeper.light)
            assert luminance(lighter.dark) < luminance(deeper.dark)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_logo_is_four_tiles_one_of_them_a_mask(scheme: theme.Scheme) -> None:
    logo = ElementTree.fromstring(theme.logo(scheme))
    tiles = [element for element in logo if element.tag.endswith("rect")]
    letters = "".join(element.text or "" for element in logo if element.tag.endswith("text"))
    assert letters == "DARE"
    assert [tile.get("fill") == "none" for tile in tiles] == [False, False, True, False]


def test_every_variable_of_the_style_sheet_is_defined_and_used() -> None:
    sheet = theme.styles()
    assert set(re.findall(r"var\(--([a-z-]+)\)", sheet)) == set(theme.VARIABLES)


def test_the_label_of_a_disabled_button_has_a_ground_of_its_own() -> None:
    rules = dict(re.findall(r"([^{}]*stBaseButton-primary[^{}]*)\{([^}]*)\}", theme.styles()))
    for selectors, style in rules.items():
        expected = "var(--secondary)" if ":disabled" in selectors else "var(--background)"
        assert f" color: {expected}" in style
        for selector in selectors.split(","):
            assert ":enabled" in selector or ":disabled" in selector
    assert any("background: var(--panel)" in style for style in rules.values())


def test_colours_are_written_in_one_place_and_no_style_reaches_another_host() -> None:
    from importlib import resources

    sheet = resources.files("leaderboard").joinpath("styles.css").read_text()
    assert not re.search(r"#[0-9A-Fa-f]{3,8}\b", sheet)
    assert "url(" not in theme.styles()
    assert "@import" not in theme.styles()
