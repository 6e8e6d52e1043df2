"""The configurations of LLaDA and LLaDA-MoE, by their published keys."""

from __future__ import annotations

from typing import Any

from dare.families.published_config import PublishedConfig, UnsupportedValueError


class LLaDAConfig(PublishedConfig):
    """Published keys of `GSAI-ML/LLaDA-8B-*`, `LLaDA-1.5` and `iLLaDA-8B-*`.

    `n_kv_heads` null means `n_heads` (1 with `multi_query_attention`), `mlp_hidden_size` null means
    `mlp_ratio * d_model`, and `embedding_size` may exceed `vocab_size`. Tying is `weight_tying`, done by our module.
    """

    model_type = "llada"
    attribute_map = {  # noqa: RUF012
        "hidden_size": "d_model",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
        "max_position_embeddings": "max_sequence_length",
    }
    required = (
        "d_model", "embedding_size", "eos_token_id", "include_bias", "include_qkv_bias", "input_emb_norm",
        "mask_token_id", "max_sequence_length", "mlp_hidden_size", "mlp_ratio", "n_heads", "n_kv_heads", "n_layers",
        "pad_token_id", "rms_norm_eps", "scale_logits", "vocab_size", "weight_tying",
    )  # fmt: skip
    only = {  # noqa: RUF012
        "activation_type": ("silu",),
        "alibi": (False,),
        "attention_dropout": (0.0,),
        "attention_layer_norm": (False,),
        "bias_for_layer_norm": (False, None),
        "block_group_size": (1,),
        "block_type": ("llama",),
        "embedding_dropout": (0.0,),
        "include_bias": (False,),
        "layer_norm_type": ("rms",),
        "layer_norm_with_affine": (True,),
        "residual_dropout": (0.0,),
        "rope": (True,),
        "rope_full_precision": (True,),
        "rope_scaling": (None,),
        "sliding_window": (None,),
    }

    @property
    def key_value_heads(self) -> int:
        """Heads of keys and values."""
        if self.n_kv_heads is not None:
            return int(self.n_kv_heads)
        return 1 if getattr(self, "multi_query_attention", None) else int(self.n_heads)

    @property
    def head_size(self) -> int:
        """Numbers per head."""
        return int(self.d_model // self.n_heads)

    @property
    def feed_forward_size(self) -> int:
        """Width of the gated feed-forward layer."""
        return int(self.mlp_ratio * self.d_model if self.mlp_hidden_size is None else self.mlp_hidden_size)


class LLaDAMoEConfig(PublishedConfig):
    """Published keys of `inclusionAI/LLaDA-MoE-7B-A1B-*`, whose `model_type` is that of the dense models.

    `norm_topk_prob` changes nothing: the published module never renormalises.
    """

    model_type = "llada"
    required = (
        "attention_bias", "dense_intermediate_size", "eos_token_id", "expert_intermediate_size", "hidden_size",
        "max_position_embeddings", "moe_layer_freq", "moe_router_enable_expert_bias", "num_attention_heads",
        "num_experts", "num_experts_per_tok", "num_hidden_layers", "num_key_value_heads", "qk_layernorm",
        "rms_norm_eps", "vocab_size",
    )  # fmt: skip
    only = {  # noqa: RUF012
        "attention_dropout": (0.0,),
        "clip_qkv": (None,),
        "hidden_act": ("silu",),
        "moe_router_score_function": ("softmax",),
        "partial_rotary_factor": (1, 1.0),
        "rope_scaling": (None,),
        "routed_scaling_factor": (1, 1.0, None),
        "router_num_group": (None, 0, 1),
        "router_topk_group": (None, 0, 1),
        "tie_word_embeddings": (False,),
    }
    absent = {"mask_token_id": 156895}  # noqa: RUF012

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        if len(self.moe_layer_freq) != self.num_hidden_layers:
            raise UnsupportedValueError(
                f"llada configuration has moe_layer_freq for {len(self.moe_layer_freq)} layers and "
                f"num_hidden_layers = {self.num_hidden_layers}"
            )
