"""A person at the site, start to end: submit, watch a real run train, read its numbers, mend what was refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page
from small import ARTEFACTS, EXAMPLE, run_of, runs_of
from watching import Site, Watched

pytestmark = pytest.mark.full

PICTURES = ARTEFACTS / "screenshots" / "end_to_end"
TRAINING_MS = 120_000


def picture(page: Page, name: str) -> None:
    """The whole page, as long as it is."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    height = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
    page.set_viewport_size({"width": 1280, "height": min(4000, max(900, height))})
    page.wait_for_timeout(400)
    page.screenshot(path=PICTURES / f"{name}.png")
    page.set_viewport_size({"width": 1280, "height": 900})


def entry_id(page: Page) -> str:
    page.wait_for_url("**/entry?id=*")
    return page.url.split("id=")[1].split("&")[0]


def test_a_malformed_file_shows_what_is_wrong_and_cannot_be_queued(watched: Watched, tmp_path: Path) -> None:
    file = tmp_path / "algorithm.py"
    source = (EXAMPLE / "algorithm.py").read_text()
    file.write_text(source.replace("import torch\n", "import os\nimport torch\n").replace("rollout: Rollout, ", ""))
    page = watched.open("submit?backbones=sdar-tiny")
    page.get_by_text("my file", exact=True).click()
    page.locator("input[type=file]").set_input_files(file)
    messages = page.locator("ul.messages li")
    messages.first.wait_for()
    page.get_by_label("Settings, YAML, optional").fill("blme: 0.25")
    page.keyboard.press("Control+Enter")
    page.get_by_text("blme").last.wait_for()
    watched.settle()
    said = messages.all_inner_texts()
    picture(page, "1-malformed")
    assert [re.search(r"line \d+", sentence) is not None for sentence in said] == [True] * 3
    assert ["import os" in said[0], "must take (rollout, generator)" in said[1], "blame" in said[2]] == [True] * 3
    assert page.get_by_role("button", name="Queue").is_disabled()
    assert page.get_by_text("3 problems to mend first").is_visible()


def test_a_built_in_method_is_submitted_watched_while_it_trains_and_read_when_it_is_scored(
    watched: Watched, site: Site
) -> None:
    page = watched.open("submit?backbones=sdar-tiny")
    page.get_by_label("Built-in method").click()
    page.get_by_role("option", name="bgpo", exact=True).click()
    page.get_by_label("Settings, YAML, optional").fill("mc_samples: 4")
    page.keyboard.press("Control+Enter")
    page.get_by_role("button", name="Queue 6 runs").wait_for()
    watched.settle()
    picture(page, "2-form")
    page.get_by_role("button", name="Queue 6 runs").click()
    entry = entry_id(page)
    watched.settle()
    assert page.get_by_text("6 runs queued").is_visible()
    picture(page, "3-entry-at-once")

    watched.open(f"entry?id={entry}&view=runs")
    page.locator("a[href*='run?id=']").first.click()
    page.wait_for_url("**/run?id=*")
    run = page.url.split("id=")[1]
    steps = page.get_by_text(re.compile(r"^\d+ of \d+$")).first
    steps.wait_for(timeout=TRAINING_MS)
    first = int(steps.inner_text().split()[0])
    picture(page, "4-run-begins")
    page.wait_for_function(
        "first => [...document.querySelectorAll('[data-testid=stProgress] p')]"
        ".some(p => parseInt(p.innerText) > first + 1)",
        arg=first,
        timeout=TRAINING_MS,
    )
    page.locator("[data-testid=stVegaLiteChart] canvas, [data-testid=stVegaLiteChart] svg").first.wait_for()
    picture(page, "5-run-trains")
    page.get_by_text(re.compile(r"Trained \d+ steps")).first.wait_for(timeout=TRAINING_MS)
    watched.settle()
    picture(page, "6-run-ended")
    assert page.get_by_text("A sample rollout").is_visible()

    (scored,) = (r for r in runs_of(site.database, entry) if r.depends_on == run)
    watched.open(f"run?id={scored.id}")
    page.get_by_text(re.compile(r"Scored 512 items")).first.wait_for(timeout=TRAINING_MS)
    watched.settle()
    picture(page, "7-evaluation-ended")
    assert page.get_by_role("heading", name="Scores").is_visible()
    watched.open(f"entry?id={entry}")
    picture(page, "8-entry-with-a-number")
    watched.open("?backbone=sdar-tiny")
    picture(page, "9-board")
    assert page.locator(".board tbody tr.method").count() == 1


def test_the_example_is_uploaded_with_its_settings_and_passes_its_check(watched: Watched, site: Site) -> None:
    page = watched.open("submit?backbones=sdar-tiny")
    page.get_by_text("my file", exact=True).click()
    page.locator("input[type=file]").set_input_files(EXAMPLE / "algorithm.py")
    page.get_by_text("Factor on negative advantages").wait_for()  # typed while the file is read, settings may be lost
    page.get_by_label("Settings, YAML, optional").fill((EXAMPLE / "hyperparameters.yaml").read_text())
    page.keyboard.press("Control+Enter")
    page.get_by_text("0.25 · changed").wait_for()
    page.get_by_role("button", name="Queue 6 runs").wait_for()
    watched.settle()
    picture(page, "10-upload")
    page.get_by_role("button", name="Queue 6 runs").click()
    entry = entry_id(page)
    watched.settle()
    assert page.get_by_text("7 runs queued").is_visible()
    check = run_of(site.database, entry, "check")
    watched.open(f"run?id={check.id}")
    page.get_by_text("10 checks passed").first.wait_for(timeout=TRAINING_MS)
    watched.settle()
    picture(page, "11-check-passed")
    watched.open(f"entry?id={entry}&view=runs")
    picture(page, "12-entry-accepted")
    assert page.get_by_text("Check before queuing").is_visible()
    watched.open("queue")
    picture(page, "13-queue")
