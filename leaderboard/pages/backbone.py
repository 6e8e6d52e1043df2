"""Backbone: what is trained, what it does untouched, and what has been done to it."""

from __future__ import annotations

import streamlit as st

from dare_platform import claims
from dare_platform.uploads import UNTOUCHED
from dare_platform.verdict import escaped
from dare_platform.views.backbones import BackboneView, backbone_view
from leaderboard import backbone_parts, cost_charts, frame, links, people, reading, tables, texts


def page() -> None:
    """Which weights, their scores untouched, and the entries on them."""
    slug = reading.query_value("id")
    view: BackboneView | None = None
    if links.is_id(slug):
        with reading.database().read() as session:
            view = backbone_view(session, slug, people.viewer())
    if view is None:
        reading.title("Backbone")
        st.title("Backbone")
        st.markdown(texts.unknown_id("backbone", slug) if slug else texts.no_id("backbone"))
        st.html(tables.back_to_board())
        return
    reading.title(view.slug, "Backbone")
    st.title(escaped(view.slug), anchor=False)
    st.markdown(backbone_parts.headline(view))
    if not view.is_here:
        st.info(texts.backbone_is_not_here(view.slug))
    st.header("What is it?")
    st.html(backbone_parts.facts(view))
    if view.contents:
        st.header("Which weights exactly?")
        st.html(backbone_parts.contents(view))
        if len(view.contents) > 1:
            st.caption("Boards show results on the newest content only.")
    _untouched(view)
    _stated(view)
    _entries(view)


def _untouched(view: BackboneView) -> None:
    st.header("What does it score untouched?")
    if not view.untouched:
        st.markdown("**Not measured here.** `dare submit untouched` asks it everything that a track asks.")
        return
    with reading.part("table"):
        st.html(backbone_parts.untouched(view.untouched))
    st.header("Does it need its denoising steps?")
    curves = backbone_parts.with_steps(view.untouched)
    if not curves:
        st.markdown(backbone_parts.no_steps(view.untouched))
    for (task, scorer), found in curves.items():
        with reading.part("chart"):
            title = backbone_parts.title(task)
            st.subheader(title)
            frame.draw(cost_charts.by_steps(title, found, reading.scheme()), f"steps-{task}-{scorer}")
            with st.expander(f"Numbers of {title}"):
                st.html(backbone_parts.untouched(found))


def _stated(view: BackboneView) -> None:
    """Claims of others about the untouched backbone, in italics of their own table and in no rank."""
    found = [one for one in claims.claims() if one.backbone == view.slug and one.algorithm == UNTOUCHED]
    if found:
        st.header("What do others state?")
        st.html(backbone_parts.stated(found))


def _entries(view: BackboneView) -> None:
    st.header("What has been done to it?")
    if view.entries:
        st.html(backbone_parts.entries(view.entries, reading.zone()))
        if len(view.entries) < view.entries_in_all:
            st.caption(f"The newest {len(view.entries)} of {view.entries_in_all}.")
    else:
        st.markdown("Nothing yet.")
