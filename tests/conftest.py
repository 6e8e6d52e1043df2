"""What all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference data beside the repository; a test that needs it is skipped where it is absent."""
    folder = Path(os.environ.get("DARE_SHARED", REPOSITORY.parent / "shared"))
    if not folder.is_dir():
        pytest.skip("no folder of reference data: set DARE_SHARED")
    return folder
