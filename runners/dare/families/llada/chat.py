"""LLaDA's special tokens and chat template, rendering what the published one renders."""

from __future__ import annotations

from dare.tokenizer import SpecialTokens

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
    prompt_starts_with_bos=True,
)

# As published, the answer's header follows whatever `add_generation_prompt` says, and contents lose outer whitespace.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}"
    "{% endfor %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
)
