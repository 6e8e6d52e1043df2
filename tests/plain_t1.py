"""The table model T1 once more, in floats and loops alone: nothing of ours, and no automatic gradient.

Enumerated answers are derived with it in docs/algorithms/derivations.md.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

MASK = 3
State = Sequence[int]
Gradient = dict[tuple[int, int, int], float]
"""By (state, position, token) of the table of logits."""


def _code(state: State) -> int:
    return state[0] + 4 * state[1] + 16 * state[2]


def distribution(which: str, state: State, position: int) -> list[float]:
    """Probabilities of the tokens 0, 1, 2 under the policy `old`, `new` or `ref`."""
    share = {"old": 0.0, "new": 0.3, "ref": -0.2}[which]
    s = _code(state)
    logits = [
        math.sin(1 + 0.9 * s + 1.7 * position + 2.3 * v) + share * math.cos(0.5 * s + 1.1 * position + 0.9 * v)
        for v in range(3)
    ]
    total = sum(math.exp(x) for x in logits)
    return [math.exp(x) / total for x in logits]


def logp(which: str, state: State, position: int, token: int) -> float:
    """Of one token."""
    return math.log(distribution(which, state, position)[token])


class Slope:
    """The gradient by the table of `new`, made of derivatives by single log-probabilities."""

    def __init__(self) -> None:
        self.entries: Gradient = defaultdict(float)

    def add(self, by_logp: float, state: State, position: int, token: int) -> None:
        """d logp(token) / d logit(v) is 1 for the token itself, less the probability of v."""
        for v, p in enumerate(distribution("new", state, position)):
            self.entries[_code(state), position, v] += by_logp * ((v == token) - p)

    @property
    def norm(self) -> float:
        """Euclidean length."""
        return math.sqrt(math.fsum(x * x for x in self.entries.values()))


def clipped(ratio: float, advantage: float, low: float, high: float) -> tuple[float, float]:
    """-min(ratio A, clip(ratio) A), and its derivative by the log-ratio."""
    bounded = min(max(ratio, 1 - low), 1 + high)
    if ratio * advantage <= bounded * advantage:
        return -ratio * advantage, -ratio * advantage
    return -bounded * advantage, 0.0
