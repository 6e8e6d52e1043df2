"""The algorithm hook. An algorithm is one frozen dataclass: fields are hyperparameters, methods differ from GRPO's.

Write one file with one subclass of `GRPO`, of a built-in method or of the bare `Algorithm`, override what is different,
and run `dare check FILE`. An algorithm sees completions, rewards and log-probabilities; never a model, an optimiser, a
rank or a family.
"""

from __future__ import annotations

import importlib.util
import math
import pkgutil
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor

from dare.forward_process import RowGenerators, hide_everything
from dare.objectives import (
    AdvantageKind,
    clip_fraction,
    clipped_surrogate,
    group_advantages,
    k3,
    per_token,
    per_unit,
    views_per_unit,
)
from dare.spec import AlgorithmSpec
from dare.types import Credit, LossTerms, NoisyViews, Rollout, RolloutSpec


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """The hook, without hyperparameters. `GRPO` below fills it in; a method with another loss starts here."""

    trains_on: ClassVar[Literal["demonstrations", "preferences", "prompts"]] = "prompts"
    needs: ClassVar[frozenset[str]] = frozenset({"old"})
    """What `loss` reads besides `logp`: "old" (behaviour policy), "ref" (frozen reference), "full" (distributions)."""
    record: ClassVar[frozenset[str]] = frozenset()
    """What the sampler must record: "step_map", "x0", "confidence", "tree"."""
    published_for: ClassVar[frozenset[str]] = frozenset({"masked"})
    """Kinds of family that the method's authors ran it on: "masked", "block". On others it is our extension."""

    def rollout(self) -> RolloutSpec | None:
        """What to ask of the sampler; None for offline methods."""
        return RolloutSpec(record=self.record) if self.trains_on == "prompts" else None  # type: ignore[arg-type]

    def credit(self, rollout: Rollout, generator: torch.Generator) -> Credit:
        """Units of credit. Here: one per completion. `generator` is private to this rollout batch."""
        return completion_credit(rollout, group_advantages(rollout.reward, rollout.group, "grpo"))

    def forward_process(self, rollout: Rollout, credit: Credit, mask_id: int, generators: RowGenerators) -> NoisyViews:
        """Which tokens are hidden and scored. `generators` holds one private generator per unit."""
        return hide_everything(rollout, credit, mask_id)

    def loss(
        self, logp: Tensor, old: Tensor | None, ref: Tensor | None, credit: Credit, views: NoisyViews
    ) -> LossTerms:
        """The objective as a pure function of log-probabilities [n, S]; nothing else carries gradient."""
        raise NotImplementedError(f"{type(self).__name__} has no loss: write one, or derive from GRPO to keep its own")

    def aux_loss(self, logp_full: Tensor, credit: Credit, views: NoisyViews, progress: float) -> LossTerms:
        """With "full" in `needs`: a second objective on whole distributions [P, V] at the scored positions of `views`.

        They come a micro-batch at a time; views of the same input are never cut apart. Terms are summed over the calls,
        sum(num) / sum(den) is added to the loss, and no gradient flows into `den`. The mask token has minus infinity.
        `progress` is the share of the budget that is spent, 0 to 1.
        """
        raise NotImplementedError(f"{type(self).__name__} asks for whole distributions but has no aux_loss")

    @property
    def requires(self) -> frozenset[str]:
        """`needs`, and what its hyperparameters add to them."""
        return self.needs


