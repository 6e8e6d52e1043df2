"""axe-core over every page of the site, in both schemes, narrow and wide."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from watching import Site, Watched

pytestmark = pytest.mark.full

LOOKS = [(width, scheme) for scheme in ("light", "dark") for width in (400, 1440)]


def paths(site: Site) -> tuple[str, ...]:
    """Every page of the site, each in the one list that a new page is added to."""
    entry = f"entry?id={site.entries['bgpo']}"
    return (
        "",
        "cost",
        f"curves?a={site.entries['bgpo']}",
        f"compare?a={site.entries['bgpo']}&b={site.entries['bgpo']}",
        "submit",
        "queue",
        "rules",
        "task?id=sudoku",
        "backbone?id=llada-tiny",
        "snapshot?hash=9f3c01ab",
        entry,
        f"{entry}&view=method",
        f"{entry}&view=runs",
        f"{entry}&view=history",
        f"run?id={site.run('cj_grpo', 'working')}",
    )


@pytest.mark.parametrize("watched", LOOKS, indirect=True, ids=lambda look: f"{look[0]}-{look[1]}")
def test_no_page_has_a_serious_or_critical_finding(watched: Watched, site: Site) -> None:
    axe = Axe()
    found = {}
    for path in paths(site):
        violations = axe.run(watched.open(path)).response["violations"]
        grave = [
            (violation["id"], violation["nodes"][0]["target"], violation["nodes"][0]["html"][:200])
            for violation in violations
            if violation["impact"] in ("serious", "critical")
        ]
        if grave:
            found[path] = grave
    assert found == {}
