"""Run: whether it is alive, what it does, whether it learns, why it ended, and how to repeat it."""

from __future__ import annotations

import time

import streamlit as st

from dare_platform import views
from dare_platform.verdict import escaped
from dare_platform.views import RunView
from leaderboard import actions, charts, frame, links, lists, people, reading, rollouts, tables, texts

REFRESH_SECONDS = 2
QUIET_SECONDS = 30 * 60
CURVE_HEIGHT = 260
SMALL_HEIGHT = 150
LOG_HEIGHT = 320


def page() -> None:
    """A title, one part that moves while the run does, then what stands still: rollout, log, provenance."""
    run_id = reading.query_value("id")
    run = _read(run_id)
    if run is None:
        reading.title("Run")
        st.title("Run")
        st.markdown(texts.unknown_id("run", run_id) if run_id else texts.no_id("run"))
        st.html(tables.back_to_board())
        return

    reading.title(lists.run_name(run.summary), "Run")
    st.title(escaped(lists.run_name(run.summary)), anchor=False)
    st.html(lists.run_line(run))
    actions.say()
    _actions(run)
    stands_still = run.is_finished or _is_quiet(run)
    if not stands_still:
        st.fragment(run_every=REFRESH_SECONDS)(_live)(run_id, beside_the_curve(run))
    else:
        _progress(run)
        if not run.is_finished:
            st.markdown(texts.PAUSED)
    _scores(run)
    _sample(run)
    if stands_still:
        _log(run)
    _repeat(run)


def _read(run_id: str) -> RunView | None:
    if not links.is_id(run_id):
        return None
    with reading.database().read() as session:
        return views.run_view(session, run_id, viewer=people.viewer())


def beside_the_curve(run: RunView) -> tuple[bool, int, str | None]:
    """What of the part that stands still has appeared: sample, attempt and worker."""
    return run.sample is not None, run.summary.attempts, run.worker


def _live(run_id: str, drawn: tuple[bool, int, str | None]) -> None:
    """The one timed part, with the log in it. The whole page is drawn again when the run ends, when nothing has changed
    for half an hour, and when what stands still has something to show for the first time.
    """
    run = _read(run_id)
    if run is None or run.is_finished or beside_the_curve(run) != drawn or _is_quiet(run):
        st.rerun()
    else:
        _progress(run)
        _live_log(run)


def _is_quiet(run: RunView) -> bool:
    """Whether nothing visible has changed for too long; remembered for this reader and this run."""
    visible = (run.summary.state, run.summary.attempts, run.summary.step, len(run.history))
    seen, since = st.session_state.get(f"seen-{run.summary.id}", (None, 0.0))
    if seen != visible:
        st.session_state[f"seen-{run.summary.id}"] = (visible, time.monotonic())
        return False
    return time.monotonic() - float(since) > QUIET_SECONDS


def _progress(run: RunView) -> None:
    """Finding, stages, progress, numbers, curves; heights are fixed so that nothing jumps."""
    st.markdown(run.headline)
    st.html(lists.stages(run.stages))
    if run.is_active:
        st.progress(run.progress or 0.0, text=texts.progress(run))
    if run.isolation:
        st.caption(run.isolation)
    if run.summary.kind == "train":
        _curves(run)
    if run.alarms:
        st.html(lists.alarms(run.alarms))


def _curves(run: RunView) -> None:
    """The reward large, up to three other metrics small."""
    st.header("Does it learn?", anchor=False)
    metrics = charts.ordered(run.metrics)
    if not metrics:
        if run.is_finished:
            st.markdown(texts.NO_CURVE_AT_ALL)
        else:
            with st.container(height=CURVE_HEIGHT, border=False):
                st.markdown(texts.NO_CURVE)
        return
    first, *others = metrics
    with reading.part("chart"):
        drawn = charts.metric_curve(
            first, charts.metric_title(first.name), reading.scheme(), run.summary.of, CURVE_HEIGHT
        )
        frame.draw(drawn, f"metric-{first.name}")
    if others:
        for column, series in zip(st.columns(len(others)), others, strict=True):
            with column, reading.part("chart"):
                title = charts.metric_title(series.name)
                drawn = charts.metric_curve(series, title, reading.scheme(), run.summary.of, SMALL_HEIGHT)
                frame.draw(drawn, f"metric-{series.name}")
    if run.self_reported:
        st.caption(texts.SELF_REPORTED)


