"""The configurations of SDAR and SDAR-MoE, by their published keys."""

from __future__ import annotations

from typing import Any

from dare.families.published_config import QWEN_ONLY, PublishedConfig, UnsupportedValueError

QWEN_KEYS: tuple[str, ...] = (
    "eos_token_id", "head_dim", "hidden_size", "intermediate_size", "max_position_embeddings", "num_attention_heads",
    "num_hidden_layers", "num_key_value_heads", "rms_norm_eps", "vocab_size",
)  # fmt: skip


class SDARConfig(PublishedConfig):
    """Published keys of `JetLM/SDAR-*-Chat`.

    Some published files lack the block size and the mask id; upstream takes them from the command line and from the
    tokenizer. `norm_rounds_once` is ours: see `RMSNorm`.
    """

    model_type = "sdar"
    required = QWEN_KEYS
    only = QWEN_ONLY | {"attention_bias": (False,)}  # type: ignore[operator]
    absent = {"mask_token_id": 151669, "block_size": 4, "norm_rounds_once": False}  # noqa: RUF012


class SDARMoeConfig(SDARConfig):
    """Published keys of `JetLM/SDAR-30B-A3B-*`."""

    model_type = "sdar_moe"
    required = (
        *QWEN_KEYS, "decoder_sparse_step", "mlp_only_layers", "moe_intermediate_size", "norm_topk_prob",
        "num_experts", "num_experts_per_tok",
    )  # fmt: skip

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        if self.num_experts_per_tok > self.num_experts:
            raise UnsupportedValueError(
                f"sdar_moe configuration asks for {self.num_experts_per_tok} of {self.num_experts} experts"
            )

    def mixes(self, layer: int) -> bool:
        """Whether a layer has experts."""
        return layer not in self.mlp_only_layers and (layer + 1) % int(self.decoder_sparse_step) == 0
