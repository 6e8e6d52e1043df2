"""LoRA adapters on the linear layers of a backbone: attached, switched off for the reference, saved, merged.

The layers are those of `peft`, which is imported with the first adapter and not with this module. The base stays frozen
and is its own reference, so there is no second copy of the model.

LoraError
├── TargetError      a target that matches other layers than one in each
├── AdapterFileError an adapter on disk that does not fit
└── MergeError       merged weights that do not compute what was trained (see `dare.weights.merge`)
    └── SilentBaseError  they compute what the base computes
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from dare.families.layers import at_least_float32
from dare.spec import BackboneRef, LoraSettings

ADAPTER = "default"
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
"""What peft puts before the names of a wrapped model."""
_BASE_HASH = "base_weights_sha256"
_INCIDENTAL = {"base_model_name_or_path", "peft_version", "revision", "task_type", "auto_mapping", "inference_mode"}


class LoraError(ValueError):
    """Adapters cannot be used as asked. One sentence."""


class TargetError(LoraError):
    """A target matches no linear layer, one outside the layers, or not one in each layer."""


class AdapterFileError(LoraError):
    """The files hold no adapter of this base that can be read here."""


class MergeError(LoraError):
    """The merged model gives other logits than the adapted one."""


class SilentBaseError(MergeError):
    """The export of a trained policy gives the logits of the base."""


def target_modules(model: Any, targets: Sequence[str]) -> list[str]:
    """Names of the linear layers whose last part is a target: one in each layer for each target, nothing else."""
    if not targets:
        raise TargetError(f"{type(model).__name__} names no LoRA targets: give `targets`")
    layers = model.parts.layers
    inside = {module for layer in layers for module in layer.modules()}
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    found = []
    for target in dict.fromkeys(targets):
        matched = [name for name in linear if name.split(".")[-1] == target]
        outside = [name for name in matched if linear[name] not in inside]
        if outside:
            raise TargetError(f"LoRA target {target!r} matches {outside[0]}, which is in no layer; leave it out")
        if len(matched) != len(layers):
            known = sorted({name.split(".")[-1] for name, module in linear.items() if module in inside})
            raise TargetError(
                f"LoRA target {target!r} matches {len(matched)} linear layers of {len(layers)} layers"
                f"{f' ({matched[0]}, ...)' if matched else ''}; there are {', '.join(known)}"
            )
        found += matched
    return found


@dataclass(frozen=True)
class Adapters:
    """The adapters of one model, which `attach` has put in the place of its linear layers."""

    model: Any  # a PreTrainedModel, which is untyped here
    config: Any  # peft.LoraConfig
    layers: Mapping[str, Any]
    """peft's layers by the name of the linear layer that each wraps."""

    @property
    def tensors(self) -> dict[str, nn.Parameter]:
        """What trains, under peft's names within the model."""
        return {
            f"{name}.lora_{side}.weight": getattr(layer, f"lora_{side}")[ADAPTER].weight
            for name, layer in self.layers.items()
            for side in "AB"
        }

    @contextmanager
    def switched_off(self) -> Iterator[None]:
        """The base, bit by bit: the frozen reference."""
        for layer in self.layers.values():
            layer.enable_adapters(False)
        try:
            yield
        finally:
            for layer in self.layers.values():
                layer.enable_adapters(True)

    @contextmanager
    def widened(self) -> Iterator[None]:
        """The adapted model in float32, so that its logits can be compared without the noise of rounding."""
        with _widened(self.model):
            yield

    @contextmanager
    def merged(self) -> Iterator[None]:
        """The plain model in float32 with the adapters' part in its weights; afterwards what was there, bit by bit.

        Narrow weights are widened first: they lie on the grid of their dtype, and an update of less than half a step
        of it would be rounded away.
        """
        kept = {}
        with _widened(self.model):
            for name, layer in self.layers.items():
                base = layer.get_base_layer()
                kept[name] = base.weight.data
                base.weight.data = base.weight.data + layer.get_delta_weight(ADAPTER).detach()
                self.model.set_submodule(name, base)
            try:
                yield
            finally:
                for name, layer in self.layers.items():
                    layer.get_base_layer().weight.data = kept[name]
                    self.model.set_submodule(name, layer)

    @contextmanager
    def perturbed(self, generator: torch.Generator) -> Iterator[None]:
        """Adapters that do something, for a rehearsal before they have learned anything; afterwards they do nothing."""
        with torch.no_grad():
            for layer in self.layers.values():
                _draw(layer.lora_B[ADAPTER].weight, 0.03, generator)
        try:
            yield
        finally:
            for layer in self.layers.values():
                layer.lora_B[ADAPTER].weight.data.zero_()

    def state(self) -> dict[str, Tensor]:
        """All that trains."""
        return {name: tensor.detach() for name, tensor in self.tensors.items()}

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take `state` up; AdapterFileError when names or shapes are not those of these adapters."""
        own = self.tensors
        for name in sorted(own.keys() ^ state.keys()):
            raise AdapterFileError(f"the adapter {'lacks' if name in own else 'has an unknown tensor,'} {name}")
        for name, tensor in own.items():
            if tensor.shape != state[name].shape:
                raise AdapterFileError(
                    f"{name} of the adapter is {tuple(state[name].shape)} instead of {tuple(tensor.shape)}"
                )
            tensor.copy_(state[name])

    def save(self, directory: Path, base: BackboneRef) -> None:
        """Two files as peft writes them, which `load_adapter` and peft can load; the base is named by its hash.

        The same adapters give the same bytes: of metadata there is one entry, since safetensors shuffles several.
        """
        directory.mkdir(parents=True, exist_ok=True)
        values = {**self.config.to_dict(), "base_model_name_or_path": base.name, "inference_mode": True}
        (directory / CONFIG).write_text(json.dumps(values, default=sorted, indent=1, sort_keys=True))  # sets: any order
        tensors = {_PREFIX + name: tensor.detach().cpu().contiguous() for name, tensor in self.tensors.items()}
        save_file(tensors, directory / WEIGHTS, metadata={_BASE_HASH: base.weights_sha256})


def attach(model: Any, settings: LoraSettings, generator: torch.Generator) -> Adapters:
    """Put adapters on the targets of a plain model and freeze everything else. B is zero: nothing changes yet.

    The adapters are float32 whatever the base is. A is drawn from `generator`, uniformly as peft does it; the global
    random state is neither read nor moved.
    """
    if hasattr(model, "peft_config"):
        raise LoraError("the model has adapters already; load the backbone again")
    names = target_modules(model, settings.targets or model.lora_targets)
    from peft import LoraConfig, inject_adapter_in_model
    from peft.tuners.lora import LoraLayer

    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.rank if settings.alpha is None else settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=sorted(settings.targets or model.lora_targets),
    )
    with torch.random.fork_rng(devices=()):
        inject_adapter_in_model(config, model, ADAPTER)
    layers = {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}
    if layers.keys() != set(names):
        raise TargetError(f"peft adapted other layers than asked: {', '.join(sorted(layers.keys() ^ set(names)))}")
    with torch.no_grad():
        for layer in layers.values():
            wide = at_least_float32(layer.get_base_layer().weight.dtype)
            layer.lora_A.to(wide)
            layer.lora_B.to(wide)
            weight = layer.lora_A[ADAPTER].weight  # (rank, columns)
            _draw(weight, weight.shape[1] ** -0.5, generator)
            layer.lora_B[ADAPTER].weight.zero_()
    return Adapters(model, config, layers)


def load_adapter(model: Any, directory: Path, base: BackboneRef) -> Adapters:
    """Attach the saved adapters of `directory` to a plain model; AdapterFileError when they belong to another base."""
    try:
        values = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
        with safe_open(directory / WEIGHTS, framework="pt") as file:
            facts = file.metadata() or {}
            names = list(file.keys())
            state = {name.removeprefix(_PREFIX): file.get_tensor(name) for name in names}
    except (OSError, ValueError, SafetensorError) as error:
        raise AdapterFileError(f"{directory} holds no adapter that can be read: {error}") from error
    trained_on = facts.get(_BASE_HASH, base.weights_sha256)  # peft's own files do not say
    if trained_on != base.weights_sha256:
        raise AdapterFileError(
            f"the adapter was trained on weights that hash to {trained_on[:12]}; those of {base.name} hash to "
            f"{base.weights_sha256[:12]}"
        )
    settings = _settings_of(directory, values)
    adapters = attach(model, settings, torch.Generator())
    adapters.load(state)
    return adapters


def _settings_of(directory: Path, values: Mapping[str, Any]) -> LoraSettings:
    """Rank, scale and targets of a configuration that says nothing else of consequence."""
    from peft import LoraConfig

    targets = values.get("target_modules")
    if not isinstance(targets, list):
        raise AdapterFileError(f"{directory / CONFIG} has target_modules = {targets!r}; a list of names is read")
    plain = LoraConfig(r=values.get("r"), lora_alpha=values.get("lora_alpha"), target_modules=sorted(targets)).to_dict()
    for name, value in values.items():
        if name in _INCIDENTAL or name in ("target_modules", "lora_dropout"):  # dropout is for training alone
            continue
        if value != plain.get(name):
            raise AdapterFileError(f"{directory / CONFIG} has {name} = {value!r}; only plain LoRA is read")
    return LoraSettings(rank=values["r"], alpha=values["lora_alpha"], targets=tuple(sorted(targets)))


@contextmanager
def _widened(model: nn.Module) -> Iterator[None]:
    """Narrow parameters as float32; afterwards as they were, which is exact since they came from there."""
    narrow = {p: p.dtype for p in model.parameters() if p.dtype != at_least_float32(p.dtype)}
    for parameter in narrow:
        parameter.data = parameter.data.float()
    try:
        yield
    finally:
        for parameter, dtype in narrow.items():
            parameter.data = parameter.data.to(dtype)


def _draw(tensor: Tensor, bound: float, generator: torch.Generator) -> None:
    """Uniform in [-bound, bound], the same on every device."""
    tensor.copy_(torch.empty(tensor.shape).uniform_(-bound, bound, generator=generator))
