"""LLaDA at the size of a laptop: the published configurations with smaller numbers."""

from __future__ import annotations

from typing import Any

from dare.families.llada.configuration import LLaDAConfig, LLaDAMoEConfig


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


def tiny_llada_moe(tokenizer: Any) -> LLaDAMoEConfig:
    """Width 64, 4 layers, 2 heads of 32; the first layer dense, the others with 8 experts of 56, 2 a token."""
    return LLaDAMoEConfig(
        attention_bias=False,
        attention_dropout=0.0,
        clip_qkv=None,
        dense_intermediate_size=192,
        eos_token_id=tokenizer.eos_token_id,
        expert_intermediate_size=56,
        hidden_act="silu",
        hidden_size=64,
        initializer_range=0.02,
        mask_token_id=tokenizer.mask_token_id,
        max_position_embeddings=128,
        moe_layer_freq=[0, 1, 1, 1],
        moe_router_enable_expert_bias=False,
        moe_router_score_function="softmax",
        norm_topk_prob=None,
        num_attention_heads=2,
        num_experts=8,
        num_experts_per_tok=2,
        num_hidden_layers=4,
        num_key_value_heads=2,
        output_router_logits=False,
        pad_token_id=tokenizer.pad_token_id,
        partial_rotary_factor=1,
        qk_layernorm=True,
        rms_norm_eps=1e-5,
        rope_scaling=None,
        rope_theta=50000.0,
        routed_scaling_factor=1,
        router_num_group=None,
        router_topk_group=None,
        shared_expert_intermediate_size=None,
        tie_word_embeddings=False,
        use_cache=False,
        vocab_size=len(tokenizer),
    )
