"""How often the leaderboard's statistics are wrong, by simulation: coverage, false findings, power.

`python -m studies.statistics` writes docs/studies/statistics.md in under two minutes of one core.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dare_platform.item_statistics import item_test
from dare_platform.power import POWER, gap_between_seeds
from dare_platform.statistics import ALPHA, all_pairs, mean_interval, welch_p
from studies.hostile import machine

STUDY = Path(__file__).resolve().parent.parent / "docs" / "studies" / "statistics.md"
SEED = 0
SPREAD = 0.03
"""Standard deviation of a method's score between seeds: three points, as the tiny track has them."""
ITEMS = 256
PAGE = """# How often our statistics are wrong

Everything that the board says rests on a few tests. Here they are played many times on made-up scores of which the
truth is known: seeds differ by {spread:.0f} points (standard deviation), tasks have {items} items, half of which are
solved. A figure's ± is its Monte-Carlo standard error. Promised are 95 % coverage, 5 % false findings and {power:.0f} %
power.

```
python -m studies.statistics
```

Run on {date} on the tree that follows commit {commit}, {cores} cores of {cpu}, Python {python}, seed {seed}, in
{seconds:.0f} s.

| what | of | observed, % | promised, % |
|---|---|---|---|
{rows}

What it says. The t interval over seeds keeps its promise from two seeds on. A percentile bootstrap over three seeds
holds the truth three times in four, which is why no page shows one. Welch's test finds less than it may, most of all
with few seeds, and a board of ten equal methods finds something false in two or three boards of a hundred after Holm.
**An item-paired test does not say which algorithm is better**: where seeds differ by three points it calls two equal
algorithms different in 16 comparisons of 100 with 256 items, and in 42 with four times as many: more items make it
worse. That is why the pages say "these checkpoints differ" where they use it. Items that come in clusters are tested in
clusters: as if they were independent they would be called different in a quarter of all comparisons. Power is what
`power.py` promises for one pair; a board that compares ten methods has less.

What it does not say: that real seeds are normal, or that their spread is three points. Fewer than {few} seeds of a real
method say little about either.
"""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    of: str
    hits: int
    tries: int
    promised: str

    @property
    def line(self) -> str:
        """Markdown."""
        share = self.hits / self.tries
        error = math.sqrt(share * (1 - share) / self.tries)
        return f"| {self.what} | {self.of} | {100 * share:.1f} ± {100 * error:.1f} | {self.promised} |"


def counted(what: str, of: str, promised: str, tries: int, one: Callable[[], bool]) -> Row:
    """Play one many times."""
    return Row(what, of, sum(one() for _ in range(tries)), tries, promised)


def rows(generator: np.random.Generator) -> Iterator[Row]:
    """The whole table, in the order in which it is read."""
    for seeds in (2, 3, 5, 8):
        yield counted(
            "t interval over seeds holds the truth",
            f"{seeds} seeds",
            "95",
            20_000,
            lambda n=seeds: covers(generator, n),
        )
    for seeds in (3, 5):
        yield counted(
            "percentile bootstrap over seeds, for contrast", f"{seeds} seeds", "95", 4_000,
            lambda n=seeds: bootstrap_covers(generator, n),
        )  # fmt: skip
    for seeds in (2, 3, 5, 8):
        yield counted(
            "Welch's test calls equal algorithms different", f"{seeds} seeds a side", "5", 20_000,
            lambda n=seeds: welch_p(*two(generator, n)) < ALPHA,
        )  # fmt: skip
    for seeds in (3, 5):
        yield counted(
            "a board of ten equal methods finds any difference", f"{seeds} seeds, Holm over 45 pairs", "5", 3_000,
            lambda n=seeds: board_finds(generator, n),
        )  # fmt: skip
    yield counted(
        "item test calls equal checkpoints different", f"{ITEMS} items", "5", 4_000,
        lambda: item_test(*answers(generator, 0.5, 0.5, ITEMS)).differ,
    )  # fmt: skip
    for items in (ITEMS, 4 * ITEMS):
        yield counted(
            "the same test taken for one of algorithms", f"one seed a side, {items:,} items", "5", 2_000,
            lambda m=items: item_test(*answers(generator, *two_scores(generator), m)).differ,
        )  # fmt: skip
    for with_clusters in (True, False):
        words = "by cluster" if with_clusters else "as if items were independent"
        yield counted(
            "item test, items in clusters of eight", f"{ITEMS} items, {words}", "5", 600,
            lambda known=with_clusters: clustered(generator, known),
        )  # fmt: skip
    for seeds in (3, 5, 8):
        gap = gap_between_seeds(seeds, SPREAD)
        yield counted(
            "Welch's test sees the gap that power.py names", f"{seeds} seeds a side, {100 * gap:.1f} points",
            f"{100 * POWER:.0f}", 8_000, lambda n=seeds, g=gap: welch_p(*two(generator, n, g)) < ALPHA,
        )  # fmt: skip


