"""The pages Cost, Task and Backbone: every state and exact text, and that the URL alone decides what they show."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from board_samples import BGPO, D1, FULL, VIEW, board
from filled_database import SECOND, Site
from sqlalchemy import select, update
from test_pages import opened, shown

from dare_platform.board_flags import Flag, Where
from dare_platform.models import Attempt, Entry, Run, TaskItem, TaskVersion, Usage
from dare_platform.verdict import escaped
from dare_platform.views.cost import Spent, cost_view
from leaderboard import cost_charts, costs, flag_list, tables
from leaderboard.links import BoardChoices


def item_ids(site: Site) -> list[str]:
    with site.database.read() as session:
        query = select(TaskItem.item_id).join(TaskVersion, TaskVersion.id == TaskItem.task_version_id)
        return list(
            session.execute(query.where(TaskVersion.task_slug == "sudoku").order_by(TaskItem.position)).scalars()
        )


# --- cost -----------------------------------------------------------------------------------------------------------


def test_cost_names_the_frontier_and_gives_every_entry_its_price(site: Site) -> None:
    page = shown(opened("cost"))
    assert costs.QUESTION in page
    assert "on the frontier on llada\\-tiny:** bgpo (6.8\u202fCPU-min" in page
    assert ">Points for 1 CPU-min</th>" in page
    assert "not a method, beside the frontier" in page


def test_what_was_not_measured_has_a_reason_and_no_number(site: Site) -> None:
    page = shown(opened("cost", xcost="tokens"))
    assert "not measured: nobody counted its decoded tokens" in page
    table = page[page.index("Every entry at its price") :]
    assert ">bgpo</bdi>" in table[table.index("Not in the picture") :]


def test_the_url_decides_measure_and_score(site: Site) -> None:
    test = opened("cost", xcost="nfe", task="sudoku")
    assert test.selectbox(key="task").value == "sudoku"
    assert "The link asks for" not in shown(test)
    assert "The link asks for `xcost=euro`, which this page does not have. Showing `gpu_h`." in shown(
        opened("cost", xcost="euro")
    )


def test_an_empty_board_has_no_prices_and_says_what_one_needs(empty_site: Site) -> None:
    assert costs.NO_POINT in shown(opened("cost"))


def test_two_devices_are_a_choice_and_never_one_picture(site: Site) -> None:
    with site.database.write() as session:
        trained = select(Run.id).where(Run.entry_id == site.entries["d1"], Run.kind == "train")
        session.execute(update(Attempt).where(Attempt.run_id.in_(trained)).values(hardware="A100"))
    page = shown(opened("cost"))
    assert "**Two devices in this view.** Hours on A100 and test CPU are not comparable; choose one." in page
    assert ">d1</bdi>" in page
    assert ">bgpo</bdi>" not in page


def test_the_picture_says_what_it_shows_and_escapes_names() -> None:
    hostile = replace(BGPO, name="<b>B</b>", entry_id="e_x")
    spent = {
        row.entry_id: (Spent("cpu", 3, 60.0 * place, 60.0, 1e6, 1e6, "prompts"),)
        for place, row in enumerate((D1, hostile), 1)
    }
    view = cost_view(board(D1, hostile), spent, "gpu_h")
    chart = cost_charts.front(view, "dark")
    assert chart.alt == "Mean gain against device time of training of 2 entries; d1, <b>B</b> form the frontier."
    assert "<b>B</b>" not in costs.verdict(view, "llada-tiny")
    assert "<b>B</b>" not in costs.price_table(view)


def test_points_a_price_are_left_out_where_nothing_was_gained() -> None:
    loser = replace(BGPO, gain=replace(BGPO.gain, value=-0.1)) if BGPO.gain else BGPO
    view = cost_view(board(loser), {loser.entry_id: (Spent("cpu", 3, 60.0, 60.0, 1.0, 1.0, "prompts"),)}, "gpu_h")
    assert re.search(r'data-name="Points for 1 CPU-min" class="number"></td>', costs.price_table(view))


# --- task -----------------------------------------------------------------------------------------------------------


def test_a_task_says_its_floor_source_licence_and_how_it_was_asked(site: Site) -> None:
    page = shown(opened("task", id="sudoku"))
    for words in ("Chance floor", "How hard are its items?", "Licence", "Hash of the items", "How it was asked"):
        assert words in page
    assert SECOND in page
    assert "Entries on this task" in page


def test_agreement_counts_what_both_have_judged(site: Site) -> None:
    """Sixteen answers, of which the second scorer differs on seven and failed on one: 8 of 15 are equal."""
    page = shown(opened("task", id="sudoku"))
    assert "53.3 per cent" in page


def test_checkpoints_without_stored_answers_are_said(site: Site) -> None:
    assert "of them have no answers stored item by item and do not count" in shown(opened("task", id="sudoku"))
    assert "**No answers are stored item by item here.**" in shown(opened("task", id="countdown"))


def test_a_task_that_nobody_was_asked_says_so(empty_site: Site) -> None:
    assert "**Nobody has been asked this task on this backbone yet.**" in shown(opened("task", id="sudoku"))


@pytest.mark.parametrize("given", ["nope", "../etc", "<b>x</b>"])
def test_an_unknown_task_has_the_text_of_what_is_private(site: Site, given: str) -> None:
    page = shown(opened("task", id=given))
    assert f"**There is no task `{given}`.** It may be private or the link may be cut." in page


def test_the_link_of_an_item_shows_it_with_escaped_answers(site: Site) -> None:
    first = item_ids(site)[0]
    page = shown(opened("task", id="sudoku", item=first))
    assert f"Item {escaped(first)}" in page
    assert "The grid is &lt;b&gt;1234&lt;/b&gt;" in page
    assert "<b>1234</b>" not in page
    assert "There is no item `nope`" in shown(opened("task", id="sudoku", item="nope"))


def test_items_of_a_hidden_split_are_not_shown(site: Site) -> None:
    first = item_ids(site)[0]
    with site.database.write() as session:
        session.execute(update(TaskVersion).where(TaskVersion.task_slug == "sudoku").values(hidden=True))
    page = shown(opened("task", id="sudoku", item=first))
    assert "**Items of this split are hidden.**" in page
    assert first not in page
    assert "The grid is" not in page


def test_a_private_entry_is_on_none_of_these_pages_for_others(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from leaderboard import serving

    with site.database.write() as session:
        session.execute(update(Entry).where(Entry.id == site.entries["d1"]).values(visibility="private"))
    monkeypatch.setenv(serving.ADDRESS_VARIABLE, "0.0.0.0")
    first = item_ids(site)[0]
    for page in (opened("cost"), opened("task", id="sudoku", item=first), opened("backbone", id="llada-tiny")):
        assert ">d1</bdi>" not in shown(page)
        assert site.entries["d1"] not in shown(page)
    assert "The grid is" not in shown(opened("task", id="sudoku", item=first))


# --- backbone -------------------------------------------------------------------------------------------------------


def test_a_backbone_says_its_weights_mask_scores_and_entries(site: Site) -> None:
    page = shown(opened("backbone", id="llada-tiny"))
    for words in ("14e0ee7d26e7b96a", "&lt;|mdm_mask|&gt;, id 1", "20 tokens", "Apache-2.0", ">bgpo</bdi>", "tiny 1.0"):
        assert words in page
    assert "**Not measured:** no task has results of the untouched backbone at two numbers of denoising steps" in page


def test_a_backbone_without_runs_says_so(empty_site: Site) -> None:
    assert "**Nothing has been run on llada\\-tiny.**" in shown(opened("backbone", id="llada-tiny"))
    away = shown(opened("backbone", id="llada-8b-instruct"))
    assert "`llada-8b-instruct` is not on this machine." in away


def test_an_unknown_backbone_is_said(site: Site) -> None:
    assert "**There is no backbone `gpt`.**" in shown(opened("backbone", id="gpt"))
    assert "**No backbone is named.**" in shown(opened("backbone"))


# --- the board ------------------------------------------------------------------------------------------------------


FOUND = (
    Flag("collapse", Where("e_bgpo"), "Seed 1: the reward fell <b>far</b>."),
    Flag("exactly_0", Where("e_bgpo", "sudoku"), "None of 256 items is solved."),
)


def test_the_board_leads_to_task_backbone_and_cost(site: Site) -> None:
    page = shown(opened())
    for href in ("task?id=sudoku", "backbone?id=llada-tiny", "cost?"):
        assert href in page


def test_a_flag_stands_beside_the_name_unless_the_cell_says_it() -> None:
    html = tables.board_table(FULL, VIEW, BoardChoices(("llada-tiny",), ("tiny",), ("gain",)), flags=FOUND)
    assert 'title="Seed 1: the reward fell &lt;b&gt;far&lt;/b&gt;.">collapse</a>' in html
    assert ">exactly 0</a>" not in html


def test_the_list_of_flags_says_what_each_means_and_where_it_is() -> None:
    html = flag_list.legend(FOUND, FULL)
    assert "<b>exactly 0</b> Nothing is solved in any seed" in html
    assert "BGPO</bdi></a>, Sudoku 4x4: None of 256 items is solved." in html
    assert "<b>far</b>" not in html
    assert flag_list.heading(FOUND) == "Flags (2): collapse, exactly 0"
    assert flag_list.legend((), FULL) == ""


def test_usage_of_the_sample_database_is_what_the_prices_are_made_of(site: Site) -> None:
    """410 device seconds are 6.8 minutes."""
    with site.database.read() as session:
        assert set(session.execute(select(Usage.device_seconds).where(Usage.optimiser_steps > 0)).scalars()) == {410.0}
