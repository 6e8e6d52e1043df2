"""One board for all backbones of a track: entries down, backbones across, and no mean over backbones.

A backbone is no sample of backbones: a mean over those that somebody happened to have would be a number about nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from dare_platform.board import Board, Row
from dare_platform.statistics import excludes_zero
from dare_platform.verdict import escaped
from leaderboard import links, quantities
from leaderboard.theme import band_of

ALL = "all"
"""The backbone of a link that asks for all of them."""
QUESTION = "Does it carry over from one backbone to another?"
LEGEND = (
    "Mean gain over the untouched backbone in points, with the 95 % t interval over seeds, and the rank there. Tinted: "
    "the interval excludes zero; blue better, orange worse, darker from 5 and 12 points. Gains on different backbones "
    "start from different scores: read down a column, and across for the sign."
)


def across_table(boards: Sequence[Board]) -> str:
    """The matrix; entries by how many backbones have them, then in the order of the first board that has them."""
    rows = _by_name(boards)
    head = "".join(
        f'<th scope="col" class="number"><a href="{escape(_board_link(board))}">{escape(board.backbone)}</a>'
        f'<span class="second">{escape(board.family)}</span></th>'
        for board in boards
    )
    body = "".join(
        f'<tr class="{"method" if kind == "method" else "panel"}"><th scope="row"><bdi>{escape(name)}</bdi>'
        f'<span class="under second">{escape(kind)}</span></th>'
        + "".join(_cell(found.get(board.backbone)) for board in boards)
        + "</tr>"
        for (name, kind), found in rows.items()
    )
    if not rows:
        body = f'<tr><td class="empty" colspan="{len(boards) + 1}"><b>No entry yet.</b></td></tr>'
    return (
        '<div class="dare board bare"><div class="scroll" role="region" tabindex="0" aria-label="Results on all '
        'backbones"><table><caption class="sr">Mean gain of every entry on every backbone</caption>'
        f'<thead><tr><th scope="col" class="entry">Entry</th>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        f'<p class="legend">{escape(LEGEND)}</p></div>'
    )


def carries_over(boards: Sequence[Board]) -> str:
    """What can be said about all backbones together. Markdown."""
    measured = [board for board in boards if any(row.gain is not None for row in board.rows if row.kind == "method")]
    if len(measured) < 2:
        here = f"only {measured[0].backbone} has" if measured else "no backbone has"
        return f"**Nothing can be said yet:** {here} a ranked method."
    everywhere = [name for (name, kind), found in _by_name(boards).items() if kind == "method" and _is_above(found)]
    named = ", ".join(f"**{escaped(name)}**" for name in everywhere)
    count = f"all {len(measured)} backbones with ranked methods"
    if not everywhere:
        return f"**No method is above the untouched model beyond noise on {count}.**"
    verb = "is" if len(everywhere) == 1 else "are"
    return f"{named} {verb} above the untouched model beyond noise on {count}."


def _is_above(found: Mapping[str, Row]) -> bool:
    gains = [row.gain for row in found.values()]
    return len(gains) > 1 and all(gain is not None and gain.value > 0 and excludes_zero(gain) for gain in gains)


def _by_name(boards: Sequence[Board]) -> dict[tuple[str, str], dict[str, Row]]:
    """Name and kind -> backbone -> row, without the untouched backbone, which is 0 everywhere."""
    found: dict[tuple[str, str], dict[str, Row]] = {}
    for board in boards:
        for row in board.rows:
            if row.kind != "reference":
                found.setdefault((row.name, row.kind), {})[board.backbone] = row
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def _cell(row: Row | None) -> str:
    if row is None:
        return '<td class="number second" title="Not entered on this backbone.">—</td>'
    href = escape(links.entry_link(row.entry_id))
    if row.gain is None:
        words = "preliminary" if row.preliminary_gain is not None else "not ranked"
        first = quantities.gain(row.preliminary_gain).value if row.preliminary_gain is not None else words
        under = f'<span class="under second">{words}</span>' if row.preliminary_gain is not None else ""
        return f'<td class="number second"><a href="{href}">{escape(first)}</a>{under}</td>'
    band = band_of(100 * row.gain.value) if excludes_zero(row.gain) else None
    written = quantities.gain(row.gain)
    place = f"rank {quantities.rank(row.rank)}" if row.rank is not None else row.kind
    seeds = quantities.plural(row.gain.seeds, "seed")
    return (
        f'<td class="number{f" {band}" if band else ""}" title="{escape(f"{written} points, {seeds}.")}">'
        f'<a href="{href}"><span class="value">{escape(written.value)}</span>'
        f'<span class="spread">{escape(written.spread)}</span></a>'
        f'<span class="under second">{escape(place)}</span></td>'
    )


def _board_link(board: Board) -> str:
    choices = links.BoardChoices(("",), ("",), ("gain",))
    return links.board_query(links.BoardView(board.backbone, board.track), choices)
