"""SDAR: a Qwen3-shaped transformer whose blocks look at themselves and at the blocks before them."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from dare.attention import Attention
from dare.families.cache import KeyValueCache
from dare.families.layers import (
    RMSNorm,
    at_positions,
    block_causal_mask,
    rotary_tables,
    rotate,
    split_heads,
)
from dare.families.sdar.configuration import SDARConfig
from dare.families.transformer import CacheShape, DiffusionTransformer, Parts, Rotary


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
        rotary: Rotary,
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
        rotary: Rotary,
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


class SDARForCausalLM(DiffusionTransformer):
    """Block-diffusion language model with the published state dict."""

    config_class = SDARConfig

    def __init__(self, config: SDARConfig) -> None:
        super().__init__(config)
        self.model = SDARModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @property
    def parts(self) -> Parts:
        return Parts(self.model.embed_tokens, self.model.layers, self.model.norm, self.lm_head)  # type: ignore[arg-type]

    @property
    def cache_shape(self) -> CacheShape:
        return CacheShape(self.config.num_hidden_layers, self.config.num_key_value_heads, self.config.head_dim)

    def rotary(self, position_ids: Tensor, like: Tensor) -> Rotary:
        cos, sin = rotary_tables(position_ids, self.config.head_dim, self.config.rope_theta)
        return cos.to(like.dtype), sin.to(like.dtype)

    def own_mask(self, position_ids: Tensor, attention_mask: Tensor | None) -> Tensor | None:
        return block_causal_mask(position_ids, self.config.block_size, attention_mask)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=getattr(self.config, "initializer_range", 0.02))
