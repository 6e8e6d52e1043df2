"""LLaDA: a Llama-shaped transformer that looks both ways; the logits at a position predict the token there."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from dare.attention import Attention
from dare.families.cache import KeyValueCache
from dare.families.layers import RMSNorm, at_positions, key_mask, rotary_tables, rotate, split_heads
from dare.families.llada.configuration import LLaDAConfig
from dare.families.transformer import CacheShape, DiffusionTransformer, Parts, Rotary


class LLaDABlock(nn.Module):
    """One layer under its published names: `ff_proj` is the gate, `attn_out` and `ff_out` write to the stream."""

    def __init__(self, config: LLaDAConfig) -> None:
        super().__init__()
        width, size = config.d_model, config.head_size
        self.head_size = size
        self.attn_norm = RMSNorm(width, config.rms_norm_eps)
        self.q_proj = nn.Linear(width, config.n_heads * size, bias=config.include_qkv_bias)
        self.k_proj = nn.Linear(width, config.key_value_heads * size, bias=config.include_qkv_bias)
        self.v_proj = nn.Linear(width, config.key_value_heads * size, bias=config.include_qkv_bias)
        self.attn_out = nn.Linear(config.n_heads * size, width, bias=False)
        self.ff_norm = RMSNorm(width, config.rms_norm_eps)
        self.ff_proj = nn.Linear(width, config.feed_forward_size, bias=False)
        self.up_proj = nn.Linear(width, config.feed_forward_size, bias=False)
        self.ff_out = nn.Linear(config.feed_forward_size, width, bias=False)

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
        h = self.attn_norm(x)
        query, key, value = (
            split_heads(project(h), self.head_size) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = rotate(query, *rotary), rotate(key, *rotary)
        if store is not None:
            cache, layer, position = store
            key, value = cache.store(layer, key, value, position)
        mixed = attend(query, key, value, mask).transpose(1, 2).flatten(2)
        x = at_positions(x, where) + self.attn_out(at_positions(mixed, where))
        h = self.ff_norm(x)
        out: Tensor = x + self.ff_out(F.silu(self.ff_proj(h)) * self.up_proj(h))
        return out


class LLaDATransformer(nn.Module):
    """Embedding, layers, final norm, and the head unless it is tied."""

    def __init__(self, config: LLaDAConfig) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.embedding_size, config.d_model)
        self.blocks = nn.ModuleList(LLaDABlock(config) for _ in range(config.n_layers))
        self.ln_f = RMSNorm(config.d_model, config.rms_norm_eps)
        if not config.weight_tying:
            self.ff_out = nn.Linear(config.d_model, config.embedding_size, bias=False)


class LLaDAModel(nn.Module):
    """The level that the published key names have."""

    def __init__(self, config: LLaDAConfig) -> None:
        super().__init__()
        self.transformer = LLaDATransformer(config)


class LLaDAModelLM(DiffusionTransformer):
    """Masked language model with the published state dict."""

    config_class = LLaDAConfig

    def __init__(self, config: LLaDAConfig) -> None:
        super().__init__(config)
        self.model = LLaDAModel(config)
        self.logit_scale = float(config.d_model**-0.5) if config.scale_logits else 1.0
        self.embedding_scale = float(config.d_model**0.5) if config.input_emb_norm else 1.0
        self.post_init()

    @property
    def parts(self) -> Parts:
        transformer = self.model.transformer
        head = transformer.wte if self.config.weight_tying else transformer.ff_out
        return Parts(transformer.wte, transformer.blocks, transformer.ln_f, head)  # type: ignore[arg-type]

    @property
    def cache_shape(self) -> CacheShape:
        return CacheShape(self.config.n_layers, self.config.key_value_heads, self.config.head_size)

    def rotary(self, position_ids: Tensor, like: Tensor) -> Rotary:
        return rotary_tables(position_ids, self.config.head_size, self.config.rope_theta)

    def own_mask(self, position_ids: Tensor, attention_mask: Tensor | None) -> Tensor | None:
        return key_mask(attention_mask)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=getattr(self.config, "init_std", 0.02))
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
