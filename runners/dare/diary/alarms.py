"""Rules that stop a diverged run early and name the cause, so that hours are not spent on noise."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

from dare.spec import STOP_ON, AlarmName


class DivergedError(ArithmeticError):
    """A fatal alarm. The message is one sentence with step and value."""


@dataclass(frozen=True)
class Alarm:
    """One thing noticed. A fatal one ends the run."""

    name: AlarmName
    sentence: str
    fatal: bool


@dataclass
class Watch:
    """Reads the metrics of each step; remembers only what its rules need.

    A rule names a state, and only a state that lasts ends a run: one odd batch is told. A resumed run looks at the
    steps of its diary again, so that it ends where an undisturbed one ends.
    """

    stop_on: frozenset[AlarmName] = frozenset(STOP_ON)
    """Which alarms end the run; the others are told. A number that is not finite always ends it."""
    patience: int = 20
    """Steps for which a state must last before it may end a run."""
    collapse_share: float = 0.1
    """Reward below this share of its best recent mean is a collapse."""
    repetition_limit: float = 0.95
    """Share of the commonest token in the completions of a step."""
    kl_limit: float = 10.0
    """Nats a token."""
    entropy_floor: float = 0.01
    """Nats a token: a policy that is as sure as this of its own samples explores nothing."""
    gradient_factor: float = 100.0
    """How many times the median of its last quiet steps a gradient norm may be."""
    _best: float = 0.0
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=10))
    _norms: deque[float] = field(default_factory=lambda: deque(maxlen=50))
    _lasted: dict[AlarmName, int] = field(default_factory=dict)
    _told: set[AlarmName] = field(default_factory=set)

    def look(self, step: int, metrics: Mapping[str, float]) -> list[Alarm]:
        """Alarms of this step. Each kind is told once before it ends the run, if it ever does."""
        broken = [
            Alarm("nan", f"{name} is {value} at step {step}", fatal=True)
            for name, value in metrics.items()
            if not math.isfinite(value)
        ]
        if broken:
            return broken
        found = {name: rule(metrics) for name, rule in self._rules().items()}
        alarms = [self._alarm(name, step, sentence) for name, sentence in found.items()]
        return [alarm for alarm in alarms if alarm is not None]

    def _rules(self) -> dict[AlarmName, Callable[[Mapping[str, float]], str | None]]:
        return {
            "collapse": self._collapse,
            "gradient": self._gradient,
            "no_gradient": _no_gradient,
            "repetition": self._repetition,
            "length": _length,
            "kl": self._kl,
            "entropy": self._entropy,
        }

    def _alarm(self, name: AlarmName, step: int, sentence: str | None) -> Alarm | None:
        """What comes of a rule: nothing, a warning the first time, the end when it has lasted."""
        self._lasted[name] = self._lasted.get(name, 0) + 1 if sentence is not None else 0
        lasted = self._lasted[name]
        if sentence is None or (name in PATIENT and lasted < self.patience):
            return None
        if name in self.stop_on and lasted >= self.patience:
            return Alarm(name, f"{sentence}, for {lasted} steps up to step {step}", fatal=True)
        if name in self._told:
            return None
        self._told.add(name)
        return Alarm(name, f"{sentence} (step {step})", fatal=False)

    def _collapse(self, metrics: Mapping[str, float]) -> str | None:
        if "reward" not in metrics:
            return None
        self._recent.append(metrics["reward"])
        mean = sum(self._recent) / len(self._recent)
        if len(self._recent) == self._recent.maxlen:
            self._best = max(self._best, mean)
        if self._best <= 0 or mean >= self.collapse_share * self._best:
            return None
        return f"the mean reward fell from {self._best:.3f} to {mean:.3f}"

    def _gradient(self, metrics: Mapping[str, float]) -> str | None:
        """A norm that is far above the usual one. Such steps do not become usual, nor do those without a gradient."""
        norm = metrics.get("gradient_norm", 0.0)
        usual = median(self._norms) if len(self._norms) >= 10 else math.inf
        if norm > self.gradient_factor * usual:
            return f"the gradient norm is {norm:.3g}, {norm / usual:.0f} times the usual {usual:.3g}"
        if norm > 0:
            self._norms.append(norm)
        return None

    def _repetition(self, metrics: Mapping[str, float]) -> str | None:
        share = metrics.get("repetition", 0.0)
        return f"{share:.0%} of all tokens are the same one" if share > self.repetition_limit else None

    def _kl(self, metrics: Mapping[str, float]) -> str | None:
        kl = metrics.get("kl", 0.0)
        return f"the KL penalty is {kl:.1f} nats a token" if kl > self.kl_limit else None

    def _entropy(self, metrics: Mapping[str, float]) -> str | None:
        """-ELBO of the policy's own samples is at least their entropy, in expectation."""
        entropy = -metrics.get("elbo_per_token", -math.inf)
        return f"the samples have {entropy:.2g} nats of entropy a token" if entropy < self.entropy_floor else None


PATIENT: frozenset[AlarmName] = frozenset({"collapse", "no_gradient"})
"""Alarms that are not worth a word before they have lasted: a reward dips, a batch is solved by all or by none."""


def _no_gradient(metrics: Mapping[str, float]) -> str | None:
    none = metrics.get("gradient_norm", 1.0) == 0
    return "no update has a gradient: all rewards of each group are equal" if none else None


def _length(metrics: Mapping[str, float]) -> str | None:
    return "completions have one token or none" if metrics.get("completion_length", math.inf) <= 1 else None
