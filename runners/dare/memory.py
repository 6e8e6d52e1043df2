"""What a run needs in memory, known before it is queued: the model's own code, run on tensors that have no memory.

Weights, gradients, optimiser and cache are counted. Activations, the head's chunks and what a backward pass needs on
the way are those of the real modules on the meta device, where every operation says what it would allocate. Three
things cannot run there and are stood in for: fused attention, which keeps its inputs, its output and one number per
query; experts, which are taken to be equally busy; and the drawing of tokens, whose bytes per logit are counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dare.allocations import Allocations, peak_of
from dare.families.checkpoint_files import meta_model
from dare.families.experts import Experts
from dare.families.published_config import ConfigError
from dare.family import UnknownFamilyError, family_of
from dare.linear_logp import linear_logp
from dare.lora import LoraError, attach
from dare.precision import MasterWeights
from dare.sampling_config import SamplingConfig
from dare.spec import LoraSettings

MATRIX = ("eager", "sdpa")
"""Attention backends that take a block mask as a matrix of queries and keys."""
FLOAT32 = 4


class MemoryPlanError(ValueError):
    """A plan that makes no sense, for this model or for any. One sentence."""


@dataclass(frozen=True)
class Plan:
    """The run to estimate."""

    batch: int
    """Completions that are decoded together: prompts x group."""
    length: int
    """Tokens of prompt and completion."""
    completion: int
    """Tokens of the generation window among them."""
    micro_batch: int
    """Views per forward pass with gradient."""
    group: int = 8
    """Completions per prompt, whose prompt a block family computes once."""
    trains: bool = True
    decodes: bool = True
    reference: bool = False
    """Whether a frozen copy is scored as well."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    lora: LoraSettings | None = None
    gradient_checkpointing: bool = False
    attention: str = "sdpa"

    def __post_init__(self) -> None:
        for name in ("batch", "length", "completion", "micro_batch", "group"):
            if getattr(self, name) < 1:
                raise MemoryPlanError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.completion >= self.length:
            raise MemoryPlanError(
                f"the completion has {self.completion} of {self.length} tokens; a prompt needs at least one"
            )
        if self.attention not in ("eager", "flash", "flex", "sdpa"):
            raise MemoryPlanError(f"unknown attention {self.attention!r}; known: eager, flash, flex, sdpa")

    @property
    def views(self) -> int:
        """Rows of a forward pass with gradient."""
        return min(self.batch, self.micro_batch)


@dataclass(frozen=True)
class Estimate:
    """Bytes. What is `always` there, and what each phase needs besides."""

    always: Mapping[str, int]
    phases: Mapping[str, Mapping[str, int]]
    assumptions: tuple[str, ...]

    @property
    def total(self) -> int:
        """The peak of the run."""
        return sum(self.always.values()) + max((sum(p.values()) for p in self.phases.values()), default=0)

    @property
    def deciding(self) -> str:
        """The phase that needs most."""
        return max(self.phases, key=lambda name: sum(self.phases[name].values())) if self.phases else "loading"


def estimate(values: Mapping[str, Any], plan: Plan, sampling: SamplingConfig) -> Estimate:
    """What `plan` needs on a model with the configuration `values` (the content of a config.json)."""
    try:
        dry = _Dry(values, plan, sampling)
    except (ConfigError, UnknownFamilyError, LoraError) as error:
        raise MemoryPlanError(str(error)) from error
    always = {"weights": dry.bytes_of(dry.model), **dry.training_state()}
    phases: dict[str, dict[str, int]] = {}
    if plan.decodes:
        phases["rollout"] = dry.rollout()
    if plan.trains:
        gradients = always.pop("gradients")
        phases["scoring"] = {"gradients": gradients, **dry.scoring()}
        phases["update"] = dry.update()
        phases["optimiser step"] = {"gradients": gradients}  # fused: nothing beside it
        if plan.decodes:  # those of the update before
            phases["rollout"] = {"gradients": gradients, **phases["rollout"]}
    return Estimate(always, phases, dry.assumptions())


