"""SDAR at the size of a laptop: the published configuration with smaller numbers, and characters for tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dare.families.layers import fresh_model
from dare.families.sdar.configuration import SDARConfig
from dare.families.sdar.modeling import SDARForCausalLM
from dare.tokenizer import SpecialTokens, character_tokenizer

SPECIAL = SpecialTokens(
    order=("<|endoftext|>", "<|MASK|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"),
    eos="<|endoftext|>",
    pad="<|endoftext|>",
    mask="<|MASK|>",
    end_of_turn="<|im_end|>",
)

# Renders what the published template renders for dialogues without tools; earlier answers lose their reasoning.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% set content = message.content %}"
    "{% if message.role == 'assistant' %}{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
    "{% endif %}"
)


def tiny_config(tokenizer: Any) -> SDARConfig:
    """Width 64, 4 layers, 2 heads of 32 on one key-value head, blocks of 4; ids from the tokenizer."""
    return SDARConfig(
        attention_bias=False,
        attention_dropout=0.0,
        block_size=4,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        head_dim=32,
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
        rope_theta=1000000,
        sliding_window=None,
        tie_word_embeddings=False,
        use_cache=False,
        use_sliding_window=False,
        vocab_size=len(tokenizer),
    )


def tiny_sdar(characters: Sequence[str], generator: torch.Generator) -> tuple[SDARForCausalLM, Any]:
    """A fresh model and its tokenizer."""
    tokenizer = character_tokenizer(SPECIAL, characters, CHAT_TEMPLATE)
    return fresh_model(SDARForCausalLM, tiny_config(tokenizer), generator), tokenizer
