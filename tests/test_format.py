"""The format parts of a reward, and the public ones that they replace, value by value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dare.rewards.format import PARTS, TAGS, legacy

CANONICAL = "<reasoning>\nsix times seven\n</reasoning>\n<answer>\n42\n</answer>\n"


def ours(text: str) -> tuple[float, ...]:
    return tuple(part(text) for part in PARTS.values())


VECTORS = {
    "d1_gsm8k_44": (1, 1, 1, 1),
    "d1_gsm8k_45": (1, 1, 1, 1),  # reasoning of two lines keeps the form
    "d1_gsm8k_46": (1, 0, 1, 1),
    "d1_gsm8k_47": (1, 1, 1, 1),  # the last line break is worth nothing, and the length of the text neither
    "d1_gsm8k_48": (0, 0, 0, 0),  # a bare number keeps no form, right or wrong
}
"""format, strict_format, tags and number of each public vector."""


def test_every_public_vector_has_its_legacy_parts_and_what_is_right_beside_them() -> None:
    items = json.loads((Path(__file__).parent / "goldens/algorithms/reward_vectors.json").read_text())["items"]
    rows = {row["id"]: row for row in items if row["task"] == "d1_gsm8k_shaped"}
    assert rows.keys() == VECTORS.keys()
    for name, row in rows.items():
        parts = legacy(row["input"], row["gold"])
        assert parts == pytest.approx(tuple(row["legacy_parts"].values()), abs=1e-12), name
        assert sum(parts) == pytest.approx(row["legacy_score"], abs=1e-12), name
        assert ours(row["input"]) == VECTORS[name], name


def test_the_legacy_count_of_tags_takes_a_thousandth_for_each_character_where_the_last_line_break_is_missing() -> None:
    """By hand: four eighths, minus the length of the whole text (nothing is split off), plus the one of `- 1`."""
    text = CANONICAL.removesuffix("\n")
    assert legacy(text, "42").xmlcount == pytest.approx(0.5 - 0.001 * len(text) + 0.001)
    shorter = text.replace("six times seven", "6x7")
    assert len(shorter) == 50
    assert legacy(shorter, "42") == pytest.approx((0.451, 0, 0, 0.5, 2.0))
    long = CANONICAL + "x" * 600
    assert legacy(long, "42").xmlcount == pytest.approx(0.5 - 0.6 - 0.6)
    assert legacy(long, "42").xmlcount < 0


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (CANONICAL, (1, 1, 1, 1)),
        (CANONICAL.replace("42", "1,000"), (1, 1, 1, 1)),
        (CANONICAL.replace("42", "many"), (1, 1, 1, 0)),
        (CANONICAL.replace("42", "42 eggs"), (1, 1, 1, 0)),
        (CANONICAL.replace("six times seven", " "), (0, 0, 1, 1)),
        (CANONICAL.replace("42", ""), (0, 0, 1, 0)),
        ("\n " + CANONICAL, (1, 0, 1, 1)),
        (CANONICAL + "\n", (1, 0, 1, 1)),
        ("So: " + CANONICAL, (0, 0, 1, 1)),
        (CANONICAL + "So it is.", (0, 0, 1, 1)),
        (CANONICAL.replace("</reasoning>\n", "</reasoning>\n\n"), (1, 0, 1, 1)),
        (CANONICAL.replace("</reasoning>\n", "</reasoning>\nso\n"), (0, 0, 1, 1)),
        (CANONICAL + CANONICAL, (0, 0, 0, 1)),
        (CANONICAL.removesuffix("</answer>\n"), (0, 0, 0.75, 0)),
        ("<answer>42</answer>", (0, 0, 0.5, 1)),
        ("<answer>\n42\n</answer>\n<reasoning>\nso\n</reasoning>\n", (0, 0, 1, 1)),
        ("</answer></reasoning><answer><reasoning>", (0, 0, 1, 0)),
        ("", (0, 0, 0, 0)),
    ],
)
def test_each_part_looks_at_one_thing(text: str, values: tuple[float, ...]) -> None:
    assert ours(text) == values


@given(st.lists(st.sampled_from([*TAGS, "\n", "5", "so ", " "]), max_size=14).map("".join))
def test_whoever_keeps_the_strict_form_keeps_the_form_and_whoever_keeps_that_has_all_tags(text: str) -> None:
    layout, strict, tags, _ = ours(text)
    assert strict <= layout <= tags


@given(
    st.text(st.characters(exclude_characters="<>", exclude_categories=["Cs"])).filter(str.strip),
    st.integers(-(10**30), 10**30),
)
def test_any_reasoning_in_the_form_earns_every_part(reasoning: str, answer: int) -> None:
    assert ours(f"<reasoning>\n{reasoning}\n</reasoning>\n<answer>\n{answer}\n</answer>\n") == (1, 1, 1, 1)
