"""Times and states in words: coarse enough that nothing counts up and down under the reader's eyes."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from itertools import pairwise

from dare_platform.models import ACTIVE

STEPS_BEFORE_ESTIMATE = 10
LAST_STEPS = 20
ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]")
LONGEST_LINE = 2000
WORKING = {"check": "checking", "train": "training", "evaluate": "evaluating", "score": "scoring"}


def about(seconds: float) -> str:
    """`about 40 min`: one or two significant digits, upwards."""
    if seconds < 10:
        return "a few s"
    if seconds < 55:
        return f"about {10 * math.ceil(seconds / 10)} s"
    minutes = seconds / 60
    if minutes < 10:
        return f"about {math.ceil(minutes)} min"
    if minutes < 90:
        return f"about {duration(300 * math.ceil(minutes / 5))}"
    return f"about {math.ceil(minutes / 60)} h"


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3 h 05 min`, `2 days`."""
    seconds = max(0.0, seconds)
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes < 48 * 60 else f"{round(minutes / 60 / 24)} days"


def seconds_left(
    seconds: Sequence[float], steps_left: int, forwards: Sequence[float] = (), forwards_left: float | None = None
) -> float | None:
    """From the median of the last steps; None before ten. A budget of forwards may end training before its steps do.

    Args:
        seconds: clock at every step so far.
        forwards: gradient-carrying forwards at every step so far.
        forwards_left: what the budget still allows; None without one.
    """
    if len(seconds) < STEPS_BEFORE_ESTIMATE:
        return None
    a_step = _median_difference(seconds)
    if forwards_left is not None and len(forwards) == len(seconds):
        each = _median_difference(forwards)
        if each > 0:
            steps_left = min(steps_left, math.floor(forwards_left / each))
    return a_step * max(0, steps_left)


def _median_difference(values: Sequence[float]) -> float:
    last = values[-LAST_STEPS - 1 :]
    return statistics.median(after - before for before, after in pairwise(last))


def state_in_words(
    kind: str, state: str, step: int | None, of: int | None, stage: str | None, cause: str | None
) -> str:
    """`training 184 of 300`, `waiting`, `preparing`, `diverged`."""
    if state == "failed":
        return (cause or "failed").replace("_", " ")
    if state == "blocked":
        return "waits for another run"
    if state == "queued":
        return "waits for a new attempt" if cause else "waiting"
    if state in ("leased", "preparing") or (state == "working" and stage in (None, "prepare", "rehearse")):
        return "preparing"
    if state == "finalizing":
        return "finishing"
    if state in ACTIVE:
        verb = WORKING[kind]
        return f"{verb} {step} of {of}" if step is not None and of else verb
    return state


def log_lines(text: str, last: int) -> tuple[str, ...]:
    """The last lines of a log: no terminal codes, no endless line."""
    lines = ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n").splitlines()[-last:]
    return tuple(line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 1] + "…" for line in lines)
