"""The matrix of the board as HTML, made from plain data. Everything from outside passes `escape`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from html import escape
from typing import NamedTuple

from dare_platform.board import Board, Cell, Column, Estimate, Row
from dare_platform.board_flags import Flag
from leaderboard import flag_list, links, quantities, texts
from leaderboard.links import BoardChoices, BoardView
from leaderboard.theme import band_of

ABOUT = "about"
"""What the way to a column's task is called."""


class Arranged(NamedTuple):
    """A board's rows in the order of a view, and how many a filter took away."""

    rows: tuple[Row, ...]
    hidden_by_search: int
    hidden_unranked: int


class Axis(NamedTuple):
    """The common axis of all whiskers, in points."""

    low: float
    high: float

    def place(self, points: float) -> float:
        """Per cent from the left edge."""
        return 100 * (points - self.low) / (self.high - self.low)


def _sort_key(row: Row, sort: str) -> tuple[int, float | str]:
    """Class (0 value, 1 preliminary value, 2 failed, 3 missing) and value of a row in a column."""
    if sort == "entry":
        return 0, row.name.casefold()
    if sort == "cost":
        return (3, 0.0) if row.cost is None else (0, row.cost.train_device_seconds)
    if sort == "gain":
        if row.gain is not None:
            return 0, row.gain.value
        return (3, 0.0) if row.preliminary_gain is None else (1, row.preliminary_gain.value)
    cell = row.cells.get(sort)
    if cell is None:
        return 3, 0.0
    if cell.greedy is not None:
        return (1 if cell.is_preliminary else 0), cell.greedy.value
    return (2, 0.0) if cell.state == "failed" else (3, 0.0)


def _sorted_rows(rows: Sequence[Row], view: BoardView) -> list[Row]:
    """By value, then preliminary ones, failed and missing, in either direction; the board's own order breaks ties."""
    descending = view.direction == "desc"
    ordered: list[Row] = []
    for wanted in (0, 1, 2, 3):
        group = [row for row in rows if _sort_key(row, view.sort)[0] == wanted]
        if wanted in (0, 1):
            group.sort(key=lambda row: _sort_key(row, view.sort)[1], reverse=descending)
        ordered.extend(group)
    return ordered


def arranged(board: Board, view: BoardView) -> Arranged:
    """The rows that a view shows: the untouched backbone, baselines and controls, then methods in its order."""
    wanted = view.search.strip().casefold()
    kept: list[Row] = []
    by_search = unranked = 0
    for row in board.rows:
        if row.kind == "reference":
            kept.append(row)
        elif wanted and wanted not in row.name.casefold() and wanted not in row.algorithm.casefold():
            by_search += 1
        elif is_unranked(row) and "unranked" not in view.show:
            unranked += 1
        else:
            kept.append(row)
    references = [row for row in kept if row.kind == "reference"]
    beside = [row for row in kept if row.kind in ("baseline", "control")]
    methods = [row for row in kept if row.kind == "method"]
    if view.sort == "gain" and view.direction == "desc":
        rows = [*references, *beside, *methods]
    else:
        rows = [*references, *_sorted_rows(beside, view), *_sorted_rows(methods, view)]
    return Arranged(tuple(rows), by_search, unranked)


def is_unranked(row: Row) -> bool:
    """A method that misses a ranked cell."""
    return row.kind == "method" and row.gain is None


def incomplete_rows(board: Board) -> int:
    """Methods that miss a ranked cell."""
    return sum(is_unranked(row) for row in board.rows)


def whisker_axis(rows: Iterable[Row]) -> Axis:
    """From the smallest lower end to the largest upper end of all gains, rounded out, always with zero inside.

    Preliminary gains have no ends; their points must have a place too.
    """
    ends = [0.0]
    for row in rows:
        if row.gain is not None:
            half = row.gain.half_width if row.gain.half_width is not None and row.gain.seeds >= 3 else 0.0
            ends += [100 * (row.gain.value - half), 100 * (row.gain.value + half)]
        elif row.preliminary_gain is not None:
            ends.append(100 * row.preliminary_gain.value)
    span = max(ends) - min(ends)
    unit = 1.0 if span < 10 else 5.0 if span < 60 else 10.0
    low, high = unit * math.floor(min(ends) / unit), unit * math.ceil(max(ends) / unit)
    return Axis(low if low < 0 else -unit, high if high > 0 else unit)


