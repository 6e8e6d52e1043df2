from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
import streamlit as st
from filled_database import Site, begin, submit
from sqlalchemy import func, select
from streamlit.testing.v1 import AppTest
from streamlit.util import calc_hash

from dare_platform.host import is_loopback
from dare_platform.models import Entry, Run
from dare_platform.tracks import load_track
from dare_platform.views import CurvesView, SeedCurve
from leaderboard import serving, texts
from leaderboard.pages.curves import told_apart


def opened(page: str = "", **query: str | list[str]) -> AppTest:
    """The whole site, run once for one page."""
    test = AppTest.from_file(str(serving.SCRIPT), default_timeout=30)
    for name, value in query.items():
        test.query_params[name] = value
    if page:
        test._page_hash = calc_hash(page)
    test.run()
    assert not test.exception, test.exception
    return test


def shown(test: AppTest) -> str:
    """Everything that a reader can read on the page, with the HTML that we wrote ourselves."""
    parts = [element.value for kind in ("title", "header", "subheader", "markdown", "caption", "info", "success") for
             element in test.get(kind)]  # fmt: skip
    parts += [element.proto.body for element in test.get("html")]
    parts += [element.value for element in test.get("code")]
    return "\n".join(str(part) for part in parts)


def press(test: AppTest, key: str) -> AppTest:
    return test.button(key=key).click().run()


def entries_in(site: Site) -> int:
    with site.database.read() as session:
        return session.execute(select(func.count()).select_from(Entry)).scalar_one()


# --- leaderboard ----------------------------------------------------------------------------------------------------


def test_the_board_opens_with_question_verdict_table_and_what_it_proves(site: Site) -> None:
    page = shown(opened())
    assert texts.QUESTION in page
    assert "**This board shows that the pipeline works. It does not rank methods.**" in page
    assert '<table><caption class="sr">Results on llada-tiny' in page
    assert "It does not prove" in page
    assert "What did training move on 4x4 Sudoku?" in page
    assert "1 of 3 entries is incomplete and not ranked." in page
    assert ">Hide it</a>" in page
    assert ">shuffled-d1</bdi>" in page
    assert texts.CONTROL in page
    assert "A method whose sampled reward rises clearly above the control's learned from the reward." in page
    assert "not ranked: 4x4 Sudoku failed" in page


def test_a_board_of_one_seed_shows_what_there_is(empty_site: Site) -> None:
    ids = begin(empty_site.database)
    page = shown(opened())
    assert "2 of 2 entries are incomplete and not ranked." in page
    assert page.count('<span class="under second">1 of 3 seeds') == 10
    assert page.count('<span class="second">not ranked</span><span class="under second">+') == 2
    assert page.count('<span class="second">preliminary</span>') == 2
    assert "not run" not in page
    assert "±" not in page
    assert "What did training move on 4x4 Sudoku?" in page
    assert "Hollow: after training, fewer seeds than a rank needs, without an interval." in page
    entry = shown(opened("entry", id=ids["bgpo"]))
    assert (
        "**Complete.** 2 of 2 runs succeeded. Preliminary: 1 of the 3 seeds that a place on the board needs." in entry
    )
    assert "One seed, not smoothed." in entry


def test_the_url_alone_decides_what_a_board_shows(site: Site) -> None:
    page = shown(opened(sort="sudoku", dir="asc", q="bgpo"))
    assert 'aria-sort="ascending"' in page
    assert ">bgpo</bdi>" in page
    assert ">d1</bdi>" not in page


def test_controls_take_their_values_from_the_url(site: Site) -> None:
    test = opened(sort="countdown", dir="asc", backbone="sdar-tiny")
    assert test.selectbox(key="sort").value == "countdown"
    assert test.text_input(key="q").value == ""
    assert "Results on sdar-tiny" in shown(test)


def test_an_unknown_value_gives_a_notice_and_the_default(site: Site) -> None:
    page = shown(opened(sort="bogus", backbone="gpt"))
    assert "The link asks for `sort=bogus`, which this board does not have. Showing `gain`." in page
    assert "The link asks for `backbone=gpt`, which this board does not have. Showing `llada-tiny`." in page