@dataclass(frozen=True, kw_only=True)
class GRPO(Algorithm):
    """GRPO on the mean-field likelihood: token-level clipped ratio, group-normalised advantage, optional k3 penalty."""

    advantage: AdvantageKind = "grpo"
    """How a reward becomes an advantage within its group."""
    clip_low: float = 0.2
    """The ratio is held above 1 - clip_low where the advantage is negative."""
    clip_high: float = 0.2
    """The ratio is held below 1 + clip_high where the advantage is positive."""
    kl_coef: float = 0.0
    """Weight of the k3 penalty towards the frozen reference; 0 leaves the reference out."""

    def credit(self, rollout: Rollout, generator: torch.Generator) -> Credit:
        return completion_credit(rollout, group_advantages(rollout.reward, rollout.group, self.advantage))

    def loss(
        self, logp: Tensor, old: Tensor | None, ref: Tensor | None, credit: Credit, views: NoisyViews
    ) -> LossTerms:
        assert old is not None
        units = len(credit.advantage)
        scored = per_token(views.score.to(logp.dtype), views, units) > 0  # (U, S)
        log_ratio = per_token((logp - old) * views.coef, views, units)
        advantage = credit.advantage[:, None].expand_as(log_ratio)
        loss = clipped_surrogate(log_ratio, advantage, self.clip_low, self.clip_high) * scored
        below, above = clip_fraction(log_ratio.detach()[scored], advantage[scored], self.clip_low, self.clip_high)
        metrics = {"clip_fraction_low": below, "clip_fraction_high": above} | drift(log_ratio[scored])
        if ref is not None and self.kl_coef:
            penalty = k3(per_token((logp - ref) * views.coef, views, units)) * scored
            metrics["kl"] = float(penalty.detach().sum() / scored.sum().clamp(min=1))
            loss = loss + self.kl_coef * penalty
        return LossTerms(*self.reduce(loss, scored, credit), metrics)

    def reduce(self, loss: Tensor, scored: Tensor, credit: Credit) -> tuple[Tensor, Tensor]:
        """Numerator and denominator per unit from token losses [U, S]. Here: the mean over all scored tokens."""
        return loss.sum(1), scored.sum(1).to(loss.dtype)

    @property
    def requires(self) -> frozenset[str]:
        return self.needs | ({"ref"} if self.kl_coef else frozenset())


@dataclass(frozen=True, kw_only=True)
class PairedPreference(Algorithm):
    """-log sigmoid(beta m), m = (B - B_ref)(chosen) - (B - B_ref)(rejected), B the ELBO in nats, summed over tokens.

    Public code divides B by the padded length of 512, which leaves the loss at log 2; nothing is divided here. Policy
    and reference are scored on the same views, so before the first update the margin is 0 in every draw.
    """

    trains_on: ClassVar = "preferences"
    needs: ClassVar[frozenset[str]] = frozenset({"ref"})

    beta: float = 0.1
    """Inverse temperature of the preference, per nat of the margin."""

    def credit(self, rollout: Rollout, generator: torch.Generator) -> Credit:
        """A unit is a side of a pair: chosen and rejected of the first pair, then of the second, by group id."""
        order = torch.argsort(2 * rollout.group - (rollout.reward > 0).long())
        chosen, rejected = rollout.reward[order].reshape(-1, 2).unbind(1)
        if not bool(((chosen > 0) & (rejected < 0)).all()):
            raise ValueError("a pair needs exactly one chosen row, with reward +1, and one rejected row, with -1")
        return completion_credit(rollout, rollout.reward).units(order)

    def loss(
        self, logp: Tensor, old: Tensor | None, ref: Tensor | None, credit: Credit, views: NoisyViews
    ) -> LossTerms:
        assert ref is not None
        units = len(credit.advantage)
        gain = per_unit((logp - ref) * views.coef, views, units) / views_per_unit(views, units, logp.dtype)
        margin = gain[0::2] - gain[1::2]  # in nats
        loss = -torch.nn.functional.logsigmoid(self.beta * margin)
        booked = torch.stack([loss, torch.zeros_like(loss)], dim=1).flatten()  # once per pair, on the chosen side
        metrics = {
            "margin": float(margin.detach().mean()),
            "prefers_chosen": float((margin > 0).double().mean()),
            "chosen_gain": float(gain.detach()[0::2].mean()),
        }
        return LossTerms(booked, (credit.advantage > 0).to(logp.dtype), metrics)


def completion_credit(rollout: Rollout, advantage: Tensor) -> Credit:
    """One unit per completion, each with the same share in the objective."""
    n = len(advantage)
    return Credit(
        row=torch.arange(n),
        advantage=advantage,
        length=rollout.completion.sum(1).to(advantage.dtype),
        weight=torch.full((n,), 1 / max(n, 1), dtype=advantage.dtype),
        part=torch.zeros(n, dtype=torch.long),
    )


