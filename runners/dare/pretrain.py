"""How the tiny backbones are made: a fresh model of the real classes, trained by SFT on a stated mix, stored in fp16.

The mix is *lazy*: in every Sudoku demonstration each hole stays blank with probability 0.5. This is a constructed bad
habit. It leaves room that reinforcement learning can fill, which clean corpora of this size did not.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch

from dare.algorithm import load_algorithm
from dare.catalog import BackboneRecord
from dare.checkpoint import commit, publish
from dare.data import DemonstrationData
from dare.data.corpus import MIXES, alphabet, demonstrations, sha256
from dare.diary.events import device_seconds
from dare.executor import Executor
from dare.family import load_family
from dare.sampling_config import SamplingConfig
from dare.seeds import generator_for
from dare.spec import AlgorithmSpec, Budget, TrainSettings

MIX = "lazy-sudoku+countdown"
ROWS = 40_000
GEN_LENGTH = 20


@dataclass(frozen=True)
class PretrainRecipe:
    """What a tiny backbone is made of."""

    name: str
    family: str
    steps: int
    learning_rate: float = 3e-3
    batch: int = 64
    seed: int = 0
    mix: str = MIX
    rollout_steps_per_block: int = 4
    architecture: str | None = None


RECIPES = {
    recipe.name: recipe
    for recipe in (
        PretrainRecipe("llada-tiny", "llada", steps=3000),
        PretrainRecipe("sdar-tiny", "sdar", steps=2000, rollout_steps_per_block=2),
        PretrainRecipe("dream-tiny", "dream", steps=3000),
        PretrainRecipe(
            "sdar-moe-tiny", "sdar", steps=2000, rollout_steps_per_block=2, architecture="SDARMoeForCausalLM"
        ),
        PretrainRecipe("llada2-tiny", "llada2", steps=2000, rollout_steps_per_block=2),
    )
}


class UnknownRecipeError(ValueError):
    """No tiny backbone of that name is made here."""


def pretrain(name: str, out: Path, progress: object = None, steps: int | None = None) -> BackboneRecord:
    """Make the backbone `name` as the folder `out`; `progress(step, of, loss)` is called after every step.

    `steps` shortens the recipe, for tests; the record says how many were done.
    """
    if name not in RECIPES:
        raise UnknownRecipeError(f"no recipe for backbone {name!r}; known: {', '.join(RECIPES)}")
    recipe = RECIPES[name]
    steps = steps or recipe.steps
    torch.set_num_threads(1)
    started = device_seconds()
    family = load_family(recipe.family)
    backbone = family.tiny(alphabet(), generator_for(recipe.seed, "pretrain", name), recipe.architecture)
    corpus = demonstrations(recipe.mix, ROWS)
    block = backbone.block_size or GEN_LENGTH
    executor = Executor(
        backbone=backbone,
        algorithm=load_algorithm(AlgorithmSpec(name="sft")),
        data=DemonstrationData(corpus),
        settings=TrainSettings(
            learning_rate=recipe.learning_rate,
            schedule="cosine",
            warmup_steps=100,
            prompts_per_step=recipe.batch,
        ),
        sampling=SamplingConfig(gen_length=GEN_LENGTH, block_length=block, steps_per_block=block),
        budget=Budget(optimiser_steps=steps, wall_seconds=86_400),
        seed=recipe.seed,
    )
    for step in range(1, steps + 1):
        metrics = executor.step().metrics
        if callable(progress):
            progress(step, steps, metrics["loss"])
    scratch = publish(out.parent, out.name)
    backbone.save(scratch, torch.float16)
    record = BackboneRecord(
        name=name,
        family=recipe.family,
        revision=f"{recipe.mix}-{steps}-seed{recipe.seed}",
        weights_sha256=_sha256(scratch / "model.safetensors"),
        tokenizer_sha256=_sha256(scratch / "tokenizer.json"),
        parameters=sum(p.numel() for p in backbone.model.parameters()),
        tiny=True,
        sampling=SamplingConfig(
            gen_length=GEN_LENGTH,
            block_length=block,
            steps_per_block=recipe.rollout_steps_per_block,
            temperature=1.0,
        ),
        licence="Apache-2.0",
        summary=f"The real {recipe.family} classes at laptop size. {_parts(recipe.mix)}",
        recipe={
            "mix": recipe.mix,
            "corpus_sha256": sha256(corpus),
            "rows": ROWS,
            "steps": steps,
            "batch": recipe.batch,
            "learning_rate": recipe.learning_rate,
            "seed": recipe.seed,
            "cpu_seconds": round(device_seconds() - started, 1),
            "command": f"dare backbone pretrain {name}",
        },
    )
    (scratch / "backbone.json").write_text(json.dumps(record.model_dump(mode="json"), indent=2) + "\n")
    commit(scratch)
    return record


def _parts(mix: str) -> str:
    shares = " and ".join(f"{part.share:.0%} {part.corpus} {part.task}" for part in MIXES[mix])
    return f"Pretrained on {shares}; lazy means that each hole of a demonstration stays blank with probability 0.5."


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
