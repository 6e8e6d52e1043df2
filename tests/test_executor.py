"""The executor's rules, each on the real tiny models: no algorithm is named in it, so none is special here either."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import FAMILIES, rollout_sampling, tiny
from torch import Tensor

from dare.algorithm import GRPO, Algorithm, algorithm_class, algorithm_names, load_algorithm
from dare.check import PROMPTS, contract, reward_gain
from dare.data import DemonstrationData, PromptData, TrainingData, load_data
from dare.data.batches import batch_indices, demonstration_rollout
from dare.executor import AlgorithmFaultError, ContractError, Executor, Used, check_views
from dare.forward_process import hide_everything, views_of
from dare.gradients import NonFiniteLossError
from dare.seeds import generator_for
from dare.spec import AlgorithmSpec, Budget, TrainSettings
from dare.tasks import Verdict
from dare.types import Credit, LossTerms, NoisyViews, Rollout, Trace

EXAMPLES = Path(__file__).parent.parent / "examples"
ENTRIES = ("submission", "shuffled_advantage")
DATA = {"prompts": "prompts:sudoku", "demonstrations": "corpus:sudoku/clean", "preferences": "preferences:sudoku"}
SAMPLED = [name for name in algorithm_names() if load_algorithm(AlgorithmSpec(name=name)).trains_on == "prompts"]
"""Methods with a reward to raise."""


def algorithm_named(name: str) -> Algorithm:
    few = {"mc_samples": 2}
    tree = {"root_children": 2, "children": 2}
    settings = {"bgpo": few, "ebpo": {**few, "block_length": 4}, "vrpo": few, "d_tree_rpo": tree}.get(name, {})
    if name in ENTRIES:
        return load_algorithm(AlgorithmSpec(name=name, source="entry"), EXAMPLES / name / "algorithm.py")
    return load_algorithm(AlgorithmSpec(name=name, hyperparameters=settings))  # type: ignore[arg-type]


@cache
def made_data(name: str) -> TrainingData:
    """Thousands of rows that every test has alike."""
    return load_data(name, Path())


def executor(family: str, algorithm: Algorithm, seed: int = 0, steps: int = 8, **settings: Any) -> Executor:
    budget = settings.pop("budget", Budget(optimiser_steps=steps, wall_seconds=600))
    data = made_data(DATA[algorithm.trains_on])
    if isinstance(data, PromptData):  # a reward that random weights earn now and then
        data = PromptData(data.items, [replace(data.tasks[0], judge=_share_of_threes)] * len(data.items))
    defaults = {"learning_rate": 3e-4, "prompts_per_step": 3, "group_size": 4, "inner_epochs": 2}
    return Executor(
        backbone=tiny(family),
        algorithm=algorithm,
        data=data,
        settings=TrainSettings(**{**defaults, **settings}),
        sampling=rollout_sampling(family),
        budget=budget,
        seed=seed,
    )


def _share_of_threes(item: object, text: str) -> Verdict:
    return Verdict(solved=False, reward=text.count("3") / max(len(text), 1), status="ok", answer=text)


def weights(run: Executor) -> Tensor:
    return torch.cat([p.detach().flatten() for p in run.backbone.model.parameters()])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", [*algorithm_names(), *ENTRIES])
def test_every_algorithm_keeps_the_contract(name: str, family: str) -> None:
    """Enrolled by existing: built-in files and the example entries, on both kinds of backbone."""
    broken = [o for o in contract(algorithm_named(name), tiny(family)) if not o.passed]
    assert not broken, "; ".join(f"{o.name}: {o.sentence}" for o in broken)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", algorithm_names())
def test_training_is_a_function_of_the_seed_alone(name: str, family: str) -> None:
    firsts, ends = [], []
    for noise in (1, 2):
        torch.manual_seed(noise)  # the global state must not matter
        run = executor(family, algorithm_named(name), seed=5, prompts_per_step=2)
        run.step()
        firsts.append(weights(run))
        run.step()
        ends.append(weights(run))
    assert torch.equal(*firsts)
    assert torch.equal(*ends)
    other = executor(family, algorithm_named(name), seed=6, prompts_per_step=2)
    other.step()
    assert not torch.equal(firsts[0], weights(other))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", algorithm_names())
def test_the_update_does_not_depend_on_the_micro_batch(name: str, family: str) -> None:
    ends = []
    for size in (1000, 5):
        run = executor(family, algorithm_named(name), micro_batch=size)
        run.core.optimiser = torch.optim.SGD(run.backbone.model.parameters(), lr=0.1)
        run.step()
        ends.append(weights(run))
    torch.testing.assert_close(*ends, rtol=1e-4, atol=2e-6)


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", algorithm_names())
def test_a_resumed_run_ends_where_an_undisturbed_one_does(name: str, family: str) -> None:
    """4 steps = 2 + restored + 2, bit by bit, across the ends of epochs of five rows."""

    def run(steps: int, after: Executor | None = None) -> Executor:
        fresh = executor(family, algorithm_named(name), seed=3, prompts_per_step=2)
        data = fresh.data
        few = (
            {"items": data.items[:5], "tasks": data.tasks[:5]}
            if isinstance(data, PromptData)
            else {"rows": data.rows[:5]}
        )
        fresh.data = replace(data, **few)  # type: ignore[arg-type]
        if after is not None:
            stored = BytesIO()
            torch.save(after.core.state(), stored)
            stored.seek(0)
            fresh.core.restore(torch.load(stored))
            fresh.used = replace(after.used)
        for _ in range(steps):
            fresh.step()
        return fresh

    assert torch.equal(weights(run(4)), weights(run(2, after=run(2))))


@pytest.mark.parametrize("family", FAMILIES)
def test_before_the_first_update_ratio_and_drift_are_exactly_those_of_one_policy(family: str) -> None:
    run = executor(family, algorithm_named("d1"), inner_epochs=1)
    report = run.step()
    assert report.metrics["log_ratio_abs"] == 0
    assert report.metrics["clip_fraction_low"] == report.metrics["clip_fraction_high"] == 0


def test_a_model_that_scores_differently_while_training_is_refused_before_the_first_update() -> None:
    run = executor("llada", algorithm_named("d1"))
    scores = run.backbone.logprobs

    def moody(model: torch.nn.Module, views: NoisyViews, temperature: float = 1.0) -> Tensor:
        return scores(model, views, temperature) - 0.1 * model.training * views.score

    run.backbone.logprobs = moody  # type: ignore[method-assign]
    before = weights(run)
    with pytest.raises(ContractError, match=r"differ by 0\.1 nats"):
        run.step()
    assert torch.equal(before, weights(run))


def test_the_rollout_temperature_enters_scoring_by_one_switch_that_is_logged() -> None:
    """A cooler rollout is scored at temperature 1 unless the switch is on; then views are scored at the rollout's."""
    logged = []
    for switch in (False, True):
        run = executor("llada", algorithm_named("d1"), score_temperature=switch)
        cool = run.sampling.model_copy(update={"temperature": 0.5})
        run = replace(run, backbone=tiny("llada"), sampling=cool, used=Used())
        seen: list[float] = []
        scores = run.backbone.logprobs

        def watching(
            model: Any, views: Any, temperature: float = 1.0, seen: Any = seen, scores: Any = scores
        ) -> Tensor:
            seen.append(temperature)
            return scores(model, views, temperature)  # type: ignore[no-any-return]

        run.backbone.logprobs = watching  # type: ignore[method-assign]
        logged.append((run.step().metrics["scoring_temperature"], set(seen)))
    assert logged == [(1.0, {1.0}), (0.5, {0.5})]


