from __future__ import annotations

import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from urllib.parse import parse_qs, urlsplit

import pytest
from board_samples import (
    BGPO,
    CHOICES,
    D1,
    EARLY,
    ESPO,
    FAILED,
    FULL,
    HALF,
    REFERENCE,
    RUNNING,
    SFT,
    SHUFFLED,
    SUDOKU,
    VIEW,
    board,
    measured,
    method,
    preliminary,
)
from hypothesis import given
from hypothesis import strategies as st

from dare_platform.board import Cell, Estimate, Row
from leaderboard import links, tables, texts
from leaderboard.links import BoardView
from leaderboard.plain_tables import Text, plain_table

VOID = {"br"}


class Structure(HTMLParser):
    """Checks that tags nest, and counts the cells of each table row, `colspan` included."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[int] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append(0)
        if tag in ("td", "th"):
            self.rows[-1] += int(dict(attrs).get("colspan") or 1)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def structure(html: str) -> Structure:
    parsed = Structure()
    parsed.feed(html)
    assert not parsed.open
    return parsed


def names(html: str) -> list[str]:
    return re.findall(r"<bdi>(.*?)</bdi>", html)


def view(**changes: object) -> BoardView:
    return replace(VIEW, **changes)  # type: ignore[arg-type]


def drawn(*rows: Row, **changes: object) -> str:
    return tables.board_table(board(*rows), view(**changes), CHOICES)


def test_every_row_has_a_cell_for_every_column() -> None:
    for sort in CHOICES.sorts:
        rows = structure(tables.board_table(FULL, view(sort=sort), CHOICES)).rows
        assert len(set(rows)) == 1
        assert len(rows) == 1 + len(FULL.rows)


@pytest.mark.parametrize("count", [0, 1, 100])
def test_boards_of_any_size_are_well_formed_and_small_enough(count: int) -> None:
    html = drawn(*(replace(BGPO, name=f"method {n}", entry_id=f"e_{n}") for n in range(count)))
    assert len(set(structure(html).rows)) == 1
    assert len(html) < 150_000


def test_a_cell_shows_greedy_first_and_sampled_below() -> None:
    html = tables.cell_content(measured(0.394, 0.038, sampled=0.621))
    assert html == (
        '<span class="value">39.4</span><span class="spread">±3.8</span>'
        '<span class="under second">sampled <span class="value">62.1</span><span class="spread">±3.8</span></span>'
    )


@pytest.mark.parametrize(
    ("cell", "html"),
    [
        (Cell("not_run"), '<span class="second">not run</span>'),
        (Cell("not_asked"), '<span class="second">—</span>'),
        (Cell("queued"), '<span class="second">queued</span>'),
        (Cell("retrying"), '<span class="second">retrying</span>'),
        (
            Cell("running", seeds_done=2, seeds_required=3),
            '<span aria-hidden="true">◔</span> 2 of 3 seeds',
        ),
        (Cell("failed"), '<span class="attention"><span aria-hidden="true">✕</span> failed</span>'),
        (measured(0.781, None, seeds=1), '<span class="value">78.1</span><span class="spread">1 seed</span>'),
        (measured(0.781, 0.4, seeds=2), '<span class="value">78.1</span><span class="spread">n=2</span>'),
        (measured(0.47, 0.12), '<span class="value whole">47</span><span class="spread">±12</span>'),
        (
            replace(measured(0.0, 0.0), exactly_zero=True),
            '<span class="value">0.0</span><span class="spread">±0.0</span>'
            '<span class="under attention">exactly 0<span class="spread"></span></span>',
        ),
        (
            replace(measured(0.098, 0.03), at_or_below_chance=True),
            '<span class="value">9.8</span><span class="spread">±3.0</span>'
            '<span class="under attention">≤ chance<span class="spread"></span></span>',
        ),
    ],
)
def test_missing_zero_and_failed_look_different(cell: Cell, html: str) -> None:
    assert tables.cell_content(cell) == html


@pytest.mark.parametrize(
    ("cell", "line"),
    [
        (preliminary(0.848, sampled=0.767), "1 of 3 seeds"),
        (preliminary(0.848, 2, sampled=0.767, state="running"), '<span aria-hidden="true">◔</span> 2 of 3 seeds'),
        (
            preliminary(0.848, 2, sampled=0.767, state="failed"),
            '<span class="attention"><span aria-hidden="true">✕</span> failed, 2 of 3 seeds</span>',
        ),
        (
            preliminary(0.848, 2, sampled=0.767, state="retrying"),
            '<span class="second">retrying, 2 of 3 seeds</span>',
        ),
    ],
)
def test_a_cell_with_too_few_seeds_shows_its_value_and_how_many_there_are(cell: Cell, line: str) -> None:
    assert tables.cell_content(cell) == (
        '<span class="value">84.8</span><span class="spread"></span>'
        '<span class="under second">sampled <span class="value">76.7</span><span class="spread"></span></span>'
        f'<span class="under second">{line}<span class="spread"></span></span>'
    )


def test_a_preliminary_row_has_no_tint_no_interval_and_no_rank() -> None:
    html = drawn(EARLY, HALF)
    body = html.split("<tbody>")[1]
    methods = body[body.index('class="method"') :]
    assert "±" not in methods.split("</tbody>")[0]
    assert not re.search(r"better\d|worse\d", html)
    assert 'class="interval"' not in html
    assert html.count('class="dot hollow"') == 3
    assert re.findall(r'class="rank second">(.*?)</td>', html) == ["ref", "—", "—"]
    assert (
        '<span class="second">not ranked</span><span class="under second">+72.9, 1 seed</span>'
        '<span class="under second">sampled +35.7</span>'
    ) in html
    assert "Hollow: fewer seeds than a rank needs, in no mean and no test." in html
    assert "Hollow" not in drawn(BGPO)


def test_a_baseline_is_preliminary_and_never_called_not_ranked() -> None:
    control = replace(EARLY, kind="control")
    assert '<span class="second">preliminary</span><span class="under second">+72.9, 1 seed' in drawn(control)
    assert "not ranked" not in drawn(control)
    assert '<span class="figures second">incomplete</span>' in drawn(replace(FAILED, kind="control"))


def test_a_board_without_any_spread_keeps_no_place_for_it() -> None:
    untouched = replace(REFERENCE, cells={"sudoku": preliminary(0.119)})
    assert 'class="dare board bare"' in drawn_board(untouched, EARLY)
    assert 'class="dare board"' in drawn(EARLY)


def drawn_board(*rows: Row) -> str:
    return tables.board_table(replace(board(), rows=rows), VIEW, CHOICES)


def test_preliminary_values_sort_behind_final_ones_and_before_failed_ones() -> None:
    shown = board(FAILED, RUNNING, HALF, EARLY, ESPO)
    for direction, expected in (
        ("desc", ["ESPO", "SPG", "wd1", "tree-lite", "VRPO"]),
        ("asc", ["ESPO", "wd1", "SPG", "tree-lite", "VRPO"]),
    ):
        rows = tables.arranged(shown, view(sort="sudoku", direction=direction)).rows
        assert [row.name for row in rows[1:]] == expected


def test_exactly_zero_belongs_to_its_cell_and_is_no_alarm_where_nothing_was_before() -> None:
    zero = replace(measured(0.0, 0.0), exactly_zero=True)
    row = method("spo", measured(0.3), zero)
    assert tables.chips(row) == ""
    assert drawn(row).count("exactly 0") == 1
    assert '<span class="under attention">exactly 0' in drawn(row)
    untouched = replace(REFERENCE, cells={**REFERENCE.cells, "countdown": zero})
    html = drawn_board(untouched, row)
    assert html.count('<span class="under second">exactly 0') == 2
    assert "under attention" not in html
    assert "All outcomes are wrong, as those of the untouched backbone." in html
    assert "Where the untouched backbone is at exactly 0 too" in html


def test_a_row_with_a_failed_cell_says_why_it_is_not_ranked() -> None:
    html = drawn(FAILED)
    assert '<span class="attention">not ranked: Sudoku 4x4 failed</span>' in html
    assert "incomplete: Sudoku 4x4 failed" in drawn(replace(FAILED, kind="baseline"))
    assert "failed</span></span></th>" not in drawn(BGPO, RUNNING)


def test_every_row_says_how_many_seeds_stand_behind_it() -> None:
    untouched = replace(REFERENCE, seeds=1)
    heads = re.findall(r'<th scope="row">.*?</th>', drawn_board(untouched, BGPO, EARLY, replace(RUNNING, seeds=0)))
    seeds = [re.sub(r"<[^>]+>", "", head).split(" · ")[-1] for head in heads]
    assert seeds == ["llada-tiny, untouched1 seed", "3 seeds", "1 seed", "no seed finished"]


def test_a_submitted_entry_shows_its_class_and_not_its_name_again() -> None:
    row = replace(BGPO, name="shuffled-advantage", algorithm="shuffled-advantage", built_in=False)
    assert "submitted · 3 seeds" in drawn(row)
    named_class = drawn(replace(row, class_name="ShuffledAdvantage"))
    assert "submitted, class <bdi>ShuffledAdvantage</bdi> · 3 seeds" in named_class


def test_the_control_is_explained_below_the_table_where_there_is_one() -> None:
    assert f'<p class="legend">{texts.CONTROL}</p>' in drawn(SHUFFLED, BGPO)
    assert texts.CONTROL not in drawn(BGPO)


def test_the_title_of_a_cell_says_everything_in_words() -> None:
    title = tables.cell_title(measured(0.394, 0.038, sampled=0.621), SUDOKU)
    assert title == (
        "39.4, 95 % interval 35.6 to 43.2, 3 seeds, 256 items. +27.5 ±3.8 points against the untouched backbone. "
        "Mean reward of sampled completions 62.1 ±3.8."
    )
    assert tables.cell_title(replace(measured(0.0, 0.0), exactly_zero=True), SUDOKU).endswith("see the runs.")
    assert tables.cell_title(RUNNING.cells["sudoku"], SUDOKU) == "Seed 2 is training."
    assert tables.cell_title(preliminary(0.5, 2, sampled=0.6, state="running"), SUDOKU) == (
        "50.0, 2 of 3 seeds, 256 items. +38.1 points against the untouched backbone. "
        "Mean reward of sampled completions 60.0. Preliminary: in no mean, no test and no rank. Seed 2 is training."
    )
    assert tables.cell_title(Cell("not_run"), SUDOKU) == "Required by the track, not run yet."


def test_a_tint_means_beyond_noise_and_never_stands_on_the_reference() -> None:
    assert "better3" in drawn(BGPO)
    assert "worse2" in drawn(ESPO)
    unsure = method("unsure", replace(measured(0.394, 0.038), significant=False))
    assert not re.search(r"better\d|worse\d", drawn(unsure))


def test_the_reference_comes_first_then_baselines_and_controls_whatever_the_sort() -> None:
    for sort in CHOICES.sorts:
        for direction in links.DIRECTIONS:
            rows = tables.arranged(FULL, view(sort=sort, direction=direction)).rows
            assert rows[0] is FULL.rows[0]
            assert {row.kind for row in rows[1:3]} == {"baseline", "control"}


@pytest.mark.parametrize("direction", links.DIRECTIONS)
def test_missing_values_come_last_in_both_directions_and_failed_ones_before_them(direction: str) -> None:
    rows = tables.arranged(FULL, view(sort="sudoku", direction=direction)).rows
    assert [row.name for row in rows[-2:]] == [FAILED.name, RUNNING.name]


def test_sorting_never_renumbers_ranks() -> None:
    html = tables.board_table(FULL, view(sort="sudoku", direction="asc"), CHOICES)
    ranks = re.findall(r'class="rank second">(.*?)</td>', html)
    assert ranks == ["ref", "ref", "ref", "3", "1–2", "1–2", "—", "—"]


def test_the_first_click_on_a_header_sorts_better_first_and_the_second_reverses() -> None:
    by_task = links.turned(VIEW, "sudoku")
    assert (by_task.sort, by_task.direction) == ("sudoku", "desc")
    assert links.turned(by_task, "sudoku").direction == "asc"
    assert links.turned(VIEW, "cost").direction == "asc"
    assert links.turned(links.turned(VIEW, "cost"), "cost").direction == "desc"


def test_header_links_keep_the_rest_of_the_view() -> None:
    html = tables.board_table(FULL, view(backbone="sdar-tiny", search="d1", show=()), CHOICES)
    href = re.search(r'<a href="(\?[^"]*sort=countdown[^"]*)"', html)
    assert href is not None
    query = parse_qs(urlsplit(href[1].replace("&amp;", "&")).query, keep_blank_values=True)
    assert query == {"backbone": ["sdar-tiny"], "sort": ["countdown"], "q": ["d1"], "show": [""]}


def test_the_sorted_column_is_announced_and_marked_for_narrow_screens() -> None:
    html = tables.board_table(FULL, view(sort="sudoku"), CHOICES)
    assert html.count("aria-sort=") == 1
    assert 'class="column number sorted" aria-sort="descending"' in html
    by_name = tables.board_table(FULL, view(sort="entry", direction="asc"), CHOICES)
    assert 'class="column mean number sorted"' in by_name


def test_whiskers_are_decoration_on_one_axis_that_contains_zero() -> None:
    html = tables.board_table(FULL, VIEW, CHOICES)
    zeros = set(re.findall(r'class="zero" style="left:([\d.]+)%"', html))
    assert len(zeros) == 1
    assert 'class="axis" aria-hidden="true"' in html
    axis = tables.whisker_axis(FULL.rows)
    assert axis == (-10.0, 35.0)
    assert "−10 to +35 points" in html


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(0, 1)), max_size=6))
def test_no_whisker_leaves_its_axis(gains: list[tuple[float, float]]) -> None:
    rows = [replace(BGPO, gain=Estimate(value, half, 3)) for value, half in gains]
    axis = tables.whisker_axis(rows)
    assert axis.low < 0 < axis.high
    for value, half in gains:
        assert axis.place(100 * (value - half)) >= -0.01
        assert axis.place(100 * (value + half)) <= 100.01


HOSTILE = (
    "<script>alert(1)</script>",
    '" onmouseover="alert(1)',
    "a" * 80,
    "שלום \u202e עולם",
    "🦆🦆",
    "=1+1",
    "a & b </td></tr>",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_text(name: str) -> None:
    row = replace(method(name, measured(0.3)), built_in=False, class_name=name, entry_id="e_x")
    html = drawn(row, search=name)
    parsed = structure(html)
    assert len(set(parsed.rows)) == 1
    assert "script" not in parsed.tags
    assert 'onmouseover="' not in html
    assert len(names(html)) == 3


def test_an_entry_leads_to_its_page_and_the_reference_has_a_name_of_its_own() -> None:
    html = drawn(BGPO)
    assert '<a href="entry?id=e_bgpo"><bdi>BGPO</bdi></a>' in html
    assert '<a href="backbone?id=llada-tiny"><bdi>llada-tiny</bdi></a>, untouched' in html


def test_two_chips_at_most_then_a_number() -> None:
    crowded = replace(RUNNING, extension=True, tries=3)
    assert re.findall(r'class="chip"[^>]*>([^<]*)<', tables.chips(crowded)) == ["unranked", "our extension", "+1"]
    assert ">our extension</a>" in tables.chips(D1)
    assert ">control</a>" in tables.chips(SHUFFLED)
    assert ">baseline</a>" in tables.chips(SFT)
    assert tables.chips(BGPO) == ""
    assert ">preliminary</a>" in tables.chips(EARLY)


def test_a_search_without_a_match_keeps_the_head_and_offers_the_way_back() -> None:
    html = drawn(BGPO, ESPO, search="spg")
    assert "<thead>" in html
    assert "No entry matches “spg”." in html
    assert "2 entries are hidden by the search." in html
    assert re.search(r'<a href="\?">Clear search</a>', html)


def test_hidden_unranked_entries_are_counted_and_offered() -> None:
    html = drawn(FAILED, RUNNING, show=())
    assert "2 entries are not ranked and hidden." in html
    assert '<a href="?">Show all entries</a>' in html


def test_an_empty_board_says_so() -> None:
    assert "No entry yet." in drawn()
    assert "No entry yet." in tables.board_table(replace(FULL, rows=()), VIEW, CHOICES)


def test_transfer_columns_without_data_are_left_out_and_said() -> None:
    html = tables.board_table(FULL, VIEW, CHOICES)
    assert "Sudoku, published" not in html
    assert "Transfer tasks without data are left out." in html
    with_data = replace(BGPO, cells={**BGPO.cells, "sudoku_published": measured(0.1)})
    assert "transfer, not in the mean" in drawn(with_data)


def test_chance_and_items_stand_in_the_head() -> None:
    assert "n=256 · chance 2.1<br>shown, not in the mean" in tables.board_table(FULL, VIEW, CHOICES)


def test_newer_results_count_what_changed_and_equal_digests_count_nothing() -> None:
    shown = board(BGPO, RUNNING)
    finished = replace(RUNNING, cells={**RUNNING.cells, "sudoku": measured(0.2)})
    assert tables.newer_results(shown, board(BGPO, finished)) == 0
    assert tables.newer_results(shown, board(BGPO, finished, digest="other")) == 1
    assert tables.newer_results(shown, board(BGPO, RUNNING, ESPO, digest="other")) == 1


def test_the_line_below_names_hash_scorer_entries_and_tries() -> None:
    line = tables.snapshot_line(board(BGPO, withdrawn=2), "30 Nov 2026, 14:02")
    assert "Board of 30 Nov 2026, 14:02" in line
    assert ">9f3c01ab</code>" in line
    assert "dare-1" in line
    assert "1 entry, 2 tries, 2 withdrawn" in line


def test_a_hundred_rows_are_drawn_in_a_fraction_of_the_budget() -> None:
    many = board(*(replace(BGPO, name=f"method {n}", entry_id=f"e_{n}") for n in range(100)))
    started = time.process_time()
    tables.board_table(many, VIEW, CHOICES)
    assert time.process_time() - started < 0.15


def test_a_small_table_escapes_links_and_carries_column_names_for_phones() -> None:
    html = plain_table(
        ("Name", "Value"), [(Text("<b>", href='x?a="b"'), Text("1", number=True)), ("plain", "")], "A table"
    )
    assert set(structure(html).rows) == {2}
    assert "<bdi>&lt;b&gt;</bdi>" in html
    assert 'href="x?a=&quot;b&quot;"' in html
    assert '<td data-name="Value" class="number">' in html
    assert '<td data-name="Value"></td>' in html


def test_only_one_entry_stands_beside_the_reference_on_its_own_page() -> None:
    mine = tables.only(FULL, BGPO.entry_id)
    assert mine.rows == (REFERENCE, BGPO)
    assert "aria-sort" not in tables.board_table(mine, VIEW, CHOICES, sortable=False)
