"""What a reader of a score must be told beside it: intervals, and flags on numbers that are not what they look like.

Nothing here changes a number, and nothing needs more than scores and items: the terminal and the board say the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Literal, NamedTuple

from dare.spec import ItemOutcome, Score

LEVEL = 0.95
OFTEN = 0.2
"""Share of answers without a reading, or cut off, from which on the number is about something else than skill."""
MANY = 100
"""Degrees of freedom from which on Student's t is computed from the normal distribution."""
CREDIT = 0.02
"""How far the mean reward may exceed the share solved before it is called credit for the form."""
FlagName = Literal[
    "exactly_0", "below_chance", "not_above_chance", "scorers_differ", "format_credit", "no_answer", "truncated",
    "undecoded", "errors", "first_items_only",
]  # fmt: skip


class Interval(NamedTuple):
    """Bounds of 95 %, and by which method."""

    low: float
    high: float
    method: Literal["wilson", "t"]


class Flag(NamedTuple):
    """`name` is stable; `sentence` is for a reader."""

    name: FlagName
    sentence: str


def interval(score: Score) -> Interval | None:
    """Over items: Wilson's where each is solved or not, Student's t where each is a mean; None for a single mean."""
    if score.metric == "solved" and score.decoding == "greedy":
        return wilson(round(score.value * score.n), score.n)
    if score.standard_error is None:
        return None
    half = student(LEVEL, score.n - 1) * score.standard_error
    return Interval(max(0.0, score.value - half), min(1.0, score.value + half), "t")


def wilson(solved: int, n: int, level: float = LEVEL) -> Interval:
    """Wilson's interval for a share: it has width where all or none are solved, and stays within 0 and 1."""
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share, square = solved / n, z * z
    middle = (share + square / (2 * n)) / (1 + square / n)
    half = z / (1 + square / n) * math.sqrt(share * (1 - share) / n + square / (4 * n * n))
    low = 0.0 if solved == 0 else max(0.0, middle - half)
    return Interval(low, 1.0 if solved == n else min(1.0, middle + half), "wilson")


def student(level: float, degrees: int) -> float:
    """The two-sided quantile of Student's t."""
    if degrees > MANY:  # the normal quantile with its first two corrections, exact to six digits from here on
        z = NormalDist().inv_cdf(0.5 + level / 2)
        return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
    low, high = 0.0, math.pi / 2
    while high - low > 1e-12:
        angle = (low + high) / 2
        low, high = (angle, high) if _within(angle, degrees) < level else (low, angle)
    return math.sqrt(degrees) * math.tan(low)


def _within(angle: float, degrees: int) -> float:
    """P(|t| < sqrt(degrees) tan(angle)), which for whole degrees is a finite sum in the angle."""
    sine, cosine = math.sin(angle), math.cos(angle)
    term = total = cosine if degrees % 2 else 1.0
    for k in range(2 + degrees % 2, degrees - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    if degrees % 2 == 0:
        return sine * total
    return 2 / math.pi * (angle + (sine * total if degrees > 1 else 0.0))


def flags_of(
    score: Score,
    chance_floor: float,
    *,
    reward: Score | None = None,
    others: Sequence[Disagreement] = (),
    limited: bool = False,
) -> list[Flag]:
    """What is to be said of the share of items solved.

    Args:
        reward: the mean reward of the same answers by the same scorer.
        others: what other scorers say of the same answers.
        limited: only the first items were asked.
    """
    found: list[Flag] = []

    def flag(name: FlagName, sentence: str) -> None:
        found.append(Flag(name, sentence))

    bounds = interval(score)
    if score.value == 0:
        flag("exactly_0", f"exactly 0 of {score.n} solved: look at the answers before believing it")
    if bounds is not None and bounds.high < chance_floor:
        flag("below_chance", f"below chance, {chance_floor:.1%}: answers are not read, or not given")
    elif bounds is not None and bounds.low <= chance_floor:
        flag("not_above_chance", f"not above chance, {chance_floor:.1%}")
    for other in others:
        if other.beyond_noise:
            flag(
                "scorers_differ",
                f"{other.scorer} solves {other.only_other} items that {score.scorer} does not, and not "
                f"{other.only_this} that it does",
            )
    if reward is not None and reward.value - score.value > CREDIT:
        flag(
            "format_credit", f"the mean reward is {reward.value:.1%}: what exceeds the share solved is credit for form"
        )
    asked = score.n + score.n_error
    for name, count, sentence in (
        ("no_answer", score.n_no_answer, "have no answer that can be read"),
        ("truncated", score.n_truncated, "end with the window, not by themselves"),
    ):
        if count > OFTEN * score.n:
            flag(name, f"{count} of {score.n} answers {sentence}")  # type: ignore[arg-type]
    if score.n_undecoded:
        flag("undecoded", f"{score.n_undecoded} of {score.n} answers still hold mask tokens: the decoder failed")
    if score.n_error:
        flag("errors", f"the scorer failed on {score.n_error} of {asked} answers, which are in no mean")
    if limited:
        flag("first_items_only", "the first items only: a quick look, never a score")
    return found


class Disagreement(NamedTuple):
    """Two scorers over the same greedy answers."""

    scorer: str
    """The other one."""
    only_this: int
    """Items that the first one solves and the other does not."""
    only_other: int
    n: int

    @property
    def beyond_noise(self) -> bool:
        """Whether one is kinder than the other, by the exact sign test at 5 % on the items that they judge apart."""
        apart = self.only_this + self.only_other
        fewer = min(self.only_this, self.only_other)
        chance = sum(math.comb(apart, k) for k in range(fewer + 1)) / 2**apart
        return apart > 0 and min(1.0, 2 * chance) < 1 - LEVEL


def disagreements(outcomes: Sequence[ItemOutcome], scorer: str) -> list[Disagreement]:
    """How each other scorer differs from one, over greedy answers that both have judged."""
    said: dict[str, Mapping[str, bool]] = {}
    for name in dict.fromkeys(outcome.scorer for outcome in outcomes):
        said[name] = {
            one.item: one.score > 0.5
            for one in outcomes
            if one.scorer == name and one.sample == 0 and one.status != "error"
        }
    this = said.pop(scorer, {})
    return [
        Disagreement(
            name,
            sum(this[item] and not other[item] for item in this.keys() & other.keys()),
            sum(other[item] and not this[item] for item in this.keys() & other.keys()),
            len(this.keys() & other.keys()),
        )
        for name, other in said.items()
    ]
