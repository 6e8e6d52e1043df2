"""Rules that stop a diverged run early and name the cause, so that hours are not spent on noise."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field


class DivergedError(ArithmeticError):
    """A fatal alarm. The message is one sentence with step and value."""


@dataclass(frozen=True)
class Alarm:
    """One thing noticed. A fatal one ends the run."""

    name: str
    sentence: str
    fatal: bool


@dataclass
class Watch:
    """Reads the metrics of each step; remembers only what its rules need."""

    collapse_share: float = 0.1
    """Reward below this share of its best recent mean, for `patience` steps, is a collapse."""
    patience: int = 20
    repetition_limit: float = 0.95
    """Share of the commonest token in the completions of a step."""
    kl_limit: float = 10.0
    _best: float = 0.0
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=10))
    _low: int = 0
    _told: set[str] = field(default_factory=set)

    def look(self, step: int, metrics: Mapping[str, float]) -> list[Alarm]:
        """Alarms of this step. Every kind that is not fatal is told once."""
        alarms = [
            Alarm("nan", f"{name} is {value} at step {step}", fatal=True)
            for name, value in metrics.items()
            if not math.isfinite(value)
        ]
        if "reward" in metrics and not alarms:
            alarms += self._reward(step, metrics["reward"])
        if metrics.get("repetition", 0.0) > self.repetition_limit:
            alarms.append(self._note("repetition", step, f"{metrics['repetition']:.0%} of all tokens are the same one"))
        if metrics.get("completion_length", math.inf) <= 1:
            alarms.append(self._note("length", step, "completions have one token or none"))
        if metrics.get("kl", 0.0) > self.kl_limit:
            alarms.append(self._note("kl", step, f"the KL penalty is {metrics['kl']:.1f} nats a token"))
        fresh = [alarm for alarm in alarms if alarm.fatal or alarm.name not in self._told]
        self._told |= {alarm.name for alarm in fresh}
        return fresh

    def _reward(self, step: int, reward: float) -> list[Alarm]:
        self._recent.append(reward)
        mean = sum(self._recent) / len(self._recent)
        if len(self._recent) == self._recent.maxlen:
            self._best = max(self._best, mean)
        self._low = self._low + 1 if self._best > 0 and mean < self.collapse_share * self._best else 0
        if self._low < self.patience:
            return []
        sentence = f"the mean reward fell from {self._best:.3f} to {mean:.3f} and stayed there for {self._low} steps"
        return [Alarm("collapse", f"{sentence} (step {step})", fatal=True)]

    @staticmethod
    def _note(name: str, step: int, sentence: str) -> Alarm:
        return Alarm(name, f"{sentence} (step {step})", fatal=False)