def _whisker(gain: Estimate, axis: Axis, hollow: bool = False) -> str:
    """A dot with its interval and the zero line; decoration, since the numbers beside it say the same."""
    value = 100 * gain.value
    parts = [f'<span class="zero" style="left:{axis.place(0):.1f}%"></span>']
    if gain.half_width is not None and gain.seeds >= 3 and not hollow:
        left, right = axis.place(value - 100 * gain.half_width), axis.place(value + 100 * gain.half_width)
        parts.append(f'<span class="interval" style="left:{left:.1f}%;width:{right - left:.1f}%"></span>')
    parts.append(f'<span class="dot{" hollow" if hollow else ""}" style="left:{axis.place(value):.1f}%"></span>')
    return f'<span class="axis" aria-hidden="true">{"".join(parts)}</span>'


def _number(written: quantities.Written, spread: bool = True) -> str:
    """A value and its ± in slots of fixed width, so that decimal points stand under one another."""
    whole = "" if "." in written.value else " whole"
    beside = f'<span class="spread">{escape(written.spread)}</span>' if spread else ""
    return f'<span class="value{whole}">{escape(written.value)}</span>{beside}'


def cell_title(cell: Cell, column: Column, zero_before: bool = False) -> str:
    """The whole content of a cell in words."""
    if cell.greedy is None:
        return cell.detail or _STATE_TITLES[cell.state]
    parts = [quantities.score(cell.greedy).value]
    if cell.is_preliminary:
        parts.append(seeds_of(cell))
    else:
        if spread := quantities.interval(cell.greedy):
            parts.append(f"95 % interval {spread}")
        parts.append(quantities.plural(cell.greedy.seeds, "seed"))
    if cell.items:
        parts.append(f"{quantities.count(cell.items)} items")
    sentence = ", ".join(parts) + "."
    if cell.gain is not None:
        sentence += f" {_told(quantities.gain(cell.gain), cell)} points against the untouched backbone."
    if cell.sampled is not None:
        sentence += f" Mean reward of sampled completions {_told(quantities.score(cell.sampled), cell)}."
    if cell.exactly_zero:
        sentence += " All outcomes are wrong"
        sentence += (
            ", as those of the untouched backbone."
            if zero_before
            else ". Often a format or extraction fault; see the runs."
        )
    elif cell.at_or_below_chance:
        sentence += f" Not above the chance floor of {quantities.share(column.chance_floor)}."
    if cell.is_preliminary:
        sentence += " Preliminary: in no mean, no test and no rank."
        if cell.detail and cell.state != "preliminary":
            sentence += f" {cell.detail}"
    return sentence


def _told(written: quantities.Written, cell: Cell) -> str:
    """A preliminary number is told without its spread."""
    return written.value if cell.is_preliminary else str(written)


_STATE_TITLES = {
    "measured": "Measured, without a greedy score.",
    "preliminary": "Measured in part, without a greedy score.",
    "not_run": "Required by the track, not run yet.",
    "not_asked": "Not part of this track for this backbone.",
    "not_scored": "The answers are stored; nobody has run the programs in them.",
    "queued": "Waiting for a worker.",
    "running": "Runs are under way.",
    "failed": "Failed; counts as the floor.",
    "retrying": "We retry it; nothing is charged.",
}


def seeds_of(cell: Cell) -> str:
    """`1 of 3 seeds`."""
    return f"{cell.seeds_done} of {quantities.plural(cell.seeds_required, 'seed')}"


def cell_content(cell: Cell, zero_before: bool = False) -> str:
    """What stands in a cell: a value with its spread and what is said below it, or its state in words.

    Args:
        cell: a result in any state.
        zero_before: the untouched backbone is at exactly 0 too.
    """
    if cell.greedy is None:
        return _state_line(cell)
    spread = "" if cell.is_preliminary else quantities.score(cell.greedy).spread
    lines = [_number(quantities.Written(quantities.score(cell.greedy).value, spread))]
    if cell.exactly_zero:
        lines.append(_under("exactly 0", "second" if zero_before else "attention"))
    elif cell.at_or_below_chance:
        lines.append(_under("≤ chance", "attention"))
    if cell.sampled is not None:
        sampled = quantities.score(cell.sampled)
        shown = sampled._replace(spread="") if cell.is_preliminary else sampled
        lines.append(f'<span class="under second">sampled {_number(shown)}</span>')
    if cell.is_preliminary:
        lines.append(_under(_state_line(cell), "second"))
    return "".join(lines)


