"""The frame around every page: identity, navigation, and how code moves from one page to another."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import streamlit as st
from streamlit.navigation.page import StreamlitPage

from leaderboard import reading, theme
from leaderboard.charts import Chart


def identity() -> None:
    """Browser title, logo and styles."""
    st.set_page_config(page_title="DARE", page_icon=theme.FAVICON, layout="wide")
    st.logo(theme.logo(reading.scheme()), size="large")
    st.html(f"<style>{theme.styles()}</style>")


def _entry_page() -> None:
    from leaderboard.pages import entry  # pages import this module: they lead to one another

    entry.page()


def entry_page() -> StreamlitPage:
    """The page of one entry; out of the menu, since it needs an id."""
    return st.Page(_entry_page, title="Entry", url_path="entry", visibility="hidden")


def listed(page: Callable[[], None], title: str, url_path: str, default: bool = False) -> StreamlitPage:
    """A page of the menu."""
    return st.Page(page, title=title, url_path=url_path, default=default)


def show_entry(entry_id: str) -> None:
    """Leave this page for that of an entry."""
    st.switch_page(entry_page(), query_params={"id": entry_id})


def draw(chart: Chart, key: str) -> None:
    """A chart in our own colours, with its sentence for those who do not see it."""
    st.vega_lite_chart(spec=chart.spec, alt=chart.alt, theme=None, key=key)


def entry_box(label: str, key: str, names: Mapping[str, str]) -> str:
    """A box whose choice stands in the URL by id: Streamlit's own binding would write the label there."""
    options = ["", *names]
    asked = reading.query_value(key)
    chosen = st.selectbox(
        label,
        options,
        index=options.index(asked) if asked in options else 0,
        key=f"choose-{key}",
        format_func=lambda id: f"{names[id]} ({id[-6:]})" if id else "choose an entry",
        width=260,
    )
    if chosen and chosen != asked:
        st.query_params[key] = chosen
    elif asked and not chosen:
        st.query_params.pop(key, None)
    return chosen or ""
