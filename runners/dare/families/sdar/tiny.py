"""SDAR at the size of a laptop: the published configurations with smaller numbers."""

from __future__ import annotations

from typing import Any

from dare.families.sdar.configuration import SDARConfig, SDARMoeConfig


def tiny_sdar(tokenizer: Any) -> SDARConfig:
    """Width 64, 4 layers, 2 heads of 32 on one key-value head, blocks of 4; ids from the tokenizer."""
    return SDARConfig(**_shared(tokenizer), intermediate_size=192)


def tiny_sdar_moe(tokenizer: Any) -> SDARMoeConfig:
    """The same with 8 experts of 56 in every layer, of which each token visits 2."""
    return SDARMoeConfig(
        **_shared(tokenizer),
        decoder_sparse_step=1,
        intermediate_size=192,
        mlp_only_layers=[],
        moe_intermediate_size=56,
        norm_topk_prob=True,
        num_experts=8,
        num_experts_per_tok=2,
        output_router_logits=False,
        router_aux_loss_coef=0.001,
    )


def _shared(tokenizer: Any) -> dict[str, Any]:
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "block_size": 4,
        "bos_token_id": tokenizer.eos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "head_dim": 32,
        "hidden_act": "silu",
        "hidden_size": 64,
        "initializer_range": 0.02,
        "mask_token_id": tokenizer.mask_token_id,
        "max_position_embeddings": 128,
        "max_window_layers": 4,
        "num_attention_heads": 2,
        "num_hidden_layers": 4,
        "num_key_value_heads": 1,
        "pad_token_id": tokenizer.pad_token_id,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "use_cache": False,
        "use_sliding_window": False,
        "vocab_size": len(tokenizer),
    }
