"""Dream's special tokens and chat template, rendering what the published one (Qwen2.5's) renders."""

from __future__ import annotations

from dare.families.chat_pieces import TOOL_CALL, TOOL_RESULT, TOOL_SIGNATURES
from dare.tokenizer import WHOLE_WORDS, SpecialTokens

SPECIAL = SpecialTokens(
    order=("<|endoftext|>", "<|mask|>", "<|beginoftext|>", "<|im_start|>", "<|im_end|>"),
    eos="<|endoftext|>",
    pad="<|endoftext|>",
    mask="<|mask|>",
    end_of_turn="<|im_end|>",
    bos="<|beginoftext|>",
    words=("You are a helpful assistant.", *WHOLE_WORDS),
)

# A dialogue without a system turn gets one. Reasoning in earlier answers stays.
CHAT_TEMPLATE = (
    TOOL_SIGNATURES
    + TOOL_CALL
    + TOOL_RESULT
    + r"""
{%- set given = messages[0].role == 'system' %}
{{- '<|im_start|>system\n' + (messages[0].content if given else 'You are a helpful assistant.') }}
{{- ('\n\n' + tool_signatures() if tools else '') + '<|im_end|>\n' }}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- tool_result(loop.index0, '<|im_start|>user', '<|im_end|>\n') }}
    {%- elif message.role == 'assistant' and message.tool_calls %}
        {{- '<|im_start|>assistant' + ('\n' + message.content if message.content else '') }}
        {%- for call in message.tool_calls %}
            {%- set call = call.function or call %}
            {{- '\n' + tool_call(call.name, call.arguments | tojson) }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role in ('user', 'assistant') or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{{- '<|im_start|>assistant\n' if add_generation_prompt else '' }}"""
)
