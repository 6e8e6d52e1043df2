"""The log of a working run grows on its open page: the end in sight, nothing moves, and who scrolls up may read on."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page
from sqlalchemy import select
from watching import SCREENSHOTS, Site, Watched

from dare_platform.ingest import ingest
from dare_platform.models import Run

pytestmark = pytest.mark.full


def say(site: Site, run: str, text: str) -> None:
    with site.database.write() as session:
        token = session.execute(select(Run.lease_token).where(Run.id == run)).scalar_one()
        assert ingest(session, run, token, [], text, actor="t")


def height(page: Page) -> int:
    return int(page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight"))


@pytest.mark.parametrize("watched", [(1440, "light"), (400, "dark")], indirect=True, ids=str)
def test_the_log_of_a_working_run_grows_on_its_page(
    watched: Watched, site: Site, request: pytest.FixtureRequest
) -> None:
    run = site.run("cj_grpo", "working")
    text = "loading weights\nstep 1 <b>&amp;\n"
    say(site, run, text)
    page = watched.open(f"run?id={run}")
    page.get_by_text("Log", exact=True).click()
    log = page.locator("pre.log.grows")
    log.get_by_text("step 1 <b>&amp;").wait_for()
    page.wait_for_timeout(1000)  # until the expander is open
    before, place = height(page), log.bounding_box()
    assert place is not None
    text += "".join(f"step {step}: reward 0.{step:03}\n" for step in range(2, 60))
    say(site, run, text)
    log.get_by_text("step 59: reward 0.059").wait_for()
    assert height(page) == before
    window = log.locator("xpath=ancestor::*[@data-testid='stVerticalBlock'][1]")
    page.wait_for_timeout(500)
    at_end = "block => block.scrollHeight - block.scrollTop - block.clientHeight"
    scroller = page.evaluate_handle(
        "log => { let e = log; while (e.scrollHeight <= e.clientHeight + 1 || "
        "getComputedStyle(e).overflowY === 'visible') e = e.parentElement; return e; }",
        log.element_handle(),
    ).as_element()
    assert scroller is not None
    assert window.count() == 1
    assert scroller.evaluate(at_end) < 2
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    width, scheme = request.node.callspec.params["watched"]
    log.scroll_into_view_if_needed()
    page.screenshot(path=SCREENSHOTS / f"run-log-{width}-{scheme}.png")
    scroller.evaluate("block => { block.scrollTop = 40; }")
    page.wait_for_timeout(300)
    say(site, run, text + "step 60: reward 0.060\n")
    log.get_by_text("step 60: reward 0.060").wait_for()
    page.wait_for_timeout(500)
    assert abs(scroller.evaluate("block => block.scrollTop") - 40) < 2
    assert height(page) == before
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