def _under(html: str, tone: str) -> str:
    """A line below a value, aligned with it."""
    return f'<span class="under {tone}">{html}<span class="spread"></span></span>'


def _state_line(cell: Cell) -> str:
    """The state in words, with the seeds that there are where some have a value."""
    behind = f", {seeds_of(cell)}" if cell.greedy is not None else ""
    if cell.state == "running":
        return f'<span aria-hidden="true">◔</span> {seeds_of(cell)}'
    if cell.state == "failed":
        return f'<span class="attention"><span aria-hidden="true">✕</span> failed{behind}</span>'
    if cell.state == "preliminary":
        return seeds_of(cell)
    words = {
        "not_run": "not run", "not_asked": "—", "not_scored": "not scored", "queued": "queued", "retrying": "retrying",
    }  # fmt: skip
    return f'<span class="second">{words.get(cell.state, "not scored")}{behind}</span>'


def _cell(row: Row, column: Column, sorted_by: bool, zero_before: bool) -> str:
    cell = row.cells.get(column.task, links.ABSENT)
    classes = ["column", "number"]
    if sorted_by:
        classes.append("sorted")
    if cell.significant and not cell.is_preliminary and cell.gain is not None and row.kind != "reference":
        band = band_of(100 * cell.gain.value)
        if band:
            classes.append(band)
    title = escape(cell_title(cell, column, zero_before))
    return f'<td class="{" ".join(classes)}" title="{title}">{cell_content(cell, zero_before)}</td>'


def _zero_before(board: Board) -> frozenset[str]:
    """Tasks on which the untouched backbone is at exactly 0: there a zero is to be expected."""
    return frozenset(
        task for row in board.rows if row.kind == "reference" for task, cell in row.cells.items() if cell.exactly_zero
    )


def chips(row: Row, flags: Sequence[Flag] = ()) -> str:
    """At most two marks beside the name, flags before others, then how many more."""
    results, method = links.entry_link(row.entry_id), links.entry_link(row.entry_id, "method")
    marks = [(word, sentence, results) for word, sentence in flag_list.marks(flags, row.entry_id)]
    if row.kind in ("baseline", "control"):
        marks.append((row.kind, "", method))
    if is_unranked(row):
        marks.append(("preliminary" if row.preliminary_gain is not None else "unranked", "", method))
    if row.extension:
        marks.append(("our extension", "", method))
    if row.tries > 1:
        marks.append((f"{row.tries} tries", "", method))
    left = marks[2:]
    shown = marks[:2] + ([(f"+{len(left)}", ", ".join(word for word, *_ in left), method)] if left else [])
    return "".join(_chip(word, title, href if row.entry_id else "") for word, title, href in shown)


def _chip(word: str, title: str, href: str) -> str:
    hint = f' title="{escape(title)}"' if title else ""
    if not href:
        return f'<span class="chip"{hint}>{escape(word)}</span>'
    return f'<a class="chip" href="{escape(href)}"{hint}>{escape(word)}</a>'


def why_unranked(row: Row, board: Board) -> str:
    """The ranked tasks that failed, in words; plain text, empty when none did."""
    failed = [
        column.title
        for column in board.columns
        if column.role == "ranked" and row.cells.get(column.task, links.ABSENT).state == "failed"
    ]
    if not failed:
        return ""
    return f"{'not ranked' if row.kind == 'method' else 'incomplete'}: {' and '.join(failed)} failed"


