"""What the faults share: processes that are gone afterwards, and a way to say what was seen."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dare_platform import endings, orders

Seen = Callable[[str], None]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endings, "FIRST_BACK_OFF_SECONDS", 0.1)
    monkeypatch.setattr(orders, "START_SECONDS", 0.0)


@pytest.fixture
def seen(record_property: Callable[[str, object], None]) -> Seen:
    """Keep what was seen of a fault, for the table that `python -m studies.faults` makes."""
    return lambda what: record_property("seen", what)
