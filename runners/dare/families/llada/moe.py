"""LLaDA-MoE: the same diffusion on an OLMoE-shaped transformer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dare.families.experts import Experts, SoftmaxRouter
from dare.families.layers import SwiGLU
from dare.families.llada.configuration import LLaDAMoEConfig
from dare.families.prenorm import PreNormLayer, PreNormTransformer, SelfAttention
from dare.families.published_config import PublishedConfig


class LLaDAMoE(nn.Module):
    """Experts by softmax. A router bias joins the probabilities, so it is in the weights too; none are renormalised."""

    def __init__(self, config: PublishedConfig) -> None:
        super().__init__()
        self.each = config.num_experts_per_tok
        self.gate = SoftmaxRouter(config.num_experts, config.hidden_size)
        self.experts = Experts(config.num_experts, config.hidden_size, config.expert_intermediate_size)
        bias = torch.zeros(config.num_experts) if config.moe_router_enable_expert_bias else None
        self.register_buffer("expert_bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, -2)
        probability = self.gate(flat)
        if self.expert_bias is not None:
            probability = probability + self.expert_bias
        weight, chosen = probability.topk(self.each, dim=-1)
        mixed: Tensor = self.experts(flat, chosen, weight.to(x.dtype))
        return mixed.to(x.dtype).view_as(x)


class LLaDAMoELayer(PreNormLayer):
    """A layer whose shared expert, where there is one, stands beside the mixture."""

    def __init__(self, config: PublishedConfig, attention: SelfAttention, mlp: nn.Module) -> None:
        super().__init__(config, attention, mlp)
        inner = getattr(config, "shared_expert_intermediate_size", None)
        mixes = isinstance(mlp, LLaDAMoE)
        self.shared_expert = SwiGLU(config.hidden_size, inner) if inner and mixes else None

    def feed_forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.mlp(x)
        return out if self.shared_expert is None else out + self.shared_expert(x)


class LLaDAMoEModelLM(PreNormTransformer):
    """Masked language model with the published state dict."""

    config_class = LLaDAMoEConfig
    lora_targets = ("q_proj", "k_proj", "v_proj", "o_proj")

    def layer(self, config: PublishedConfig, index: int) -> nn.Module:
        bias = config.attention_bias
        attention = SelfAttention(config, bias=bias, out_bias=bias, norms=config.qk_layernorm)
        if config.moe_layer_freq[index]:
            return LLaDAMoELayer(config, attention, LLaDAMoE(config))
        return LLaDAMoELayer(config, attention, SwiGLU(config.hidden_size, config.dense_intermediate_size))
