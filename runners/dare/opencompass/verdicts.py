"""What OpenCompass's result file says of every item, in each of the shapes that its evaluators write.

The traps are its own: some evaluators give no details, some leave items out and shift the rest, some say `correct`,
some `is_correct`. A number is believed only when the items add up to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

METRICS = ("accuracy", "score", "humaneval_pass@1", "Prompt-level-strict-accuracy")
"""Where the headline stands, in per cent."""
FLAGS = ("is_correct", "correct", "passed")
ANSWERS = ("pred", "predictions", "completion", "programs")
NOTHING = ("", "NULL", "None", "[]")
"""What extractors of OpenCompass return when they find nothing."""
TOLERANCE = 1e-6


class EvaluatorError(RuntimeError):
    """The evaluator failed, or what it says does not add up."""


@dataclass(frozen=True)
class Judged:
    """One item. `correct` is None where the evaluator gave no verdict."""

    correct: bool | None
    answer: str | None
    reward: float | None = None
    """Only from the judges of our own tasks."""


@dataclass(frozen=True)
class Result:
    """One dataset. `details` says whether there is one verdict for each item, so that each belongs to its own."""

    metric: str
    headline: float
    judged: Sequence[Judged]
    complete: bool

    def check(self, name: str) -> None:
        """EvaluatorError unless the items add up to the headline."""
        mean = 100 * sum(one.correct is True for one in self.judged) / len(self.judged)
        if abs(mean - self.headline) > TOLERANCE:
            raise EvaluatorError(
                f"OpenCompass's {self.metric} of {name} is {self.headline:.4f}, but its items say {mean:.4f}"
            )


def read_result(name: str, content: Mapping[str, Any], count: int, keys: Sequence[str] | None = None) -> Result:
    """The verdicts of a result file for `count` items; EvaluatorError where it has no number.

    `keys` are the evaluator's own names of the items, compared where a detail has one.
    """
    if "error" in content:
        raise EvaluatorError(f"OpenCompass did not score {name}: {content['error']}")
    metric = next((known for known in METRICS if known in content), None)
    if metric is None:
        raise EvaluatorError(f"OpenCompass's result of {name} has none of {', '.join(METRICS)}")
    details = content.get("details")
    if isinstance(details, Mapping):
        found = [details[str(index)] for index in range(len(details)) if str(index) in details]
    else:
        found = list(details or [])
    complete = len(found) == count
    if complete and keys is not None:
        for key, entry in zip(keys, found, strict=True):
            told = _one(entry.get("task_id", key))
            if told != key:
                raise EvaluatorError(f"OpenCompass's result of {name} has {told!r} in the place of {key!r}")
    judged = [_judged(entry) for entry in found] if complete else [Judged(None, None)] * count
    return Result(metric, float(content[metric]), judged, complete)


def _judged(entry: Mapping[str, Any]) -> Judged:
    answer = next((_one(entry[known]) for known in ANSWERS if entry.get(known) is not None), None)
    text = None if answer is None or str(answer) in NOTHING else str(answer)
    flag = next((_one(entry[known]) for known in FLAGS if entry.get(known) is not None), None)
    if flag is None and "references" in entry:  # AccEvaluator compares texts and keeps no flag
        flag = str(_one(entry["predictions"])) == str(_one(entry["references"]))
    reward = _one(entry.get("reward"))
    return Judged(None if flag is None else bool(flag), text, None if reward is None else float(reward))


def _one(value: Any) -> Any:
    """Evaluators wrap every value into a list with one element for each repetition."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value