def _entry_head(row: Row, board: Board, flags: Sequence[Flag]) -> str:
    if row.kind == "reference":
        href = escape(links.backbone_link(board.backbone))
        name = f'<span><a href="{href}"><bdi>{escape(board.backbone)}</bdi></a>, untouched</span>'
    elif row.entry_id:
        name = f'<a href="{escape(links.entry_link(row.entry_id))}"><bdi>{escape(row.name)}</bdi></a>'
    else:
        name = f"<bdi>{escape(row.name)}</bdi>"
    below = []
    if row.kind != "reference" and row.built_in:
        below.append("built in")
    elif row.kind != "reference":
        below.append(f"submitted, class <bdi>{escape(row.class_name)}</bdi>" if row.class_name else "submitted")
    below.append(quantities.plural(row.seeds, "seed") if row.seeds else "no seed finished")
    if why := why_unranked(row, board):
        below.append(f'<span class="attention">{escape(why)}</span>')
    return (
        f'<th scope="row"><span class="named">{name}{chips(row, flags)}</span>'
        f'<span class="under second">{" · ".join(below)}</span></th>'
    )


def _gain_cell(row: Row, axis: Axis, sorted_by: bool) -> str:
    classes = "column mean number" + (" sorted" if sorted_by else "")
    if row.kind == "reference":
        zero = Estimate(0.0, None, 0)
        return (
            f'<td class="{classes}"><span class="pair">{_whisker(zero, axis, hollow=True)}'
            f'<span class="figures">{_number(quantities.Written("0", ""))}</span></span></td>'
        )
    if row.gain is None:
        return _preliminary_gain(row, axis, classes)
    reward = ""
    if row.reward_gain is not None:
        reward = f'<span class="under second">sampled {_number(quantities.gain(row.reward_gain))}</span>'
    title = (
        f"{quantities.gain(row.gain)} points over the untouched backbone, {quantities.plural(row.gain.seeds, 'seed')}."
    )
    return (
        f'<td class="{classes}" title="{escape(title)}"><span class="pair">{_whisker(row.gain, axis)}'
        f'<span class="figures">{_number(quantities.gain(row.gain))}{reward}</span></span></td>'
    )


def _preliminary_gain(row: Row, axis: Axis, classes: str) -> str:
    """Not ranked; what there is stands below in secondary text, without an interval."""
    gain, reward = row.preliminary_gain, row.preliminary_reward_gain
    word = "not ranked" if row.kind == "method" else "incomplete" if gain is None else "preliminary"
    if gain is None:
        zero = f'<span class="zero" style="left:{axis.place(0):.1f}%"></span>'
        return (
            f'<td class="{classes}"><span class="pair"><span class="axis" aria-hidden="true">{zero}</span>'
            f'<span class="figures second">{word}</span></span></td>'
        )
    seeds = quantities.plural(gain.seeds, "seed")
    figures = (
        f'<span class="second">{word}</span><span class="under second">{quantities.gain(gain).value}, {seeds}</span>'
    )
    if reward is not None:
        figures += f'<span class="under second">sampled {quantities.gain(reward).value}</span>'
    title = f"{quantities.gain(gain).value} points over the untouched backbone in {seeds}: too few for a rank."
    return (
        f'<td class="{classes}" title="{escape(title)}"><span class="pair">{_whisker(gain, axis, hollow=True)}'
        f'<span class="figures">{figures}</span></span></td>'
    )


class _Head(NamedTuple):
    """A column's head: what it sorts by, and whether a narrow container shows it."""

    sort: str
    title: str
    second: str
    classes: str
    shown_narrow: bool

    def html(self, view: BoardView, choices: BoardChoices, sortable: bool) -> str:
        second = f'<span class="second">{self.second}</span>' if self.second else ""
        classes = self.classes + (" sorted" if self.shown_narrow else "")
        if not sortable:
            return f'<th scope="col" class="{classes}">{escape(self.title)}{second}</th>'
        descending = view.direction == "desc"
        arrow = aria = ""
        if view.sort == self.sort:
            arrow = f' <span aria-hidden="true">{"↓" if descending else "↑"}</span>'
            aria = f' aria-sort="{"descending" if descending else "ascending"}"'
        href = escape(links.board_query(links.turned(view, self.sort), choices))
        return f'<th scope="col" class="{classes}"{aria}><a href="{href}">{escape(self.title)}{arrow}</a>{second}</th>'


