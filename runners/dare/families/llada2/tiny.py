"""LLaDA2 at the size of a laptop: the published configuration with smaller numbers."""

from __future__ import annotations

from typing import Any

from dare.families.llada2.configuration import LLaDA2MoeConfig


def tiny_llada2(tokenizer: Any) -> LLaDA2MoeConfig:
    """Width 64, 4 layers, 2 heads of 32 on one key-value head, half rotated; blocks of 4.

    The first layer is dense; the others have one shared expert and 8 in 4 groups of which 2 are kept, each of 56
    numbers, and every token visits 2.
    """
    return LLaDA2MoeConfig(
        attention_dropout=0.0,
        block_size=4,
        embedding_dropout=0.0,
        eos_token_id=tokenizer.eos_token_id,
        first_k_dense_replace=1,
        head_dim=32,
        hidden_act="silu",
        hidden_size=64,
        initializer_range=0.02,
        intermediate_size=192,
        mask_token_id=tokenizer.mask_token_id,
        max_position_embeddings=128,
        max_window_layers=4,
        moe_intermediate_size=56,
        moe_router_enable_expert_bias=True,
        n_group=4,
        norm_head=False,
        norm_softmax=False,
        norm_topk_prob=True,
        num_attention_heads=2,
        num_experts=8,
        num_experts_per_tok=2,
        num_hidden_layers=4,
        num_key_value_heads=1,
        num_shared_experts=1,
        output_dropout=0.0,
        output_router_logits=False,
        pad_token_id=tokenizer.pad_token_id,
        partial_rotary_factor=0.5,
        rms_norm_eps=1e-6,
        rope_scaling=None,
        rope_theta=600000,
        rotary_dim=16,
        routed_scaling_factor=2.5,
        router_dtype="fp32",
        score_function="sigmoid",
        sliding_window=4096,
        tie_word_embeddings=False,
        topk_group=2,
        use_bias=False,
        use_cache=False,
        use_qk_norm=True,
        use_qkv_bias=False,
        use_rmsnorm=True,
        use_sliding_window=False,
        using_split_qkv_in_self_attention=False,
        vocab_size=len(tokenizer),
    )