def _actions(run: RunView) -> None:
    with st.container(horizontal=True):
        if run.can_cancel and run.may_act and st.button("Cancel this run", key="cancel"):
            actions.cancel(run.summary.id)
        if run.can_retry and run.may_act and st.button("Run its entry again", key="again"):
            again = actions.ask_again(run.summary.entry_id)
            if again is not None:
                frame.show_entry(again)
        if not run.is_finished and st.button("Show the newest sample", key="newest"):
            st.rerun()


def _scores(run: RunView) -> None:
    """Every task's number by every scorer, what has none, and where the scorers disagree."""
    if run.summary.kind not in ("evaluate", "score"):
        return
    st.header("Scores", anchor=False)
    if run.scores:
        st.html(lists.scores(run.scores))
        st.caption(texts.HOW_SCORED)
    elif not run.not_scored:
        st.markdown(texts.NO_SCORE_AT_ALL if run.is_finished else texts.NO_SCORE)
    if run.not_scored:
        st.html(lists.not_scored(run.not_scored))
        st.caption(texts.NOT_SCORED)
    if run.summary.kind == "evaluate" and run.scores:
        with reading.part("comparison"):
            _disagreements(run)


def _disagreements(run: RunView) -> None:
    st.subheader("Do the scorers agree?", anchor=False)
    if not run.differences:
        st.markdown(texts.ONE_SCORER.format(run=run.summary.id))
    for found in run.differences:
        st.markdown(texts.disagreement(found))
        if found.moved:
            with st.expander(texts.moved(found)):
                st.html(lists.moved(found))
                st.caption("All of them, with what was answered:")
                st.code(
                    f"dare scores diff {run.summary.id} --scorers {found.a} {found.b} --task {found.task}",
                    language="shell",
                    wrap_lines=True,
                )


def _sample(run: RunView) -> None:
    if run.summary.kind != "train":
        return
    st.header("A sample rollout", anchor=False)
    if run.sample is None:
        st.markdown(texts.NO_SAMPLE_AT_ALL if run.is_finished else texts.NO_SAMPLE)
        return
    st.caption(texts.sample(run.sample))
    with reading.part("rollout"):
        st.html(rollouts.rollout(run.sample))


def _log(run: RunView) -> None:
    with st.expander("Log"):
        if run.log_tail:
            st.html(lists.log(run.log_tail))
            st.caption(texts.log_lines(len(run.log_tail), run.summary.id))
        else:
            st.markdown(texts.LOG_WITHHELD if run.withheld else texts.NO_LOG)


def _live_log(run: RunView) -> None:
    """A window of a fixed height on the newest attempt, whose end stays in sight unless somebody has scrolled up."""
    with st.expander("Log", key="log"):
        if run.withheld:
            st.markdown(texts.LOG_WITHHELD)
            return
        with st.container(height=LOG_HEIGHT, border=False, autoscroll=True):
            st.html(lists.log(run.log_tail, scrolls=False))
        st.caption(texts.log_lines(len(run.log_tail), run.summary.id) if run.log_tail else texts.NO_LOG)


def _repeat(run: RunView) -> None:
    """How to run it again, what it cost, and everything that was recorded about it."""
    st.header("Run it again", anchor=False)
    st.code(run.rerun_command, language="shell", wrap_lines=True)
    if run.usage is not None:
        with st.expander("What it cost"):
            st.html(lists.usage(run.usage))
    with st.expander("Provenance"):
        st.html(lists.pairs(run.provenance, "Provenance"))
        st.caption(f"SHA-256 of the order: `{run.job_sha256}`")
        if run.withheld:
            st.markdown(texts.ORDER_WITHHELD)
        else:
            st.html(lists.order(run.job_json))
    if run.artifacts:
        with st.expander("Files"):
            st.html(lists.artifacts(run.artifacts))
    with st.expander("History"):
        st.html(lists.history(run.history, reading.zone(), of_one_run=True))