def _column_second_line(column: Column, board: Board) -> str:
    parts = []
    if column.items:
        parts.append(f"n={quantities.count(column.items)}")
    parts.append(f"chance {quantities.share(column.chance_floor)}")
    lines = [escape(" · ".join(parts))]
    if column.role != "ranked":
        lines.append("shown, not in the mean" if column.role == "shown" else "transfer, not in the mean")
    href = escape(links.task_page(column.task, board.backbone, board.track))
    lines.append(f'<a href="{href}" aria-label="About {escape(column.title)}">{ABOUT}</a>')
    return "<br>".join(lines)


def _cost_is_long(board: Board) -> bool:
    costs = [row.cost.train_device_seconds for row in board.rows if row.cost is not None]
    return "cpu" not in board.device.lower() and bool(costs) and max(costs) >= 3600


def board_legend(board: Board, axis: Axis) -> str:
    """How the table is read, in a few short sentences; plain text."""
    gains = f"{quantities.fixed(axis.low, 0, True)} to {quantities.fixed(axis.high, 0, True)}"
    return (
        f"{board.backbone}, track {board.track} {board.version}. Mean of seeds with 95 % t interval: large, per cent "
        "of items solved by greedy decoding; small, mean reward in per cent of sampled completions. Tinted: differs "
        "from the untouched model beyond noise; blue better, orange worse, darker from 5 and 12 points. Ranks that "
        f"share a number cannot be told apart. The axis of mean gains runs from {gains} points."
        + (" Transfer tasks without data are left out." if len(links.shown_columns(board)) < len(board.columns) else "")
        + (f" {texts.HOLLOW}" if any(row.preliminary_gain is not None for row in board.rows) else "")
        + (f" {texts.ZERO_BEFORE}" if _zero_before(board) else "")
    )


def _has_spreads(board: Board) -> bool:
    """Whether any value has a spread beside it; without one no place is kept for it."""
    return any(cell.greedy is not None and not cell.is_preliminary for row in board.rows for cell in row.cells.values())


def _control_line(board: Board) -> str:
    """What the control is, where there is one."""
    if all(row.kind != "control" for row in board.rows):
        return ""
    return f'<p class="legend">{escape(texts.CONTROL)}</p>'


def board_table(
    board: Board, view: BoardView, choices: BoardChoices, sortable: bool = True, flags: Sequence[Flag] = ()
) -> str:
    """The matrix. Narrow containers show rank, entry and the sorted column of the same HTML."""
    shown = arranged(board, view)
    axis = whisker_axis(board.rows)
    columns = links.shown_columns(board)
    zeros = _zero_before(board)
    long = _cost_is_long(board)
    unit = quantities.cost_unit(board.device, long)
    # Sorted by name, a narrow table would be left without a number: it then keeps the mean gain.
    narrow = "gain" if view.sort == "entry" else view.sort
    heads = [
        _Head("entry", "Entry", "", "entry", shown_narrow=False),
        _Head("gain", "Mean gain", "points over untouched", "column mean number", narrow == "gain"),
        *(
            _Head(column.task, column.title, _column_second_line(column, board), "column number", narrow == column.task)
            for column in columns
        ),
        _Head("cost", "Train", f"{unit} a seed", "column number", narrow == "cost"),
    ]
    head = '<th scope="col" class="rank">Rank</th>' + "".join(item.html(view, choices, sortable) for item in heads)
    body = []
    for row in shown.rows:
        beside = row.kind != "method"
        place = "ref" if beside else quantities.rank(row.rank)
        cost = "0" if row.kind == "reference" else "—" if row.cost is None else quantities.cost(row.cost, long)
        body.append(
            f'<tr class="{"panel" if beside else "method"}"><td class="rank second">{place}</td>'
            + _entry_head(row, board, flags)
            + _gain_cell(row, axis, narrow == "gain")
            + "".join(_cell(row, column, narrow == column.task, column.task in zeros) for column in columns)
            + f'<td class="column number{" sorted" if narrow == "cost" else ""}">{cost}</td></tr>'
        )
    if all(row.kind == "reference" for row in shown.rows):
        body.append(_empty_row(shown, view, choices, len(columns) + 4))
    return (
        f'<div class="dare board{"" if _has_spreads(board) else " bare"}">'
        f'<div class="scroll" role="region" tabindex="0" aria-label="Results on {escape(board.backbone)}"><table>'
        f'<caption class="sr">Results on {escape(board.backbone)}, track {escape(board.track)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
        f'{_control_line(board)}<p class="legend">{escape(board_legend(board, axis))}</p></div>'
    )