def drift(log_ratio: Tensor) -> dict[str, float]:
    """The mean absolute log-ratio to the behaviour policy, which every ratio method logs."""
    return {"log_ratio_abs": float(log_ratio.detach().abs().mean()) if log_ratio.numel() else 0.0}


def clipped_sequences(
    log_ratio: Tensor, advantage: Tensor, low: float, high: float, largest_ratio: float = math.inf
) -> tuple[Tensor, dict[str, float]]:
    """The clipped surrogate of one ratio per unit, and what is logged of the ratios.

    `largest_ratio` is the dual clip: a larger one counts as this one where A < 0 and the clip sets no bound.
    """
    loss = clipped_surrogate(log_ratio.clamp(max=math.log(largest_ratio)), advantage, low, high)
    below, above = clip_fraction(log_ratio.detach(), advantage, low, high)
    return loss, {"clip_fraction_low": below, "clip_fraction_high": above} | drift(log_ratio)


class AlgorithmError(ValueError):
    """The algorithm cannot be loaded. The message is one sentence for the person who wrote it."""


class UnknownAlgorithmError(AlgorithmError):
    """No file of that name under dare/algorithms."""


def algorithm_names() -> list[str]:
    """Names of the built-in algorithms: the files of the folder."""
    folder = Path(__file__).parent / "algorithms"
    return sorted(module.name for module in pkgutil.iter_modules([str(folder)]))


def load_algorithm(spec: AlgorithmSpec, entry: Path | None = None) -> Algorithm:
    """The algorithm a spec names, with its hyperparameters; a submitted file loads exactly like a built-in one."""
    if spec.source == "builtin":
        if spec.name not in algorithm_names():
            raise UnknownAlgorithmError(f"unknown algorithm {spec.name!r}; known: {', '.join(algorithm_names())}")
        entry = Path(importlib.util.find_spec(f"dare.algorithms.{spec.name}").origin)  # type: ignore[union-attr, arg-type]
        name = f"dare.algorithms.{spec.name}"
    else:
        if entry is None:
            raise AlgorithmError(f"the entry {spec.name!r} has no algorithm.py")
        name = "dare_entry"
    return configure(algorithm_class(entry, name), spec)


def algorithm_class(file: Path, module_name: str) -> type[Algorithm]:
    """The one Algorithm subclass that `file` defines. Executes the file: only where entry code may run."""
    module = sys.modules.get(module_name) if module_name.startswith("dare.") else None
    if module is None:
        module_spec = importlib.util.spec_from_file_location(module_name, file)
        assert module_spec is not None
        assert module_spec.loader is not None
        module = importlib.util.module_from_spec(module_spec)
        sys.modules[module_name] = module  # dataclasses look their module up
        try:
            module_spec.loader.exec_module(module)
        except Exception as error:  # the author's code may raise anything
            raise AlgorithmError(f"loading {file.name} raised {type(error).__name__}: {error}") from error
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Algorithm) and value.__module__ == module_name
    ]
    if len(found) != 1:
        names = ", ".join(cls.__name__ for cls in found) or "none"
        raise AlgorithmError(f"{file.name} must define exactly one class that derives from Algorithm; found: {names}")
    return found[0]


def configure(cls: type[Algorithm], spec: AlgorithmSpec) -> Algorithm:
    """An instance with the spec's hyperparameters; an unknown one is an error that names the known ones."""
    known = {f.name for f in fields(cls)}
    unknown = sorted(set(spec.hyperparameters) - known)
    if unknown:
        raise AlgorithmError(f"{spec.name} has no hyperparameter {unknown[0]!r}; known: {', '.join(sorted(known))}")
    try:
        return cls(**spec.hyperparameters)
    except Exception as error:  # a `__post_init__` may raise anything
        raise AlgorithmError(f"making {cls.__name__} raised {type(error).__name__}: {error}") from error


__all__ = [
    "GRPO",
    "Algorithm",
    "AlgorithmError",
    "PairedPreference",
    "UnknownAlgorithmError",
    "algorithm_names",
    "clipped_sequences",
    "completion_credit",
    "drift",
    "load_algorithm",
]
