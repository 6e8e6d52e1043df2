"""Colours, logo and styles: the one place where a colour is written; a test recomputes the contrasts.

A style uses `light-dark()`, which follows the colour scheme that Streamlit sets on the page (and the reader's, in a
file outside it), so that one HTML serves both.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Literal, NamedTuple

Scheme = Literal["light", "dark"]


class Shade(NamedTuple):
    """One role's colour in both schemes."""

    light: str
    dark: str

    def __str__(self) -> str:
        return f"light-dark({self.light}, {self.dark})"

    def of(self, scheme: Scheme) -> str:
        """The colour in one scheme, for charts, which know no CSS."""
        return self.dark if scheme == "dark" else self.light


BACKGROUND = Shade("#FFFFFF", "#12151C")
PANEL = Shade("#F5F6F8", "#1B1F29")
TEXT = Shade("#1A1D24", "#E8EAF0")
SECONDARY = Shade("#4A5060", "#B6BCCA")
HAIRLINE = Shade("#DDE0E6", "#323846")
AXIS = Shade("#8A90A0", "#7C8496")
ACCENT = Shade("#1F5FBF", "#7FB2FF")
LINK = Shade("#1B55AD", "#8DBBFF")
ATTENTION = Shade("#8A3B00", "#FFB784")
ATTENTION_GROUND = Shade("#FDF0E4", "#33241A")
POSITIVE = Shade("#0B6B57", "#5FD3B3")
MASK = Shade("#D5D9E2", "#323846")

BAND_EDGES = (1.0, 5.0, 12.0)
"""Points of gain at which a cell's tint begins and deepens, on either side of zero."""
BANDS: dict[str, Shade] = {
    "worse3": Shade("#F6C79E", "#6E3A14"),
    "worse2": Shade("#FADFC7", "#50301A"),
    "worse1": Shade("#FDF0E4", "#33241A"),
    "better1": Shade("#E9F0FB", "#172538"),
    "better2": Shade("#CFE0F7", "#1C3558"),
    "better3": Shade("#A9C8F2", "#1F477D"),
}
SLOTS: tuple[Shade, ...] = (
    Shade("#0B5CAD", "#CFE8FF"),
    Shade("#B8480E", "#F28E2B"),
    Shade("#2A9D8F", "#2FB79B"),
    Shade("#1A1D24", "#B07CFF"),
)
"""Series of a chart, by position; never a fifth."""
OTHER_SERIES = Shade("#7A8090", "#8B93A5")


def band_of(points: float) -> str | None:
    """The tint of a gain in points, or None inside the innermost edge."""
    depth = sum(abs(points) >= edge for edge in BAND_EDGES)
    return f"{'better' if points > 0 else 'worse'}{depth}" if depth else None


def logo(scheme: Scheme) -> str:
    """Four token tiles; the third is still a mask."""
    ink, paper, accent = TEXT.of(scheme), BACKGROUND.of(scheme), ACCENT.of(scheme)
    tiles = []
    for left, letter in zip((1, 24, 47, 70), "DARE", strict=True):
        masked = letter == "R"
        tiles.append(
            f'<rect x="{left + 1}" y="3" width="18" height="18" rx="3" fill="none" stroke="{accent}" '
            'stroke-width="2" stroke-dasharray="3.1 2.2"/>'
            if masked
            else f'<rect x="{left}" y="2" width="20" height="20" rx="3" fill="{ink}"/>'
        )
        tiles.append(
            f'<text x="{left + 10}" y="17.3" text-anchor="middle" font-family="Source Sans, Source Sans Pro, '
            f'system-ui, sans-serif" font-weight="700" font-size="15" fill="{accent if masked else paper}">'
            f"{letter}</text>"
        )
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="94" height="24" viewBox="0 0 94 24">{"".join(tiles)}</svg>'


FAVICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="24" height="24" viewBox="0 0 24 24"><rect x="3" y="3" width="18" '
    'height="18" rx="3" fill="none" stroke="#1F5FBF" stroke-width="2.6" stroke-dasharray="4.1 2.8"/></svg>'
)


def streamlit_options() -> dict[str, str | bool | int | list[str] | list[int]]:
    """The `theme.*` options of Streamlit for both schemes."""
    options: dict[str, str | bool | int | list[str] | list[int]] = {
        "theme.baseRadius": "6px",
        "theme.headingFontSizes": ["28px", "20px", "17px", "16px", "16px", "16px"],
        "theme.headingFontWeights": [700, 600, 600, 600, 600, 600],
        "theme.linkUnderline": True,
    }
    schemes: tuple[Scheme, Scheme] = ("light", "dark")
    for scheme in schemes:
        for option, shade in {
            "primaryColor": ACCENT,
            "backgroundColor": BACKGROUND,
            "secondaryBackgroundColor": PANEL,
            "textColor": TEXT,
            "linkColor": LINK,
            "borderColor": HAIRLINE,
            "dataframeBorderColor": HAIRLINE,
            "codeTextColor": TEXT,
        }.items():
            options[f"theme.{scheme}.{option}"] = shade.of(scheme)
        options[f"theme.{scheme}.chartCategoricalColors"] = [shade.of(scheme) for shade in SLOTS]
    return options


VARIABLES: dict[str, Shade] = {
    "background": BACKGROUND,
    "panel": PANEL,
    "text": TEXT,
    "secondary": SECONDARY,
    "hairline": HAIRLINE,
    "axis": AXIS,
    "accent": ACCENT,
    "link": LINK,
    "attention": ATTENTION,
    "attention-ground": ATTENTION_GROUND,
    "positive": POSITIVE,
    "mask": MASK,
}


@cache
def styles() -> str:
    """The style sheet with its colours."""
    variables = "".join(f"--{name}:{shade};" for name, shade in VARIABLES.items())
    bands = "".join(f".dare.board tr td.{name}{{background:{shade}}}\n" for name, shade in BANDS.items())
    sheet = resources.files("leaderboard").joinpath("styles.css").read_text(encoding="utf-8")
    return f".stApp{{{variables}}}\n{sheet}{bands}"