def test_an_empty_database_says_how_to_fill_it(empty_site: Site) -> None:
    page = shown(opened())
    assert texts.EMPTY_BOARD in page
    assert '<a href="submit">Submit</a>' in page


def test_a_search_that_finds_nothing_offers_its_removal(site: Site) -> None:
    assert "No entry matches “spg”." in shown(opened(q="spg"))


def test_a_board_is_drawn_within_its_budget(site: Site) -> None:
    test = opened()
    spent = []
    for _ in range(3):
        started = time.process_time()
        test.run()
        spent.append(time.process_time() - started)
    assert min(spent) < 0.5  # the harness included; the page itself is measured in the browser


def test_a_missing_database_is_said_and_never_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DARE_HOME", str(tmp_path / "nothing"))
    st.cache_resource.clear()
    page = shown(opened())
    assert "**The database does not answer.**" in page
    assert "run `dare migrate`" in page
    assert "Traceback" not in page


def test_a_part_that_fails_shows_a_reference_and_leaves_the_rest() -> None:
    def script() -> None:
        import streamlit as st

        from leaderboard import reading

        with reading.part("chart"):
            raise ZeroDivisionError("a secret path")
        st.markdown("The rest.")

    page = shown(AppTest.from_function(script).run())
    assert re.search(r"\*\*This chart could not be drawn\.\*\* Reference `[0-9a-f]{6}`\.", page)
    assert "The rest." in page
    assert "secret" not in page


# --- entry ----------------------------------------------------------------------------------------------------------


def test_an_entry_shows_its_row_and_its_curves(site: Site) -> None:
    page = shown(opened("entry", id=site.entries["bgpo"]))
    assert "**Complete.** 6 of 6 runs succeeded." in page
    assert "Did the reward rise, in every seed?" in page
    assert page.count('<tr class="method">') == 1


@pytest.mark.parametrize(
    ("view", "expected"),
    [("method", "How a reward becomes an advantage"), ("runs", "6 of 6 finished"), ("history", "only entry of this")],
)
def test_each_tab_of_an_entry_can_be_linked(site: Site, view: str, expected: str) -> None:
    assert expected in shown(opened("entry", id=site.entries["bgpo"], view=view))


def test_a_history_says_which_run_it_was_and_who_did_it(site: Site) -> None:
    page = shown(opened("entry", id=site.entries["bgpo"], view="history"))
    assert ">evaluate · llada-tiny · seed 2</bdi></a>" in page
    assert ">worker laptop-1</bdi>" in page
    assert ">end of training, seed 2</bdi>" in page


def test_the_untouched_backbone_has_a_page_too(site: Site) -> None:
    for view in ("results", "method", "runs", "history"):
        assert "untouched" in shown(opened("entry", id=site.entries["untouched"], view=view))


def test_a_failed_run_is_told_with_who_pays_and_the_next_step(site: Site) -> None:
    page = shown(opened("entry", id=site.entries["cj_grpo"]))
    assert "<b>diverged:</b> NaN in the loss at step 7. The time it used counts." in page
    assert "smaller coefficients or tighter clipping" in page


@pytest.mark.parametrize("given", ["e_93ab", "../etc", "<b>"])
def test_an_unknown_entry_is_not_told_from_a_private_one(site: Site, given: str) -> None:
    page = shown(opened("entry", id=given))
    assert texts.unknown_id("entry", given) in page
    assert texts.SEARCH_THE_BOARD in page
    assert texts.no_id("entry") in shown(opened("entry"))


def test_an_entry_that_waits_says_so_in_one_line(empty_site: Site) -> None:
    with empty_site.database.write() as session:
        entry = submit(session, load_track("tiny"), "bgpo")
    page = shown(opened("entry", id=entry))
    assert page.count("**Waiting") == 1
    assert "**Waiting for a worker for llada.**" in page
    assert "it starts when one comes. 0 of 6 runs done." in page


def test_unfinished_runs_of_an_entry_can_be_cancelled(site: Site) -> None:
    test = press(opened("entry", id=site.entries["cj_grpo"]), "cancel")
    assert "cancelled, 1 asked to stop" in shown(test)
    with site.database.read() as session:
        states = session.execute(select(Run.state).where(Run.entry_id == site.entries["cj_grpo"])).scalars().all()
    assert "queued" not in states


