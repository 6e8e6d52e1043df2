"""The algorithm contract: what every algorithm must do on a tiny backbone, built in or submitted.

`contract` runs at intake, in `dare check` and in the tests. `reward_gain` asks whether it learns; that is no condition
of acceptance, because a control that must not learn is an entry too.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from dare.algorithm import Algorithm
from dare.data import DemonstrationData, PreferenceData, PromptData, TrainingData
from dare.data.batches import demonstration_rollout, preference_rollout, prompt_rows
from dare.data.corpus import Preference
from dare.executor import AlgorithmFaultError, Executor, check_views, guarded
from dare.family import Backbone
from dare.gradients import Auxiliary, NonFiniteLossError, backward
from dare.sampling.left_to_right import decoder_of
from dare.sampling.tree import sample_trees, tree_of
from dare.sampling_config import SamplingConfig
from dare.seeds import generator_for, seed_of
from dare.spec import Budget, TrainSettings
from dare.tasks import Demonstration, Item, Task, Verdict
from dare.types import PER_ROW, Credit, LossTerms, NoisyViews, Rollout, Trace

Made = TypeVar("Made")
TOLERANCE = 1e-4
PROMPTS = ("S0321003004002100", "S3102200002100320", "C1 2 3=6", "C4 5 6=26")
ANSWERS = ("4321123434122143", "3142243142131324", "1+2+3", "4*5+6")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """One rule of the contract. `of` is how many there are in all."""

    name: str
    passed: bool
    sentence: str
    of: int

    @property
    def hint(self) -> str:
        """What to look at when the rule is broken; empty when it holds."""
        return "" if self.passed else HINTS[self.name]


HINTS = {
    "rolls_out": "`rollout` says what to ask of the sampler; leave it out unless your method needs another decoder",
    "credit_is_finite": "`credit` gives a Credit whose fields have an entry per unit: guard what you divide by, since "
    "the rewards of a group may all be equal and a completion may be one token long",
    "hides_what_it_scores": "`forward_process` sets `ids[v, s] = mask_id` wherever `score[v, s]`, keeps the true token "
    "in `target[v, s]`, and scores positions of `rollout.completion` only",
    "loss_is_finite": "`loss` gives LossTerms with one `num` and one `den` per unit of credit: clamp what goes into "
    "`exp`, `log` and a division, and let no denominator be zero",
    "gives_gradient": "the gradient comes through `logp`: do not detach it, and do not build the loss from `old` alone",
    "same_seed_same_result": "draw from the generators that the hooks are given, keep nothing between calls, and "
    "iterate over no set",
    "leaves_global_randomness_alone": "pass `generator=` to every torch function that draws; Python's `random` is out",
    "view_by_view_equals_direct": "the loss of a view may depend on the views of its own unit alone, and on no state",
    "order_of_views_is_nothing": "find the views of a unit by `views.unit`, never by their place",
    "padding_is_nothing": "sum over `views.score` and divide by a number of tokens, such as `credit.length`; never "
    "take a mean over the row, and draw for tokens, never for the width of the row",
    "trains_two_steps": "it broke only when updates followed one another: look for ratios and logarithms that grow",
}
"""By rule: where its author should look."""


@dataclass(frozen=True)
class _Case:
    """An algorithm at work on one small batch."""

    algorithm: Algorithm
    backbone: Backbone
    rollout: Rollout
    seed: int

    def credit(self) -> Credit:
        credit = guarded("credit", self.algorithm.credit, self.rollout, generator_for(self.seed, "credit"))
        return _must_be(Credit, "credit", credit)

    def views(self, rollout: Rollout, credit: Credit) -> NoisyViews:
        keys = zip(credit.row.tolist(), credit.part.tolist(), strict=True)
        generators = [generator_for(self.seed, "views", row, part) for row, part in keys]
        hook = self.algorithm.forward_process
        views = guarded("forward_process", hook, rollout, credit, self.backbone.mask_id, generators)
        _must_be(NoisyViews, "forward_process", views)
        check_views(views, rollout, credit, self.backbone.mask_id)
        return views

    @cached_property
    def direct(self) -> tuple[float, Tensor, Tensor]:
        """What `gradient` gives for all views at once: several rules compare with it."""
        credit = self.credit()
        return self.gradient(credit, self.views(self.rollout, credit))

    def gradient(self, credit: Credit, views: NoisyViews, micro_batch: int = 10_000) -> tuple[float, Tensor, Tensor]:
        """(loss, gradient of all parameters as one vector, gradient with respect to the log-probabilities)."""
        needs = self.algorithm.requires
        with torch.no_grad():
            scored = self.backbone.logprobs(self.backbone.model, views)
        at_logp = scored.clone().requires_grad_(True)
        old = scored if "old" in needs else None
        ref = scored if "ref" in needs else None

        def loss(logp: Tensor, _: Tensor) -> LossTerms:
            terms = guarded("loss", self.algorithm.loss, logp, old, ref, credit, views)
            return _per_unit(_must_be(LossTerms, "loss", terms), credit)

        model = self.backbone.model
        model.zero_grad(set_to_none=True)
        auxiliary = Auxiliary(
            lambda part: self.backbone.distributions(model, part),
            lambda full, part: guarded("aux_loss", self.algorithm.aux_loss, full, credit, part, 0.5),
        )
        done = backward(
            lambda part: self.backbone.logprobs(model, part),
            loss,
            views,
            scored,
            micro_batch,
            auxiliary=auxiliary if "full" in needs else None,
        )
        whole = torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in model.parameters()])
        model.zero_grad(set_to_none=True)
        terms = loss(at_logp, scored)
        total = terms.num.sum()
        (by_logp,) = torch.autograd.grad(total, at_logp, allow_unused=True) if total.requires_grad else (None,)
        return done.loss, whole, torch.zeros_like(scored) if by_logp is None else by_logp


def contract(algorithm: Algorithm, backbone: Backbone, seed: int = 0) -> Iterator[Outcome]:
    """Check every rule, in order; a rule that raises is a rule that failed."""
    rules: list[tuple[str, Callable[[_Case], str | None]]] = [
        ("credit_is_finite", _credit_is_finite),
        ("hides_what_it_scores", _hides_what_it_scores),
        ("loss_is_finite", _loss_is_finite),
        ("gives_gradient", _gives_gradient),
        ("same_seed_same_result", _same_seed_same_result),
        ("leaves_global_randomness_alone", _leaves_global_randomness_alone),
        ("view_by_view_equals_direct", _view_by_view_equals_direct),
        ("order_of_views_is_nothing", _order_of_views_is_nothing),
        ("padding_is_nothing", _padding_is_nothing),
        ("trains_two_steps", _trains_two_steps),
    ]
    try:
        case = _Case(algorithm, backbone, _batch(algorithm, backbone, seed), seed)
    except AlgorithmFaultError as error:
        yield Outcome("rolls_out", False, str(error), len(rules))
        return
    told = False
    for name, rule in rules:
        try:
            problem = rule(case)
        except (AlgorithmFaultError, NonFiniteLossError) as error:
            problem = str(error)
            if error.__cause__ is not None and not told:  # the others most likely have the same reason
                log.error("%s", error, exc_info=error.__cause__)
                told = True
        yield Outcome(name, problem is None, problem or "holds", len(rules))


def _must_be(kind: type[Made], hook: str, value: Made) -> Made:
    if not isinstance(value, kind):
        raise AlgorithmFaultError(f"{hook} returned {type(value).__name__}; it must return {kind.__name__}")
    return value


def _per_unit(terms: LossTerms, credit: Credit) -> LossTerms:
    for name in ("num", "den"):
        shape = tuple(getattr(terms, name).shape)
        if shape != (len(credit.row),):
            raise AlgorithmFaultError(f"loss returned `{name}` of shape {shape} for {len(credit.row)} units of credit")
    return terms


def _credit_is_finite(case: _Case) -> str | None:
    credit = case.credit()
    for name in (f.name for f in fields(Credit)):
        value = getattr(credit, name)
        if len(value) != len(credit.row):
            return f"credit.{name} has {len(value)} entries for {len(credit.row)} units"
        if not bool(torch.isfinite(value.double()).all()):
            return f"credit.{name} is not finite"
    if not len(credit.row):
        return "credit has no unit"
    return None


def _hides_what_it_scores(case: _Case) -> str | None:
    case.views(case.rollout, case.credit())  # check_views raises with the position
    return None


def _loss_is_finite(case: _Case) -> str | None:
    loss, gradient, _ = case.direct
    if not math.isfinite(loss):
        return f"the loss is {loss} before any update"
    return None if bool(torch.isfinite(gradient).all()) else "the gradient is not finite before any update"


def _gives_gradient(case: _Case) -> str | None:
    credit = case.credit()
    _, _, by_logp = case.direct
    if bool((credit.advantage == 0).all()):
        return None
    return None if bool((by_logp != 0).any()) else "the loss does not depend on `logp`"


def _same_seed_same_result(case: _Case) -> str | None:
    first, second = case.credit(), case.credit()
    if not torch.equal(first.advantage, second.advantage):
        return "two calls of credit with the same generator differ"
    a, b = case.views(case.rollout, first), case.views(case.rollout, second)
    same = all(torch.equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(NoisyViews))
    return None if same else "two calls of forward_process with the same generators differ: draw from them alone"


def _leaves_global_randomness_alone(case: _Case) -> str | None:
    before, python = torch.random.get_rng_state(), random.getstate()
    credit = case.credit()
    views = case.views(case.rollout, credit)
    case.gradient(credit, views)
    if not torch.equal(before, torch.random.get_rng_state()) or python != random.getstate():
        return "it drew from the global random state; use the generators that the hooks pass in"
    return None


def _view_by_view_equals_direct(case: _Case) -> str | None:
    credit = case.credit()
    views = case.views(case.rollout, credit)
    _, direct, _ = case.direct
    _, parts, _ = case.gradient(credit, views, micro_batch=max(3, len(views) // 8 | 1))  # odd: it splits units
    return _apart(direct, parts, "the gradient depends on the micro-batch")


def _order_of_views_is_nothing(case: _Case) -> str | None:
    credit = case.credit()
    views = case.views(case.rollout, credit)
    order = torch.randperm(len(views), generator=generator_for(case.seed, "order"))
    _, direct, _ = case.direct
    _, shuffled, _ = case.gradient(credit, views.rows(order))
    return _apart(direct, shuffled, "the gradient depends on the order of the views")


def _padding_is_nothing(case: _Case) -> str | None:
    _, direct, _ = case.direct
    wide = _padded(case.rollout, 3, case.backbone.pad_id)
    credit = guarded("credit", case.algorithm.credit, wide, generator_for(case.seed, "credit"))
    views = case.views(wide, credit)
    if bool((views.score & ~wide.valid[credit.row[views.unit]]).any()):
        return "it scores padding"
    narrow = case.views(case.rollout, credit)
    if not torch.equal(views.ids[:, : narrow.ids.shape[1]], narrow.ids):
        return "it hides other tokens when the row has more padding: draw for tokens, never for the width of the row"
    _, padded, _ = case.gradient(credit, views)
    return _apart(direct, padded, "the gradient depends on padding")


def _trains_two_steps(case: _Case) -> str | None:
    if (problem := _loss_is_finite(case)) is not None:  # the executor trusts the types that are asked for here
        return problem
    executor = _executor(case.algorithm, case.backbone, case.seed, steps=2, group=4)
    before = {name: tensor.clone() for name, tensor in case.backbone.model.state_dict().items()}
    try:
        for _ in range(2):
            report = executor.step()
            bad = [name for name, value in report.metrics.items() if value != value]
            if bad:
                return f"the metric {bad[0]} is NaN after an update"
    finally:
        case.backbone.model.load_state_dict(before)
    return None


def reward_gain(algorithm: Algorithm, backbone: Backbone, seed: int = 0, steps: int = 20) -> tuple[float, float]:
    """Mean reward of the first and of the last three steps on a trivial reward: the share of the character 3."""
    executor = _executor(algorithm, backbone, seed, steps)
    rewards = [executor.step().metrics["reward"] for _ in range(steps)]
    return sum(rewards[:3]) / 3, sum(rewards[-3:]) / 3


def _executor(algorithm: Algorithm, backbone: Backbone, seed: int, steps: int, group: int = 8) -> Executor:
    if algorithm.trains_on == "prompts":
        items = [Item(str(i), prompt, {}) for i, prompt in enumerate(PROMPTS)]
        data: TrainingData = PromptData(items, [_SHARE_OF_THREES] * len(items))
    else:
        data = _preferences() if algorithm.trains_on == "preferences" else _demonstrations()
    asked = guarded("rollout", algorithm.rollout)
    group = group if asked is None or asked.tree is None else asked.tree.leaves
    return Executor(
        backbone=backbone,
        algorithm=algorithm,
        data=data,
        settings=TrainSettings(learning_rate=1e-3, prompts_per_step=4, group_size=group, inner_epochs=2),
        sampling=_sampling(backbone),
        budget=Budget(optimiser_steps=steps, wall_seconds=600),
        seed=seed,
    )


def _sampling(backbone: Backbone) -> SamplingConfig:
    block = backbone.block_size or 20
    return SamplingConfig(gen_length=20, block_length=block, steps_per_block=min(4, block), temperature=1.0)


def _share(_: Item, text: str) -> Verdict:
    return Verdict(solved=False, reward=text.count("3") / max(len(text), 1), status="ok", answer=text)


_SHARE_OF_THREES = Task(
    name="share_of_threes",
    title="Share of the character 3",
    version="1",
    licence="none",
    source="made here",
    chance_floor=0.0,
    chance_procedure="nothing is ever solved",
    example=(Item("0", PROMPTS[0], {}), "3"),
    items=lambda _split, _data: (),
    judge=_share,
)


def _demonstrations() -> DemonstrationData:
    return DemonstrationData([Demonstration(p, a) for p, a in zip(PROMPTS, ANSWERS, strict=True)])


def _preferences() -> PreferenceData:
    """Each answer against itself backwards and one character longer: other tokens, another length."""
    return PreferenceData([Preference(p, a, a[::-1] + "1") for p, a in zip(PROMPTS, ANSWERS, strict=True)])


@torch.no_grad()
def _batch(algorithm: Algorithm, backbone: Backbone, seed: int) -> Rollout:
    """Four prompts, four completions each, with rewards that differ within every group."""
    if algorithm.trains_on == "preferences":
        return preference_rollout(backbone, _preferences().rows, 20)
    if algorithm.trains_on == "demonstrations":
        return demonstration_rollout(backbone, _demonstrations().rows, 20)
    spec = guarded("rollout", algorithm.rollout)
    assert spec is not None
    group = 4 if spec.tree is None else spec.tree.leaves
    reward = torch.linspace(0, 1, group).repeat(len(PROMPTS))
    prompt, length = prompt_rows(backbone, [p for p in PROMPTS for _ in range(group)])
    prompts = [row[:n].tolist() for row, n in zip(prompt, length.tolist(), strict=True)]
    decoder = decoder_of(spec.sampler, _sampling(backbone), backbone.block_size)
    tree = None
    if spec.tree is not None:
        seeds = [seed_of(seed, "check", row) for row in range(len(PROMPTS))]
        samples, path = sample_trees(backbone.sample, prompts[::group], decoder, seeds, spec.tree, backbone.mask_id)
        tree = tree_of(path, reward, spec.tree)
    else:
        generators = [generator_for(seed, "check", row) for row in range(len(prompts))]
        samples = backbone.sample(prompts, decoder, generators, spec.record)
    recorded = {name: getattr(samples.trace, name) for name in PER_ROW if name in spec.record}
    steps = 0 if samples.trace.x0 is None else samples.trace.x0.shape[1]
    rising = torch.arange(1, steps + 1) / max(steps, 1)  # of the prediction of each step, up to the row's own
    return Rollout(
        ids=samples.ids,
        valid=samples.valid,
        window=samples.window,
        completion=samples.completion,
        group=torch.arange(len(PROMPTS)).repeat_interleave(group),
        reward=reward,
        trace=Trace(**recorded, tree=tree, x0_reward=reward[:, None] * rising if spec.judge_predictions else None),
    )


def _padded(rollout: Rollout, columns: int, pad_id: int) -> Rollout:
    def widen(value: Tensor, fill: int) -> Tensor:
        return torch.nn.functional.pad(value, (0, columns), value=fill)

    trace = rollout.trace
    return replace(
        rollout,
        ids=widen(rollout.ids, pad_id),
        valid=widen(rollout.valid, False),
        window=widen(rollout.window, False),
        completion=widen(rollout.completion, False),
        trace=Trace(
            step_map=None if trace.step_map is None else widen(trace.step_map, 0),
            x0=None if trace.x0 is None else widen(trace.x0, pad_id),
            confidence=None if trace.confidence is None else widen(trace.confidence, 0),
            x0_reward=trace.x0_reward,
            tree=None if trace.tree is None else replace(trace.tree, state=widen(trace.tree.state, pad_id)),
        ),
    )


def _apart(a: Tensor, b: Tensor, sentence: str) -> str | None:
    distance = float((a - b).norm() / a.norm().clamp(min=1e-8))
    return None if distance <= TOLERANCE else f"{sentence}: relative distance {distance:.1e}, allowed {TOLERANCE:g}"
