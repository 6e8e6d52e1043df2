"""The configuration of SDAR, by its published keys."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

from dare.families.published_config import FOREIGN, MissingKeyError, check_published_config, rope_theta_of

REQUIRED = (
    "eos_token_id", "head_dim", "hidden_size", "intermediate_size", "max_position_embeddings", "num_attention_heads",
    "num_hidden_layers", "num_key_value_heads", "rms_norm_eps", "vocab_size",
)  # fmt: skip

ONLY: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False,),
    "attention_dropout": (0.0,),
    "hidden_act": ("silu",),
    "rope_scaling": (None,),
    "sliding_window": (None,),
    "tie_word_embeddings": (False,),
    "use_sliding_window": (False,),
}

# The published files of some sizes lack these two keys; upstream takes them from the tokenizer and the command line.
PUBLISHED_MASK_TOKEN_ID = 151669
PUBLISHED_BLOCK_SIZE = 4


class SDARConfig(PretrainedConfig):  # type: ignore[misc]
    """Published keys of `JetLM/SDAR-*-Chat`; keys that change nothing here are kept and written back.

    `norm_rounds_once` is ours: see `RMSNorm`.
    """

    model_type = "sdar"
    has_no_defaults_at_init = True

    def __init__(self, **values: Any) -> None:
        values = {key: value for key, value in values.items() if key not in FOREIGN}
        check_published_config("sdar", values, REQUIRED, ONLY)
        values.pop("rope_scaling", None)  # null by now; transformers 5 warns about the key itself
        values["rope_theta"] = rope_theta_of("sdar", values)
        values.setdefault("tie_word_embeddings", False)
        values.setdefault("mask_token_id", PUBLISHED_MASK_TOKEN_ID)
        values.setdefault("block_size", PUBLISHED_BLOCK_SIZE)
        values.setdefault("norm_rounds_once", False)
        if values["mask_token_id"] >= values["vocab_size"]:
            raise MissingKeyError(
                f"sdar configuration lacks mask_token_id, and the published one, {values['mask_token_id']}, "
                f"is no token of a vocabulary of {values['vocab_size']}"
            )
        if values.get("pad_token_id") is None:
            values["pad_token_id"] = values["eos_token_id"]
        super().__init__(**values)
