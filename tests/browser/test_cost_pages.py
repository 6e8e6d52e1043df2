"""From the board to a column, a backbone and the price of a point, by keyboard and back."""

from __future__ import annotations

import pytest
from watching import Watched

pytestmark = pytest.mark.full


def test_the_board_leads_to_task_backbone_and_cost_and_back_again(watched: Watched) -> None:
    page = watched.open("")
    page.get_by_label("About 4x4 Sudoku").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/task?id=sudoku*")
    watched.settle()
    page.go_back()
    page.wait_for_url(f"{watched.site.url}/")
    watched.settle()
    page.get_by_role("link", name="What a point costs").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/cost*")
    watched.settle()
    assert page.get_by_role("img", name="form").or_(page.locator("[aria-label*='frontier']")).first.is_visible()
    page.get_by_role("radio", name="nfe").or_(page.get_by_role("button", name="nfe")).first.click()
    page.wait_for_url("**/cost?*xcost=nfe*")
    page.get_by_role("link", name="The board of llada-tiny").click()
    watched.settle()
    page.get_by_role("link", name="About llada-tiny").click()
    page.wait_for_url("**/backbone?id=llada-tiny")
    watched.settle()
    assert page.get_by_role("heading", name="Which weights exactly?").is_visible()


@pytest.mark.parametrize("watched", [(400, "dark"), (1600, "light")], indirect=True)
@pytest.mark.parametrize("path", ["cost", "task?id=sudoku", "backbone?id=llada-tiny"])
def test_no_page_scrolls_sideways(watched: Watched, path: str) -> None:
    page = watched.open(path)
    widths = page.evaluate(
        "[document.documentElement, document.querySelector('[data-testid=stMain]')]"
        ".map(element => element.scrollWidth - element.clientWidth)"
    )
    assert widths == [0, 0]
