"""One training step for every algorithm: sample, reward, credit, hide, score, update. No algorithm is known by name.

Rules that hold for all of them: views of all inner epochs and all behaviour and reference scores exist before the first
update and belong to the same views; randomness is keyed by (run seed, purpose, step, epoch, row); denominators are
global over the optimiser step; groups are formed by id and never split over minibatches.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NoReturn, TypeVar

import torch
from jaxtyping import Bool
from torch import Tensor

from dare.algorithm import Algorithm
from dare.data import DemonstrationData, PromptData, TrainingData
from dare.data.batches import batch_indices, demonstration_rollout, preference_rollout
from dare.family import Backbone
from dare.gradients import Auxiliary, backward
from dare.lora import Adapters, attach
from dare.objectives import GroupOfOneError, zero_advantage_groups
from dare.parallel import InProcess, PolicyGroup
from dare.precision import MasterWeights, check_dtype
from dare.rewards.weighted import TASK_REWARD, WeightedReward
from dare.rollouts import Rollouts
from dare.sampling.left_to_right import decoder_of
from dare.sampling.tree import sample_trees
from dare.sampling_config import SamplingConfig
from dare.seeds import generator_for
from dare.spec import Budget, Sample, TrainSettings
from dare.support import not_recorded
from dare.types import PER_ROW, Credit, LossTerms, NoisyViews, Rollout, RolloutSpec

Answer = TypeVar("Answer")
ON_POLICY_TOLERANCE = 1e-3
"""Largest difference allowed between two scorings of the same views before the first update, in nats."""


class AlgorithmFaultError(RuntimeError):
    """A hook of the algorithm raised, or returned something that cannot be used: the algorithm's fault, not ours."""


class MismatchError(ValueError):
    """Algorithm, data and backbone do not go together. The message names both sides."""


class ContractError(RuntimeError):
    """The first step found that scoring breaks a rule on which every result rests."""


@dataclass
class Used:
    """What the run has spent so far."""

    steps: int = 0
    updates: int = 0
    moving_updates: int = 0
    """Updates with a gradient that was not zero."""
    gradient_forwards: float = 0.0
    """Per completion."""
    forwards: float = 0.0
    """Of one sequence, with or without gradient, sampling included."""
    tokens_decoded: int = 0
    tokens_kept: int = 0


@dataclass(frozen=True)
class StepReport:
    """What one step did. `finished` says that the budget ended before the update."""

    metrics: dict[str, float]
    expected_steps: int
    finished: bool = False
    sample: Sample | None = None


