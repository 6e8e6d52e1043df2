"""EBPO on doubled block input: one view hides part of every block, and one forward scores them all."""

from __future__ import annotations

from pathlib import Path

import torch
from tiny import rollout_sampling, tiny

from dare.algorithm import completion_credit, load_algorithm
from dare.data import load_data
from dare.executor import Executor
from dare.objectives import group_advantages
from dare.spec import AlgorithmSpec, Budget, TrainSettings


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
