"""Submit: put an entry into the queue, certain that it can run."""

from __future__ import annotations

import secrets

import streamlit as st

from dare import catalog
from dare.source import AlgorithmSource
from dare.source.problems import shown
from dare_platform import uploads, views
from dare_platform.models import Visibility
from dare_platform.tracks import Track, load_track, slugs_here
from dare_platform.uploads import UploadReport
from dare_platform.verdict import escaped
from leaderboard import actions, administration, forms, frame, links, people, reading, texts

SEEN_BY: tuple[Visibility, ...] = ("public", "anonymous", "private")
BUILT_IN, FILE = "built in", "my file"


def page() -> None:
    """Method, place, name, and what the button will start."""
    query = reading.query()
    reading.title("Submit")
    st.title("Submit an entry")
    reason = people.why_not(people.viewer(), "submit")
    if reason is not None:
        st.markdown(reason)
        people.sign_in_button("sign-in")
        return
    _prefill(reading.query_value("from"))
    slugs = slugs_here()

    st.header("1. Method", anchor=False)
    content, file_name, built_in = _method()
    settings_text = st.text_area("Settings, YAML, optional", key="settings", height=110, placeholder="mc_samples: 4")

    st.header("2. Where", anchor=False)
    slug = st.segmented_control("Track", slugs, default=slugs[0], required=True, key="track", bind="query-params")
    track = load_track(slug)
    known = {"track": slugs, "backbones": tuple(track.backbones)}
    for notice in links.unknown_values(query, known, "site", {"track": slugs[0]}):
        st.info(notice)
    source = catalog.algorithms().get(built_in) if built_in else _peek(file_name, content, track)
    chosen = _backbones(track, source)

    st.header("3. Name", anchor=False)
    default = built_in or (source.class_name if source else "")
    name = st.text_input("Name on the board", key="name", max_chars=60, placeholder=default, width=420).strip()
    seen_by = _seen_by()

    report = _read(content, file_name, built_in, settings_text, track, chosen, name or default)
    _findings(report, built_in)
    st.header("4. What you get", anchor=False)
    _queue(report, track, seen_by)


def _seen_by() -> Visibility:
    """Who sees the entry; asked where there is more than one person."""
    if not people.has_sign_in():
        return "public"
    chosen: Visibility = st.segmented_control("Who sees it", SEEN_BY, default="public", required=True, key="seen_by")
    st.caption(texts.WHO_SEES[chosen])
    return chosen


def _prefill(from_entry: str) -> None:
    """Fill the form once from an entry that a link names."""
    if not links.is_id(from_entry) or st.session_state.get("filled_from") == from_entry:
        return
    st.session_state["filled_from"] = from_entry
    with reading.database().read() as session:
        found = views.entry_view(session, from_entry, people.viewer())
    if found is None:
        st.info(texts.unknown_id("entry", from_entry))
        return
    st.session_state["settings"] = found.settings_text
    if found.summary.built_in:
        st.session_state["method"], st.session_state["algorithm"] = BUILT_IN, found.summary.algorithm
    else:
        st.session_state["method"], st.session_state["pasted"] = FILE, found.source or ""


def _method() -> tuple[bytes | None, str, str | None]:
    """The bytes of a file with its name, or the name of a built-in method."""
    kind = st.segmented_control(
        "Method",
        (BUILT_IN, FILE),
        default=BUILT_IN,
        required=True,
        key="method",
        persist_state="session",
        label_visibility="collapsed",
    )
    if kind == BUILT_IN:
        names = list(catalog.algorithms())
        built_in = st.selectbox("Built-in method", names, key="algorithm", width=420)
        st.caption(escaped(catalog.algorithms()[built_in].summary))
        return None, "", built_in
    if not reading.takes_files():
        st.markdown(texts.UPLOADS_REFUSED)
        return None, "", None
    st.markdown(texts.WHAT_A_FILE_IS)
    kinds = ["py", "zip", "tar", "gz", "tgz"]
    file = st.file_uploader("Your algorithm, one Python file or its archive", type=kinds, key="file", max_upload_size=1)
    pasted = st.text_area(
        "or paste it", key="pasted", height=220, placeholder="class MyRule(GRPO):", disabled=file is not None
    )
    if file is not None:
        return file.getvalue(), file.name, None
    return (pasted.encode() if pasted.strip() else None), "algorithm.py", None


def _peek(file_name: str, content: bytes | None, track: Track) -> AlgorithmSource | None:
    """What a file says of itself, to know which backbones can be offered."""
    if content is None:
        return None
    return uploads.read_upload(file_name, content, None, track, list(track.backbones)).source


def _backbones(track: Track, source: AlgorithmSource | None) -> list[str]:
    """Backbones that this method can train, as pills; the others with their reason."""
    refused = forms.refused_backbones(track, source)
    offered = [name for name in track.backbones if name not in refused]
    chosen = st.pills(
        "Backbones", offered, selection_mode="multi", default=offered, key="backbones", bind="query-params"
    )
    if refused:
        st.html(forms.form_messages(list(refused.values()), first_is_new=False))
    return list(chosen)


def _read(
    content: bytes | None,
    file_name: str,
    built_in: str | None,
    settings_text: str,
    track: Track,
    backbones: list[str],
    name: str,
) -> UploadReport | None:
    """Reads, never imports. None while there is nothing to read."""
    settings = settings_text if settings_text.strip() else None
    if built_in:
        return uploads.read_builtin(built_in, settings, track, backbones, entry_name=name or None)
    if content is None:
        return None
    return uploads.read_upload(file_name, content, settings, track, backbones, name=name or None)


def _findings(report: UploadReport | None, built_in: str | None) -> None:
    """All problems at once, and the settings against their defaults."""
    if report is None:
        return
    if not built_in:
        st.html(forms.read_line(report))
    seen = st.session_state.get("problems_seen")
    if report.problems:
        st.html(forms.form_messages(shown(report.problems), first_is_new=seen != report.problems))
    st.session_state["problems_seen"] = report.problems
    if report.source is not None:
        st.subheader("Hyperparameters", anchor=False)
        st.html(forms.settings_table(report.settings))


def _queue(report: UploadReport | None, track: Track, seen_by: Visibility) -> None:
    """What the button starts, and the button. One rendered form has one key: a second click finds the same entry."""
    st.session_state.setdefault("form_key", secrets.token_urlsafe(16))
    submission = report.submission if report is not None else None
    if report is not None and submission is not None:
        st.markdown(forms.what_you_get(report, track, seen_by))
    if line := administration.quota_line(people.viewer()):
        st.caption(line)
    with st.container(horizontal=True, vertical_alignment="center"):
        clicked = st.button(
            texts.queue_button(report.runs) if report and submission else "Queue",
            type="primary",
            disabled=submission is None,
            key="queue",
        )
        if submission is None:
            st.markdown(_why_not(report))
    if clicked and submission is not None:
        entry_id = actions.submit(submission, st.session_state["form_key"], seen_by)
        if entry_id is not None:
            st.session_state["form_done"] = True
            frame.show_entry(entry_id)
    elif st.session_state.pop("form_done", False):
        st.session_state["form_key"] = secrets.token_urlsafe(16)


def _why_not(report: UploadReport | None) -> str:
    """What stands beside a button that cannot be pressed."""
    if report is not None:
        return texts.problems_first(len(report.problems))
    return texts.METHOD_MISSING if reading.takes_files() else texts.FILES_REFUSED
