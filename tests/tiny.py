"""Tiny backbones of the real classes with random weights, and small jobs on them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

from dare.catalog import backbones
from dare.data.corpus import alphabet
from dare.family import Backbone, family_names, load_family
from dare.sampling_config import SamplingConfig
from dare.seeds import generator_for
from dare.spec import AlgorithmSpec, Budget, Hyperparameters, JobSpec, TrainSettings, TrainSpec

FAMILIES = ("llada", "sdar")
ARCHITECTURES = {architecture: name for name in family_names() for architecture in load_family(name).architectures}
"""Families by their architectures, each of which can be made tiny."""

SMALL: dict[str, Hyperparameters] = {"bgpo": {"mc_samples": 2}, "d_tree_rpo": {"root_children": 2, "children": 2}}
"""Settings of the methods that would take long, or more completions than a small batch has."""

OFFLINE = {"sft": "corpus:sudoku/clean", "dpo": "preferences:sudoku", "vrpo": "preferences:sudoku"}
"""Data of the methods that train on none of their own samples."""


@cache
def _weights(family: str) -> dict[str, torch.Tensor]:
    backbone = load_family(family).tiny(alphabet(), generator_for(0, "tests", family))
    return {name: tensor.clone() for name, tensor in backbone.model.state_dict().items()}


def tiny(family: str) -> Backbone:
    """A fresh backbone, the same weights at every call."""
    backbone = load_family(family).tiny(alphabet(), generator_for(0, "tests", family))
    backbone.model.load_state_dict(_weights(family))
    return backbone


def rollout_sampling(family: str) -> SamplingConfig:
    """Few steps, temperature 1."""
    block, steps = {"llada": (20, 4), "sdar": (4, 2)}[family]
    return SamplingConfig(gen_length=20, block_length=block, steps_per_block=steps, temperature=1.0)


def train_job(family: str, algorithm: str = "d1", steps: int = 3, **settings: int | float) -> JobSpec:
    """A short training run on the shipped tiny backbone of a family."""
    name = f"{family}-tiny"
    return JobSpec(
        kind="train",
        seed=1,
        backbone=backbones()[name].ref,
        train=TrainSpec(
            algorithm=AlgorithmSpec(name=algorithm, hyperparameters=SMALL.get(algorithm, {})),
            data=OFFLINE.get(algorithm, "prompts:sudoku"),
            settings=TrainSettings(
                **{"learning_rate": 3e-4, "prompts_per_step": 2, "group_size": 4, "inner_epochs": 2, **settings}  # type: ignore[arg-type]
            ),
            sampling=rollout_sampling(family),
            budget=Budget(optimiser_steps=steps, wall_seconds=600),
            checkpoint_every=1,
        ),
    )


def write_job(directory: Path, job: JobSpec, entry: str | None = None) -> Path:
    """A job directory as the platform makes it."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "job.json").write_text(job.model_dump_json())
    if entry is not None:
        (directory / "entry").mkdir(exist_ok=True)
        (directory / "entry" / "algorithm.py").write_text(entry)
    return directory
