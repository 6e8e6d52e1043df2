"""bfloat16 and gradient checkpointing: what may change is memory and time, and by how much a number may."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_executor import algorithm_named, executor, weights
from test_lora import every_model, fresh
from tiny import FAMILIES, tiny, train_job, write_job
from torch import Tensor, nn

from dare.algorithm import algorithm_names
from dare.catalog import backbone_directory
from dare.data import DemonstrationData, load_data
from dare.data.batches import demonstration_rollout
from dare.executor import Executor, Used
from dare.family import Backbone, load_family
from dare.forward_process import hide_counts
from dare.precision import MasterWeights, PrecisionError, check_dtype
from dare.run import load_backbone, run
from dare.seeds import generator_for
from dare.types import NoisyViews

SCORE_TOLERANCE = 0.06
"""Nats between the bfloat16 and the float32 score of one token, on tiny backbones of all families."""


def half(backbone: Backbone) -> Backbone:
    """The same weights rounded to bfloat16; buffers keep their dtype, as in loading."""
    for parameter in backbone.model.parameters():
        parameter.data = parameter.data.bfloat16()
    return backbone


def views_on(backbone: Backbone, per_row: int = 3) -> NoisyViews:
    """Random maskings of demonstrations."""
    data = load_data("corpus:sudoku/clean", Path())
    assert isinstance(data, DemonstrationData)
    rollout = demonstration_rollout(backbone, data.rows[:6], 20)
    credit = algorithm_named("sft").credit(rollout, torch.Generator())
    generators = [generator_for(0, "views", row) for row in range(len(credit.row))]
    return hide_counts(rollout, credit, per_row, backbone.mask_id, generators)


def half_run(family: str, name: str, **settings: Any) -> Executor:
    """An executor on a bfloat16 backbone with the same data and rewards as everywhere."""
    like = executor(family, algorithm_named(name), **{"inner_epochs": 1, "prompts_per_step": 2, **settings})
    wanted = like.settings.model_copy(update={"dtype": "bfloat16"})
    return replace(like, backbone=half(tiny(family)), settings=wanted, used=Used())


# Master weights


def test_updates_below_the_resolution_of_bfloat16_are_not_lost() -> None:
    """A thousand steps of 1e-5 away from 1: each alone would be rounded away, together they are 1 %."""
    parameter = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    masters = MasterWeights([parameter])
    optimiser = torch.optim.SGD(masters.masters, lr=1e-5)
    for _ in range(1000):
        optimiser.zero_grad()
        parameter.sum().backward()
        optimiser.step()
        masters.publish()
    torch.testing.assert_close(masters.masters[0].detach(), torch.full((4,), 0.99), rtol=0, atol=1e-4)
    assert torch.equal(parameter.detach(), torch.full((4,), 0.99).bfloat16())
    assert torch.equal((torch.ones(4) - 1e-5).bfloat16(), torch.ones(4, dtype=torch.bfloat16))


def test_micro_batches_add_up_in_float32() -> None:
    """One large gradient and 256 small ones: a bfloat16 sum would stop growing at the first."""
    parameter = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    masters = MasterWeights([parameter])
    for scale in (1.0, *[2.0**-9] * 256):
        (parameter * scale).sum().backward()
    assert masters.masters[0].grad is not None
    assert float(masters.masters[0].grad) == 1.5
    assert parameter.grad is None  # no second set of gradients is kept


def test_wide_parameters_are_their_own_masters() -> None:
    parameters = [nn.Parameter(torch.ones(2, dtype=dtype)) for dtype in (torch.float32, torch.float64)]
    masters = MasterWeights(parameters)
    assert all(master is parameter for master, parameter in zip(masters.masters, parameters, strict=True))
    assert masters.state() == []


def test_masters_end_with_whoever_trained_so_that_a_model_can_be_trained_again() -> None:
    parameter = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    first = MasterWeights([parameter])
    del first
    second = MasterWeights([parameter])
    (3 * parameter).sum().backward()
    assert float(second.masters[0].grad) == 3.0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dtypes", "settings", "refused"),
    [
        ((torch.float32, torch.float32), "float32", False),
        ((torch.float64, torch.float32), "float32", False),
        ((torch.bfloat16, torch.float32), "bfloat16", False),  # a router may stay wide
        ((torch.bfloat16, torch.float32), "float32", True),
        ((torch.float32, torch.float32), "bfloat16", True),
        ((torch.float16, torch.float16), "bfloat16", True),
    ],
)
def test_weights_of_another_precision_than_the_settings_are_refused(
    dtypes: tuple[torch.dtype, ...], settings: str, refused: bool
) -> None:
    model = nn.ParameterList([nn.Parameter(torch.ones(1, dtype=dtype)) for dtype in dtypes])
    if refused:
        with pytest.raises(PrecisionError, match=f"the settings train in {settings}, the weights are"):
            check_dtype(model, settings)
    else:
        check_dtype(model, settings)


# Scores


@every_model
def test_bfloat16_scores_are_float32_numbers_near_those_of_float32(family: str, architecture: str) -> None:
    wide = fresh(family, architecture)
    views = views_on(wide)
    narrow = half(fresh(family, architecture))
    rounded = fresh(family, architecture)
    rounded.model.load_state_dict(narrow.model.state_dict())  # the same weights, computed in float32
    with torch.no_grad():
        low, high = (backbone.logprobs(backbone.model, views) for backbone in (narrow, rounded))
    assert low.dtype == torch.float32
    assert bool(torch.isfinite(low).all())
    apart = (low - high).abs()[views.score]
    assert float(apart.median()) < SCORE_TOLERANCE / 3  # measured: 0.006 to 0.010
    assert float(apart.quantile(0.95)) < SCORE_TOLERANCE  # 0.019 to 0.038; a router may send a token elsewhere: 0.9
    assert float(apart.max()) > 0  # it was bfloat16 indeed


@every_model
def test_bfloat16_scores_do_not_depend_on_training_mode_or_on_who_wants_a_gradient(
    family: str, architecture: str
) -> None:
    """What the on-policy identity rests on. Other rows in the batch may change a bfloat16 score, these may not."""
    backbone = half(fresh(family, architecture))
    views = views_on(backbone)
    with torch.no_grad():
        scored = backbone.logprobs(backbone.model.eval(), views)
        training = backbone.logprobs(backbone.model.train(), views)
    learning = backbone.logprobs(backbone.model, views).detach()
    backbone.model.gradient_checkpointing_enable()  # type: ignore[operator]
    recomputed = backbone.logprobs(backbone.model, views).detach()
    assert torch.equal(scored, training)
    assert torch.equal(scored, learning)
    assert torch.equal(scored, recomputed)


@pytest.mark.parametrize("family", ["llada", pytest.param("sdar", marks=pytest.mark.full)])
@pytest.mark.parametrize("name", algorithm_names())
def test_in_bfloat16_too_the_first_update_starts_at_one_policy(name: str, family: str) -> None:
    """The same kernels on the same chunks: no tolerance is needed, and the check of the first step stays silent."""
    run = half_run(family, name, micro_batch=7)
    first = run.step().metrics
    assert first.get("log_ratio_abs", 0) == 0
    assert first["gradient_norm"] > 0
    assert all(math.isfinite(value) for value in {**first, **run.step().metrics}.values())
    assert {parameter.dtype for parameter in run.backbone.model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("family", ["llada", pytest.param("sdar", marks=pytest.mark.full)])
def test_the_bfloat16_gradient_points_where_the_float32_one_does(family: str) -> None:
    """Of the same weights, those that bfloat16 can hold; in one piece, or in micro-batches."""
    exact = executor(family, algorithm_named("sft"), prompts_per_step=8, inner_epochs=1)
    exact.backbone.model.load_state_dict(half(tiny(family)).model.state_dict())
    runs = [exact, *(half_run(family, "sft", prompts_per_step=8, micro_batch=size) for size in (1000, 3))]
    gradients = []
    for each in runs:
        each.core.optimiser = torch.optim.SGD(each.core.weights.masters, lr=1.0)
        each.step()
        gradients.append(torch.cat([p.grad.flatten() for p in each.core.weights.masters]))  # type: ignore[union-attr]
    wide, whole, pieces = gradients
    assert float(torch.cosine_similarity(wide, whole, dim=0)) > 0.999
    assert float((whole - pieces).norm() / whole.norm()) < 0.02


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_learns_what_float32_learns(family: str) -> None:
    """Twenty steps towards the share of one character: the reward rises at least half as far as in float32."""
    gains = []
    for make in (executor, half_run):
        like = {"learning_rate": 1e-3, "prompts_per_step": 4, "group_size": 8, "inner_epochs": 2, "steps": 20}
        run = make(family, algorithm_named("d1") if make is executor else "d1", **like)
        rewards = [run.step().metrics["reward"] for _ in range(20)]
        gains.append(sum(rewards[-3:]) / 3 - sum(rewards[:3]) / 3)
    assert min(gains) > 0.05
    assert gains[1] > gains[0] / 2


def test_a_bfloat16_run_is_the_same_after_a_stop(tmp_path: Path) -> None:
    whole, first = half_run("sdar", "sft"), half_run("sdar", "sft")
    for now in (whole, whole, whole, first):
        now.step()
    torch.save(first.core.state(), tmp_path / "state.pt")
    resumed = half_run("sdar", "sft")
    resumed.used = first.used
    resumed.core.restore(torch.load(tmp_path / "state.pt", weights_only=True))
    for _ in range(2):
        resumed.step()
    assert torch.equal(weights(whole), weights(resumed))
    for a, b in zip(whole.core.weights.masters, resumed.core.weights.masters, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("lora", [None, pytest.param({"rank": 4}, marks=pytest.mark.full)])
def test_a_bfloat16_run_trains_saves_and_says_its_precision(lora: Any, tmp_path: Path) -> None:
    job = train_job("llada", "sft", steps=2, dtype="bfloat16", lora=lora, learning_rate=1e-2)
    result = run(write_job(tmp_path, job))
    assert result.outcome == "succeeded", result.message
    assert result.provenance["dtype"] == "bfloat16"
    exported = load_family("llada").load(tmp_path / "model")
    start = load_backbone(job, backbone_directory("llada-tiny"))
    assert {parameter.dtype for parameter in start.model.parameters()} == {torch.bfloat16}
    moved = [
        not torch.equal(a, b.float())
        for a, b in zip(exported.model.parameters(), start.model.parameters(), strict=True)
    ]
    assert any(moved)
    assert all(moved) is (lora is None)


# Gradient checkpointing


@every_model
def test_checkpointing_changes_neither_loss_nor_gradient(family: str, architecture: str) -> None:
    ends: list[tuple[float, dict[str, Tensor | None]]] = []
    for switch in (False, True):
        backbone = fresh(family, architecture)
        views = views_on(backbone)
        if switch:
            backbone.model.gradient_checkpointing_enable()  # type: ignore[operator]
        backbone.model.train()
        loss = (backbone.logprobs(backbone.model, views) * views.coef).sum()
        loss.backward()
        ends.append((float(loss.detach()), {name: p.grad for name, p in backbone.model.named_parameters()}))
    (loss_kept, kept), (loss_again, again) = ends
    assert loss_kept == loss_again
    for name, gradient in kept.items():
        other = again[name]
        assert (gradient is None) == (other is None), name
        if gradient is not None and other is not None:
            torch.testing.assert_close(other, gradient, rtol=1e-6, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}")
    assert any(gradient is not None and bool(gradient.any()) for gradient in kept.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_checkpointing_keeps_less_for_the_backward_pass(family: str) -> None:
    """Bytes that autograd saves: with checkpointing the stream between layers, not what is inside them."""
    kept = []
    for switch in (False, True):
        backbone = tiny(family)
        views = views_on(backbone)
        if switch:
            backbone.model.gradient_checkpointing_enable()  # type: ignore[operator]
        own = {p.data_ptr() for p in backbone.model.parameters()}
        seen: dict[int, int] = {}

        def note(tensor: Tensor, own: set[int] = own, seen: dict[int, int] = seen) -> Tensor:
            if tensor.data_ptr() not in own:
                seen[tensor.data_ptr()] = tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            backbone.logprobs(backbone.model, views)
        kept.append(sum(seen.values()))
    assert kept[1] < kept[0] / 3


@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_with_checkpointing_is_the_run_without(family: str) -> None:
    ends = []
    for switch in (False, True):
        run = executor(family, algorithm_named("sft"), gradient_checkpointing=switch)
        for _ in range(2):
            run.step()
        ends.append(weights(run))
    torch.testing.assert_close(*ends, rtol=1e-6, atol=1e-6)
