"""The page of properties names tests that exist, for all eighteen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "algorithms" / "proof.md").read_text()
NAMED = sorted(set(re.findall(r"`(test_\w+\.py)::(\w+)`", PAGE)))


@pytest.mark.parametrize("file", sorted({file for file, _ in NAMED}))
def test_every_test_that_the_page_names_exists(file: str) -> None:
    defined = set(re.findall(r"^def (test_\w+)\(", (TESTS / file).read_text(), re.MULTILINE))
    assert {test for of, test in NAMED if of == file} <= defined


def test_all_eighteen_properties_are_there_and_each_names_a_test() -> None:
    parts = re.split(r"^(\d+)\. \*\*", PAGE, flags=re.MULTILINE)
    assert [int(number) for number in parts[1::2]] == list(range(1, 19))
    assert all(".py::" in text.partition("Beyond these")[0] for text in parts[2::2])


def test_every_property_of_all_methods_is_on_the_page() -> None:
    defined = re.findall(r"^def (test_\w+)\(", (TESTS / "test_every_algorithm.py").read_text(), re.MULTILINE)
    missing = {test for test in defined if f"test_every_algorithm.py::{test}" not in PAGE}
    assert missing == {"test_some_methods_replay_steps_some_tokens_and_some_trees"}