# --- run ------------------------------------------------------------------------------------------------------------


def test_a_training_run_shows_stages_curve_sample_and_log(site: Site) -> None:
    page = shown(opened("run", id=site.run("cj_grpo", "working")))
    assert "**Training 18 of 40.**" in page
    assert "aria-current=step" in page
    assert "process sandbox (laptop)" in page
    assert 'class="token mask"' in page
    assert "step 1 &lt;b&gt;&amp;amp;" in page
    assert "dare reproduce" in page
    assert texts.SELF_REPORTED in page


def test_a_waiting_run_says_what_it_waits_for(site: Site) -> None:
    page = shown(opened("run", id=site.run("cj_grpo", "queued")))
    assert "**Waiting: position 1 of 1 in family_llada.**" in page
    assert texts.NO_CURVE in page
    assert texts.NO_SAMPLE in page
    assert texts.NO_LOG in page


def test_a_failed_run_says_why_it_ended(site: Site) -> None:
    page = shown(opened("run", id=site.run("cj_grpo", "failed")))
    assert "**NaN in the loss at step 7.** It is charged." in page


def test_an_evaluation_shows_its_scores(site: Site) -> None:
    with site.database.read() as session:
        query = select(Run.id).where(Run.kind == "evaluate", Run.state == "succeeded").limit(1)
        run = session.execute(query).scalar_one()
    page = shown(opened("run", id=run))
    assert "solved, greedy" in page
    assert "What this run cost" in page


def evaluation_of(site: Site, entry: str) -> str:
    with site.database.read() as session:
        query = select(Run.id).where(Run.entry_id == site.entries[entry], Run.kind == "evaluate", Run.seed == 0)
        return session.execute(query).scalar_one()


def test_an_evaluation_shows_every_scorer_and_where_they_disagree(site: Site) -> None:
    run = evaluation_of(site, "d1")
    test = opened("run", id=run)
    page = shown(test)
    assert page.count("<bdi>opencompass-0.5.4</bdi>") == 1
    assert '<td data-name="95 % interval" class="number"><bdi>20.2 to 30.8</bdi></td>' in page
    assert '<td data-name="Undecoded" class="number"><span class="attention"><bdi>2</bdi></span></td>' in page
    assert '<td data-name="Scorer failed" class="number"><span class="attention"><bdi>1</bdi></span></td>' in page
    assert (
        "`dare-1` and `opencompass-0.5.4` judge 8 of 16 answers to sudoku alike; `dare-1` alone solves 4, "
        "`opencompass-0.5.4` alone 3, one of them failed on 1." in page
    )
    assert test.expander[0].label == "The first 5 of 7 answers"
    assert "&lt;b&gt;1234&lt;/b&gt; 4321" in page
    assert f"dare scores diff {run} --scorers dare-1 opencompass-0.5.4 --task sudoku" in page


def test_an_evaluation_by_one_scorer_says_how_another_is_asked(site: Site) -> None:
    run = evaluation_of(site, "bgpo")
    page = shown(opened("run", id=run))
    assert texts.ONE_SCORER.format(run=run) in page
    assert "Tasks without a score" not in page


def test_an_active_run_can_be_cancelled(site: Site) -> None:
    test = press(opened("run", id=site.run("cj_grpo", "working")), "cancel")
    assert "1 asked to stop." in shown(test)
    assert "**Stopping.**" in shown(test)


def test_an_unknown_run_has_the_same_sentence(site: Site) -> None:
    assert texts.unknown_id("run", "r_1") in shown(opened("run", id="r_1"))
    assert texts.no_id("run") in shown(opened("run"))


# --- queue and rules ------------------------------------------------------------------------------------------------


def test_the_queue_shows_who_works_and_who_waits(site: Site) -> None:
    page = shown(opened("queue"))
    assert "1 running, 1 waiting" in page
    assert "training 18 of 40" in page
    assert ">laptop-1</bdi>" in page


