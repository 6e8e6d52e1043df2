"""Claims of papers stand beside our reruns with their source; they rank nobody and are tested against nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from board_cases import REFERENCE, board, entry

from dare_platform.claims import Claim, ClaimFileError, beside, claims, parse_claims

FILE = """
source: A paper
url: https://example.org/paper
protocol: 256 tokens, as far as stated
claims:
  - backbone: llada-8b
    algorithms: [untouched, d1]
    tasks: {gsm8k: [76.5, 83.7]}
    rewards: {sudoku: [26.2, 31.8]}
"""


def test_a_file_becomes_claims_with_their_source() -> None:
    found = parse_claims(FILE, "paper.yaml")
    assert [(claim.algorithm, claim.task, claim.value, claim.quantity) for claim in found] == [
        ("untouched", "gsm8k", 0.765, "solved"),
        ("d1", "gsm8k", pytest.approx(0.837), "solved"),
        ("untouched", "sudoku", 0.262, "reward"),
        ("d1", "sudoku", 0.318, "reward"),
    ]
    assert {claim.source for claim in found} == {"A paper"}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("d1]", "d2]", "'d2' is no algorithm here"),
        ("gsm8k", "gsm9k", "'gsm9k' is no task here"),
        ("83.7", "83.7, 1.0", "gsm8k has 3 numbers for 2 algorithms"),
        ("83.7", "837", "outside 0 to 100"),
        ("source: A paper", "", "source"),
        ("claims:", "claims: [", "paper.yaml"),
    ],
)
def test_a_file_that_cannot_be_is_refused_by_its_key(old: str, new: str, words: str) -> None:
    with pytest.raises(ClaimFileError, match=words):
        parse_claims(FILE.replace(old, new), "paper.yaml")


def test_what_is_shipped_is_two_backbones_of_one_source() -> None:
    known = claims()
    assert {claim.backbone for claim in known} == {"llada-8b-instruct", "dream-7b-instruct"}
    assert len(known) == 7 * 6 + 6 * 4
    by_name = {(claim.backbone, claim.algorithm, claim.task): claim.value for claim in known}
    assert by_name["llada-8b-instruct", "cj_grpo", "gsm8k"] == pytest.approx(0.856)
    assert by_name["dream-7b-instruct", "spg", "humaneval"] == pytest.approx(0.177)


def test_a_claim_is_inside_or_outside_our_interval_or_there_is_nothing_to_compare() -> None:
    made = board(REFERENCE, entry("bgpo", [0.60, 0.61, 0.62]))

    def claim(algorithm: str, value: float, quantity: str = "solved") -> Claim:
        return Claim(made.backbone, algorithm, "sudoku", value, quantity, "s", "u", "p")  # type: ignore[arg-type]

    known = (
        claim("bgpo", 0.615), claim("bgpo", 0.99), claim("d1", 0.5), claim("bgpo", 0.61, "reward"),
        replace(claim("bgpo", 0.61), backbone="another"), replace(claim("bgpo", 0.61), task="gsm8k"),
    )  # fmt: skip
    assert [(one.claim.value, one.comparison) for one in beside(made, known)] == [
        (0.615, "inside"),
        (0.99, "outside"),
        (0.5, "not rerun"),
        (0.61, "other quantity"),
    ]


def test_claims_change_nothing_of_a_board() -> None:
    made = board(REFERENCE, entry("bgpo", [0.60, 0.61, 0.62]))
    before = made.digest
    beside(made)
    assert made.digest == before
    assert all(row.name in ("untouched", "bgpo") for row in made.rows)