class _Dry:
    """The model on the meta device, and what its passes would allocate there."""

    def __init__(self, values: Mapping[str, Any], plan: Plan, sampling: SamplingConfig) -> None:
        family = family_of(values)
        self.plan, self.sampling, self.kind = plan, sampling, family.kind
        self.dtype: torch.dtype = getattr(torch, plan.dtype)
        self.model: Any = meta_model(family.model_class(values), values).requires_grad_(True)
        for parameter in self.model.parameters():  # buffers keep their own dtype, as in a loaded model
            parameter.data = parameter.data.to(self.dtype)
        self._plain = self.bytes_of(self.model)
        if plan.lora is not None and plan.trains:
            with torch.device("meta"):
                attach(self.model, plan.lora, torch.Generator("cpu"))
        if plan.gradient_checkpointing:
            self.model.gradient_checkpointing_enable()
        for module in self.model.modules():
            if isinstance(module, Experts):
                module.forward = _balanced(module)  # type: ignore[assignment, method-assign]
        if plan.attention != "eager":
            for layer in self.model.parts.layers:
                layer.forward = _with_fused_attention(layer)
        self.trained = [p for p in self.model.parameters() if p.requires_grad] if plan.trains else []

    @staticmethod
    def bytes_of(module: nn.Module) -> int:
        """Parameters and buffers."""
        return sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))

    def training_state(self) -> dict[str, int]:
        """All that lives from step to step beside the weights."""
        if not self.plan.trains:
            return {}
        numbers = sum(parameter.numel() for parameter in self.trained)
        narrow = sum(p.numel() for p in self.trained if p.dtype.itemsize < FLOAT32)
        return {
            "float32 master copies": FLOAT32 * narrow,
            "optimiser state": 2 * FLOAT32 * numbers,
            "reference copy": self._plain if self.plan.reference and self.plan.lora is None else 0,
            "gradients": FLOAT32 * numbers,
        }

    def rollout(self) -> dict[str, int]:
        """One decode of the whole batch: the largest of its moments, and the cache that lives through them."""
        plan, block = self.plan, self.sampling.block_length
        rows, prompts = plan.batch, math.ceil(plan.batch / plan.group)
        drawing = rows * block * self._vocabulary * _drawing_bytes(self.dtype, self.sampling.temperature)
        if self.kind == "masked":
            where = torch.empty(rows, block, dtype=torch.long, device="meta")
            return {"a forward, or the drawing of tokens": max(self._forward(rows, plan.length, where), drawing)}
        cache = self._counted(lambda: self.model.empty_cache(rows, plan.length))
        nowhere = torch.empty(prompts, 1, dtype=torch.long, device="meta")  # next to nothing
        prefill = self._forward(prompts, plan.length - plan.completion, nowhere)
        of_prompts = math.ceil(cache * prompts / rows)  # while it is copied for the completions
        step = self._forward(rows, block, None, keys=plan.length) + self._shared_heads(rows, plan.length)
        return {
            "key-value cache": cache,
            "prefill, a step, or the drawing of tokens": max(prefill, of_prompts, step, drawing),
        }

    def scoring(self) -> dict[str, int]:
        """Log-probabilities without gradient."""
        with torch.no_grad():
            return {"forward and head": self._counted(lambda: self._logp(self.plan.views))}

    def update(self) -> dict[str, int]:
        """Forward and backward; a second time where the batch does not fit into one pass, with gradients there."""
        masters = MasterWeights(self.trained)  # its hooks are weak: it must stay while gradients come
        kept = 0
        with Allocations("meta") as counted:
            for _ in range(2 if self.plan.batch > self.plan.micro_batch else 1):
                before = counted.alive
                logp = self._logp(self.plan.views)
                kept = counted.alive - before
                logp.sum().backward()  # type: ignore[no-untyped-call]
                del logp
            peak = counted.peak
        del masters
        for parameter in self.trained:
            parameter.grad = None
        return {"activations": kept, "gradients, head and backward pass": peak - kept}

    def assumptions(self) -> tuple[str, ...]:
        """What the numbers rest on."""
        plan = self.plan
        said = [
            f"{plan.views} views of {self._columns} tokens per forward pass with gradient, every one of the "
            f"{plan.completion} tokens of the window scored",
            f"{plan.batch} completions decoded together" if plan.decodes else "no rollouts",
            "AdamW with two float32 numbers per trained parameter",
            "kernels' own workspaces, the allocator's reserve and the runtime (on CUDA about 0.5 GiB) are not in it",
        ]
        if plan.attention == "eager":
            said.append("eager attention keeps its matrices")
        elif self.kind == "block" and plan.attention == "sdpa":
            said.append("sdpa attention has a matrix for blocks, and repeats shared keys and values as CUDA needs it")
        if any(isinstance(module, Experts) for module in self.model.modules()):
            said.append("experts are equally busy")
        if plan.reference and plan.lora is not None:
            said.append("with adapters the frozen base is the reference: no copy")
        return tuple(said)

    @property
    def _vocabulary(self) -> int:
        return int(self.model.get_output_embeddings().weight.shape[0])

    @property
    def _columns(self) -> int:
        """Tokens of a row when it is scored: a block family sees a clean copy and the noisy window."""
        return self.plan.length + (self.plan.completion if self.kind == "block" else 0)

    def _shared_heads(self, rows: int, keys: int) -> int:
        """Cached keys and values repeated for the heads that share them, for one layer."""
        config = self.model.config
        heads = getattr(config, "num_attention_heads", None) or config.n_heads
        if self.plan.attention in ("flash", "flex") or heads == config.key_value_heads:
            return 0
        size: int = 2 * rows * keys * heads * config.head_size * self.dtype.itemsize
        return size

    def _logp(self, rows: int) -> Tensor:
        """As a backbone scores: the model up to its last norm, and the head in chunks."""
        window = torch.empty(rows, self.plan.completion, dtype=torch.long, device="meta")
        hidden = self._hidden(rows, self._columns, window).flatten(0, 1)
        head = self.model.get_output_embeddings()
        return linear_logp(hidden, head.weight, window.flatten(), scale=self.model.logit_scale, excluded=0)

    def _hidden(self, rows: int, columns: int, where: Tensor | None, keys: int | None = None) -> Tensor:
        ids = torch.empty(rows, columns, dtype=torch.long, device="meta")
        matrix = self.kind == "block" and self.plan.attention in MATRIX and keys is None
        mask = torch.empty(rows, 1, columns if matrix else 1, columns, dtype=torch.bool, device="meta")
        attention = "eager" if self.plan.attention == "eager" else "sdpa"
        hidden: Tensor = self.model(
            ids, block_mask=mask, logits_positions=where, return_hidden=True, attention=attention
        )
        return hidden

    def _forward(self, rows: int, columns: int, where: Tensor | None, keys: int | None = None) -> int:
        """Peak of a forward without gradient, up to the logits at `where`."""
        head = self.model.get_output_embeddings()
        with torch.no_grad():
            return self._counted(lambda: F.linear(self._hidden(rows, columns, where, keys), head.weight))

    def _counted(self, work: Callable[[], Any]) -> int:
        return peak_of(work, "meta")[1]


