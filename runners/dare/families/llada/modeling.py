"""LLaDA: a Llama-shaped transformer that looks both ways; the logits at a position predict the token there."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from dare.families.layers import RMSNorm, at_positions, split_heads
from dare.families.llada.configuration import LLaDAConfig
from dare.families.transformer import DiffusionTransformer, Parts, Pass


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

    def forward(self, x: Tensor, told: Pass) -> Tensor:
        """The stream after this layer."""
        h = self.attn_norm(x)
        query, key, value = (
            split_heads(project(h), self.head_size) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        x = at_positions(x, told.where) + self.attn_out(told.mix(query, key, value))
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
    rotates_wide = True
    # Not `ff_out`: the head has that name too.
    lora_targets = ("q_proj", "k_proj", "v_proj", "attn_out", "ff_proj", "up_proj")

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