def test_an_empty_queue_says_so(empty_site: Site) -> None:
    page = shown(opened("queue"))
    assert "**Nothing is waiting.**" in page
    assert texts.NO_WORKER_YET in page


def test_the_rules_come_from_the_track_itself(site: Site) -> None:
    page = shown(opened("rules"))
    assert "Rules of track tiny 1.0" in page
    assert "3 finished seeds are needed" in page
    assert "torch.manual_seed(0)" in page
    assert "does not have. Showing `tiny`." in shown(opened("rules", track="huge"))


# --- submit ---------------------------------------------------------------------------------------------------------

ENTRY = """
from dataclasses import dataclass

from dare.algorithms.d1 import D1


@dataclass(frozen=True, kw_only=True)
class MyRule(D1):
    \"\"\"D1 with another default.\"\"\"

    prompt_mask: float = 0.2
    \"\"\"Probability of hiding a prompt token.\"\"\"
"""


def test_a_built_in_method_can_be_queued_and_a_second_click_finds_the_same_entry(site: Site) -> None:
    before = entries_in(site)
    test = opened("submit")
    test.selectbox(key="algorithm").set_value("bgpo").run()
    test.text_area(key="settings").set_value("mc_samples: 8").run()
    page = shown(test)
    assert "**6 training runs and 6 evaluations**" in page
    assert "8 · changed" in page
    assert test.button(key="queue").label == "Queue 12 runs"
    test.button(key="queue").click().run()
    assert "12 runs queued" in shown(test)
    assert entries_in(site) == before + 1


def test_the_key_of_a_rendered_form_makes_a_second_submission_harmless(empty_site: Site) -> None:
    from dare_platform.tracks import load_track
    from dare_platform.uploads import read_builtin
    from leaderboard import actions, reading

    report = read_builtin("d1", None, load_track("tiny"), ["llada-tiny"])
    assert report.submission is not None
    with reading.database().read():
        pass
    first = actions.submit(report.submission, "one key")
    assert actions.submit(report.submission, "one key") == first
    assert entries_in(empty_site) == 1


def test_all_problems_are_shown_at_once_as_sentences(site: Site) -> None:
    test = opened("submit")
    test.text_area(key="settings").set_value("mc_sample: 8\nclip_high: high\n").run()
    page = shown(test)
    assert "Did you mean <code>mc_samples</code>?" in page
    assert page.count("<li") >= 2
    assert test.button(key="queue").disabled
    assert "2 problems to mend first, see above." in page


def as_file(test: AppTest) -> AppTest:
    group = next(group for group in test.get("button_group") if group.key == "method")
    group.set_value("my file")
    return test.run()


def test_a_pasted_class_is_read_and_offered_with_its_checks(site: Site) -> None:
    test = as_file(opened("submit"))
    assert texts.METHOD_MISSING in shown(test)
    test.text_area(key="pasted").set_value(ENTRY).run()
    page = shown(test)
    assert "class <code>MyRule</code>" in page
    assert "checks on a tiny backbone, free of charge" in page
    assert not test.button(key="queue").disabled


def test_a_file_with_a_forbidden_import_is_refused_with_its_line(site: Site) -> None:
    test = as_file(opened("submit"))
    test.text_area(key="pasted").set_value("import requests\n" + ENTRY).run()
    page = shown(test)
    assert "line 1" in page
    assert "<code>import requests</code> is not allowed" in page
    assert test.button(key="queue").disabled


