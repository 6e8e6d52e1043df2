"""Tiny backbones: the shipped ones are what their records say, and the recipe makes them again."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

from dare.catalog import backbone_directory, backbones
from dare.data.corpus import demonstrations, sha256
from dare.family import load_family
from dare.pretrain import RECIPES, UnknownRecipeError, pretrain


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_shipped_backbone_is_what_its_record_says(name: str) -> None:
    record, directory = backbones()[name], backbone_directory(name)
    assert hashlib.sha256((directory / "model.safetensors").read_bytes()).hexdigest() == record.weights_sha256
    assert hashlib.sha256((directory / "tokenizer.json").read_bytes()).hexdigest() == record.tokenizer_sha256
    assert (directory / "model.safetensors").stat().st_size < 1_000_000
    backbone = load_family(record.family).load(directory)
    assert sum(p.numel() for p in backbone.model.parameters()) == record.parameters
    recipe = RECIPES[name]
    assert record.recipe["steps"] == recipe.steps
    assert record.recipe["corpus_sha256"] == sha256(demonstrations(recipe.mix, int(record.recipe["rows"])))
    assert "blank with probability 0.5" in record.summary


def test_the_recipe_gives_the_same_weights_every_time(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    a = pretrain("sdar-tiny", tmp_path / "a", lambda step, of, loss: seen.append((step, of)), steps=2)
    b = pretrain("sdar-tiny", tmp_path / "b", steps=2)
    assert a == b.model_copy(update={"recipe": a.recipe})
    assert seen == [(1, 2), (2, 2)]
    loaded = load_family("sdar").load(tmp_path / "a")
    assert all(p.dtype == torch.float32 for p in loaded.model.parameters())


def test_an_unknown_backbone_names_those_that_can_be_made(tmp_path: Path) -> None:
    with pytest.raises(UnknownRecipeError, match="llada-tiny, sdar-tiny"):
        pretrain("llada-8b", tmp_path / "x")
