from __future__ import annotations

import re
from pathlib import Path

import pytest
from sqlalchemy import update
from watching import SCREENSHOTS, Site, Watched

from dare_platform.models import Run
from dare_platform.states import record

pytestmark = pytest.mark.full

LOOKS = [(width, scheme) for scheme in ("light", "dark") for width in (400, 760, 1440)]


def main_pages(site: Site) -> dict[str, str]:
    """Pages that are looked at in every width and scheme."""
    return {
        "leaderboard": "",
        "submit": "submit",
        "queue": "queue",
        "rules": "rules",
        "entry": f"entry?id={site.entries['bgpo']}",
        "run-working": f"run?id={site.run('cj_grpo', 'working')}",
    }


def other_pages(site: Site) -> dict[str, str]:
    """Tabs and states that are looked at once, where space is scarcest."""
    return {
        "leaderboard-sorted": "?sort=sudoku",
        "leaderboard-empty": "?q=spg",
        "entry-method": f"entry?id={site.entries['bgpo']}&view=method",
        "entry-runs": f"entry?id={site.entries['cj_grpo']}&view=runs",
        "entry-history": f"entry?id={site.entries['bgpo']}&view=history",
        "entry-unknown": "entry?id=e_93ab",
        "run-failed": f"run?id={site.run('cj_grpo', 'failed')}",
        "run-waiting": f"run?id={site.run('cj_grpo', 'queued')}",
    }


@pytest.mark.parametrize("watched", LOOKS, indirect=True, ids=lambda look: f"{look[0]}-{look[1]}")
def test_no_page_scrolls_sideways_and_every_page_is_kept_as_a_picture(
    watched: Watched, site: Site, request: pytest.FixtureRequest
) -> None:
    look = request.node.callspec.id
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    width = watched.page.viewport_size["width"] if watched.page.viewport_size else 0
    pages = main_pages(site) | (other_pages(site) if look == "400-light" else {})
    for name, path in pages.items():
        watched.page.set_viewport_size({"width": width, "height": 900})
        page = watched.open(path)
        widths = page.evaluate(
            "[document.documentElement, document.querySelector('[data-testid=stMain]')]"
            ".map(element => element.scrollWidth - element.clientWidth)"
        )
        assert widths == [0, 0], name
        height = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
        page.set_viewport_size({"width": width, "height": min(4000, max(900, height))})
        page.wait_for_timeout(400)
        page.screenshot(path=SCREENSHOTS / f"{name}-{look}.png")


def visible_heads(watched: Watched) -> list[str]:
    return [
        head.inner_text().split("\n")[0].strip()
        for head in watched.page.locator(".board thead th").all()
        if head.is_visible()
    ]


@pytest.mark.parametrize("watched", [(400, "light")], indirect=True)
def test_a_narrow_board_shows_rank_entry_and_the_sorted_column(watched: Watched) -> None:
    watched.open("")
    assert visible_heads(watched) == ["Rank", "Entry", "Mean gain ↓"]
    watched.open("?sort=sudoku")
    assert visible_heads(watched) == ["Rank", "Entry", "4x4 Sudoku ↓"]


WHERE_THE_FOCUS_IS = """(() => {
    const focused = document.activeElement;
    if (focused.closest('.board thead')) return 'header link';
    if (focused.closest('.board tbody')) return 'entry link';
    if (focused.classList.contains('scroll')) return 'table';
    return (focused.getAttribute('aria-label') || focused.innerText || focused.tagName).trim();
})()"""


def test_the_keyboard_reaches_controls_then_the_table_then_its_header_links(watched: Watched) -> None:
    page = watched.open("")
    seen: list[str] = []
    for _ in range(60):
        page.keyboard.press("Tab")
        seen.append(page.evaluate(WHERE_THE_FOCUS_IS))
        if "entry link" in seen:
            break
    assert "Skip" in seen[0]
    assert "llada-tiny" in seen, seen
    order = [seen.index(stop) for stop in ("llada-tiny", "table", "header link", "entry link")]
    assert order == sorted(order)


def test_a_header_link_sorts_and_back_returns(watched: Watched) -> None:
    page = watched.open("")
    page.locator(".board thead a", has_text="4x4 Sudoku").click()
    page.wait_for_url("**/?sort=sudoku")
    watched.settle()
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("4x4 Sudoku")
    page.locator(".board tbody a bdi", has_text="bgpo").click()
    page.wait_for_url("**/entry?id=*")
    watched.settle()
    page.go_back()
    page.wait_for_url("**/?sort=sudoku")
    watched.settle()
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("4x4 Sudoku")


