"""What the statistics promise, played: the key figures of docs/studies/statistics.md with fewer tries."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binom

from dare_platform.power import gap_between_seeds
from dare_platform.statistics import ALPHA, welch_p
from studies import statistics as study

Play = Callable[[np.random.Generator], bool]
ONE_IN_A_MILLION = 1e-6


@pytest.mark.parametrize(
    ("play", "tries", "least", "most"),
    [
        (lambda g: study.covers(g, 3), 4000, 0.95, 0.95),
        (lambda g: study.covers(g, 5), 4000, 0.95, 0.95),
        (lambda g: welch_p(*study.two(g, 3)) < ALPHA, 4000, 0.0, ALPHA),
        (lambda g: study.board_finds(g, 3), 500, 0.0, ALPHA),
        (lambda g: study.clustered(g, known=True), 150, 0.0, ALPHA),
        (lambda g: study.clustered(g, known=False), 150, 0.15, 1.0),
        (lambda g: welch_p(*study.two(g, 5, gap_between_seeds(5, study.SPREAD))) < ALPHA, 2000, 0.79, 0.83),
    ],
    ids=["t, 3 seeds", "t, 5 seeds", "Welch", "a board", "clusters", "clusters ignored", "power"],
)
def test_a_figure_lies_where_chance_alone_would_put_it(play: Play, tries: int, least: float, most: float) -> None:
    generator = np.random.default_rng(1)
    hits = sum(play(generator) for _ in range(tries))
    assert binom.ppf(ONE_IN_A_MILLION, tries, least) <= hits <= binom.isf(ONE_IN_A_MILLION, tries, most)