def covers(generator: np.random.Generator, seeds: int) -> bool:
    """Whether the interval of one sample holds zero, the truth."""
    made = mean_interval(generator.normal(0, SPREAD, seeds).tolist())
    return made.half_width is not None and abs(made.value) <= made.half_width


def bootstrap_covers(generator: np.random.Generator, seeds: int) -> bool:
    """The same for the interval between percentiles of resampled means."""
    values = generator.normal(0, SPREAD, seeds)
    low, high = np.quantile(values[generator.integers(0, seeds, (1_000, seeds))].mean(axis=1), [0.025, 0.975])
    return bool(low <= 0 <= high)


def two(generator: np.random.Generator, seeds: int, gap: float = 0.0) -> tuple[list[float], list[float]]:
    """Scores of two algorithms, seed by seed."""
    return generator.normal(gap, SPREAD, seeds).tolist(), generator.normal(0, SPREAD, seeds).tolist()


def two_scores(generator: np.random.Generator) -> tuple[float, float]:
    """True scores of one checkpoint each of two equal algorithms."""
    first, second = np.clip(generator.normal(0.5, SPREAD, 2), 0, 1)
    return float(first), float(second)


def board_finds(generator: np.random.Generator, seeds: int) -> bool:
    """Whether any pair of ten equal methods is separated."""
    scores = generator.normal(0, SPREAD, (10, seeds))
    adjusted = all_pairs([row.tolist() for row in scores])
    return bool(np.any(np.asarray(adjusted.p)[~np.eye(10, dtype=bool)] < ALPHA))


def answers(
    generator: np.random.Generator, first: float, second: float, items: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Which items two checkpoints of these true scores solve. Hard items are hard for both, as far as that goes."""
    common = generator.random(items)
    own = [np.where(generator.random(items) < 0.5, common, generator.random(items)) for _ in range(2)]
    return (own[0] < first).astype(np.float64), (own[1] < second).astype(np.float64)


def clustered(generator: np.random.Generator, known: bool) -> bool:
    """Items of one story share half of what each checkpoint makes of it; the two are equally good."""
    stories = ITEMS // 8
    story = np.repeat(np.arange(stories), 8)
    scores = [
        (np.where(generator.random(ITEMS) < 0.5, generator.random(stories)[story], generator.random(ITEMS)) < 0.5)
        for _ in range(2)
    ]
    clusters = [str(one) for one in story] if known else None
    return item_test(scores[0].astype(np.float64), scores[1].astype(np.float64), clusters).differ


def main() -> None:
    """Play, print each line, write the page."""
    began = time.monotonic()
    found = []
    for row in rows(np.random.default_rng(SEED)):
        print(row.line, flush=True)
        found.append(row)
    facts = machine()
    page = PAGE.format(
        spread=100 * SPREAD, items=ITEMS, power=100 * POWER, seed=SEED, few=8, seconds=time.monotonic() - began,
        rows="\n".join(row.line for row in found),
        **{name: facts[name] for name in ("date", "commit", "cores", "cpu", "python")},
    )  # fmt: skip
    STUDY.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
