"""Dream at the size of a laptop: the published configuration with smaller numbers."""

from __future__ import annotations

from typing import Any

from dare.families.dream.configuration import DreamConfig


def tiny_dream(tokenizer: Any) -> DreamConfig:
    """Width 64, 4 layers, 2 heads of 32 on one key-value head; ids from the tokenizer."""
    return DreamConfig(
        attention_dropout=0.0,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        hidden_act="silu",
        hidden_size=64,
        initializer_range=0.02,
        intermediate_size=192,
        mask_token_id=tokenizer.mask_token_id,
        max_position_embeddings=128,
        max_window_layers=4,
        num_attention_heads=2,
        num_hidden_layers=4,
        num_key_value_heads=1,
        pad_token_id=tokenizer.pad_token_id,
        rms_norm_eps=1e-6,
        rope_scaling=None,
        rope_theta=1000000.0,
        sliding_window=None,
        tie_word_embeddings=False,
        use_cache=True,
        use_mrope=False,
        use_sliding_window=False,
        vocab_size=len(tokenizer),
    )
