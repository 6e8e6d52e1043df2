"""LLaDA at the size of a laptop: the published configuration with smaller numbers."""

from __future__ import annotations

from typing import Any

from dare.families.llada.configuration import LLaDAConfig


def tiny_llada(tokenizer: Any) -> LLaDAConfig:
    """Width 64, 4 layers, 2 heads of 32; ids and vocabulary from the tokenizer."""
    vocabulary = len(tokenizer)
    return LLaDAConfig(
        activation_type="silu",
        alibi=False,
        attention_dropout=0.0,
        attention_layer_norm=False,
        attention_layer_norm_with_affine=True,
        bias_for_layer_norm=False,
        block_group_size=1,
        block_type="llama",
        d_model=64,
        embedding_dropout=0.0,
        embedding_size=vocabulary,
        eos_token_id=tokenizer.eos_token_id,
        flash_attention=False,
        include_bias=False,
        include_qkv_bias=False,
        init_fn="mitchell",
        init_std=0.02,
        input_emb_norm=False,
        layer_norm_type="rms",
        layer_norm_with_affine=True,
        mask_token_id=tokenizer.mask_token_id,
        max_sequence_length=128,
        mlp_hidden_size=176,
        mlp_ratio=4,
        multi_query_attention=None,
        n_heads=2,
        n_kv_heads=2,
        n_layers=4,
        pad_token_id=tokenizer.pad_token_id,
        residual_dropout=0.0,
        rms_norm_eps=1e-5,
        rope=True,
        rope_full_precision=True,
        rope_theta=500000.0,
        scale_logits=False,
        use_cache=False,
        vocab_size=vocabulary,
        weight_tying=False,
    )
