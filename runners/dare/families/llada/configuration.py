"""The configuration of LLaDA, by its published keys."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

from dare.families.published_config import FOREIGN, UnsupportedValueError, check_published_config, rope_theta_of

REQUIRED = (
    "d_model", "embedding_size", "eos_token_id", "include_bias", "include_qkv_bias", "input_emb_norm", "mask_token_id",
    "max_sequence_length", "mlp_hidden_size", "mlp_ratio", "n_heads", "n_kv_heads", "n_layers", "pad_token_id",
    "rms_norm_eps", "scale_logits", "vocab_size", "weight_tying",
)  # fmt: skip

ONLY: dict[str, tuple[Any, ...]] = {
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


class LLaDAConfig(PretrainedConfig):  # type: ignore[misc]
    """Published keys of `GSAI-ML/LLaDA-8B-*`; keys that change nothing here are kept and written back.

    `n_kv_heads` null means `n_heads` (1 with `multi_query_attention`), `mlp_hidden_size` null means
    `mlp_ratio * d_model`, and `embedding_size` may exceed `vocab_size`.
    """

    model_type = "llada"
    has_no_defaults_at_init = True
    attribute_map = {  # noqa: RUF012
        "hidden_size": "d_model",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
        "max_position_embeddings": "max_sequence_length",
    }

    def __init__(self, **values: Any) -> None:
        values = {key: value for key, value in values.items() if key not in FOREIGN}
        check_published_config("llada", values, REQUIRED, ONLY)
        values.pop("rope_scaling", None)  # null by now; transformers 5 warns about the key itself
        values["rope_theta"] = rope_theta_of("llada", values)
        if values["mask_token_id"] == values["pad_token_id"]:
            raise UnsupportedValueError(
                f"llada configuration has mask_token_id = pad_token_id = {values['pad_token_id']}: "
                "padding would be decoded as if it were masked"
            )
        values.setdefault("tie_word_embeddings", False)  # tying is `weight_tying`, done by our module
        super().__init__(**values)

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
