"""The configuration of Dream, by its published keys."""

from __future__ import annotations

from dare.families.published_config import QWEN_ONLY, PublishedConfig


class DreamConfig(PublishedConfig):
    """Published keys of `Dream-org/Dream-v0-*-7B`, Dream-Coder and DiffuCoder."""

    model_type = "Dream"
    required = (
        "eos_token_id", "hidden_size", "intermediate_size", "mask_token_id", "max_position_embeddings",
        "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "rms_norm_eps", "vocab_size",
    )  # fmt: skip
    only = QWEN_ONLY | {"use_mrope": (False,)}  # type: ignore[operator]
