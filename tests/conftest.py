"""What all tests share."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: results and timings of one thread

# The same examples in every run, however slow the machine is at the moment.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _logging_stays_as_it_was() -> Iterator[None]:
    """A command that sets up logging for its process leaves nothing to the tests after it."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests that need one: two at once do not fit into one process."""
    from watching import debians_chromium

    with debians_chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference data beside the repository. Where it is absent its tests are skipped; in CI they fail."""
    folder = Path(os.environ.get("DARE_SHARED", REPOSITORY.parent / "shared"))
    if not folder.is_dir():
        if os.environ.get("CI"):
            pytest.fail(f"CI has no folder of reference data at {folder}")
        pytest.skip("no folder of reference data: set DARE_SHARED")
    return folder
