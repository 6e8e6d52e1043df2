"""The layer that Dream, SDAR and LLaDA-MoE share under the same published names."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor, nn

from dare.families.layers import RMSNorm, SwiGLU, at_positions, split_heads
from dare.families.published_config import PublishedConfig
from dare.families.transformer import DiffusionTransformer, Parts, Pass


class SelfAttention(nn.Module):
    """Heads that share keys and values in groups; heads x head size need not be the width.

    Args:
        bias: on queries, keys and values.
        out_bias: on what is written to the stream.
        norms: whether queries and keys are normalised per head before they are rotated.
    """

    def __init__(
        self,
        config: PublishedConfig,
        bias: bool = False,
        out_bias: bool = False,
        norms: bool = True,
        rounds_once: bool = False,
    ) -> None:
        super().__init__()
        width, size = config.hidden_size, config.head_size
        mixed, shared = config.num_attention_heads * size, config.key_value_heads * size
        self.head_size = size
        self.q_proj = nn.Linear(width, mixed, bias=bias)
        self.k_proj = nn.Linear(width, shared, bias=bias)
        self.v_proj = nn.Linear(width, shared, bias=bias)
        self.o_proj = nn.Linear(mixed, width, bias=out_bias)
        self.q_norm = RMSNorm(size, config.rms_norm_eps, rounds_once) if norms else None
        self.k_norm = RMSNorm(size, config.rms_norm_eps, rounds_once) if norms else None

    def forward(self, x: Tensor, told: Pass) -> Tensor:
        """What the heads write to the stream, at the wanted positions."""
        query, key, value = (
            split_heads(project(x), self.head_size) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        out: Tensor = self.o_proj(told.mix(query, key, value))
        return out


class PreNormLayer(nn.Module):
    """Attention, then a feed-forward layer, each on a normalised copy of the stream."""

    def __init__(
        self, config: PublishedConfig, self_attn: SelfAttention, mlp: nn.Module, rounds_once: bool = False
    ) -> None:
        super().__init__()
        self.self_attn = self_attn
        self.mlp = mlp
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, rounds_once)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, rounds_once)

    def forward(self, x: Tensor, told: Pass) -> Tensor:
        """The stream after this layer."""
        x = at_positions(x, told.where) + self.self_attn(self.input_layernorm(x), told)
        out: Tensor = x + self.feed_forward(self.post_attention_layernorm(x))
        return out

    def feed_forward(self, x: Tensor) -> Tensor:
        """What the second half writes to the stream."""
        out: Tensor = self.mlp(x)
        return out


class PreNormStack(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, config: PublishedConfig, layers: list[nn.Module], rounds_once: bool = False) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, rounds_once)


class PreNormTransformer(DiffusionTransformer):
    """A stack of such layers and a head of its own. A family says what layer `index` is."""

    lora_targets: ClassVar[tuple[str, ...]] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    )

    def __init__(self, config: PublishedConfig) -> None:
        super().__init__(config)
        layers = [self.layer(config, index) for index in range(config.num_hidden_layers)]
        self.model = PreNormStack(config, layers, getattr(config, "norm_rounds_once", False))
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @abstractmethod
    def layer(self, config: PublishedConfig, index: int) -> nn.Module:
        """Layer `index` of the stack."""

    @property
    def parts(self) -> Parts:
        return Parts(self.model.embed_tokens, self.model.layers, self.model.norm, self.lm_head)  # type: ignore[arg-type]


def dense(config: PublishedConfig) -> SwiGLU:
    """The feed-forward layer of a family without experts."""
    return SwiGLU(config.hidden_size, config.intermediate_size)
