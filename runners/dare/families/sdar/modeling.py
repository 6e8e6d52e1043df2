"""SDAR: a Qwen3-shaped transformer whose blocks look at themselves and at the blocks before them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from dare.attention import Attention, attention_named
from dare.families.layers import (
    KeyValueCache,
    RMSNorm,
    at_positions,
    block_causal_mask,
    rotary_tables,
    rotate,
    split_heads,
)
from dare.families.sdar.configuration import SDARConfig


class SDARAttention(nn.Module):
    """Grouped heads, normalised per head before the rotation; heads x head_dim need not be the width."""

    def __init__(self, config: SDARConfig) -> None:
        super().__init__()
        width, size, heads = config.hidden_size, config.head_dim, config.num_attention_heads
        self.head_dim = size
        self.q_proj = nn.Linear(width, heads * size, bias=False)
        self.k_proj = nn.Linear(width, config.num_key_value_heads * size, bias=False)
        self.v_proj = nn.Linear(width, config.num_key_value_heads * size, bias=False)
        self.o_proj = nn.Linear(heads * size, width, bias=False)
        self.q_norm = RMSNorm(size, config.rms_norm_eps, config.norm_rounds_once)
        self.k_norm = RMSNorm(size, config.rms_norm_eps, config.norm_rounds_once)

    def forward(
        self,
        x: Tensor,
        rotary: tuple[Tensor, Tensor],
        mask: Tensor | None,
        attend: Attention,
        store: tuple[KeyValueCache, int, Tensor] | None,
        where: Tensor | None,
    ) -> Tensor:
        query = rotate(self.q_norm(split_heads(self.q_proj(x), self.head_dim)), *rotary)
        key = rotate(self.k_norm(split_heads(self.k_proj(x), self.head_dim)), *rotary)
        value = split_heads(self.v_proj(x), self.head_dim)
        if store is not None:
            cache, layer, position = store
            key, value = cache.store(layer, key, value, position)
        mixed = attend(query, key, value, mask).transpose(1, 2).flatten(2)
        out: Tensor = self.o_proj(at_positions(mixed, where))
        return out


class SDARMLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: SDARConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class SDARLayer(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, config: SDARConfig) -> None:
        super().__init__()
        self.self_attn = SDARAttention(config)
        self.mlp = SDARMLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, config.norm_rounds_once)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, config.norm_rounds_once)

    def forward(
        self,
        x: Tensor,
        rotary: tuple[Tensor, Tensor],
        mask: Tensor | None,
        attend: Attention,
        store: tuple[KeyValueCache, int, Tensor] | None,
        where: Tensor | None,
    ) -> Tensor:
        """The stream after this layer, at `where` only if given (see `at_positions`)."""
        x = at_positions(x, where) + self.self_attn(self.input_layernorm(x), rotary, mask, attend, store, where)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class SDARModel(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, config: SDARConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(SDARLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, config.norm_rounds_once)


class SDARForCausalLM(PreTrainedModel):  # type: ignore[misc]
    """Block-diffusion language model with the published state dict; logits at a position predict the token there."""

    config_class = SDARConfig
    base_model_prefix = "model"
    _supports_sdpa = True
    logit_scale = 1.0

    def __init__(self, config: SDARConfig) -> None:
        super().__init__(config)
        self.model = SDARModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Linear | nn.Embedding:
        return self.lm_head

    def empty_cache(self, rows: int, width: int) -> KeyValueCache:
        """Room for `width` positions of every row."""
        config, like = self.config, self.lm_head.weight
        layers, heads, size = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
        return KeyValueCache.empty(layers, rows, width, heads, size, like)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=getattr(self.config, "initializer_range", 0.02))

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
        """Logits (or hidden states after the last norm) of `input_ids` (B, L); block-causal unless told otherwise.

        Args:
            attention_mask: (B, L), true for real tokens.
            block_mask: (B, 1, L, keys) boolean, true where a query may look; replaces every other mask.
            position_ids: (B, L), by default 0, 1, ...; with a cache, the columns that are computed and stored.
            cache: keys and values of the blocks before; the tokens given then look at all of them and at themselves.
            logits_positions: boolean (B, L) for (N, V), or indices (B, K) for (B, K, V).
            return_hidden: leave the head to the caller.
        """
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        mask: Tensor | None
        if block_mask is not None:
            mask = block_mask
        elif cache is not None:
            mask = cache.visible(position_ids, attention_mask)
        else:
            mask = block_causal_mask(position_ids, self.config.block_size, attention_mask)
        x = self.model.embed_tokens(input_ids)  # (B, L, d)
        cos, sin = rotary_tables(position_ids, self.config.head_dim, self.config.rope_theta)
        rotary = (cos.to(x.dtype), sin.to(x.dtype))
        attend = attention_named(attention)
        last = len(self.model.layers) - 1
        for index, layer in enumerate(self.model.layers):
            store = None if cache is None else (cache, index, position_ids)
            x = layer(x, rotary, mask, attend, store, logits_positions if index == last else None)
        hidden: Tensor = self.model.norm(x)
        if return_hidden:
            return hidden
        logits: Tensor = self.lm_head(hidden)
        return logits
