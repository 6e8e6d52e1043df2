"""Entry: everything about one submitted method, including the tries that did not work."""

from __future__ import annotations

import streamlit as st

from dare_platform import views
from dare_platform.tracks import Track, load_track
from dare_platform.verdict import escaped
from dare_platform.views import EntryView
from dare_platform.visibility import wider_than
from leaderboard import (
    actions,
    boards,
    charts,
    flag_list,
    forms,
    frame,
    links,
    lists,
    people,
    quantities,
    reading,
    tables,
    texts,
)
from leaderboard.links import BoardChoices, BoardView

SHOWN_EVENTS = 20


def page() -> None:
    """Its name, the finding, then one of four tabs."""
    query = reading.query()
    entry_id = reading.query_value("id")
    with reading.database().read() as session:
        entry = views.entry_view(session, entry_id, people.viewer()) if links.is_id(entry_id) else None
    if entry is None:
        reading.title("Entry")
        st.title("Entry")
        st.markdown(texts.unknown_id("entry", entry_id) if entry_id else texts.no_id("entry"))
        st.html(tables.back_to_board())
        return

    summary = entry.summary
    reading.title(summary.name, "Entry")
    st.title(escaped(summary.name), anchor=False)
    st.html(lists.entry_line(entry))
    actions.say()
    _standing(entry)
    for notice in links.unknown_values(query, {"view": links.ENTRY_TABS}, "page", {"view": links.ENTRY_TABS[0]}):
        st.info(notice)
    tab = st.segmented_control(
        "View",
        links.ENTRY_TABS,
        default=links.ENTRY_TABS[0],
        required=True,
        key="view",
        bind="query-params",
        label_visibility="collapsed",
    )
    {"results": _results, "method": _method, "runs": _runs, "history": _history}[tab](entry)


def _standing(entry: EntryView) -> None:
    """The finding, what it waits for or why it failed, who pays, and the one thing to do."""
    if entry.withdrawn_at is not None:
        date = quantities.moment(entry.withdrawn_at, reading.zone())
        reason = escaped(entry.withdrawn_reason) if entry.withdrawn_reason else None
        st.markdown(texts.withdrawn(date, reason))
    else:
        st.markdown(texts.standing(entry.headline, entry.place.sentence if entry.place else None))
    if entry.ending is not None:
        st.html(forms.ending(entry.ending))
    with st.container(horizontal=True):
        if entry.can_retry and entry.may_act and st.button("Run this entry again", key="again"):
            again = actions.ask_again(entry.summary.id)
            if again is not None:
                frame.show_entry(again)
        if entry.can_cancel and entry.may_act and st.button("Cancel its unfinished runs", key="cancel"):
            actions.cancel(entry.summary.id)
    _who_sees_it(entry)


def _who_sees_it(entry: EntryView) -> None:
    """Of an entry that is not public: who sees what of it, and for its author the act that opens it."""
    visibility = entry.summary.visibility
    if visibility == "public":
        return
    st.caption(texts.WHO_SEES[visibility])
    if not entry.may_act:
        return
    with st.expander("Let more people see it"):
        st.markdown(texts.OPENING)
        with st.container(horizontal=True):
            for wider in wider_than(visibility):
                if st.button(f"Make it {wider}", key=f"show-{wider}"):
                    actions.show_to(entry.summary.id, wider)


def _results(entry: EntryView) -> None:
    """Its row of the board per backbone, and how the reward went in each seed."""
    slug, _, version = entry.summary.track.partition(" ")
    track = load_track(slug, version or None)
    for backbone in entry.summary.backbones:
        if backbone in track.backbones:
            _on_backbone(entry, track, backbone)
    st.caption(texts.SELF_REPORTED)


def _on_backbone(entry: EntryView, track: Track, backbone: str) -> None:
    st.header(backbone)
    beside = entry.summary.id if entry.summary.visibility == "private" else None
    board = boards.current(track, backbone, beside)
    choices = BoardChoices((backbone, *track.backbones), (track.track,), links.sorts_of(board))
    with reading.part("table"):
        mine = tables.only(board, entry.summary.id)
        flags = tuple(flag for flag in boards.flags(board) if flag.where.entry_id == entry.summary.id)
        view = BoardView(backbone, track.track)
        st.html(tables.board_table(mine, view, choices, sortable=False, flags=flags))
        if flags:
            st.subheader("Flags")
            st.html(flag_list.legend(flags, board))
    with reading.part("chart"):
        _seeds(entry, backbone)


def _seeds(entry: EntryView, backbone: str) -> None:
    """The reward in each seed; the loss of a method that knows no reward."""
    with reading.database().read() as session:
        who = people.viewer()
        curves = views.curves(session, [entry.summary.id], backbone, "reward", who)
        if not curves.curves and "loss" in curves.metrics:
            curves = views.curves(session, [entry.summary.id], backbone, "loss", who)
    if entry.summary.kind == "reference":
        return
    st.subheader(
        "Did the loss fall, in every seed?" if curves.metric == "loss" else "Did the reward rise, in every seed?"
    )
    if curves.curves:
        drawn = charts.seed_curves(curves, charts.metric_title(curves.metric), reading.scheme())
        frame.draw(drawn, f"curve-{backbone}")
        st.caption(texts.seed_lines(len(curves.curves)))
    else:
        st.markdown(texts.does_not_log(entry.summary.name, "reward") if curves.metrics else texts.NO_CURVE)


def _method(entry: EntryView) -> None:
    """What it is: one sentence, settings against the default, source."""
    st.header("What it is")
    if entry.summary_sentence:
        st.markdown(escaped(entry.summary_sentence))
    if entry.class_name is not None:
        st.html(lists.method_facts(entry))
        st.subheader("Settings")
        st.html(forms.settings_table(entry.settings))
        st.html(lists.change_it(entry.summary.id))
    if entry.settings_text:
        st.code(entry.settings_text, language="yaml", wrap_lines=True)
    if entry.source is not None:
        st.subheader("Source")
        st.html(lists.source(entry.source))
    if entry.rerun_command:
        st.subheader("Run it again")
        st.code(entry.rerun_command, language="shell", wrap_lines=True)


def _runs(entry: EntryView) -> None:
    """Backbone and seed against kind of work."""
    st.header(f"Runs: {entry.summary.runs_done} of {entry.summary.runs_total} finished")
    st.html(lists.cell_runs(entry.cells))
    if entry.check is not None:
        st.html(lists.check_line(entry.check))


def _history(entry: EntryView) -> None:
    """What happened to it, and the other tries of the same algorithm."""
    st.header("History")
    st.html(lists.history(entry.history[: -SHOWN_EVENTS - 1 : -1], reading.zone()))
    if len(entry.history) > SHOWN_EVENTS:
        st.caption(texts.newest_of(SHOWN_EVENTS, len(entry.history)))
    st.header(f"Tries: {entry.tries}")
    if entry.others:
        st.html(lists.entries(entry.others, reading.zone()))
    else:
        st.markdown("This is the only entry of this algorithm on this track.")