def test_views_of_all_inner_epochs_are_drawn_before_the_first_update_and_differ() -> None:
    seen: list[NoisyViews] = []

    class Watching(type(algorithm_named("bgpo"))):  # type: ignore[misc]
        def forward_process(self, *args: Any) -> NoisyViews:
            seen.append(super().forward_process(*args))
            return seen[-1]

        def loss(self, *args: Any) -> LossTerms:
            assert len(seen) == 3
            return super().loss(*args)

    run = executor("llada", Watching(mc_samples=2), inner_epochs=3)
    run.step()
    assert not torch.equal(seen[0].ids, seen[1].ids)


@pytest.mark.parametrize("minibatches", [2, 3])
def test_minibatches_never_split_a_group_and_cover_every_unit(minibatches: int) -> None:
    groups: list[set[int]] = []
    units = 0

    @dataclass(frozen=True, kw_only=True)
    class Watching(GRPO):
        def credit(self, rollout: Rollout, generator: torch.Generator) -> Credit:
            credit = super().credit(rollout, generator)
            return replace(credit, advantage=rollout.group.float() + 1)

        def loss(self, logp: Tensor, old: Any, ref: Any, credit: Credit, views: NoisyViews) -> LossTerms:
            nonlocal units
            groups.append({int(a) for a in credit.advantage})
            units += len(credit.advantage)
            assert int(views.unit.max()) < len(credit.advantage)
            return super().loss(logp, old, ref, credit, views)

    run = executor("llada", Watching(), inner_epochs=1, minibatches=minibatches)
    run.step()
    assert run.used.updates == minibatches
    assert units == 12
    assert set.union(*groups) == {1, 2, 3}
    assert sum(len(g) for g in groups) == 3


