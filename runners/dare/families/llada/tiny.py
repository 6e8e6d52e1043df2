"""LLaDA at the size of a laptop: the published configuration with smaller numbers, and characters for tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dare.families.layers import fresh_model
from dare.families.llada.configuration import LLaDAConfig
from dare.families.llada.modeling import LLaDAModelLM
from dare.tokenizer import SpecialTokens, character_tokenizer

SPECIAL = SpecialTokens(
    order=(
        "<|endoftext|>",
        "<|mdm_mask|>",
        "<|startoftext|>",
        "<|eot_id|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
    ),
    eos="<|endoftext|>",
    pad="<|endoftext|>",
    mask="<|mdm_mask|>",
    end_of_turn="<|eot_id|>",
    bos="<|startoftext|>",
)

# Renders what the published template renders: the header of the answer follows whatever `add_generation_prompt` says.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}"
    "{% endfor %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
)


def tiny_config(tokenizer: Any) -> LLaDAConfig:
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


def tiny_llada(characters: Sequence[str], generator: torch.Generator) -> tuple[LLaDAModelLM, Any]:
    """A fresh model and its tokenizer."""
    tokenizer = character_tokenizer(SPECIAL, characters, CHAT_TEMPLATE)
    return fresh_model(LLaDAModelLM, tiny_config(tokenizer), generator), tokenizer