class PolicyCore:
    """The rank-local side: model, reference, optimiser. Its methods are the phases that a PolicyGroup runs.

    With adapters the frozen base is the reference, so there is no copy of the model, and a state holds them alone.
    """

    def __init__(
        self, backbone: Backbone, algorithm: Algorithm, settings: TrainSettings, sampling: SamplingConfig, seed: int
    ) -> None:
        self.backbone = backbone
        self.algorithm = algorithm
        self.settings = settings
        asked = self.asked = guarded("rollout", algorithm.rollout)
        self.sampling = sampling if asked is None else decoder_of(asked.sampler, sampling, backbone.block_size)
        self.temperature = sampling.temperature if settings.score_temperature and sampling.temperature > 0 else 1.0
        if asked is not None and asked.sampler == "left_to_right" and self.temperature != sampling.temperature:
            raise MismatchError(
                f"the algorithm scores the law it samples from, left to right, but tokens are drawn at temperature "
                f"{sampling.temperature:g} and scored at {self.temperature:g}: decode rollouts at temperature 1, or "
                "above 0 with score_temperature"
            )
        check_dtype(backbone.model, settings.dtype)
        self.reached = False
        self.adapters: Adapters | None = None
        self.reference = None
        if settings.lora is not None:
            self.adapters = attach(backbone.model, settings.lora, generator_for(seed, "lora"))
        elif "ref" in algorithm.requires:
            self.reference = copy.deepcopy(backbone.model).requires_grad_(False)
        if settings.gradient_checkpointing:
            backbone.model.gradient_checkpointing_enable()  # type: ignore[operator]
        self.weights = MasterWeights(p for p in backbone.model.parameters() if p.requires_grad)
        self.optimiser = torch.optim.AdamW(
            self.weights.masters,
            lr=settings.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=True,  # in one pass, without temporaries of the size of the weights
        )

    @torch.no_grad()
    def sample(self, prompt: Tensor, length: Tensor, seed: Tensor) -> dict[str, Tensor]:
        """Decode one completion per row with the row's own seed; of a tree with that of its first leaf."""
        prompts = [row[:n].tolist() for row, n in zip(prompt, length.tolist(), strict=True)]
        recorded: dict[str, Tensor] = {}
        if self.asked is not None and self.asked.tree is not None:
            shape, sampler = self.asked.tree, self.backbone.sample
            roots, seeds = prompts[:: shape.leaves], seed[:: shape.leaves].tolist()
            samples, path = sample_trees(sampler, roots, self.sampling, seeds, shape, self.backbone.mask_id)
            recorded["path"] = path
        else:
            generators = [torch.Generator().manual_seed(s) for s in seed.tolist()]
            samples = self.backbone.sample(prompts, self.sampling, generators, self.algorithm.record)  # type: ignore[arg-type]
        recorded |= {name: getattr(samples.trace, name) for name in PER_ROW if name in self.algorithm.record}
        return recorded | {f.name: getattr(samples, f.name) for f in fields(samples) if f.name != "trace"}

    @torch.no_grad()
    def score(self, **rows: Tensor) -> dict[str, Tensor]:
        """Log-probabilities of views under the policy as it is."""
        return {"logp": self.score_in_chunks(self.backbone.model, NoisyViews(**rows))}

    @torch.no_grad()
    def score_reference(self, **rows: Tensor) -> dict[str, Tensor]:
        """Log-probabilities of views under the frozen reference."""
        if self.adapters is not None:
            with self.adapters.switched_off():
                return {"logp": self.score_in_chunks(self.backbone.model, NoisyViews(**rows))}
        assert self.reference is not None
        return {"logp": self.score_in_chunks(self.reference, NoisyViews(**rows))}

    def update(self, rows: dict[str, Tensor], units: dict[str, Tensor]) -> dict[str, float]:
        """One optimiser step. `rows` are views, with `old` and `ref` log-probabilities where there are any."""
        rows = dict(rows)
        old, ref = rows.pop("old", None), rows.pop("ref", None)
        for group in self.optimiser.param_groups:
            group["lr"] = float(units["learning_rate"][0])
        credit = Credit(**{f.name: units[f.name] for f in fields(Credit)})
        progress = float(units["progress"][0])
        model = self.backbone.model.train()
        self.optimiser.zero_grad(set_to_none=True)
        views = NoisyViews(**rows)
        needs_old = "old" in self.algorithm.requires
        done = backward(
            lambda part: self.backbone.logprobs(model, part, self.temperature),
            lambda logp, behaviour: self._loss(logp, behaviour if needs_old else None, ref, credit, views),
            views,
            old,
            self.settings.micro_batch,
            auxiliary=Auxiliary(
                lambda part: self.backbone.distributions(model, part, self.temperature),
                lambda full, part: guarded("aux_loss", self.algorithm.aux_loss, full, credit, part, progress),
            )
            if "full" in self.algorithm.requires
            else None,
        )
        norm = float(torch.nn.utils.clip_grad_norm_(self.weights.masters, self.settings.gradient_clip))
        self._check_reached(norm, done.pull)
        if math.isfinite(norm):
            self.optimiser.step()
            self.weights.publish()
        model.eval()
        added = {"auxiliary_loss": done.auxiliary} if "full" in self.algorithm.requires else {}
        return {**done.terms.metrics, **added, "loss": done.loss, "gradient_norm": norm}

    def _check_reached(self, norm: float, pull: float) -> None:
        """Asked until a gradient has reached the parameters once: a model can lose it on the way and learn nothing."""
        self.reached = self.reached or norm != 0
        if pull > 0 and not self.reached:
            raise ContractError(
                f"the loss changes with the log-probabilities (by up to {pull:.2g}), but no gradient reached any of "
                f"the {len(self.weights.masters)} trained tensors: nothing would be learned"
            )

    def _loss(self, *args: Any) -> LossTerms:
        return guarded("loss", self.algorithm.loss, *args)

    def state(self) -> dict[str, Any]:
        """Everything that the next step depends on besides the job."""
        reference = {} if self.reference is None else self.reference.state_dict()
        return {
            "model": self.backbone.model.state_dict() if self.adapters is None else self.adapters.state(),
            "masters": self.weights.state(),
            "optimiser": self.optimiser.state_dict(),
            "reference": reference,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take a saved state up again."""
        if self.adapters is None:
            self.backbone.model.load_state_dict(state["model"])
        else:
            self.adapters.load(state["model"])
        self.weights.restore(state["masters"])
        self.optimiser.load_state_dict(state["optimiser"])
        if self.reference is not None:
            self.reference.load_state_dict(state["reference"])

    def score_in_chunks(self, model: torch.nn.Module, views: NoisyViews) -> Tensor:
        """Log-probabilities of all views, `micro_batch` of them at a time."""
        size = self.settings.micro_batch
        parts = [views.rows(slice(start, start + size)) for start in range(0, len(views), size)]
        return torch.cat([self.backbone.logprobs(model, part, self.temperature) for part in parts])


@dataclass
class Executor:
    """The driver loop of one run."""

    backbone: Backbone
    algorithm: Algorithm
    data: TrainingData
    settings: TrainSettings
    sampling: SamplingConfig
    budget: Budget
    seed: int
    reward: WeightedReward = TASK_REWARD
    used: Used = field(default_factory=Used)
    core: PolicyCore = field(init=False)
    group: PolicyGroup = field(init=False)

    def __post_init__(self) -> None:
        if self.algorithm.trains_on != self.data.kind:
            raise MismatchError(f"the algorithm trains on {self.algorithm.trains_on}, the data are {self.data.kind}")
        if isinstance(self.data, PromptData):
            self.reward.check(self.data.tasks)
        elif self.reward.parts:
            raise MismatchError(f"a reward is declared, but {self.data.kind} bring answers that nobody samples")
        if reason := not_recorded(self.algorithm.record, self.backbone.records):
            raise MismatchError(f"the algorithm {reason}")
        if "step_map" in self.algorithm.record and self.sampling.edit_threshold is not None:
            raise MismatchError(
                "the algorithm replays rollouts by their step map, and edit_threshold "
                f"{self.sampling.edit_threshold:g} rewrites tokens after their step; decode rollouts without it"
            )
        self._check_rollout()
        self.core = PolicyCore(self.backbone, self.algorithm, self.settings, self.sampling, self.seed)
        self.group = InProcess(self.core)

    def step(self) -> StepReport:
        """One rollout batch with its inner epochs, or one batch of demonstrations or pairs."""
        step = self.used.steps
        rollout, metrics, sample = self._batch(step)
        credit = self._hook("credit", rollout, generator_for(self.seed, "credit", step))
        self._check_credit(credit, rollout)
        epochs = [self._views(rollout, credit, step, epoch) for epoch in range(self.settings.inner_epochs)]
        cost = [float(self.backbone.forwards(views).sum()) for views in epochs]
        spent = sum(cost) / len(rollout.ids)
        if self._over_budget(spent):
            return StepReport({}, step, finished=True)
        parts = [part for views in epochs for part in self._minibatches(rollout, credit, views)]
        if step == 0:
            self._check_first_step(epochs[0], rollout)
        rows = self._with_scores(parts)
        reports = []
        for (views, part), scores in zip(parts, rows, strict=True):
            units = {f.name: getattr(part, f.name) for f in fields(part)}
            units["learning_rate"] = torch.full((len(part.row),), self._learning_rate())
            units["progress"] = torch.full((len(part.row),), self._progress())
            reports.append(self.group.reduce("update", {**views.tensors(), **scores}, units))
            self.used.updates += 1
            self.used.moving_updates += reports[-1]["gradient_norm"] > 0
        self.used.steps += 1
        self.used.gradient_forwards += spent
        passes = len(self.algorithm.requires & {"old", "ref"}) + 1
        self.used.forwards += passes * sum(cost)
        metrics |= self._credit_metrics(rollout, credit)
        metrics |= {name: sum(r[name] for r in reports) / len(reports) for name in reports[0]}
        metrics |= {"forwards_per_completion": spent, "learning_rate": self._learning_rate()}
        metrics["scoring_temperature"] = self.core.temperature
        return StepReport(metrics, self._expected_steps(spent), sample=sample)

    def _batch(self, step: int) -> tuple[Rollout, dict[str, float], Sample | None]:
        size = self.settings.prompts_per_step
        if isinstance(self.data, PromptData):
            size = size * self.settings.group_size // self._completions
            return self._rollout(step, batch_indices(len(self.data.items), size, step, self.seed))
        chosen = batch_indices(len(self.data.rows), size, step, self.seed)
        if isinstance(self.data, DemonstrationData):
            rows = [self.data.rows[i] for i in chosen]
            return demonstration_rollout(self.backbone, rows, self.sampling.gen_length), {}, None
        pairs = [self.data.rows[i] for i in chosen]
        return preference_rollout(self.backbone, pairs, self.sampling.gen_length), {}, None

    def _rollout(self, step: int, chosen: Sequence[int]) -> tuple[Rollout, dict[str, float], Sample]:
        assert isinstance(self.data, PromptData)
        rollouts = Rollouts(self.backbone, self.data, self.reward, self.group, self.seed)
        drawn = rollouts.draw(step, chosen, self._completions, self._hook("rollout"))
        self.used.forwards += drawn.forwards
        self.used.tokens_decoded += drawn.tokens_decoded
        self.used.tokens_kept += drawn.tokens_kept
        return drawn.rollout, drawn.metrics, drawn.sample

    def _views(self, rollout: Rollout, credit: Credit, step: int, epoch: int) -> NoisyViews:
        parts = zip(credit.row.tolist(), credit.part.tolist(), strict=True)
        generators = [generator_for(self.seed, "views", step, epoch, row, part) for row, part in parts]
        views = self._hook("forward_process", rollout, credit, self.backbone.mask_id, generators)
        check_views(views, rollout, credit, self.backbone.mask_id)
        return views  # type: ignore[no-any-return]

    def _minibatches(self, rollout: Rollout, credit: Credit, views: NoisyViews) -> list[tuple[NoisyViews, Credit]]:
        """The views with their units, cut into optimiser steps by whole groups."""
        if self.settings.minibatches == 1:
            return [(views, credit)]
        groups = torch.unique(rollout.group)
        cuts = []
        for chosen in torch.tensor_split(groups, self.settings.minibatches):
            unit = torch.isin(rollout.group[credit.row], chosen).nonzero().flatten()
            view = torch.isin(views.unit, unit).nonzero().flatten()
            part = views.rows(view)
            renumbered = torch.searchsorted(unit, part.unit)
            cuts.append((NoisyViews(**{**part.tensors(), "unit": renumbered}), credit.units(unit)))
        return [cut for cut in cuts if len(cut[0])]

    def _with_scores(self, parts: Sequence[tuple[NoisyViews, Credit]]) -> list[dict[str, Tensor]]:
        """`old` and `ref` of every update, all before the first one. The first update's own first pass is its `old`."""
        scores: list[dict[str, Tensor]] = []
        for index, (views, _) in enumerate(parts):
            rows: dict[str, Tensor] = {}
            if "old" in self.algorithm.requires and index > 0:
                rows["old"] = self.group.map("score", views.tensors())["logp"]
            if "ref" in self.algorithm.requires:
                rows["ref"] = self.group.map("score_reference", views.tensors())["logp"]
            scores.append(rows)
        return scores

    def _check_first_step(self, views: NoisyViews, rollout: Rollout) -> None:
        """Scoring twice before any update must agree; a model that trains in another mode than it scores does not."""
        first = self.group.map("score", views.tensors())["logp"]
        model = self.backbone.model.train()
        with torch.no_grad():
            second = self.core.score_in_chunks(model, views)
        model.eval()
        drift = float((first - second).abs().max())
        if not drift <= ON_POLICY_TOLERANCE:
            raise ContractError(
                f"before the first update the policy and the behaviour policy differ by {drift:.2g} nats; "
                f"allowed are {ON_POLICY_TOLERANCE:g}: the model scores differently in training mode"
            )

    def _check_credit(self, credit: Credit, rollout: Rollout) -> None:
        if not bool(torch.isfinite(credit.advantage).all()):
            raise AlgorithmFaultError("credit returned an advantage that is not finite")
        if len(credit.row) and int(credit.row.max()) >= len(rollout.ids):
            raise AlgorithmFaultError(f"credit points at row {int(credit.row.max())} of {len(rollout.ids)} completions")

    def _credit_metrics(self, rollout: Rollout, credit: Credit) -> dict[str, float]:
        if self.algorithm.trains_on != "prompts":
            return {}
        return {"zero_advantage_groups": zero_advantage_groups(credit.advantage, rollout.group[credit.row])}

    @property
    def _completions(self) -> int:
        """Per prompt. The track says how many a step has in all: a tree with more leaves has fewer prompts."""
        asked = self.core.asked
        return self.settings.group_size if asked is None or asked.tree is None else asked.tree.leaves

    def _check_rollout(self) -> None:
        """What the algorithm asks of the sampler goes together, and with the settings."""
        asked: RolloutSpec | None = self._hook("rollout")
        if asked is None:
            return
        if asked.judge_predictions and "x0" not in asked.record:
            raise AlgorithmFaultError("rollout asks to judge predictions, which are only there with 'x0' in record")
        if not (asked.sampler == "tree") == (asked.tree is not None) == ("tree" in self.algorithm.record):
            raise AlgorithmFaultError(
                "rollout asks for half a tree: it takes sampler='tree', a TreeShape, and 'tree' in the class's record"
            )
        if asked.tree is None:
            return
        if self.sampling.edit_threshold is not None:
            raise MismatchError(
                f"the algorithm samples trees, and edit_threshold {self.sampling.edit_threshold:g} rewrites what a "
                "parent decided; decode rollouts without it"
            )
        leaves, completions = asked.tree.leaves, self.settings.prompts_per_step * self.settings.group_size
        if completions % leaves:
            raise MismatchError(
                f"a tree of the algorithm has {leaves} leaves, and a step has {self.settings.prompts_per_step} x "
                f"{self.settings.group_size} = {completions} completions, which are no whole number of trees"
            )

    def _progress(self) -> float:
        by_forwards = (
            self.used.gradient_forwards / self.budget.gradient_forwards if self.budget.gradient_forwards else 0.0
        )
        return min(1.0, max(by_forwards, self.used.steps / self.budget.optimiser_steps))

    def _learning_rate(self) -> float:
        warm = min(1.0, (self.used.updates + 1) / (self.settings.warmup_steps + 1))
        decay = 0.5 * (1 + math.cos(math.pi * self._progress())) if self.settings.schedule == "cosine" else 1.0
        return self.settings.learning_rate * warm * decay

    def _over_budget(self, spent: float) -> bool:
        if self.used.steps >= self.budget.optimiser_steps:
            return True
        limit = self.budget.gradient_forwards
        return limit is not None and self.used.steps > 0 and self.used.gradient_forwards + spent > limit + 1e-9

    def _expected_steps(self, spent: float) -> int:
        limit = self.budget.gradient_forwards
        if limit is None or spent == 0:
            return self.budget.optimiser_steps
        left = max(0, math.floor((limit - self.used.gradient_forwards) / spent + 1e-9))
        return min(self.budget.optimiser_steps, self.used.steps + left)

    def _hook(self, name: str, *args: Any) -> Any:
        return guarded(name, getattr(self.algorithm, name), *args)


def guarded(name: str, hook: Callable[..., Answer], *args: Any) -> Answer:
    """Call a hook; whatever it raises becomes an AlgorithmFaultError that names the hook and the line."""
    try:
        return hook(*args)
    except (GroupOfOneError, MemoryError):
        raise
    except Exception as error:  # anything an algorithm raises is its own fault, whatever the type
        _raise_fault(name, error)


def _raise_fault(name: str, error: Exception) -> NoReturn:
    trace = error.__traceback__
    line = 0
    while trace is not None:
        if "algorithm" in trace.tb_frame.f_code.co_filename:
            line = trace.tb_lineno
        trace = trace.tb_next
    where = f" (line {line})" if line else ""
    raise AlgorithmFaultError(f"{name}{where} raised {type(error).__name__}: {error}") from error


def check_views(views: NoisyViews, rollout: Rollout, credit: Credit, mask_id: int) -> None:
    """What every forward process must obey; AlgorithmFaultError says which rule was broken where."""
    if not len(views):
        raise AlgorithmFaultError("forward_process returned no view")
    if int(views.unit.max()) >= len(credit.row) or int(views.unit.min()) < 0:
        raise AlgorithmFaultError(f"forward_process names unit {int(views.unit.max())} of {len(credit.row)} units")
    said = rollout.completion[credit.row[views.unit]] | _recorded(views, rollout, credit)
    rules = (
        (views.score & ~said, "scores a position outside the completion"),
        (views.score & (views.ids != mask_id), "scores a position that it did not hide"),
        (views.score & (views.target == mask_id), "scores a position whose target is the mask token"),
        (views.score & (views.ids == views.target), "scores a position whose input is its target"),
        (~torch.isfinite(views.coef), "returned a weight that is not finite"),
    )
    for broken, sentence in rules:
        if bool(broken.any()):
            row, column = broken.nonzero()[0].tolist()
            raise AlgorithmFaultError(f"forward_process {sentence} (view {row}, position {column})")


def _recorded(views: NoisyViews, rollout: Rollout, credit: Credit) -> Bool[Tensor, "n S"]:
    """Window positions whose target the rollout recorded for the step or the node that the unit is about."""
    row, part = credit.row[views.unit], credit.part[views.unit]
    trace = rollout.trace
    if trace.tree is not None and bool(((part >= 0) & (part < len(trace.tree.state))).all()):
        return rollout.window[row] & (trace.tree.state[part] == views.target)
    if trace.x0 is not None and bool(((part >= 1) & (part <= trace.x0.shape[1])).all()):
        return rollout.window[row] & (trace.x0[row, part - 1] == views.target)
    return torch.zeros_like(views.score)
