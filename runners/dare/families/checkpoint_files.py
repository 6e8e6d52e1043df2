"""Weights on disk: safetensors in one file or in shards, loaded strictly into a model, and written back."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


class CheckpointError(ValueError):
    """The files do not hold exactly the tensors of the model."""


def read_config(directory: Path) -> dict[str, Any]:
    """`config.json` as it is."""
    path = directory / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{directory} has no config.json")
    values: dict[str, Any] = json.loads(path.read_text())
    return values


def load_model(model_class: Any, directory: Path, dtype: torch.dtype) -> Any:
    """A model with the configuration and all weights of `directory`; floating tensors become `dtype`."""
    config = model_class.config_class(**read_config(directory))
    config.dtype = dtype
    with torch.device("meta"):
        model = model_class(config)
    expected = {name: parameter.shape for name, parameter in model.state_dict().items()}
    tensors: dict[str, Tensor] = {}
    for path in weight_files(directory):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a dictionary)
                tensor = file.get_tensor(name)
                tensors[name] = tensor.to(dtype) if tensor.is_floating_point() else tensor
    _check_same(directory, expected, tensors)
    model.load_state_dict(tensors, strict=True, assign=True)
    return model.requires_grad_(True).eval()


def save_model(model: Any, directory: Path, dtype: torch.dtype | None = None) -> None:
    """`config.json` and `model.safetensors`, so that `load_model` gives the same logits."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.detach().to("cpu", dtype if tensor.is_floating_point() else None).contiguous().clone()
        for name, tensor in model.state_dict().items()
    }
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})
    config = type(model.config)(**model.config.to_dict())
    config.dtype = dtype or next(iter(tensors.values())).dtype
    config.architectures = [type(model).__name__]
    config.to_json_file(directory / "config.json", use_diff=False)


def weight_files(directory: Path) -> list[Path]:
    """The one file, or the shards that the index names."""
    index = directory / INDEX
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        missing = [name for name in names if not (directory / name).is_file()]
        if missing:
            raise CheckpointError(f"{index} names {', '.join(missing)}, which {directory} lacks")
        return [directory / name for name in names]
    if (directory / WEIGHTS).is_file():
        return [directory / WEIGHTS]
    raise CheckpointError(f"{directory} has neither {WEIGHTS} nor {INDEX}")


def _check_same(directory: Path, expected: dict[str, torch.Size], found: dict[str, Tensor]) -> None:
    problems = [
        *_named("missing", expected.keys() - found.keys()),
        *_named("unexpected", found.keys() - expected.keys()),
        *(
            f"{name} has shape {tuple(found[name].shape)} instead of {tuple(shape)}"
            for name, shape in expected.items()
            if name in found and found[name].shape != shape
        ),
    ]
    if problems:
        raise CheckpointError(f"weights in {directory} do not fit the configuration: {'; '.join(problems)}")


def _named(what: str, names: Iterable[str]) -> list[str]:
    ordered = sorted(names)
    if not ordered:
        return []
    more = f" and {len(ordered) - 5} more" if len(ordered) > 5 else ""
    return [f"{what} {', '.join(ordered[:5])}{more}"]