def test_a_rollout_does_not_depend_on_how_many_prompts_share_the_batch() -> None:
    few, many = (executor("sdar", algorithm_named("d1"), prompts_per_step=n) for n in (1, 4))
    first = batch_indices(4096, 1, 0, 0)
    a, b = few._rollout(0, first)[0], many._rollout(0, batch_indices(4096, 4, 0, 0))[0]
    assert batch_indices(4096, 4, 0, 0)[:1] == first
    width = min(a.ids.shape[1], b.ids.shape[1])
    assert torch.equal(a.ids[:4, :width][a.valid[:4, :width]], b.ids[:4, :width][b.valid[:4, :width]])


@pytest.mark.parametrize("family", FAMILIES)
def test_replayed_steps_score_what_the_sampler_saw(family: str) -> None:
    """The log-probabilities of the replayed trajectory are those of the decoder's own choices, token by token."""
    run = executor(family, algorithm_named("cj_grpo"))
    rollout, _, _ = run._rollout(0, [0, 1])
    algorithm = run.algorithm
    credit = algorithm.credit(rollout, torch.Generator())
    views = algorithm.forward_process(rollout, credit, run.backbone.mask_id, [torch.Generator()] * len(credit.row))
    assert rollout.trace.step_map is not None
    times_scored = torch.zeros_like(rollout.ids).index_add(0, credit.row[views.unit], views.score.long())
    assert torch.equal(times_scored, rollout.completion.long())
    logp = run.backbone.logprobs(run.backbone.model, views).detach()
    # scored again in a full forward with block-causal or full attention over exactly the replayed canvas
    for row in range(0, len(views), 7):
        alone = run.backbone.logprobs(run.backbone.model, views.rows(slice(row, row + 1))).detach()
        torch.testing.assert_close(alone[0], logp[row], rtol=0, atol=1e-5)


def test_the_budget_ends_training_before_it_is_exceeded() -> None:
    budget = Budget(optimiser_steps=100, gradient_forwards=9, wall_seconds=600)
    run = executor("llada", algorithm_named("bgpo"), budget=budget)  # 2 views x 2 epochs = 4 a step
    reports = [run.step() for _ in range(3)]
    assert [r.finished for r in reports] == [False, False, True]
    assert run.used.gradient_forwards == 8
    assert reports[0].expected_steps == 2


