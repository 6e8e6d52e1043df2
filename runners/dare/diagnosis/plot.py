"""The picture of a diagnosis as SVG: a panel per decoder, a line per method, its cosine and the spread over tables."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from html import escape

from dare.diagnosis.directions import Alignment, ranked

INK, QUIET, RULE = "#1a1a1a", "#5f6368", "#dadce0"
METHOD, SCORE = "#0072b2", "#d55e00"  # blue and vermilion of Okabe and Ito, told apart by every eye
MARGIN, NAMES, PANEL, GAP, NUMBERS = 24, 132, 212, 18, 50
TOP, LINE, GROUP, BELOW, NOTE_LINE = 132, 22, 34, 60, 18
LOWEST, HIGHEST = -0.2, 1.0
TITLE_LINE, LETTER = 24, 11  # LETTER: width of a letter of the title at most, on average
TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)


def figure(found: Sequence[Alignment], notes: Sequence[str]) -> str:
    """The whole picture; `notes` are lines below it that say what was run."""
    decoders = list(dict.fromkeys(row.decoder for row in found))
    methods, scores = ranked(found, exact=False), ranked(found, exact=True)
    names = [*methods, *scores]
    height = {name: TOP + LINE * n + (GROUP if name in scores else 0) for n, name in enumerate(names)}
    bottom = TOP + LINE * (len(names) - 1) + GROUP + 18
    width = MARGIN * 2 + NAMES + len(decoders) * (PANEL + NUMBERS + GAP) - GAP
    width = max(width, 640)
    title = textwrap.wrap(finding(found), int((width - 2 * MARGIN) / LETTER))
    extra = TITLE_LINE * (len(title) - 1)
    total = bottom + BELOW + NOTE_LINE * len(notes) + extra
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {total}" width="{width}" height="{total}" '
        "font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\">",
        f"<title>{escape(finding(found))}</title>",
        f'<rect width="{width}" height="{total}" fill="#ffffff"/>',
        *(_text(MARGIN, 38 + TITLE_LINE * n, line, INK, size=18, weight=600) for n, line in enumerate(title)),
        f'<g transform="translate(0 {extra})">',
        _text(MARGIN, 62, "Cosine between a method's expected gradient and the true policy gradient", QUIET),
    ]
    parts += [_text(MARGIN + NAMES - 12, height[name] + 4, name, INK, anchor="end") for name in names]
    if scores:
        parts.append(
            _text(MARGIN + NAMES - 12, height[scores[0]] - 20, "scores alone, exact", QUIET, size=12, anchor="end")
        )
    by_place = {(row.decoder, row.method, row.exact): row for row in found}
    for number, decoder in enumerate(decoders):
        left = MARGIN + NAMES + number * (PANEL + NUMBERS + GAP)
        parts += _panel(left, decoder, bottom)
        for exact, group in ((False, methods), (True, scores)):
            for name in group:
                if (decoder, name, exact) in by_place:
                    parts += _mark(left, height[name], by_place[decoder, name, exact])
    spread = "Bars: standard deviation over tables. 1: the method follows the reward; 0: its direction is unrelated."
    parts += [
        _text(MARGIN, bottom + 44 + NOTE_LINE * n, note, QUIET, size=12) for n, note in enumerate((spread, *notes))
    ]
    return "\n".join([*parts, "</g>", "</svg>\n"])


def finding(found: Sequence[Alignment]) -> str:
    """The title: the best and the worst method under the first decoder."""
    decoder = found[0].decoder
    ordered = sorted(
        (r for r in found if r.decoder == decoder and not r.exact and r.mean == r.mean), key=lambda r: -r.mean
    )
    if not ordered:
        return f"No method has a gradient under {decoder} decoding"
    best, worst = ordered[0], ordered[-1]
    equal = [row.method for row in ordered if best.mean - row.mean < 5e-3]
    leaders = " and ".join(equal) if len(equal) < 3 else f"{len(equal)} methods"
    title = f"Under {decoder} decoding {leaders} follow{'s' if len(equal) == 1 else ''} the reward best"
    title += f" (cosine\N{NO-BREAK SPACE}{_number(best.mean)})"
    if len(ordered) > len(equal):
        title += f", {worst.method} least\N{NO-BREAK SPACE}({_number(worst.mean)})"
    return title


def _number(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


def _panel(left: int, decoder: str, bottom: int) -> list[str]:
    """Heading, grid and axis of one decoder."""
    parts = [_text(left, TOP - 34, f"{decoder} decoding", INK, size=14, weight=600)]
    for tick in TICKS:
        x = _x(left, tick)
        colour = QUIET if tick in (0.0, 1.0) else RULE
        parts.append(f'<line x1="{x:.1f}" y1="{TOP - 16}" x2="{x:.1f}" y2="{bottom}" stroke="{colour}"/>')
        parts.append(_text(x, bottom + 18, f"{tick:g}", QUIET, size=12, anchor="middle"))
    return parts


def _mark(left: int, y: int, row: Alignment) -> list[str]:
    """Bar of the spread, mark of the mean and the number of one method."""
    if row.mean != row.mean:  # no gradient, so no direction
        return [_text(_x(left, 0) + 6, y + 4, "no gradient", QUIET, size=12)]
    low, middle, high = (_x(left, row.mean + side * row.deviation) for side in (-1, 0, 1))
    colour = SCORE if row.exact else METHOD
    shape = f'<circle cx="{middle:.1f}" cy="{y}" r="5" fill="{colour}"/>'
    if row.exact:
        corners = f"M{middle:.1f} {y - 5.5}l5.5 5.5l-5.5 5.5l-5.5 -5.5z"
        shape = f'<path d="{corners}" fill="#ffffff" stroke="{colour}" stroke-width="2"/>'
    return [
        f'<line x1="{low:.1f}" y1="{y}" x2="{high:.1f}" y2="{y}" stroke="{colour}" stroke-width="2" opacity="0.55"/>',
        shape,
        _text(left + PANEL + NUMBERS - 4, y + 4, _number(row.mean), INK, anchor="end"),
    ]


def _x(left: int, value: float) -> float:
    """Place of a cosine; what lies outside is put on the edge."""
    inside = min(max(value, LOWEST), HIGHEST + 0.02)
    return left + (inside - LOWEST) / (HIGHEST - LOWEST) * PANEL


def _text(x: float, y: float, words: str, colour: str, size: int = 13, weight: int = 400, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}">{escape(words)}</text>'
    )
