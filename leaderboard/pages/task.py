"""Task: what a column of the board measures, and how far it can be trusted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import streamlit as st

from dare_platform.board import Board
from dare_platform.tracks import load_track, slugs_here
from dare_platform.verdict import escaped
from dare_platform.views.tasks import ORDERS, Order, TaskView, task_view
from leaderboard import boards, cost_charts, frame, links, reading, tables, task_parts, texts
from leaderboard.links import BoardChoices, BoardView

REMEMBERED_SECONDS = 60


@st.cache_resource(show_spinner=False, ttl=REMEMBERED_SECONDS, max_entries=64)
def _view(
    task: str,
    track: tuple[str, str],
    backbone: str,
    scorer: str,
    version: str | None,
    item: str | None,
    order: Order,
    page: int,
    data: Path | None,
) -> TaskView | None:
    """One for everybody, so that no viewer is in its key: private entries are in none of it."""
    with reading.database().read() as session:
        return task_view(
            session, task, track, backbone, scorer, version=version, item=item, order=order, page=page, data=data
        )


def page() -> None:
    """What it is, one item, how hard its items are, whether scorers agree, and its items."""
    query = reading.query()
    name, version, item = (reading.query_value(key) for key in ("id", "version", "item"))
    slugs = slugs_here()
    track = load_track(links.known_or_first(query.get("track", ()), slugs))
    backbones = tuple(track.backbones)
    backbone = links.known_or_first(query.get("backbone", ()), backbones)
    order = next((one for one in ORDERS if one == reading.query_value("order")), ORDERS[0])
    number = reading.query_value("ipage")
    view = (
        _view(
            name, (track.track, track.version), backbone, track.scorer, version or None, item or None, order,
            int(number) if number.isdecimal() and len(number) < 7 else 1, reading.settings().data,
        )
        if links.is_id(name)
        else None
    )  # fmt: skip
    if view is None:
        _unknown(name, version)
        return
    reading.title(view.task.title, "Task")
    st.title(escaped(view.task.title), anchor=False)
    st.markdown(task_parts.standing(view))
    known = {"track": slugs, "backbone": backbones, "order": ORDERS}
    for notice in links.unknown_values(query, known, "page", {key: options[0] for key, options in known.items()}):
        st.info(notice)
    st.segmented_control(
        "Backbone", backbones, default=backbones[0], required=True, key="backbone", bind="query-params"
    )
    board = boards.current(track, backbone)
    if said := task_parts.saturation(board, name):
        st.markdown(said)
    _item(view, item)
    _difficulty(view)
    _scorers(view)
    _entries(board, name)
    _items(view, order)
    st.header("Where it comes from")
    st.html(task_parts.facts(view))
    if view.protocols:
        st.subheader("How it was asked")
        st.html(task_parts.asked(view.protocols))


def _unknown(name: str, version: str) -> None:
    reading.title("Task")
    st.title("Task")
    asked = f"{name} {version}".strip()
    st.markdown(texts.unknown_id("task", asked) if name else texts.no_id("task"))
    st.html(tables.back_to_board())


def _item(view: TaskView, item: str) -> None:
    """The item that the link names; otherwise the task's own example."""
    if view.hidden:
        st.markdown(task_parts.HIDDEN)
        return
    if view.unknown_item:
        st.markdown(texts.unknown_id("item", item))
    with reading.part("item"):
        if view.item is not None:
            st.header(f"Item {escaped(view.item.item_id)}", anchor="item")
            st.html(task_parts.item(view.item))
        else:
            st.header("What does an item look like?")
            st.html(task_parts.example(view))


def _difficulty(view: TaskView) -> None:
    st.header("How hard are its items?")
    if not view.checkpoints:
        st.markdown(task_parts.NOT_ASKED)
        return
    if not sum(view.difficulty):
        st.markdown(task_parts.NO_ITEMS)
        return
    with reading.part("chart"):
        frame.draw(cost_charts.difficulty(view.difficulty, view.never, view.always, reading.scheme()), "difficulty")
        st.caption(task_parts.whose(view))
        with st.expander("Numbers"):
            st.html(task_parts.difficulty_table(view))


def _scorers(view: TaskView) -> None:
    st.header("Do the scorers agree?")
    if view.agreements:
        st.html(task_parts.agreements(view.agreements, view.scorer))
    else:
        st.markdown(task_parts.ONE_SCORER if sum(view.difficulty) else task_parts.NO_ITEMS)


def _entries(board: Board, task: str) -> None:
    """The board with this column alone."""
    columns = tuple(column for column in board.columns if column.task == task)
    if not columns or len(board.rows) < 2:
        return
    st.header("Entries on this task")
    with reading.part("table"):
        only = replace(board, columns=columns)
        choices = BoardChoices((board.backbone,), (board.track,), (task,))
        view = BoardView(board.backbone, board.track, sort=task)
        st.html(tables.board_table(only, view, choices, sortable=False, flags=boards.flags(board)))


def _items(view: TaskView, order: Order) -> None:
    if view.hidden:
        return
    st.header("Items", anchor="items")
    with reading.part("table"):
        st.html(task_parts.orders(view, order))
        st.html(task_parts.items(view))
        st.html(task_parts.pages(view, order))
