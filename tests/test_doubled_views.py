"""Doubled block input: a view that hides part of every block, and which sequences share a forward."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import rollout_sampling, tiny
from torch import Tensor

from dare.algorithm import completion_credit, load_algorithm
from dare.data import load_data
from dare.executor import Executor
from dare.families.doubled import ALIKE, alike
from dare.objectives import group_advantages
from dare.spec import AlgorithmSpec, Budget, TrainSettings
from dare.types import NoisyViews


def test_one_doubled_forward_carries_a_view_that_hides_part_of_every_block() -> None:
    backbone = tiny("sdar")
    algorithm = load_algorithm(AlgorithmSpec(name="ebpo", hyperparameters={"mc_samples": 2, "block_length": 4}))
    executor = Executor(
        backbone=backbone,
        algorithm=algorithm,
        data=load_data("prompts:sudoku", Path()),
        settings=TrainSettings(learning_rate=1e-4, prompts_per_step=2, group_size=2),
        sampling=rollout_sampling("sdar"),
        budget=Budget(optimiser_steps=1, wall_seconds=60),
        seed=0,
    )
    rollout, _, _ = executor._rollout(0, [0, 1])
    credit = completion_credit(rollout, group_advantages(torch.rand(4), rollout.group, "centred"))
    views = executor._views(rollout, credit, 0, 0)
    logp = backbone.logprobs(backbone.model, views)
    assert bool(torch.isfinite(logp).all())
    scored = rollout.completion.sum(1).gt(0).sum()
    assert len(views) == 2 * int(scored)
    assert bool((backbone.forwards(views) > 0).all())


@given(st.lists(st.integers(0, 300), min_size=1, max_size=30))
def test_rows_go_together_whose_lengths_are_alike(lengths: list[int]) -> None:
    parts = alike(torch.tensor(lengths))
    assert sorted(torch.cat(parts).tolist()) == list(range(len(lengths)))
    found = [[lengths[row] for row in part] for part in parts]
    assert all(max(part) < ALIKE * max(min(part), 1) for part in found)
    assert all(max(shorter) < min(longer) for shorter, longer in itertools.pairwise(found))


def test_sequences_of_unlike_length_are_scored_apart_with_the_scores_and_gradients_of_one_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backbone = tiny("sdar")
    generator = torch.Generator().manual_seed(0)
    length = torch.tensor([40, 9, 40, 17, 9])[:, None]
    column = torch.arange(41)
    valid = column < length
    window = valid & (column >= 6)
    ids = torch.randint(5, 20, valid.shape, generator=generator)
    score = window & (torch.rand(valid.shape, generator=generator) < 0.5)
    views = NoisyViews(
        ids.masked_fill(score, backbone.mask_id),
        ids,
        score,
        score.float(),
        torch.arange(5),
        valid,
        valid & (column >= 6),
    )
    forwards: list[tuple[int, ...]] = []
    backbone.model.register_forward_pre_hook(lambda _, given: forwards.append(tuple(given[0].shape)))

    def scored() -> tuple[Tensor, Tensor]:
        backbone.model.zero_grad()
        logp = backbone.logprobs(backbone.model, views)
        (logp * torch.arange(41)).sum().backward()  # type: ignore[no-untyped-call]
        return logp.detach(), backbone.model.get_input_embeddings().weight.grad.clone()  # type: ignore[operator]

    apart = scored()
    assert [shape[0] for shape in forwards] == [2, 1, 2]
    monkeypatch.setattr("dare.families.doubled.ALIKE", 1000.0)
    together = scored()
    assert len(forwards) == 4
    for a, b in zip(apart, together, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