def test_a_block_family_pays_for_the_blocks_it_scores() -> None:
    """Two steps a block make a whole trajectory two forwards of the window, however many blocks there are."""
    backbone = tiny("sdar")
    data = made_data("corpus:sudoku/clean")
    assert isinstance(data, DemonstrationData)
    rollout = demonstration_rollout(backbone, data.rows[:3], 20)
    credit = algorithm_named("d1").credit(replace(rollout, group=torch.zeros(3)), torch.Generator())
    whole = hide_everything(rollout, credit, backbone.mask_id)
    torch.testing.assert_close(backbone.forwards(whole).double(), torch.ones(3, dtype=torch.float64))
    column = torch.arange(rollout.ids.shape[1])
    steps = torch.where(rollout.window, 1 + 2 * (column // 4) + (column % 4) // 2, 0)
    replayed = replace(rollout, group=torch.zeros(3), trace=Trace(step_map=steps))
    cj = algorithm_named("cj_grpo")
    units = cj.credit(replayed, torch.Generator())
    views = cj.forward_process(replayed, units, backbone.mask_id, [torch.Generator()] * len(units.row))
    paid = torch.zeros(3).index_add(0, units.row[views.unit], backbone.forwards(views).float())
    torch.testing.assert_close(paid, torch.full((3,), 2.0), rtol=0, atol=0.41)  # a ragged first block is a whole one


def test_equal_rewards_move_nothing_and_are_counted() -> None:
    run = executor("llada", algorithm_named("bgpo"), inner_epochs=1)
    run.data = PromptData(run.data.items, [replace(t, judge=_always_half) for t in run.data.tasks])  # type: ignore[union-attr]
    before = weights(run)
    report = run.step()
    assert report.metrics["zero_advantage_groups"] == 1.0
    assert torch.equal(before, weights(run))


def _always_half(item: object, text: str) -> Verdict:
    return Verdict(solved=False, reward=0.5, status="ok", answer=text)


def test_a_loss_that_is_not_finite_stops_before_any_weight_moves() -> None:
    class Broken(Algorithm):
        def loss(self, logp: Tensor, *args: Any) -> LossTerms:
            return LossTerms(logp.sum(1) * math.nan, torch.ones(len(logp)))

    run = executor("llada", Broken())
    before = weights(run)
    with pytest.raises(NonFiniteLossError):
        run.step()
    assert torch.equal(before, weights(run))


def test_a_gradient_that_is_lost_on_its_way_stops_before_any_weight_moves() -> None:
    """The layers compute the right numbers and pass nothing back, as reentrant checkpointing does on a frozen base."""
    run = executor("llada", algorithm_named("sft"), micro_batch=2)
    scores = run.backbone.logprobs

    def cut(model: torch.nn.Module, views: NoisyViews, temperature: float = 1.0) -> Tensor:
        return scores(model, views, temperature).detach() + 0.0 * next(model.parameters()).sum()

    run.backbone.logprobs = cut  # type: ignore[method-assign]
    before = weights(run)
    with pytest.raises(ContractError, match=r"no gradient reached any of the \d+ trained tensors"):
        run.step()
    assert torch.equal(before, weights(run))


def test_an_update_without_advantages_is_the_same_in_every_micro_batch() -> None:
    """Momentum moves on where the gradient is zero, and must not stand still where views without one are skipped."""
    ends = []
    for size in (1000, 5):
        run = executor("llada", algorithm_named("bgpo"), micro_batch=size, inner_epochs=1)
        run.step()
        moved = weights(run)
        run.data = PromptData(run.data.items, [replace(t, judge=_always_half) for t in run.data.tasks])  # type: ignore[union-attr]
        run.step()
        ends.append(weights(run))
        assert not torch.equal(moved, ends[-1])
    torch.testing.assert_close(*ends, rtol=1e-3, atol=2e-5)


def test_an_exception_in_a_hook_names_the_hook() -> None:
    class Broken(GRPO):
        def credit(self, rollout: Rollout, generator: torch.Generator) -> Credit:
            raise KeyError("reward_model")

    with pytest.raises(AlgorithmFaultError, match=r"credit .*raised KeyError: 'reward_model'"):
        executor("llada", Broken()).step()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda v: replace(v, score=torch.ones_like(v.score)), "outside the completion"),
        (lambda v: replace(v, ids=v.target), "did not hide"),
        (lambda v: replace(v, coef=v.coef * math.inf), "not finite"),
        (lambda v: replace(v, unit=v.unit + 100), "names unit"),
        (lambda v: v.rows(slice(0, 0)), "no view"),
    ],
)
def test_views_that_break_a_rule_are_refused_with_the_rule(change: Any, sentence: str) -> None:
    backbone = tiny("llada")
    data = made_data("corpus:sudoku/clean")
    assert isinstance(data, DemonstrationData)
    rollout = demonstration_rollout(backbone, data.rows[:2], 20)
    credit = algorithm_named("sft").credit(rollout, torch.Generator())
    views = hide_everything(rollout, credit, backbone.mask_id)
    check_views(views, rollout, credit, backbone.mask_id)
    with pytest.raises(AlgorithmFaultError, match=sentence):
        check_views(change(views), rollout, credit, backbone.mask_id)


