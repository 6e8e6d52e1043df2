"""LLaDA2.0's and LLaDA2.1's special tokens and chat template, rendering what the published one renders."""

from __future__ import annotations

from dare.families.chat_pieces import (
    LAST_QUESTION,
    SPLIT_REASONING,
    TOOL_CALL,
    TOOL_CALLS_AFTER_TEXT,
    TOOL_RESULT,
    TOOL_SIGNATURES,
)
from dare.tokenizer import WHOLE_WORDS, SpecialTokens

SPECIAL = SpecialTokens(
    order=("<|endoftext|>", "<|mask|>", "<|startoftext|>", "<role>", "</role>", "<|role_end|>"),
    eos="<|endoftext|>",
    pad="<|endoftext|>",
    mask="<|mask|>",
    end_of_turn="<|role_end|>",
    bos="<|startoftext|>",
    words=("detailed thinking off", "SYSTEM", "HUMAN", "ASSISTANT", *WHOLE_WORDS),
)

# Every dialogue begins with a system turn that switches thinking off; there is no beginning of sequence.
CHAT_TEMPLATE = (
    TOOL_SIGNATURES
    + TOOL_CALL
    + TOOL_RESULT
    + LAST_QUESTION
    + r"""
{{- '<role>SYSTEM</role>' + (messages[0].content + '\n' if messages[0].role == 'system' else '') }}
{{- (tool_signatures() + '\n' if tools else '') + 'detailed thinking off<|role_end|>' }}
{%- for message in messages %}"""
    + SPLIT_REASONING
    + r"""
    {%- if message.role == 'tool' %}
        {{- tool_result(loop.index0, '<role>OBSERVATION</role>', '<|role_end|>') }}
    {%- elif message.role == 'assistant' %}
        {%- set in_progress = loop.index0 > last.question and reasoning %}
        {{- '<role>ASSISTANT</role>' + ('\n' + thought if in_progress else content) }}"""
    + TOOL_CALLS_AFTER_TEXT
    + r"""
        {{- '<|role_end|>' }}
    {%- elif message.role == 'user' %}
        {{- '<role>HUMAN</role>' + message.content + '<|role_end|>' }}
    {%- elif message.role == 'system' and not loop.first %}
        {{- '<role>SYSTEM</role>' + message.content + '<|role_end|>' }}
    {%- endif %}
{%- endfor %}
{{- '<role>ASSISTANT</role>' if add_generation_prompt else '' }}"""
)
