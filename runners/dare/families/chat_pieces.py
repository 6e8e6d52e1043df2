"""Pieces of chat templates (Jinja) that Dream, SDAR and LLaDA2 share: tools in Qwen's words, and reasoning."""

from __future__ import annotations

TOOL_SIGNATURES = r"""
{%- macro tool_signatures() %}
    {{- '# Tools\n\nYou may call one or more functions to assist with the user query.\n\n' }}
    {{- 'You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n' }}
    {%- for tool in tools %}
        {{- tool | tojson + '\n' }}
    {%- endfor %}
    {{- '</tools>\n\nFor each function call, return a json object with function name and arguments ' }}
    {{- 'within <tool_call></tool_call> XML tags:\n<tool_call>\n' }}
    {{- '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>' }}
{%- endmacro %}"""
"""`tool_signatures()`: what the system turn says about `tools`."""

TOOL_CALL = r"""
{%- macro tool_call(name, arguments) %}
    {{- '<tool_call>\n{"name": "' + name + '", "arguments": ' + arguments + '}\n</tool_call>' }}
{%- endmacro %}"""
"""`tool_call(name, arguments)`: one call, its arguments as JSON text."""

TOOL_RESULT = r"""
{%- macro tool_result(index, opening, closing) %}
    {{- opening if index == 0 or messages[index - 1].role != 'tool' else '' }}
    {{- '\n<tool_response>\n' + messages[index].content + '\n</tool_response>' }}
    {{- closing if index + 1 == messages | length or messages[index + 1].role != 'tool' else '' }}
{%- endmacro %}"""
"""`tool_result(index, opening, closing)`: the result that `messages[index]` holds; neighbours share one turn."""

LAST_QUESTION = r"""
{%- set last = namespace(question=messages | length - 1) %}
{%- for message in messages %}
    {%- set text = message.content if message.content is string else '' %}
    {%- set is_result = text.startswith('<tool_response>') and text.endswith('</tool_response>') %}
    {%- if message.role == 'user' and not is_result %}
        {%- set last.question = loop.index0 %}
    {%- endif %}
{%- endfor %}"""
"""Sets `last.question`: the reasoning of answers before it is dropped, that of a tool loop after it is kept."""

SPLIT_REASONING = r"""
    {%- set content = message.content if message.content is string else '' %}
    {%- set reasoning = message.reasoning_content or '' %}
    {%- if message.reasoning_content is not string and '</think>' in content %}
        {%- set reasoning = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {%- set thought = '<think>\n' + reasoning.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') %}"""
"""Sets, for `message`: `content` without its reasoning, `reasoning`, and `thought`, the two as one text."""

TOOL_CALLS_AFTER_TEXT = r"""
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function or call %}
            {%- set json = call.arguments if call.arguments is string else call.arguments | tojson %}
            {{- ('\n' if content or not loop.first else '') + tool_call(call.name, json) }}
        {%- endfor %}"""
"""Writes the calls of `message`, the first on the line of its text if that is empty."""
