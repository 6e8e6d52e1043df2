"""SDAR's special tokens and chat template, rendering what the published one (Qwen3's) renders."""

from __future__ import annotations

from dare.families.chat_pieces import (
    LAST_QUESTION,
    SPLIT_REASONING,
    TOOL_CALL,
    TOOL_CALLS_AFTER_TEXT,
    TOOL_RESULT,
    TOOL_SIGNATURES,
)
from dare.tokenizer import SpecialTokens

SPECIAL = SpecialTokens(
    order=("<|endoftext|>", "<|MASK|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"),
    eos="<|endoftext|>",
    pad="<|endoftext|>",
    mask="<|MASK|>",
    end_of_turn="<|im_end|>",
    text=("<think>", "</think>"),
)

# Answers before the last question lose their reasoning. `enable_thinking=False` puts an empty thought into the header.
CHAT_TEMPLATE = (
    TOOL_SIGNATURES
    + TOOL_CALL
    + TOOL_RESULT
    + LAST_QUESTION
    + r"""
{%- set system = messages[0].content if messages[0].role == 'system' else '' %}
{%- if tools %}
    {{- '<|im_start|>system\n' + (system + '\n\n' if messages[0].role == 'system' else '') }}
    {{- tool_signatures() + '<|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + system + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}"""
    + SPLIT_REASONING
    + r"""
    {%- if message.role == 'tool' %}
        {{- tool_result(loop.index0, '<|im_start|>user', '<|im_end|>\n') }}
    {%- elif message.role == 'assistant' %}
        {%- set in_progress = loop.index0 > last.question and (loop.last or reasoning) %}
        {{- '<|im_start|>assistant\n' + (thought if in_progress else content) }}"""
    + TOOL_CALLS_AFTER_TEXT
    + r"""
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {{- '<think>\n\n</think>\n\n' if enable_thinking is defined and enable_thinking is false else '' }}
{%- endif %}"""
)
