"""LLaDA2.x: block diffusion on a mixture of experts that are chosen in groups."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from dare.families.experts import Experts
from dare.families.layers import RMSNorm, SwiGLU, at_least_float32, at_positions, split_heads
from dare.families.llada2.configuration import LLaDA2MoeConfig
from dare.families.transformer import DiffusionTransformer, Parts, Pass


class LLaDA2Attention(nn.Module):
    """Queries, keys and values in one matrix, one after another; normalised per head, then rotated in part."""

    def __init__(self, config: LLaDA2MoeConfig) -> None:
        super().__init__()
        size = config.head_size
        self.head_size, self.heads, self.shared = size, config.num_attention_heads, config.key_value_heads
        joined = (self.heads + 2 * self.shared) * size
        self.query_key_value = nn.Linear(config.hidden_size, joined, bias=config.use_qkv_bias)
        self.query_layernorm = RMSNorm(size, config.rms_norm_eps)
        self.key_layernorm = RMSNorm(size, config.rms_norm_eps)
        self.dense = nn.Linear(self.heads * size, config.hidden_size, bias=config.use_bias)

    def forward(self, x: Tensor, told: Pass) -> Tensor:
        """What the heads write to the stream, at the wanted positions."""
        joined = split_heads(self.query_key_value(x), self.head_size)
        query, key, value = joined.tensor_split((self.heads, self.heads + self.shared), dim=1)
        out: Tensor = self.dense(told.mix(self.query_layernorm(query), self.key_layernorm(key), value))
        return out


class Route(NamedTuple):
    """Where each token goes."""

    expert: Int[Tensor, "T k"]
    weight: Float[Tensor, "T k"]


class GroupedRouter(nn.Module):
    """Sigmoid scores in float32. The bias decides who is chosen and is not in the weights."""

    expert_bias: Tensor

    def __init__(self, config: LLaDA2MoeConfig) -> None:
        super().__init__()
        self.groups, self.kept, self.each = config.n_group, config.topk_group, config.num_experts_per_tok
        self.size = config.num_experts // config.n_group
        self.scale = config.routed_scaling_factor
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size))
        self.register_buffer("expert_bias", torch.zeros(config.num_experts))

    def forward(self, x: Float[Tensor, "T d"]) -> Route:
        """The best experts of the best groups; a group is as good as its two best experts together."""
        wide = at_least_float32(x.dtype)
        score = F.linear(x.to(wide), self.weight.to(wide)).sigmoid()  # (T, E)
        rank = (score + self.expert_bias).view(len(x), self.groups, self.size)
        best = rank.topk(2, dim=-1).values.sum(-1).topk(self.kept, dim=-1).indices
        out = torch.ones(rank.shape[:2], dtype=torch.bool, device=x.device).scatter_(1, best, False)
        expert = rank.masked_fill(out[..., None], -torch.inf).flatten(1).topk(self.each, dim=-1).indices
        weight = score.gather(1, expert)
        return Route(expert, weight / (weight.sum(-1, keepdim=True) + 1e-20) * self.scale)


class LLaDA2MoE(nn.Module):
    """Chosen experts, summed in float32, beside the shared ones, which every token visits unweighted."""

    def __init__(self, config: LLaDA2MoeConfig) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.moe_intermediate_size
        self.gate = GroupedRouter(config)
        self.experts = Experts(config.num_experts, width, inner)
        self.shared_experts = SwiGLU(width, inner * config.num_shared_experts) if config.num_shared_experts else None

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, -2)
        mixed: Tensor = self.experts(flat, *self.gate(flat))
        mixed = mixed.to(x.dtype).view_as(x)
        return mixed if self.shared_experts is None else mixed + self.shared_experts(x)


class LLaDA2Layer(nn.Module):
    """Pre-norm attention and feed-forward; the first layers are dense."""

    def __init__(self, config: LLaDA2MoeConfig, index: int) -> None:
        super().__init__()
        width = config.hidden_size
        self.attention = LLaDA2Attention(config)
        is_dense = index < config.first_k_dense_replace
        self.mlp = SwiGLU(width, config.intermediate_size) if is_dense else LLaDA2MoE(config)
        self.input_layernorm = RMSNorm(width, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(width, config.rms_norm_eps)

    def forward(self, x: Tensor, told: Pass) -> Tensor:
        """The stream after this layer."""
        x = at_positions(x, told.where) + self.attention(self.input_layernorm(x), told)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class LLaDA2Stack(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, config: LLaDA2MoeConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(LLaDA2Layer(config, index) for index in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class LLaDA2MoeModelLM(DiffusionTransformer):
    """Block-diffusion language model with the published state dict."""

    config_class = LLaDA2MoeConfig
    lora_targets = ("query_key_value", "dense")

    def __init__(self, config: LLaDA2MoeConfig) -> None:
        super().__init__(config)
        self.model = LLaDA2Stack(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @property
    def parts(self) -> Parts:
        return Parts(self.model.word_embeddings, self.model.layers, self.model.norm, self.lm_head)  # type: ignore[arg-type]
