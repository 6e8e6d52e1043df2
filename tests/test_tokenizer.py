"""Chat templates render as published, and the tiny tokenizers read and write what they should."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dare.families.llada.tiny import CHAT_TEMPLATE as LLADA_TEMPLATE
from dare.families.llada.tiny import SPECIAL as LLADA
from dare.families.sdar.tiny import CHAT_TEMPLATE as SDAR_TEMPLATE
from dare.families.sdar.tiny import SPECIAL as SDAR
from dare.tokenizer import (
    ChatTokenizer,
    SpecialTokens,
    TokenizerError,
    character_tokenizer,
    chat_tokenizer,
    load_tokenizer,
    render,
)

CHARACTERS = list("0123456789+-*/=()., abcdefghijklmn?")
FAMILIES = {"llada": (LLADA, LLADA_TEMPLATE), "sdar": (SDAR, SDAR_TEMPLATE)}


def tiny(family: str) -> ChatTokenizer:
    special, template = FAMILIES[family]
    fast = character_tokenizer(special, CHARACTERS, template)
    return chat_tokenizer(fast, special.end_of_turn, [fast.eos_token_id])


@pytest.mark.shared
@pytest.mark.parametrize("family", FAMILIES)
def test_the_template_renders_the_published_text(shared: Path, family: str) -> None:
    published = json.loads((shared / f"goldens/{family}/published.json").read_text())
    fast = tiny(family).fast
    assert published["chat"]["dialogues"]
    for dialogue in published["chat"]["dialogues"]:
        assert render(fast, dialogue["messages"], **dialogue["options"]) == dialogue["text"]


def test_sdar_answers_in_a_history_lose_their_reasoning() -> None:
    fast = tiny("sdar").fast
    history = [{"role": "assistant", "content": "<think>\nwhy\n</think>\n\n7"}, {"role": "user", "content": "and?"}]
    assert "<|im_start|>assistant\n7<|im_end|>" in render(fast, history)


@pytest.mark.parametrize("family", FAMILIES)
def test_special_tokens_come_first_in_the_documented_order(family: str) -> None:
    special, _ = FAMILIES[family]
    assert tiny(family).fast.convert_ids_to_tokens(range(len(special.order))) == list(special.order)


@pytest.mark.parametrize(("family", "cost"), [("llada", 10), ("sdar", 8)])
def test_the_template_costs_few_tokens(family: str, cost: int) -> None:
    assert len(tiny(family).prompt_ids("12+3")) == 4 + cost


def test_a_llada_prompt_has_exactly_one_beginning_of_sequence() -> None:
    tokenizer = tiny("llada")
    ids = tokenizer.prompt_ids("1+1")
    assert ids[0] == tokenizer.fast.bos_token_id
    assert ids.count(tokenizer.fast.bos_token_id) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_ends_its_turn_and_decodes_to_itself(family: str) -> None:
    tokenizer, text = tiny(family), "12 + 3\n\nuser = (4)\na"
    ids = tokenizer.answer_ids(text)
    assert ids[-1] == tokenizer.end_of_turn_id
    assert ids.count(tokenizer.end_of_turn_id) == 1
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("family", FAMILIES)
def test_decoding_stops_at_the_first_end_whichever_it_is(family: str) -> None:
    tokenizer = tiny(family)
    seven, eight = tokenizer.answer_ids("7")[0], tokenizer.answer_ids("8")[0]
    assert set(tokenizer.eos_ids) == {tokenizer.fast.eos_token_id, tokenizer.end_of_turn_id}
    for end in tokenizer.eos_ids:
        assert tokenizer.decode([seven, end, eight]) == "7"
    assert tokenizer.decode([]) == ""


@pytest.mark.parametrize("family", FAMILIES)
def test_pieces_show_every_id_also_the_special_ones(family: str) -> None:
    tokenizer = tiny(family)
    pieces = tokenizer.pieces(tokenizer.prompt_ids("1 2"))
    assert len(pieces) == len(tokenizer.prompt_ids("1 2"))
    assert "".join(pieces) == render(tokenizer.fast, [{"role": "user", "content": "1 2"}])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_tokenizer_comes_back_the_same(family: str, tmp_path: Path) -> None:
    before = tiny(family)
    before.save(tmp_path)
    after = load_tokenizer(tmp_path, FAMILIES[family][0].end_of_turn, [before.fast.eos_token_id])
    text = "(12 + 3) user\n\nsystem"
    assert after.prompt_ids(text) == before.prompt_ids(text)
    assert after.answer_ids(text) == before.answer_ids(text)
    assert after.decode(after.answer_ids(text)) == text
    assert after.eos_ids == before.eos_ids


def test_a_tokenizer_without_the_end_of_turn_is_refused() -> None:
    with pytest.raises(TokenizerError, match=r"no token '<\|im_end\|>'"):
        chat_tokenizer(tiny("llada").fast, "<|im_end|>", [0])


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path, "<|eot_id|>", [0])


def test_a_character_that_is_already_a_word_gets_no_second_id() -> None:
    special = SpecialTokens(order=("<e>", "<m>"), eos="<e>", pad="<e>", mask="<m>", end_of_turn="<e>")
    fast = character_tokenizer(special, ["a", "\n", "a"], LLADA_TEMPLATE)
    assert len(fast) == 2 + 5 + 1
