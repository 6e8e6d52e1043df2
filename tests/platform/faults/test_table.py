"""The table of faults names tests that exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from table import TABLE

ROOT = Path(__file__).resolve().parents[3]
NAMED = sorted({test for fault in TABLE for test in fault.tests})


@pytest.mark.parametrize("test", NAMED)
def test_every_fault_has_a_test_that_exists(test: str) -> None:
    file, _, function = test.partition("::")
    tree = ast.parse((ROOT / file).read_text())
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_no_fault_is_there_twice_and_none_is_without_a_test() -> None:
    assert len({fault.name for fault in TABLE}) == len(TABLE)
    assert all(fault.tests and fault.outcome for fault in TABLE)


def test_every_fault_of_the_table_is_on_the_page() -> None:
    page = (ROOT / "docs" / "studies" / "faults.md").read_text()
    assert [fault.name for fault in TABLE if f"| {fault.name} |" not in page] == []
