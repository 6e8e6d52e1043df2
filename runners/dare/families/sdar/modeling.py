"""SDAR: a Qwen3-shaped transformer whose blocks look at themselves and at those before them, dense or with experts."""

from __future__ import annotations

from torch import Tensor, nn

from dare.families.experts import Experts, SoftmaxRouter
from dare.families.prenorm import PreNormLayer, PreNormTransformer, SelfAttention, dense
from dare.families.published_config import PublishedConfig
from dare.families.sdar.configuration import SDARConfig, SDARMoeConfig


class SDARForCausalLM(PreNormTransformer):
    """Block-diffusion language model with the published state dict."""

    config_class = SDARConfig

    def layer(self, config: PublishedConfig, index: int) -> nn.Module:
        return _layer(config, dense(config))


class SDARMoE(nn.Module):
    """Experts by softmax, their weights renormalised where the configuration says so."""

    def __init__(self, config: PublishedConfig) -> None:
        super().__init__()
        self.each = config.num_experts_per_tok
        self.renormalises = config.norm_topk_prob
        self.gate = SoftmaxRouter(config.num_experts, config.hidden_size)
        self.experts = Experts(config.num_experts, config.hidden_size, config.moe_intermediate_size)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, -2)
        weight, chosen = self.gate(flat).topk(self.each, dim=-1)
        if self.renormalises:
            weight = weight / weight.sum(-1, keepdim=True)
        mixed: Tensor = self.experts(flat, chosen, weight.to(x.dtype))
        return mixed.to(x.dtype).view_as(x)


class SDARMoeForCausalLM(PreNormTransformer):
    """The same with experts. Adapters go to the attention only: experts are stacked, not linear layers."""

    config_class = SDARMoeConfig
    lora_targets = ("q_proj", "k_proj", "v_proj", "o_proj")

    def layer(self, config: PublishedConfig, index: int) -> nn.Module:
        return _layer(config, SDARMoE(config) if config.mixes(index) else dense(config))


def _layer(config: PublishedConfig, mlp: nn.Module) -> PreNormLayer:
    once = config.norm_rounds_once
    return PreNormLayer(config, SelfAttention(config, rounds_once=once), mlp, once)
