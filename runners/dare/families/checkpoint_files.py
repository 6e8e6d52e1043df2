"""Weights on disk: safetensors in one file or in shards, loaded strictly into a model, and written back.

Loading allocates the model once, in the dtype wanted, and copies tensor after tensor into it: the peak is the weights
and one tensor. A key-value pair of a model's `state_dict()` must therefore be a view of the model's memory under the
published name. A module that stores several published tensors as one may offer `merged_tensors(prefix)`, names to
views, for checkpoints that store them as one as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from dare.weights.headers import (
    INDEX,
    WEIGHTS,
    CheckpointError,
    StoredTensor,
    StoredWeights,
    shortened,
    stored_weights,
    weight_files,
)

__all__ = [
    "INDEX",
    "MAX_SHARD_BYTES",
    "WEIGHTS",
    "CheckpointError",
    "check_tensors",
    "load_model",
    "meta_model",
    "read_config",
    "save_model",
    "weight_files",
]

MAX_SHARD_BYTES = 5 * 10**9
"""As the published checkpoints are cut."""
_FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def read_config(directory: Path) -> dict[str, Any]:
    """`config.json` as it is."""
    path = directory / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{directory} has no config.json")
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is no JSON: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} is no JSON object")
    return values


def meta_model(model_class: Any, values: Mapping[str, Any]) -> Any:
    """A model of that configuration without memory: names, shapes and nothing else."""
    with torch.device("meta"):
        return model_class(model_class.config_class(**values))


def load_model(
    model_class: Any,
    directory: Path,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    values: Mapping[str, Any] | None = None,
) -> Any:
    """A model with the configuration and all weights of `directory`; floating parameters become `dtype`.

    `values` stands in for the folder's config.json, for published files that leave out an id.

    Buffers keep the dtype that they are stored in: a router's bias may be finer than its weights. What does not fit is
    refused from the headers, before anything is allocated.
    """
    model = meta_model(model_class, read_config(directory) if values is None else values)
    stored = stored_weights(directory)
    check_tensors(model, stored, directory)
    model.config.dtype = dtype
    _allocate(model, stored, dtype, torch.device(device))
    _fill(_targets(model, stored.tensors), stored)
    return model.requires_grad_(True).eval()


def check_tensors(model: nn.Module, stored: StoredWeights, directory: Path) -> None:
    """CheckpointError unless the files hold exactly the tensors of the model, in shapes and kinds that fit."""
    expected, found = _targets(model, stored.tensors), stored.tensors
    misfits = _misfits(expected, found)
    problems = [
        *_named("missing", expected.keys() - found.keys()),
        *_named("unexpected", found.keys() - expected.keys()),
        *([shortened(misfits, "; ")] if misfits else []),
    ]
    if problems:
        raise CheckpointError(f"weights in {directory} do not fit the configuration: {'; '.join(problems)}")


def save_model(
    model: Any, directory: Path, dtype: torch.dtype | None = None, max_shard_bytes: int = MAX_SHARD_BYTES
) -> None:
    """`config.json` and the weights under their published names, so that `load_model` gives the same logits.

    One file, or shards of at most `max_shard_bytes` with an index. Floating parameters are written as `dtype`, buffers
    as they are. A save that is killed leaves the checkpoint that was there, or nothing that loads: everything is
    written under other names first, and `config.json`, without which nothing loads, is renamed last.
    """
    if max_shard_bytes <= 0:
        raise ValueError(f"max_shard_bytes is {max_shard_bytes}; a shard must be able to hold something")
    directory.mkdir(parents=True, exist_ok=True)
    for left_over in directory.glob(".*.part"):
        left_over.unlink()
    dtypes = _written_dtypes(model, dtype)
    shards = list(_shards(model.state_dict(), dtypes, max_shard_bytes))
    names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    if len(shards) == 1:
        names = [WEIGHTS]
    weight_map: dict[str, str] = {}
    total = 0
    for name, shard in zip(names, shards, strict=True):
        tensors = {key: _as_written(tensor, dtypes[key]) for key, tensor in shard.items()}
        save_file(tensors, _part(directory, name), metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, name)
        total += sum(tensor.nbytes for tensor in tensors.values())
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        _part(directory, INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        names.append(INDEX)
    config = type(model.config)(**model.config.to_dict())
    config.dtype = dtype or next(model.parameters()).dtype
    config.architectures = [type(model).__name__]
    config.to_json_file(_part(directory, "config.json"), use_diff=False)
    _exchange(directory, [*names, "config.json"])


def _exchange(directory: Path, names: list[str]) -> None:
    """Put the new files in the place of the old ones; in between there is no `config.json`."""
    old = {"config.json", WEIGHTS, INDEX} | {file.name for file in directory.glob("model*.safetensors")}
    for name in sorted(old, key=lambda name: (name != "config.json", name)):
        (directory / name).unlink(missing_ok=True)
    for name in names:
        _part(directory, name).replace(directory / name)


def _part(directory: Path, name: str) -> Path:
    return directory / f".{name}.part"


def _written_dtypes(model: nn.Module, dtype: torch.dtype | None) -> dict[str, torch.dtype]:
    """The dtype of every tensor in the file."""
    buffers = {name for name, _ in model.named_buffers()}
    return {
        name: tensor.dtype if dtype is None or name in buffers or not tensor.is_floating_point() else dtype
        for name, tensor in model.state_dict().items()
    }


def _shards(tensors: Mapping[str, Tensor], dtypes: Mapping[str, torch.dtype], most: int) -> Iterator[dict[str, Tensor]]:
    """Tensors in their order, as many at a time as fit; one that is larger than a shard has its own."""
    shard: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors.items():
        own = tensor.numel() * dtypes[name].itemsize
        if shard and size + own > most:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor
        size += own
    yield shard


def _as_written(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy that shares no memory with another tensor: published names may be views of one parameter."""
    return tensor.detach().to("cpu", dtype, copy=True, memory_format=torch.contiguous_format)