def _drawing_bytes(dtype: torch.dtype, temperature: float) -> int:
    """Per logit: itself, its float32 copy without the mask token, and float64 noise beside float64 logits."""
    return dtype.itemsize + FLOAT32 + (2 * 8 if temperature > 0 else FLOAT32)


class _Fused:
    """Scaled dot-product attention as one kernel, which the meta device would take apart."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, prepared: Tensor | None) -> Tensor:
        groups = query.shape[1] // key.shape[1]
        if groups > 1 and prepared is not None:  # see `dare.attention.dense.SDPA`
            key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        out: Tensor = _FusedAttention.apply(query, key, value, prepared)  # type: ignore[no-untyped-call]
        return out


class _FusedAttention(torch.autograd.Function):
    """What flash and memory-efficient kernels keep: inputs, output, one float32 per query, and the mask as numbers."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        rows, heads, queries, size = query.shape
        out = query.new_empty(rows, queries, heads, size).transpose(1, 2)  # as the kernels lay it out
        normaliser = query.new_empty(query.shape[:3], dtype=torch.float32)
        added = None if mask is None else mask.new_empty(mask.shape, dtype=query.dtype)
        ctx.save_for_backward(query, key, value, added, out, normaliser)
        return out

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value = ctx.saved_tensors[:3]
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), None


def _with_fused_attention(layer: nn.Module) -> Callable[[Tensor, Any], Tensor]:
    """The layer's own forward with another backend."""
    own: Callable[[Tensor, Any], Tensor] = layer.forward

    def forward(x: Tensor, told: Any) -> Tensor:
        return own(x, replace(told, attend=_Fused()))

    return forward


def _balanced(experts: Experts) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The experts' batched product with an equal number of tokens for each."""

    def forward(x: Tensor, chosen: Tensor, weight: Tensor) -> Tensor:
        tokens, each = chosen.shape
        count = len(experts.down)
        most = max(1, math.ceil(tokens * each / count))
        order = chosen.flatten().argsort(stable=True)
        rows = x[order // each]
        place = torch.empty(tokens * each, dtype=torch.long, device=x.device)
        padded = rows.new_zeros(count * most, rows.shape[-1]).index_copy(0, place, rows)
        gate, up = torch.bmm(padded.view(count, most, -1), experts.gate_up.transpose(1, 2)).chunk(2, dim=-1)
        answers = torch.bmm(F.silu(gate) * up, experts.down.transpose(1, 2)).flatten(0, 1)[place]
        answers = torch.empty_like(answers).index_copy(0, order, answers).view(tokens, each, -1)
        wide = torch.promote_types(torch.promote_types(x.dtype, torch.float32), weight.dtype)
        return (answers.to(wide) * weight[..., None]).sum(1)

    return forward