def test_a_server_that_others_can_reach_is_for_reading_where_nobody_signs_in(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(serving.ADDRESS_VARIABLE, "0.0.0.0")
    page = opened("submit")
    assert texts.READING_ONLY in shown(page)
    assert not page.button
    assert not page.get("file_uploader")


def test_the_form_can_be_filled_from_an_entry(site: Site) -> None:
    test = opened("submit", **{"from": site.entries["d1"]})
    assert test.selectbox(key="algorithm").value == "d1"


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("10.0.0.5", False), ("", False)],
)
def test_only_loopback_addresses_keep_the_site_on_this_machine(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected


def test_every_option_of_the_server_exists_in_streamlit() -> None:
    from streamlit import config

    known = config.get_config_options()
    for name in serving.options(8501, "127.0.0.1"):
        assert name in known, name


def test_a_board_of_a_backbone_that_is_not_here_says_how_it_comes_here(site: Site) -> None:
    page = shown(opened(track="matched", backbone="dream-7b-instruct"))
    assert "`dream-7b-instruct` is not on this machine" in page
    assert "dare backbone add FOLDER --name dream-7b-instruct" in page
    assert "make demo" not in page, "the demo fills other boards"


def test_the_rules_of_the_matched_track_are_shown_for_every_backbone() -> None:
    page = shown(opened("rules", track="matched"))
    assert "gradient-carrying forwards" in page
    for backbone in ("llada-8b-instruct", "dream-7b-instruct", "sdar-8b-chat", "llada2.0-mini"):
        assert backbone in page


def test_all_backbones_stand_beside_one_another_on_one_board(site: Site) -> None:
    page = shown(opened(backbone="all"))
    assert "Does it carry over from one backbone to another?" in page
    assert "Mean gain of every entry on every backbone" in page
    assert 'href="?backbone=sdar-tiny' in page


def test_two_entries_are_compared_and_the_choice_stands_in_the_url(site: Site) -> None:
    assert texts.CHOOSE_TWO in shown(opened("compare"))
    page = shown(opened("compare", a=site.entries["bgpo"], b=site.entries["bgpo"]))
    assert "Nothing can be said of the algorithms" in page or "The algorithms cannot be told apart" in page
    assert "Nothing: the same source with the same settings." in page
    assert texts.CHOOSE_TWO in shown(opened("compare", a=site.entries["bgpo"], b="nosuch")), "an id that is not offered"


def test_a_board_is_kept_by_a_link_and_shown_by_it(site: Site) -> None:
    board = press(opened(), "permalink")
    page = shown(board)
    assert "Kept: <a href=" in page
    sha256 = re.search(r"snapshot\?hash=([0-9a-f]{64})", page)
    assert sha256 is not None
    kept = shown(opened("snapshot", hash=sha256[1][:12]))
    assert f"dare verify {sha256[1]}" in kept
    assert "immutable" in kept
    assert "This is the only snapshot of its board." in kept
    assert "Results on llada-tiny" in kept


@pytest.mark.parametrize("given", ["9f3c01ab", "9f3c", "", "[x](https://example.org)"])
def test_a_hash_of_nothing_is_said(site: Site, given: str) -> None:
    page = shown(opened("snapshot", hash=given))
    assert "There is no snapshot" in page or "is no hash" in page
    assert "[x](" not in page, "what stands in a link is text"


def test_claims_of_papers_stand_below_the_board_of_their_backbone(site: Site) -> None:
    page = opened(track="matched", backbone="llada-8b-instruct")
    assert "Claims of papers, per cent, beside our reruns" in shown(page)
    assert any("What papers claim" in one.label for one in page.expander)
    assert not any("What papers claim" in one.label for one in opened().expander)


def test_curves_of_several_entries_are_drawn_with_their_alarms(site: Site) -> None:
    assert texts.CHOOSE_CURVES in shown(opened("curves"))
    page = opened("curves", a=site.entries["bgpo"], b=site.entries["cj_grpo"])
    assert page.get("vega_lite_chart") or page.get("arrow_vega_lite_chart")
    assert page.selectbox(key="metric").value == "reward"
    assert "collapse" in shown(page)
    assert texts.CHOOSE_CURVES in shown(opened("curves", a="nosuch"))


def test_two_entries_of_one_name_keep_their_own_curves() -> None:
    one = SeedCurve("entry-aaaaaa", "BGPO", "r1", 0, (), ())
    view = CurvesView(
        "reward", "llada-tiny", (one, replace(one, entry_id="entry-bbbbbb", run_id="r2")), ("reward",), ()
    )
    assert [curve.entry_name for curve in told_apart(view).curves] == ["BGPO (aaaaaa)", "BGPO (bbbbbb)"]
    alone = replace(view, curves=(one, replace(one, run_id="r3", seed=1)))
    assert [curve.entry_name for curve in told_apart(alone).curves] == ["BGPO", "BGPO"]
