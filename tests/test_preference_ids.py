"""A preference's responses are tokenised without a template: the answer's ids and one end of turn, in every family.

Sent through a chat template, a response would begin with a header of its own (LLaDA, SDAR, LLaDA2) or with a system
turn (Dream), and the pair would be compared on text that no decoder writes.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from test_tokenizer import FAMILIES, QWEN, load, without_the_list_of_holes, write_bytes, write_qwen

from dare.data import load_data_set
from dare.data.batches import preference_rollout
from dare.data.corpus import Preference
from dare.family import Backbone
from dare.tokenizer import ChatTokenizer, render

WINDOW = 64
DIALOGUE = (
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "5"},
    {"role": "user", "content": "Sure?"},
)
PAIRS = (
    Preference("2+2?", "4", " 5\n"),
    Preference(DIALOGUE, "No: 4.", ""),
    Preference(DIALOGUE, "<|im_start|>assistant\n4<|im_end|>", "<|eot_id|><role>HUMAN</role>"),
)
"""White space stays, an empty answer is its end alone, and special tokens that an answer spells are text."""


def backbone(tokenizer: ChatTokenizer, block_size: int | None) -> Backbone:
    """What rows are made with: no weights are needed."""
    eos = tokenizer.eos_ids
    return cast(Backbone, SimpleNamespace(tokenizer=tokenizer, pad_id=eos[0], eos_ids=eos, block_size=block_size))


def sides(
    tokenizer: ChatTokenizer, pairs: tuple[Preference, ...], block_size: int | None
) -> list[tuple[list[int], list[int]]]:
    """Prompt and completion of every row, as the loss gets them."""
    rollout = preference_rollout(backbone(tokenizer, block_size), pairs, WINDOW)
    return [
        (
            rollout.ids[row][rollout.valid[row] & ~rollout.window[row]].tolist(),
            rollout.ids[row][rollout.completion[row]].tolist(),
        )
        for row in range(2 * len(pairs))
    ]


@pytest.fixture(scope="module", params=FAMILIES)
def of_bytes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    """A family's template over a vocabulary of bytes."""
    folder, chat = tmp_path_factory.mktemp(request.param), FAMILIES[request.param]
    return load(folder, chat, write_bytes(folder, chat.SPECIAL))


@pytest.fixture(scope="module", params=QWEN)
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ChatTokenizer]:
    """A published tokenizer with its own ids."""
    folder = tmp_path_factory.mktemp(request.param)
    config = write_qwen(folder, request.param)
    with without_the_list_of_holes():
        return request.param, load(folder, QWEN[request.param][0], config)


@pytest.mark.parametrize("block_size", [None, 4])
def test_a_response_is_its_own_ids_and_one_end_of_turn(of_bytes: ChatTokenizer, block_size: int | None) -> None:
    alphabet = {of_bytes.fast.convert_ids_to_tokens(index): index for index in range(256)}
    rows = sides(of_bytes, PAIRS, block_size)
    for number, pair in enumerate(PAIRS):
        for (prompt, completion), answer in zip(rows[2 * number :], (pair.chosen, pair.rejected), strict=False):
            written = answer.replace(" ", "\u0120").replace("\n", "\u010a")  # how a vocabulary of bytes spells them
            assert completion == [*(alphabet[byte] for byte in written), of_bytes.end_of_turn_id]
            assert prompt == of_bytes.prompt_ids(pair.prompt)


def test_a_dialogue_before_the_response_is_written_by_the_template(of_bytes: ChatTokenizer) -> None:
    (prompt, _), *_ = sides(of_bytes, PAIRS[1:], None)
    assert of_bytes.fast.decode(prompt) == render(of_bytes.fast, DIALOGUE)


def test_through_the_template_a_response_would_not_be_what_is_decoded(of_bytes: ChatTokenizer) -> None:
    """The pitfall, so that the tests above could fail."""
    wrong = of_bytes.fast.apply_chat_template([{"role": "assistant", "content": "4"}], tokenize=False)
    assert len(of_bytes.fast.encode(wrong, add_special_tokens=False)) > len(of_bytes.answer_ids("4"))


def test_responses_have_the_published_ids(published: tuple[str, ChatTokenizer]) -> None:
    """Of Qwen2's vocabulary: hello is 14990, the end of a turn 151645."""
    (_, chosen), (_, rejected) = sides(published[1], (Preference("hello", "hello", ""),), None)
    assert chosen == [14990, 151645]
    assert rejected == [151645]


@pytest.mark.shared
def test_responses_and_dialogues_have_the_ids_of_the_published_tokenizer(
    shared: Path, published: tuple[str, ChatTokenizer]
) -> None:
    family, tokenizer = published
    chat = json.loads((shared / f"goldens/{family}/published.json").read_text())["chat"]
    asked = [d for d in chat["dialogues"] if not d["options"] and d["messages"][-1]["role"] != "assistant"]
    assert asked
    for dialogue in asked:
        for plain in chat["plain_texts"]:
            pair = Preference(tuple(dialogue["messages"]), plain["text"], plain["text"] + "!")
            (prompt, completion), _ = sides(tokenizer, (pair,), None)
            assert prompt == dialogue["token_ids"]
            assert completion == [*plain["token_ids"], 151645]


def test_a_file_of_conversations_becomes_the_same_rows(of_bytes: ChatTokenizer, tmp_path: Path) -> None:
    """The form of UltraFeedback: both answers as conversations that begin with the prompt."""

    def conversation(answer: str) -> list[dict[str, Any]]:
        return [*DIALOGUE, {"role": "assistant", "content": answer}]

    row = {"prompt": list(DIALOGUE), "chosen": conversation("No: 4."), "rejected": conversation("5")}
    (tmp_path / "x.jsonl").write_text(json.dumps(row))
    (pair,) = load_data_set("file:x.jsonl", tmp_path).examples
    assert isinstance(pair, Preference)
    assert sides(of_bytes, (pair,), None) == sides(of_bytes, (Preference(DIALOGUE, "No: 4.", "5"),), None)