def test_prompt_tokens_and_padding_do_not_change_the_sft_loss() -> None:
    backbone = tiny("sdar")
    data = made_data("corpus:sudoku/clean")
    assert isinstance(data, DemonstrationData)
    algorithm = algorithm_named("sft")

    def loss(rollout: Rollout) -> float:
        credit = algorithm.credit(rollout, torch.Generator())
        views = algorithm.forward_process(
            rollout, credit, backbone.mask_id, [generator_for(0, r) for r in range(len(credit.row))]
        )
        logp = backbone.logprobs(backbone.model, views).detach()
        terms = algorithm.loss(logp, None, None, credit, views)
        return float(terms.num.sum() / terms.den.sum())

    rollout = demonstration_rollout(backbone, data.rows[:3], 20)
    wide = replace(
        rollout,
        **{
            name: torch.nn.functional.pad(getattr(rollout, name), (0, 5), value=fill)
            for name, fill in (("ids", backbone.pad_id), ("valid", False), ("window", False), ("completion", False))
        },
        trace=Trace(),
    )
    assert rollout.window.sum() == rollout.completion.sum()
    views = hide_everything(rollout, algorithm.credit(rollout, torch.Generator()), backbone.mask_id)
    assert not bool((views.score & ~rollout.window).any())
    assert loss(wide) == pytest.approx(loss(rollout), abs=1e-5)


def test_a_forward_process_that_draws_for_the_padding_too_fails_the_contract() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Wasteful(GRPO):
        def forward_process(self, rollout: Rollout, credit: Credit, mask_id: int, generators: Any) -> NoisyViews:
            width = rollout.ids.shape[1]
            order = torch.stack([torch.randperm(width, generator=generator) for generator in generators])
            hidden = rollout.completion[credit.row] & (order < width // 2)
            unit = torch.arange(len(credit.row))
            return views_of(rollout, credit, unit, hidden, hidden, hidden.float(), mask_id)

    broken = [outcome for outcome in contract(Wasteful(), tiny("llada")) if not outcome.passed]
    assert [outcome.name for outcome in broken] == ["padding_is_nothing"]
    assert "more padding" in broken[0].sentence


def test_every_row_is_visited_once_an_epoch() -> None:
    seen = [row for step in range(10) for row in batch_indices(30, 3, step, seed=4)]
    assert sorted(seen) == list(range(30))
    assert batch_indices(30, 3, 9, 4) + batch_indices(30, 3, 10, 4) != sorted(seen)[:6]


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", SAMPLED)
def test_every_method_learns_a_trivial_reward(name: str, family: str) -> None:
    """Twenty steps towards the share of one character; a wrong sign or a dead gradient cannot pass."""
    before, after = reward_gain(algorithm_named(name), tiny(family), seed=0)
    assert after > before + 0.05


def test_a_class_that_is_not_alone_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "algorithm.py"
    text = "from dataclasses import dataclass\nfrom dare.algorithm import Algorithm\n"
    file.write_text(text + "class A(Algorithm): pass\nclass B(Algorithm): pass\n")
    with pytest.raises(ValueError, match=r"exactly one class .*found: A, B"):
        algorithm_class(file, "two_classes")


def test_the_prompts_of_the_contract_are_real_ones() -> None:
    assert all(tiny("llada").tokenizer.prompt_ids(p) for p in PROMPTS)
