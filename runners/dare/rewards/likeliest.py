"""Which of some continuations a policy finds most probable, read from a stored record of their likelihoods.

A record is what a likelihood task's prediction holds instead of a text: JSON with a number for each continuation.
    {"log_likelihoods": [-1.2, -0.4], "standard_errors": [0.1, 0.1], "tokens": [3, 4]}
The likelihoods are estimates, so that a winner may be one by chance: `undecided` says whether the next best is within
one standard error of their difference, as if the two had been drawn apart. An exact tie has no winner.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Literal, get_args

Unit = Literal["none", "tokens", "bytes"]
UNITS: tuple[Unit, ...] = get_args(Unit)
"""What a log-likelihood is divided by before continuations of unlike length are compared; by nothing under `none`, so
that the probabilities of whole continuations are compared."""


@dataclass(frozen=True)
class Record:
    """Lower bounds in nats with their standard errors, and lengths; in the order of the item's choices."""

    log_likelihoods: tuple[float, ...]
    standard_errors: tuple[float, ...]
    tokens: tuple[int, ...]

    def text(self) -> str:
        """As it is stored."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Pick:
    """The place of the winner, None for a tie; and whether chance may have made it one."""

    winner: int | None
    undecided: bool


@dataclass(frozen=True)
class Certainty:
    """How sure the estimates of a task are."""

    standard_error: float
    """Mean over all continuations, in nats."""
    undecided: float
    """Share of the items whose winner is within one standard error of the next, ties included."""
    n: int


def read(text: str, choices: int) -> Record | None:
    """The record that a text holds; None unless it has the three lists, of this length and with finite numbers."""
    try:
        found = json.loads(text, parse_constant=lambda _: None)
        record = Record(*(tuple(found[name]) for name in ("log_likelihoods", "standard_errors", "tokens")))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if choices < 1 or any(len(values) != choices for values in asdict(record).values()):
        return None
    numbers = (*record.log_likelihoods, *record.standard_errors)
    if not all(isinstance(number, float | int) and not isinstance(number, bool) for number in numbers):
        return None
    try:
        finite = all(math.isfinite(number) for number in numbers)
    except OverflowError:  # an integer that no float holds
        return None
    counted = all(isinstance(count, int) and not isinstance(count, bool) and count > 0 for count in record.tokens)
    return record if finite and counted and min(record.standard_errors) >= 0 else None


def pick(record: Record, choices: Sequence[str], unit: Unit = "none") -> Pick:
    """The choice with the largest log-likelihood per unit."""
    lengths: Sequence[float] = [1.0] * len(choices)
    if unit == "tokens":
        lengths = record.tokens
    elif unit == "bytes":  # the space that joins a continuation to its context is none of its bytes
        lengths = [max(1, len(choice.removeprefix(" ").encode("utf-8", "replace"))) for choice in choices]
    values = [logp / length for logp, length in zip(record.log_likelihoods, lengths, strict=True)]
    first = max(range(len(values)), key=values.__getitem__)
    others = [place for place in range(len(values)) if place != first]
    if not others:
        return Pick(first, False)
    second = max(others, key=values.__getitem__)
    gap = values[first] - values[second]
    error = math.hypot(*(record.standard_errors[place] / lengths[place] for place in (first, second)))
    return Pick(first if gap > 0 else None, gap <= error)


def certainty(records: Sequence[tuple[Record, Sequence[str]]], unit: Unit = "none") -> Certainty:
    """Over the (record, choices) of at least one item."""
    return Certainty(
        standard_error=fmean(fmean(record.standard_errors) for record, _ in records),
        undecided=fmean(pick(record, choices, unit).undecided for record, choices in records),
        n=len(records),
    )
