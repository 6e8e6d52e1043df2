"""LLaDA: a Llama-shaped transformer that looks both ways; the logits at a position predict the token there."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from dare.attention import Attention, attention_named
from dare.families.layers import KeyValueCache, RMSNorm, at_positions, key_mask, rotary_tables, rotate, split_heads
from dare.families.llada.configuration import LLaDAConfig


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
        rotary: tuple[Tensor, Tensor],
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


class LLaDAModelLM(PreTrainedModel):  # type: ignore[misc]
    """Masked language model with the published state dict."""

    config_class = LLaDAConfig
    base_model_prefix = "model"
    _supports_sdpa = True

    def __init__(self, config: LLaDAConfig) -> None:
        super().__init__(config)
        self.model = LLaDAModel(config)
        self.post_init()

    @property
    def logit_scale(self) -> float:
        """What the head's product is multiplied by."""
        return float(self.config.d_model**-0.5) if self.config.scale_logits else 1.0

    def get_input_embeddings(self) -> nn.Module:
        return self.model.transformer.wte

    def get_output_embeddings(self) -> nn.Linear | nn.Embedding:
        transformer = self.model.transformer
        return transformer.wte if self.config.weight_tying else transformer.ff_out

    def empty_cache(self, rows: int, width: int) -> KeyValueCache:
        """Room for `width` positions of every row."""
        config, like = self.config, self.model.transformer.wte.weight
        return KeyValueCache.empty(config.n_layers, rows, width, config.key_value_heads, config.head_size, like)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=getattr(self.config, "init_std", 0.02))
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

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
            cache: keys and values of other positions of the same rows.
            logits_positions: boolean (B, L) for (N, V), or indices (B, K) for (B, K, V).
            return_hidden: leave the head to the caller.
        """
        transformer = self.model.transformer
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        mask: Tensor | None
        if block_mask is not None:
            mask = block_mask
        elif cache is not None:
            mask = cache.visible(position_ids, attention_mask)
        else:
            mask = key_mask(attention_mask)
        rotary = rotary_tables(position_ids, self.config.head_size, self.config.rope_theta)
        attend = attention_named(attention)
        x = transformer.wte(input_ids)  # (B, L, d)
        if self.config.input_emb_norm:
            x = x * self.config.d_model**0.5
        last = len(transformer.blocks) - 1
        for layer, block in enumerate(transformer.blocks):
            store = None if cache is None else (cache, layer, position_ids)
            x = block(x, rotary, mask, attend, store, logits_positions if layer == last else None)
        hidden: Tensor = transformer.ln_f(x)
        if return_hidden:
            return hidden
        logits: Tensor = F.linear(hidden, self.get_output_embeddings().weight)
        return logits * self.logit_scale if self.config.scale_logits else logits