def test_a_control_writes_the_url(watched: Watched) -> None:
    page = watched.open("")
    page.get_by_label("Search").fill("bgpo")
    page.keyboard.press("Enter")
    page.wait_for_url("**/?q=bgpo")
    watched.settle()
    assert page.locator(".board tbody tr.method").count() == 1


def test_a_built_in_method_is_submitted_and_its_page_opens(watched: Watched, site: Site) -> None:
    page = watched.open("submit")
    page.get_by_label("Settings, YAML, optional").fill("mc_samples: 2")
    page.keyboard.press("Control+Enter")
    page.get_by_text("2 · changed").wait_for()
    page.get_by_label("Name on the board").fill("bgpo two views")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Queue 12 runs").click()
    page.wait_for_url("**/entry?id=*")
    watched.settle()
    assert page.get_by_role("heading", name="bgpo").is_visible()
    assert page.get_by_text("12 runs queued").is_visible()


BROKEN = b'import requests\nfrom dare.algorithm import Algorithm\n\nclass A(Algorithm):\n    """A."""\n    knob: int\n'


def test_a_malformed_upload_shows_its_sentences_with_lines(watched: Watched, tmp_path: Path) -> None:
    file = tmp_path / "algorithm.py"
    file.write_bytes(BROKEN)
    page = watched.open("submit")
    page.get_by_text("my file", exact=True).click()
    page.locator("input[type=file]").set_input_files(file)
    messages = page.locator("ul.messages li")
    messages.first.wait_for()
    said = " ".join(messages.all_inner_texts())
    assert "algorithm.py line 1" in said
    assert "import requests is not allowed" in said
    assert page.get_by_role("button", name="Queue", exact=True).is_disabled()


def test_a_page_of_a_working_run_moves_by_itself_and_nothing_jumps(watched: Watched, site: Site) -> None:
    run = site.run("cj_grpo", "working")
    page = watched.open(f"run?id={run}")
    page.wait_for_timeout(1500)
    page.evaluate(
        "window.shift = 0; new PerformanceObserver(list => list.getEntries().forEach("
        "entry => window.shift += entry.hadRecentInput ? 0 : entry.value)).observe({type: 'layout-shift'})"
    )
    with site.database.write() as session:
        session.execute(update(Run).where(Run.id == run).values(step=19))
    page.get_by_text("19 of 40").first.wait_for(timeout=8000)
    page.wait_for_timeout(3000)
    assert page.evaluate("window.shift") < 0.02


def test_the_first_sample_of_a_run_appears_on_an_open_page(watched: Watched, site: Site) -> None:
    run = site.run("cj_grpo", "queued")
    page = watched.open(f"run?id={run}")
    page.get_by_text("No sample rollout yet").wait_for()
    sample = {"prompt": "S10", "tokens": ["1", "0", "<|endoftext|>"], "step_map": [2, 1, 0], "reward": 1.0}
    with site.database.write() as session:
        record(session, run, "sample", actor="worker laptop-1", detail={"step": 1, "sample": sample})
    page.locator(".rollout .mask").first.wait_for(timeout=10_000)
    assert page.get_by_text("No sample rollout yet").count() == 0


LUMINANCE = """element => {
    const light = colour => colour.match(/[\\d.]+/g).slice(0, 3).map(Number).map(c => c / 255)
        .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, place) => sum + c * [0.2126, 0.7152, 0.0722][place], 0);
    const label = element.querySelector('p'), style = getComputedStyle(label);
    return [light(style.color), light(style.backgroundColor)];
}"""


@pytest.mark.parametrize("watched", [(1440, "light"), (1440, "dark")], indirect=True)
def test_a_button_that_cannot_be_pressed_is_legible_and_says_why(watched: Watched) -> None:
    page = watched.open("submit")
    page.get_by_text("my file", exact=True).click()
    page.get_by_text("Choose a file or paste your class.").wait_for()
    button = page.get_by_role("button", name="Queue", exact=True)
    assert button.is_disabled()
    darker, brighter = sorted(button.evaluate(LUMINANCE))
    assert (brighter + 0.05) / (darker + 0.05) >= 4.5


def test_a_board_says_that_there_is_something_newer_and_waits_to_be_asked(watched: Watched, site: Site) -> None:
    page = watched.open("")
    drawn = page.locator(".board").inner_text()
    with site.database.write() as session:
        session.execute(update(Run).where(Run.id == site.run("cj_grpo", "working")).values(step=20))
        session.execute(
            update(Run).where(Run.id == site.run("cj_grpo", "failed")).values(sentence="NaN in the loss at step 8.")
        )
    button = page.get_by_role("button", name="Update")
    button.wait_for(timeout=25_000)
    assert re.search(r"\d newer results?\.", page.get_by_test_id("stMain").inner_text())
    assert page.locator(".board").inner_text() == drawn
    button.click()
    button.wait_for(state="detached")