def _empty_row(shown: Arranged, view: BoardView, choices: BoardChoices, width: int) -> str:
    """Names what emptied the result and offers its removal."""
    hidden = texts.hidden_by(shown.hidden_by_search, shown.hidden_unranked)
    if not hidden:
        inner = '<b>No entry yet.</b> <a href="submit">Submit the first one</a>'
    else:
        ways = []
        if shown.hidden_by_search:
            ways.append((links.board_query(replace(view, search=""), choices), "Clear search"))
        if shown.hidden_unranked:
            ways.append((links.board_query(replace(view, show=links.SHOWABLE), choices), "Show all entries"))
        offered = " ".join(f'<a href="{escape(href)}">{label}</a>' for href, label in ways)
        inner = f"<b>{escape(texts.no_match(view.search))}</b> {escape(hidden)} {offered}"
    return f'<tr><td class="empty" colspan="{width}">{inner}</td></tr>'


def newer_results(shown: Board, current: Board) -> int:
    """Cells and entries that differ between the board that was drawn and that of this moment."""
    if shown.digest == current.digest:
        return 0
    drawn = {row.entry_id: row for row in shown.rows}
    changed = 0
    for row in current.rows:
        before = drawn.get(row.entry_id)
        if before is None:
            changed += 1
        else:
            changed += sum(before.cells.get(task) != cell for task, cell in row.cells.items())
    return max(1, changed)


def partial_line(missing: int, of: int, view: BoardView, choices: BoardChoices) -> str:
    """How many rows are not ranked, and a link that hides them."""
    without = tuple(item for item in view.show if item != "unranked")
    href = escape(links.board_query(replace(view, show=without), choices))
    return (
        f'<div class="dare"><p class="second">{escape(texts.incomplete(missing, of))} '
        f'<a href="{href}">{texts.hide(missing)}</a></p></div>'
    )


def snapshot_line(board: Board, made: str) -> str:
    """When the board was made, its hash, its scorer, and how many entries and tries stand behind it."""
    parts = [
        f"Board of {escape(made)}",
        f'<code title="{escape(board.digest)}">{escape(quantities.short_hash(board.digest))}</code>',
        escape(board.scorer),
        f"{quantities.plural(board.entries, 'entry')}, {quantities.plural(board.tries, 'try')}, "
        f"{quantities.count(board.withdrawn)} withdrawn",
    ]
    if board.running:
        parts.append(f'<a href="queue">{quantities.plural(board.running, "entry")} under way</a>')
    parts.append(f'<a href="{escape(links.rules_link(board.track))}">rules of {escape(board.track)}</a>')
    return f'<div class="dare"><p class="second">{" · ".join(parts)}</p></div>'


def only(board: Board, entry_id: str) -> Board:
    """The board with one entry beside the untouched backbone."""
    return replace(board, rows=tuple(row for row in board.rows if row.kind == "reference" or row.entry_id == entry_id))


def back_to_board() -> str:
    """The way out of a page that has nothing to show."""
    return f'<div class="dare"><p><a href="./">{texts.SEARCH_THE_BOARD}</a></p></div>'


def ways_in(track: str) -> str:
    """Where to go from an empty board."""
    return (
        f'<div class="dare"><p><a href="submit">Submit</a> · <a href="{escape(links.rules_link(track))}">Rules</a>'
        "</p></div>"
    )


def ways_on(board: Board) -> str:
    """From a board to what its gains cost and to the backbone itself."""
    cost, backbone = links.cost_link(board.backbone, board.track), links.backbone_link(board.backbone)
    return (
        f'<div class="dare"><p class="second"><a href="{escape(cost)}">What a point costs</a> · '
        f'<a href="{escape(backbone)}">About <bdi>{escape(board.backbone)}</bdi></a></p></div>'
    )


def back_to(board: Board) -> str:
    """From a page about a board to the board."""
    href = escape(links.board_link(board.backbone, board.track))
    named = f"The board of <bdi>{escape(board.backbone)}</bdi>"
    return f'<div class="dare"><p><a href="{href}">{named}</a></p></div>'
