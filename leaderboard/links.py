"""URL to view state and back: slugs and ids only, defaults left out, unknown values reported and never guessed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from dare_platform.board import Board, Cell, Column
from dare_platform.tracks import load_track, slugs_here
from dare_platform.views.tasks import TaskView
from leaderboard import texts

SHOWABLE = ("unranked",)
DIRECTIONS = ("desc", "asc")
ABSENT = Cell(state="not_asked")
ENTRY_TABS = ("results", "method", "runs", "history")


@dataclass(frozen=True)
class BoardView:
    """What of a board is shown, and in which order."""

    backbone: str
    track: str
    sort: str = "gain"
    """`gain`, a task, `cost` or `entry`."""
    direction: str = "desc"
    search: str = ""
    show: tuple[str, ...] = ("unranked",)


@dataclass(frozen=True)
class BoardChoices:
    """What the controls of a board offer; the first of each is the default."""

    backbones: tuple[str, ...]
    tracks: tuple[str, ...]
    sorts: tuple[str, ...]


def shown_columns(board: Board) -> tuple[Column, ...]:
    """Tasks with something to show: a transfer task whose data nobody had would be an empty column."""
    return tuple(
        column
        for column in board.columns
        if column.role != "transfer"
        or any(row.cells.get(column.task, ABSENT).state != "not_asked" for row in board.rows)
    )


def sorts_of(board: Board) -> tuple[str, ...]:
    """Columns by which a board can be sorted."""
    return ("gain", *(column.task for column in shown_columns(board)), "cost", "entry")


def better_first(sort: str) -> str:
    """The direction in which a column starts with what a reader looks for."""
    return "asc" if sort in ("cost", "entry") else "desc"


def turned(view: BoardView, sort: str) -> BoardView:
    """The view after a click on a header: better first, then reversed."""
    first = better_first(sort)
    if view.sort == sort and view.direction == first:
        return replace(view, direction="asc" if first == "desc" else "desc")
    return replace(view, sort=sort, direction=first)


def board_query(view: BoardView, choices: BoardChoices) -> str:
    """The query of a view, without its default values: `?sort=sudoku`, or `?` for the plain page."""
    pairs: list[tuple[str, str]] = []
    if view.backbone != choices.backbones[0]:
        pairs.append(("backbone", view.backbone))
    if view.track != choices.tracks[0]:
        pairs.append(("track", view.track))
    if view.sort != "gain":
        pairs.append(("sort", view.sort))
    if view.direction != "desc":
        pairs.append(("dir", view.direction))
    if view.search:
        pairs.append(("q", view.search))
    if view.show != ("unranked",):
        pairs.extend(("show", item) for item in view.show or ("",))
    return "?" + urlencode(pairs)


def unknown_values(
    query: Mapping[str, Sequence[str]], known: Mapping[str, Sequence[str]], where: str, shown: Mapping[str, str]
) -> tuple[str, ...]:
    """One sentence for each value of the link that the page does not have. Unknown parameters are ignored."""
    return tuple(
        texts.bad_parameter(parameter, value, where, shown.get(parameter))
        for parameter, options in known.items()
        for value in query.get(parameter, ())
        if value and value not in options
    )


def read_board_view(query: Mapping[str, Sequence[str]], choices: BoardChoices) -> tuple[BoardView, tuple[str, ...]]:
    """The view that a link asks for, and a notice for each value that this board does not have."""
    known = {
        "backbone": choices.backbones,
        "track": choices.tracks,
        "sort": choices.sorts,
        "dir": DIRECTIONS,
        "show": SHOWABLE,
    }
    defaults = {"backbone": choices.backbones[0], "track": choices.tracks[0], "sort": "gain", "dir": "desc"}

    def one(parameter: str) -> str:
        given = query.get(parameter, ())
        return given[-1] if given and given[-1] in known[parameter] else defaults[parameter]

    show = tuple(item for item in SHOWABLE if item in query["show"]) if "show" in query else ("unranked",)
    view = BoardView(
        backbone=one("backbone"),
        track=one("track"),
        sort=one("sort"),
        direction=one("dir"),
        search=(query.get("q") or ("",))[-1],
        show=show,
    )
    return view, unknown_values(query, known, "board", defaults)


def is_id(text: str) -> bool:
    """Whether a text can be an id at all, before anything is asked of the database."""
    return re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", text) is not None


def entry_link(entry_id: str, view: str | None = None) -> str:
    """Relative, so that a base path in front of the site does not break it."""
    return "entry?" + urlencode({"id": entry_id, **({"view": view} if view else {})})


def run_link(run_id: str) -> str:
    """The page of one run."""
    return "run?" + urlencode({"id": run_id})


def _place(backbone: str, track: str) -> dict[str, str]:
    """Backbone and track without their defaults: a page that drops them makes a step of its own in the history."""
    place = {} if track == slugs_here()[0] else {"track": track}
    return place if backbone == next(iter(load_track(track).backbones)) else {"backbone": backbone, **place}


def board_link(backbone: str, track: str) -> str:
    """The board of a track on a backbone, from any page."""
    return "./?" + urlencode(_place(backbone, track))


def cost_link(backbone: str, track: str) -> str:
    """What gains cost on one board."""
    return "cost?" + urlencode(_place(backbone, track))


def task_page(task: str, backbone: str | None = None, track: str | None = None) -> str:
    """What a column measures, as one board asks it where that is named."""
    return "task?" + urlencode({"id": task, **(_place(backbone, track) if backbone and track else {})})


def task_link(view: TaskView, item: str | None = None, order: str | None = None, ipage: int | None = None) -> str:
    """The same task page at one item, or at its items in another order or on another page of them."""
    asked = {"item": item, "order": order, "ipage": ipage if ipage != 1 else None}
    old = {"version": view.version} if view.version != view.versions[0] else {}
    return f"{task_page(view.task.name, view.backbone, view.track.split(' ')[0])}&" + urlencode(
        old | {name: value for name, value in asked.items() if value is not None}
    )


def backbone_link(slug: str) -> str:
    """Which weights, and what they score untouched."""
    return "backbone?" + urlencode({"id": slug})


def compare_link(entry_id: str, track: str) -> str:
    """One entry beside another that is still to be chosen."""
    return "compare?" + urlencode({"a": entry_id, "track": track})


def curves_link(entries: Sequence[str], track: str) -> str:
    """How the training of some entries went, four at most."""
    return "curves?" + urlencode({**dict(zip("abcd", entries, strict=False)), "track": track})


def rules_link(track: str) -> str:
    """The rules of a track by slug."""
    return "rules?" + urlencode({"track": track})


def submit_link(entry_id: str) -> str:
    """The form, filled from an entry."""
    return "submit?" + urlencode({"from": entry_id})


def known_or_first(given: Sequence[str], known: Sequence[str]) -> str:
    """The last given value if the page has it, otherwise the default."""
    return given[-1] if given and given[-1] in known else known[0]
