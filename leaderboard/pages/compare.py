"""Compare: two entries on one task, what may be said of the algorithms, and where two checkpoints answer apart."""

from __future__ import annotations

import streamlit as st

from dare_platform.tracks import Track, load_track, slugs_here
from dare_platform.views.comparison import PAGE, SHOWN, Shown, comparison, entries_to_compare
from leaderboard import compare_parts, frame, links, people, reading, tables, texts


def page() -> None:
    """The two, the verdicts, then the evidence."""
    query = reading.query()
    reading.title("Compare")
    st.title("Do these two differ?")
    slugs = slugs_here()
    track = load_track(links.known_or_first(query.get("track", ()), slugs))
    a, b = _choose(track)
    backbone, task = _where(track)
    if not a or not b:
        st.markdown(texts.CHOOSE_TWO)
        return
    shown: Shown = next((one for one in SHOWN if one == reading.query_value("items")), "differ")
    number, seed = reading.query_value("ipage"), reading.query_value("seed")
    with reading.database().read() as session:
        view = comparison(
            session, (a, b), track, backbone, task, people.viewer(),
            seed=int(seed) if seed.isdecimal() and len(seed) < 9 else None, shown=shown,
            page=int(number) if number.isdecimal() and len(number) < 7 else 1,
        )  # fmt: skip
    if view is None:
        st.markdown(texts.NO_COMPARISON)
        st.html(tables.back_to_board())
        return
    st.caption(f"{task} on {backbone}, track {track.name}, greedy decoding, scorer {track.scorer}")
    st.markdown(compare_parts.verdict(view))
    st.html(compare_parts.seeds_table(view))
    st.html(compare_parts.to_curves((a, b), track.track))
    st.header("Item by item")
    if view.checkpoints is None:
        st.markdown("No items to compare yet: they come with the evaluations of a seed that both have.")
    else:
        st.html(compare_parts.counts(view))
        asked = {"a": a, "b": b, "backbone": backbone, "track": track.track, "task": task}
        st.html(compare_parts.choose_items(view, asked, shown))
        with reading.part("items"):
            st.html(compare_parts.items(view))
        if view.of_items > PAGE:
            pages = -(-view.of_items // PAGE)
            st.segmented_control("Page of items", range(1, pages + 1), default=1, key="ipage", bind="query-params")
    st.header("What was set and written differently")
    if view.settings:
        st.html(compare_parts.settings(view))
    if view.source_diff is None:
        st.markdown("The source of one of them is not shown to you, or there is none.")
    elif view.source_diff:
        with st.expander("Source"):
            st.html(compare_parts.source_diff(view.source_diff))
    elif not view.settings:
        st.markdown("Nothing: the same source with the same settings.")


def _where(track: Track) -> tuple[str, str]:
    """On which backbone and task, bound to the URL."""
    backbones, tasks = tuple(track.backbones), tuple(column.task for column in track.tasks)
    with st.container(horizontal=True):
        backbone = st.segmented_control(
            "Backbone", backbones, default=backbones[0], required=True, key="backbone", bind="query-params"
        )
        task = st.selectbox("Task", tasks, key="task", bind="query-params", width=240)
    return backbone or backbones[0], task or tasks[0]


def _choose(track: Track) -> tuple[str, str]:
    """Two boxes bound to the URL; ids are the options."""
    with reading.database().read() as session:
        names = dict(entries_to_compare(session, track, people.viewer()))
    with st.container(horizontal=True):
        return frame.entry_box("A", "a", names), frame.entry_box("B", "b", names)
