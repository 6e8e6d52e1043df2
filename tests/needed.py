"""What the machine has to have for a test."""

from __future__ import annotations

import os

import pytest


def missing(what: str) -> None:
    """Skip on a laptop, fail where everything must run."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} is not installed, and CI must not skip it")
    pytest.skip(f"{what} is not installed")
