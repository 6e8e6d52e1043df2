"""The committed learning study: every method is in it, on both backbones and all seeds, and learned."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from dare.algorithm import algorithm_names, load_algorithm
from dare.spec import AlgorithmSpec

STUDY = Path(__file__).parents[1] / "docs" / "studies" / "learning.jsonl"
ROWS = [json.loads(line) for line in STUDY.read_text().splitlines()]
ABOVE = 0.2
"""Of the sampled reward, over the control's mean: measured were 0.31 to 0.46, within the control's own seeds 0.11."""
LEARNERS = [n for n in algorithm_names() if load_algorithm(AlgorithmSpec(name=n)).trains_on != "preferences"]


def rewards(method: str, backbone: str) -> dict[int, float]:
    return {row["seed"]: row["reward"] for row in ROWS if (row["method"], row["backbone"]) == (method, backbone)}


@pytest.mark.parametrize("backbone", ["llada-tiny", "sdar-tiny"])
@pytest.mark.parametrize("method", LEARNERS)
def test_every_method_learned_more_than_the_control_over_three_seeds(method: str, backbone: str) -> None:
    """A method without its runs fails here: `python -m studies.learning --only NAME` makes them."""
    control, found = rewards("shuffled advantage (control)", backbone), rewards(method, backbone)
    assert found.keys() == control.keys() == {0, 1, 2}
    assert statistics.fmean(found.values()) > statistics.fmean(control.values()) + ABOVE
