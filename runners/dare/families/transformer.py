"""The forward pass that all families share: positions, masks, cache and head. A family says what it is made of."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from dare.attention import attention_named
from dare.families.cache import KeyValueCache

Rotary = tuple[Tensor, Tensor]


class Parts(NamedTuple):
    """The modules of a model under whatever names its checkpoints give them."""

    embedding: nn.Embedding
    layers: Sequence[nn.Module]
    """Each called with (x, rotary, mask, attention, (cache, layer, positions) or None, positions wanted or None)."""
    norm: nn.Module
    head: nn.Linear | nn.Embedding


class CacheShape(NamedTuple):
    """What a key-value cache must hold per position."""

    layers: int
    heads: int
    head_size: int


class DiffusionTransformer(PreTrainedModel):  # type: ignore[misc]
    """Base of the native modules: predicts the tokens at the positions it is given, with no shift."""

    base_model_prefix = "model"
    _supports_sdpa = True
    logit_scale: float = 1.0
    """What the head's product is multiplied by."""
    embedding_scale: float = 1.0

    @property
    @abstractmethod
    def parts(self) -> Parts:
        """The modules."""

    @property
    @abstractmethod
    def cache_shape(self) -> CacheShape:
        """For `empty_cache`."""

    @abstractmethod
    def rotary(self, position_ids: Tensor, like: Tensor) -> Rotary:
        """Cosines and sines for the positions, in the precision in which this family rotates."""

    @abstractmethod
    def own_mask(self, position_ids: Tensor, attention_mask: Tensor | None) -> Tensor | None:
        """Who sees whom when the caller does not say: (B, 1, L, L) boolean, or None for everybody."""

    def get_input_embeddings(self) -> nn.Module:
        return self.parts.embedding

    def get_output_embeddings(self) -> nn.Linear | nn.Embedding:
        return self.parts.head

    def empty_cache(self, rows: int, width: int) -> KeyValueCache:
        """Room for `width` positions of every row."""
        shape = self.cache_shape
        like = self.parts.embedding.weight
        return KeyValueCache.empty(shape.layers, rows, width, shape.heads, shape.head_size, like)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        block_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: KeyValueCache | None = None,
        logits_positions: Tensor | None = None,
        return_hidden: bool = False,
        attention: str = "sdpa",
    ) -> Tensor:
        """Logits (or hidden states after the last norm) of `input_ids` (B, L).

        Args:
            attention_mask: (B, L), true for real tokens.
            block_mask: (B, 1, L, keys) boolean, true where a query may look; replaces every other mask.
            position_ids: (B, L), by default 0, 1, ...; with a cache, the columns that are computed and stored.
            cache: keys and values of other positions of the same rows; the given tokens look at them and themselves.
            logits_positions: boolean (B, L) for (N, V), or indices (B, K) for (B, K, V).
            return_hidden: leave the head to the caller.
        """
        parts = self.parts
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        mask: Tensor | None
        if block_mask is not None:
            mask = block_mask
        elif cache is not None:
            mask = cache.visible(position_ids, attention_mask)
        else:
            mask = self.own_mask(position_ids, attention_mask)
        x = parts.embedding(input_ids)  # (B, L, d)
        if self.embedding_scale != 1.0:
            x = x * self.embedding_scale
        rotary = self.rotary(position_ids, x)
        attend = attention_named(attention)
        last = len(parts.layers) - 1
        for index, layer in enumerate(parts.layers):
            store = None if cache is None else (cache, index, position_ids)
            x = layer(x, rotary, mask, attend, store, logits_positions if index == last else None)
        hidden: Tensor = parts.norm(x)
        if return_hidden:
            return hidden
        logits = F.linear(hidden, parts.head.weight)
        return logits * self.logit_scale if self.logit_scale != 1.0 else logits
