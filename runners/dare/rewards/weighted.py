"""What a run trains on: one number for each answer, the task's own or one composed of declared parts with weights.

The parts are `correct` (the judge's `solved`), `task` (the judge's own reward, which may give partial credit), those of
`dare.rewards.format`, and functions of one's own (`dare.rewards.own`). `solved` is kept apart from all of them: no
weight can move it, and a run logs both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from dare.rewards.format import PARTS as FORMAT_PARTS
from dare.rewards.own import UNJUDGED, OwnReward, RewardError, is_own, load_own, own_part
from dare.spec import ItemStatus, RewardPart, RewardSpec
from dare.tasks import Item, Task, Verdict

OF_THE_JUDGE: Mapping[str, Callable[[Verdict], float]] = MappingProxyType(
    {"correct": lambda verdict: float(verdict.solved), "task": lambda verdict: verdict.reward}
)
"""Parts that ask the item's task."""


MOST_FAILED = 0.1
"""Share of a step's answers that the scorer may fail on."""


def part_names() -> list[str]:
    """The parts that need no code of one's own."""
    return [*OF_THE_JUDGE, *FORMAT_PARTS]


def short_name(part: str) -> str:
    """A function's name without its file or module."""
    return part.rpartition(":")[2]


@dataclass(frozen=True)
class Judged:
    """What a run learns of one answer. `solved` is None where nobody can say: no task, and no verdict of one's own."""

    reward: float
    solved: bool | None
    status: ItemStatus
    parts: Mapping[str, float] = field(default_factory=dict)
    """Each part's own value by its short name, before any weight."""


@dataclass(frozen=True)
class Part:
    """One part with its weight; `own` where its function is the user's."""

    name: str
    weight: float
    own: OwnReward | None = None

    @property
    def short(self) -> str:
        """What its metric is called."""
        return short_name(self.name)


@dataclass(frozen=True)
class WeightedReward:
    """A reward of declared parts. Without parts it is the task's own reward."""

    parts: tuple[Part, ...] = ()
    normalised: bool = True
    """Divide by the sum of the weights: every part is then from 0 to 1, and so is the reward. Otherwise it is the
    plain weighted sum, as in published settings, and one's own functions may return any finite number."""

    def check(self, tasks: Iterable[Task]) -> None:
        """RewardError when rows have no task and a part asks it."""
        asking = [part.name for part in self.parts if part.name in OF_THE_JUDGE]
        if (asking or not self.parts) and any(task is UNJUDGED for task in tasks):
            what = f"the reward part {asking[0]!r} asks" if asking else "the reward is that of"
            raise RewardError(
                f"{what} the task of each row, and there are rows without one: give them a task, or reward them with "
                "a function of your own alone"
            )

    def judge(self, task: Task, item: Item, text: str) -> Judged:
        """The reward of one answer with its parts. RewardError when a function of one's own fails."""
        verdict = None if task is UNJUDGED else task.judge(item, text)
        if verdict is not None and not self.parts:
            return Judged(verdict.reward, verdict.solved, verdict.status)
        values: dict[str, float] = {}
        for part in self.parts:
            value = self._value(part, item, text, verdict)
            if isinstance(value, Verdict):
                verdict = verdict or value  # a task's word on what is solved stands
                value = value.reward
            values[part.short] = value
        total = math.fsum(part.weight * values[part.short] for part in self.parts)
        if self.normalised:
            total = min(total / math.fsum(part.weight for part in self.parts), 1.0)
        if verdict is None:
            return Judged(total, None, "ok", values)
        return Judged(total, verdict.solved, verdict.status, values)

    def _value(self, part: Part, item: Item, text: str, verdict: Verdict | None) -> float | Verdict:
        if part.own is not None:
            answer = part.own(item, text)
            value = answer.reward if isinstance(answer, Verdict) else answer
            if self.normalised and not 0 <= value <= 1:
                raise RewardError(
                    f"reward function {part.name} returned {value:g} for item {item.id!r}; in a normalised reward "
                    "every part is from 0 to 1: scale it, or set normalised to false"
                )
            return answer
        if part.name in FORMAT_PARTS:
            return FORMAT_PARTS[part.name](text)
        assert verdict is not None, "`check` has seen the tasks"
        return OF_THE_JUDGE[part.name](verdict)


TASK_REWARD = WeightedReward()
"""What a run trains on when it declares nothing: the reward of the item's task."""


def declared(references: Sequence[str], normalised: bool = True) -> RewardSpec | None:
    """A reward as a person writes it: `correct=2`, `format=0.5`, `./my_reward.py:short`; a weight is 1 unless given."""
    parts = []
    for reference in references:
        name, _, given = reference.rpartition("=") if "=" in reference else (reference, "", "1")
        try:
            weight = RewardPart(name=name, weight=float(given)).weight
        except ValueError as error:
            raise RewardError(f"the weight of {reference!r} must be a number above 0 and at most a million") from error
        parts.append(own_part(name, weight) if is_own(name) else RewardPart(name=name, weight=weight))
    if not parts:
        return None
    _check_names([part.name for part in parts])
    return RewardSpec(parts=tuple(parts), normalised=normalised)


def load_reward(spec: RewardSpec | None, directory: Path) -> WeightedReward:
    """The reward that a run declares; RewardError names an unknown part, or what is wrong with a function."""
    if spec is None:
        return TASK_REWARD
    _check_names([part.name for part in spec.parts])
    parts = [
        Part(part.name, part.weight, load_own(part, directory) if is_own(part.name) else None) for part in spec.parts
    ]
    return WeightedReward(tuple(parts), spec.normalised)


def _check_names(names: Sequence[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if not is_own(name) and name not in part_names():
            raise RewardError(
                f"unknown reward part {name!r}; known: {', '.join(part_names())}, "
                "and functions of your own as package.module:function or ./file.py:function"
            )
        short = short_name(name)
        if short in seen:
            raise RewardError(f"the reward parts {seen[short]!r} and {name!r} have one name; rename one")
        seen[short] = name


def reward_metrics(judged: Iterable[Judged]) -> dict[str, float]:
    """What a step logs beside the reward: `solved` where anybody can say, `no_answer`, and the mean of every part.

    A part is `reward/<name>`, unweighted. A column that nobody measured is absent, which is not the same as zero.
    An answer that the scorer failed on has reward 0 and is told as `scorer_errors`; RewardError where it is more than
    one answer in ten, since the policy would learn from the failures.
    """
    rows = list(judged)
    failed = sum(row.status == "error" for row in rows)
    if failed > MOST_FAILED * len(rows):
        raise RewardError(f"the scorer failed on {failed} of {len(rows)} answers of a step, where 1 in 10 is allowed")
    known = [row.solved for row in rows if row.solved is not None]
    means = {
        f"reward/{name}": math.fsum(row.parts[name] for row in rows) / len(rows)
        for name in dict.fromkeys(name for row in rows for name in row.parts)
    }
    return {
        **({"solved": sum(known) / len(known)} if known else {}),
        "no_answer": sum(row.status == "no_answer" for row in rows) / len(rows),
        **({"scorer_errors": failed / len(rows)} if failed else {}),
        **means,
    }