def _targets(model: nn.Module, found: Iterable[str]) -> dict[str, Tensor]:
    """Where every tensor of the file belongs: the state dict, with merged names where the file has them."""
    names = set(found)
    targets: dict[str, Tensor] = dict(model.state_dict())
    for path, module in model.named_modules():
        if not hasattr(module, "merged_tensors"):
            continue
        prefix = f"{path}."
        merged: dict[str, Tensor] = module.merged_tensors(prefix)
        if merged.keys() & names:
            for name in module.state_dict(prefix=prefix):
                del targets[name]
            targets |= merged
    return targets


def _allocate(model: nn.Module, stored: StoredWeights, dtype: torch.dtype, device: torch.device) -> None:
    """Uninitialised memory for every parameter and buffer."""
    model.to(dtype)
    for path, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            tensor = stored.tensors.get(f"{path}.{name}" if path else name)
            if tensor is not None and tensor.dtype in _FLOATS and buffer.is_floating_point():
                setattr(module, name, buffer.to(_FLOATS[tensor.dtype]))
    model.to_empty(device=device)


@torch.no_grad()
def _fill(targets: Mapping[str, Tensor], stored: StoredWeights) -> None:
    for file in stored.files:
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 (not a dictionary)
                    targets[name].copy_(opened.get_tensor(name))
        except SafetensorError as error:
            raise CheckpointError(f"{file} cannot be read as safetensors: {error}") from error


def _misfits(expected: Mapping[str, Tensor], found: Mapping[str, StoredTensor]) -> list[str]:
    problems = []
    for name, tensor in expected.items():
        if name not in found:
            continue
        stored = found[name]
        if stored.shape != tuple(tensor.shape):
            problems.append(f"{name} has shape {stored.shape} instead of {tuple(tensor.shape)}")
        elif tensor.is_floating_point() and stored.dtype not in _FLOATS:
            problems.append(f"{name} is stored as {stored.dtype}; only {', '.join(_FLOATS)} are read")
        elif not tensor.is_floating_point() and stored.dtype in _FLOATS:
            problems.append(f"{name} is stored as {stored.dtype} instead of whole numbers")
    return problems


def _named(what: str, names: Iterable[str]) -> list[str]:
    ordered = sorted(names)
    return [f"{what} {shortened(ordered, ', ')}"] if ordered else []
