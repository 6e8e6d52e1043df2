"""The forward pass that all families share: positions, masks, cache and head. A family says what it is made of."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from dare.attention import Attention, Mask, Sight, attention_named
from dare.families.cache import KeyValueCache
from dare.families.layers import at_positions, rotary_tables, rotate

Rotary = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Pass:
    """What a layer is told about the forward pass that it is part of."""

    rotary: Rotary
    mask: Any  # in the backend's form
    attend: Attention
    position: Tensor  # (B, L)
    cache: KeyValueCache | None
    layer: int = 0
    where: Tensor | None = None
    """The positions whose stream is wanted behind this layer (see `at_positions`); None for all."""

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Rotate, look around, and join the heads: (B, heads, L, D) to (B, L, heads * D), at `where` only."""
        query, key = rotate(query, *self.rotary), rotate(key, *self.rotary)
        if self.cache is not None:
            key, value = self.cache.store(self.layer, key, value, self.position)
        return at_positions(self.attend(query, key, value, self.mask).transpose(1, 2).flatten(2), self.where)


class Parts(NamedTuple):
    """The modules of a model under whatever names its checkpoints give them."""

    embedding: nn.Embedding
    layers: Sequence[nn.Module]
    """Each called with (x, Pass), giving the stream behind it."""
    norm: nn.Module
    head: nn.Linear | nn.Embedding


class DiffusionTransformer(PreTrainedModel):  # type: ignore[misc]
    """Base of the native modules.

    Loading and saving are ours (`dare.families.checkpoint_files`), the same on transformers 4 and 5: strict, straight
    into the memory of the module, with experts split into their published names.
    """

    base_model_prefix = "model"
    _supports_sdpa = True
    supports_gradient_checkpointing = True
    gradient_checkpointing: bool = False
    logit_shift: ClassVar[int] = 0
    """How far left of a token its logits lie: 1 where the parametrisation is still that of a left-to-right model."""
    rotates_wide: ClassVar[bool] = False
    """Whether queries and keys are rotated in float32 whatever their dtype."""
    lora_targets: ClassVar[tuple[str, ...]] = ()
    """Linear layers that adapters go to, by the last part of their name."""
    logit_scale: float = 1.0
    """What the head's product is multiplied by."""
    embedding_scale: float = 1.0

    @property
    @abstractmethod
    def parts(self) -> Parts:
        """The modules."""

    @classmethod
    def from_pretrained(cls, directory: str | Path, dtype: torch.dtype = torch.float32) -> Self:
        """The checkpoint of a local folder, loaded strictly."""
        from dare.families.checkpoint_files import load_model

        model: Self = load_model(cls, Path(directory), dtype)
        return model

    def save_pretrained(self, directory: str | Path, dtype: torch.dtype | None = None) -> None:
        """`config.json` and weights under their published names, in shards where they are large."""
        from dare.families.checkpoint_files import save_model

        save_model(self, Path(directory), dtype)

    def gradient_checkpointing_enable(self, *_: Any, **__: Any) -> None:
        """Keep only the stream between layers for the backward pass, and compute each layer again there."""
        self.gradient_checkpointing = True

    def gradient_checkpointing_disable(self) -> None:
        """Keep everything for the backward pass."""
        self.gradient_checkpointing = False

    def get_input_embeddings(self) -> nn.Module:
        return self.parts.embedding

    def get_output_embeddings(self) -> nn.Linear | nn.Embedding:
        return self.parts.head

    def empty_cache(self, rows: int, width: int) -> KeyValueCache:
        """Room for `width` positions of every row."""
        config = self.config
        layers, heads = len(self.parts.layers), config.key_value_heads
        return KeyValueCache.empty(layers, rows, width, heads, config.head_size, self.parts.embedding.weight)

    def own_mask(self, position_ids: Tensor, attention_mask: Tensor | None) -> Sight | None:
        """Who sees whom when the caller does not say: blocks where the configuration has them, else everybody."""
        size = getattr(self.config, "block_size", None)
        if size is not None:
            return Sight.blocks(position_ids, size, attention_mask)
        return None if attention_mask is None else Sight.everywhere(attention_mask)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        block_mask: Mask = None,
        position_ids: Tensor | None = None,
        cache: KeyValueCache | None = None,
        logits_positions: Tensor | None = None,
        return_hidden: bool = False,
        attention: str = "sdpa",
    ) -> Tensor:
        """Logits (or hidden states after the last norm) of `input_ids` (B, L), not shifted.

        Args:
            attention_mask: (B, L), true for real tokens.
            block_mask: where a query may look, as a `Sight` or (B, 1, L, keys) boolean; replaces every other mask.
            position_ids: (B, L), by default 0, 1, ...; with a cache, the columns that are computed and stored.
            cache: keys and values of other positions of the same rows; the given tokens look at them and themselves.
            logits_positions: boolean (B, L) for (N, V), or indices (B, K) for (B, K, V).
            return_hidden: leave the head to the caller.
            attention: name of the backend of this pass.
        """
        parts = self.parts
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        mask: Mask = block_mask
        if mask is None and cache is not None:
            mask = cache.visible(position_ids, attention_mask)
        elif mask is None:
            mask = self.own_mask(position_ids, attention_mask)
        x = parts.embedding(input_ids)  # (B, L, d)
        if self.embedding_scale != 1.0:
            x = x * self.embedding_scale
        attend = attention_named(attention)
        told = Pass(self._rotary(position_ids, x), attend.prepare(mask), attend, position_ids, cache)
        last = len(parts.layers) - 1
        recompute = self.gradient_checkpointing and torch.is_grad_enabled()
        for index, layer in enumerate(parts.layers):
            here = replace(told, layer=index, where=logits_positions if index == last else None)
            x = checkpoint(layer, x, here, use_reentrant=False) if recompute else layer(x, here)
        hidden: Tensor = parts.norm(x)
        if return_hidden:
            return hidden
        logits = F.linear(hidden, parts.head.weight)
        return logits * self.logit_scale if self.logit_scale != 1.0 else logits

    def _rotary(self, position_ids: Tensor, like: Tensor) -> Rotary:
        cos, sin = rotary_tables(position_ids, self.config.rotary_size, self.config.rope_theta)
        return (cos, sin) if self.rotates_wide else (cos.to(like.dtype), sin.to(like.dtype))

    def _init_weights(self, module: nn.Module) -> None:
        for parameter in module.parameters(recurse=False):
            if parameter.ndim >= 2:
                nn.init.normal_(parameter, std=getattr(self.config, "initializer_range", 0.02))
