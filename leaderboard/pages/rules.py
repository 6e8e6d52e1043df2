"""Rules: what a track holds fixed and what an entry may do, from the file that the machine itself uses."""

from __future__ import annotations

import streamlit as st

from dare_platform.tracks import load_track, slugs_here
from leaderboard import links, quantities, reading, rulebook, texts


def page() -> None:
    """The rules of one track, section by section, each with an anchor."""
    query = reading.query()
    slugs = slugs_here()
    for notice in links.unknown_values(query, {"track": slugs}, "site", {"track": slugs[0]}):
        st.info(notice)
    asked = links.known_or_first(query.get("track", ()), slugs)
    track = load_track(asked)
    reading.title(track.name, "Rules")
    st.title(f"Rules of track {track.name}")
    chosen = st.segmented_control("Track", slugs, default=slugs[0], required=True, key="track", bind="query-params")
    if chosen != asked:
        track = load_track(chosen)
    st.html(rulebook.state_line(track, quantities.short_hash(track.digest())))
    st.markdown(track.summary)

    st.header("What is measured", anchor="measured")
    st.html(rulebook.tasks(track))
    st.header("What is fixed", anchor="fixed")
    st.html(rulebook.fixed_settings(track))
    st.header("Budget and clocks", anchor="budget")
    st.markdown(texts.BUDGET)
    st.html(rulebook.budgets(track))
    st.header("Seeds", anchor="seeds")
    st.markdown(rulebook.seeds(track))
    st.header("What you may do", anchor="allowed")
    st.html(rulebook.examples(track.allowed, allowed=True))
    st.header("What you may not do", anchor="not-allowed")
    st.html(rulebook.examples(track.not_allowed, allowed=False))
    st.header("How we rank", anchor="ranking")
    st.markdown("\n\n".join(texts.how_we_rank(track.seeds_required)))
    st.header("What this track proves, and what it does not", anchor="proves")
    st.markdown(track.proves)
    st.markdown(f"It does not prove: {track.does_not_prove[0].lower()}{track.does_not_prove[1:]}")
    st.caption(f"SHA-256 of these rules: `{track.digest()}`")
