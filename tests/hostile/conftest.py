"""What the hostile cases share: an engine, and a record of what kept each of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from ground import Record, build_image, engine_address

ARTEFACTS = Path(__file__).resolve().parents[2] / "artefacts"


@pytest.fixture(scope="session")
def engine() -> str:
    """Address of the container engine; without one the cases are skipped, in CI they fail."""
    address = engine_address()
    if address is None:
        if os.environ.get("CI"):
            pytest.fail("CI has no container engine")
        pytest.skip("no container engine answers")
    build_image(address)
    return address


@pytest.fixture(scope="session")
def record() -> Iterator[Record]:
    """Keep what was seen of a case, for the table that `python -m studies.hostile` makes."""
    rows: list[dict[str, str]] = []
    yield lambda kind, case, observed: rows.append({"kind": kind, "case": case, "observed": observed})
    ARTEFACTS.mkdir(exist_ok=True)
    file = ARTEFACTS / "hostile.json"
    before = json.loads(file.read_text()) if file.is_file() else []
    seen = {(row["kind"], row["case"]) for row in rows}
    kept = [row for row in before if (row["kind"], row["case"]) not in seen]
    file.write_text(json.dumps([*kept, *rows], indent=1))
