"""Chat templates write what the published ones write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dare.families.dream.chat import CHAT_TEMPLATE as DREAM
from dare.families.llada.chat import CHAT_TEMPLATE as LLADA
from dare.families.llada2.chat import CHAT_TEMPLATE as LLADA2
from dare.families.sdar.chat import CHAT_TEMPLATE as SDAR
from dare.tokenizer import SpecialTokens, TokenizerError, character_tokenizer, render

TEMPLATES = {"llada": LLADA, "dream": DREAM, "sdar": SDAR, "llada2": LLADA2}
GOLDENS = {"llada": LLADA, "dream": DREAM, "sdar": SDAR, "sdar_moe": SDAR, "llada2": LLADA2, "llada2_1": LLADA2}
FURTHER: list[dict[str, Any]] = json.loads((Path(__file__).parent / "goldens/tokenizers/dialogues.json").read_text())
ASKED = [{"role": "user", "content": "?"}]


def writer(template: str) -> Any:
    """A tokenizer that only renders."""
    special = SpecialTokens(("<e>", "<m>", "<|startoftext|>"), "<e>", "<e>", "<m>", "<e>", bos="<|startoftext|>")
    return character_tokenizer(special, [], template)


@pytest.mark.shared
@pytest.mark.parametrize("golden", GOLDENS)
def test_the_template_renders_the_published_text(shared: Path, golden: str) -> None:
    published = json.loads((shared / f"goldens/{golden}/published.json").read_text())
    fast = writer(GOLDENS[golden])
    assert published["chat"]["dialogues"]
    for dialogue in published["chat"]["dialogues"]:
        assert render(fast, dialogue["messages"], **dialogue["options"]) == dialogue["text"]


@pytest.mark.parametrize("family", TEMPLATES)
@pytest.mark.parametrize("dialogue", FURTHER, ids=[dialogue["id"] for dialogue in FURTHER])
def test_tools_reasoning_and_whitespace_are_rendered_as_published(family: str, dialogue: dict[str, Any]) -> None:
    if family in dialogue["text"]:
        fast = writer(TEMPLATES[family])
        assert render(fast, dialogue["messages"], **dialogue["options"]) == dialogue["text"][family]


def test_every_family_is_among_the_further_dialogues() -> None:
    assert {family for dialogue in FURTHER for family in dialogue["text"]} == set(TEMPLATES)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0]['content'] ", "unexpected end of template"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
    ],
)
def test_a_template_that_raises_is_answered_with_what_it_says(template: str, said: str) -> None:
    with pytest.raises(TokenizerError, match=f"the chat template cannot write this dialogue: .*{said}"):
        render(writer(template), ASKED)
