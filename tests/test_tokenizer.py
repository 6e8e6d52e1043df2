"""Tokenizers read the published files, write any text byte for byte, and keep special tokens to themselves."""

from __future__ import annotations

import json
import os
import shutil
import unicodedata
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers, processors

from dare.families.dream import chat as dream
from dare.families.llada import chat as llada
from dare.families.llada2 import chat as llada2
from dare.families.sdar import chat as sdar
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
FAMILIES: dict[str, Any] = {"llada": llada, "dream": dream, "sdar": sdar, "llada2": llada2}
QWEN = {"dream": (dream, 151666, 152064), "sdar": (sdar, 151669, 151936), "sdar_moe": (sdar, 151669, 151936)}
"""Chat, mask id and rows of the checkpoints whose ids are known."""
FIXTURES = Path(__file__).parent / "goldens/tokenizers"
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())

every = pytest.mark.parametrize("family", FAMILIES)
texts = st.lists(
    st.one_of(
        st.text(max_size=4),
        st.sampled_from(["\n", "\n\n", " ", "\r\n", "e\u0301", "user", "<think>", "</think>"]),
        st.sampled_from([token for chat in FAMILIES.values() for token in chat.SPECIAL.order]),
    ),
    max_size=6,
).map("".join)


def tiny(family: str) -> ChatTokenizer:
    chat = FAMILIES[family]
    fast = character_tokenizer(chat.SPECIAL, CHARACTERS, chat.CHAT_TEMPLATE)
    return chat_tokenizer(fast, chat.SPECIAL, [fast.eos_token_id])


def ids(mask: int, eos: int | list[int], rows: int) -> Any:
    """The part of a configuration that a tokenizer must agree with."""
    pad = eos[0] if isinstance(eos, list) else eos
    return SimpleNamespace(mask_token_id=mask, eos_token_id=eos, pad_token_id=pad, vocab_size=rows)


def write_bytes(folder: Path, special: SpecialTokens, **settings: Any) -> Any:
    """A folder like Dream's whose vocabulary is the 256 bytes, then the special tokens; returns its configuration."""
    added = {256 + place: token for place, token in enumerate(special.order)}
    decoder = {str(index): {"content": token, "special": token not in special.text} for index, token in added.items()}
    config = {"eos_token": special.eos, "bos_token": special.bos, "added_tokens_decoder": decoder} | settings
    (folder / "vocab.json").write_text(json.dumps({byte: index for index, byte in enumerate(BYTES)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    place = special.order.index
    return ids(256 + place(special.mask), 256 + place(special.eos), 256 + len(special.order))


def load(folder: Path, chat: Any, config: Any) -> ChatTokenizer:
    return load_tokenizer(folder, chat.SPECIAL, chat.CHAT_TEMPLATE, config)


@pytest.fixture(scope="module")
def of_bytes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ChatTokenizer]:
    """A tokenizer of each family that knows every text."""
    loaded = {}
    for family, chat in FAMILIES.items():
        folder = tmp_path_factory.mktemp(family)
        loaded[family] = load(folder, chat, write_bytes(folder, chat.SPECIAL))
    return loaded


@contextmanager
def without_the_list_of_holes() -> Iterator[None]:
    """The library writes a megabyte to stdout about the ids that a reduced vocabulary leaves out."""
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def write_qwen(folder: Path, family: str) -> Any:
    """The published files with the reduced vocabulary; returns the configuration."""
    shutil.copytree(FIXTURES / "qwen2", folder, dirs_exist_ok=True)
    shutil.copytree(FIXTURES / family, folder, dirs_exist_ok=True)
    _, mask, rows = QWEN[family]
    return ids(mask, 151643, rows)


@pytest.fixture(scope="module", params=[(family, form) for family in QWEN for form in ("vocab.json", "tokenizer.json")])
def qwen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ChatTokenizer]:
    """A published tokenizer, from its vocabulary and merges and from the tokenizer.json that we save."""
    family, form = request.param
    folder = tmp_path_factory.mktemp("published")
    config = write_qwen(folder, family)
    with without_the_list_of_holes():
        loaded = load(folder, QWEN[family][0], config)
        if form == "tokenizer.json":
            loaded.save(folder / "saved")
            assert not (folder / "saved/vocab.json").exists()
            shutil.copy(folder / "generation_config.json", folder / "saved")
            loaded = load(folder / "saved", QWEN[family][0], config)
    return family, loaded


@pytest.mark.shared
def test_ids_equal_those_of_the_published_tokenizer(shared: Path, qwen: tuple[str, ChatTokenizer]) -> None:
    family, tokenizer = qwen
    chat = json.loads((shared / f"goldens/{family}/published.json").read_text())["chat"]
    assert chat["dialogues"]
    assert chat["plain_texts"]
    for dialogue in chat["dialogues"]:
        assert tokenizer.prompt_ids(dialogue["messages"], **dialogue["options"]) == dialogue["token_ids"]
    for plain in chat["plain_texts"]:
        assert tokenizer.answer_ids(plain["text"])[:-1] == plain["token_ids"]
        assert tokenizer.decode(plain["token_ids"]) == plain["text"]


def test_stop_ids_are_those_of_both_configurations_and_the_end_of_turn(qwen: tuple[str, ChatTokenizer]) -> None:
    _, tokenizer = qwen
    assert tokenizer.end_of_turn_id == 151645
    assert tokenizer.eos_ids == (151643, 151645)


def test_the_mask_is_found_by_its_id_and_is_special_whatever_the_files_say(qwen: tuple[str, ChatTokenizer]) -> None:
    family, tokenizer = qwen
    mask = QWEN[family][1]
    name = tokenizer.fast.convert_ids_to_tokens(mask)
    assert tokenizer.fast.encode(name, add_special_tokens=False) == [mask]
    assert tokenizer.fast.mask_token_id == mask
    assert tokenizer.decode([mask, 14990]) == "hello"
    assert mask not in tokenizer.answer_ids(name)


def test_thoughts_and_tool_calls_are_words_of_an_answer(qwen: tuple[str, ChatTokenizer]) -> None:
    family, tokenizer = qwen
    text = "<tool_call>\n{}\n</tool_call>" if family == "dream" else "<think>\n\n</think>\n\n<tool_call>\n"
    answer = tokenizer.answer_ids(text)
    assert 151657 in answer
    assert tokenizer.decode(answer) == text


def test_a_mask_that_two_files_name_differently_stays_one_token(tmp_path: Path) -> None:
    """As in the dense SDAR models: `<MASK>` in one file, `<|MASK|>` in another."""
    config = write_bytes(tmp_path, sdar.SPECIAL)
    load(tmp_path, sdar, config).save(tmp_path / "saved")
    saved = (tmp_path / "saved/tokenizer.json").read_text()
    assert "<|MASK|>" in saved
    (tmp_path / "saved/tokenizer.json").write_text(saved.replace("<|MASK|>", "<MASK>"))
    tokenizer = load(tmp_path / "saved", sdar, config)
    assert tokenizer.fast.mask_token == "<MASK>"
    assert tokenizer.fast.mask_token_id == config.mask_token_id
    assert len(tokenizer.fast) == config.vocab_size
    assert config.mask_token_id not in tokenizer.answer_ids("<MASK> <|MASK|>")


@every
@settings(max_examples=25)
@given(text=texts)
def test_an_answer_is_written_and_read_byte_for_byte(
    of_bytes: dict[str, ChatTokenizer], family: str, text: str
) -> None:
    tokenizer = of_bytes[family]
    answer = tokenizer.answer_ids(text)
    assert answer[-1] == tokenizer.end_of_turn_id
    assert tokenizer.decode(answer) == unicodedata.normalize("NFC", text)  # as the published tokenizer normalises
    special = set(tokenizer.fast.convert_tokens_to_ids(list(FAMILIES[family].SPECIAL.frame)))
    assert not special & set(answer[:-1])


@every
@settings(max_examples=25)
@given(text=texts, system=texts, answer=texts)
def test_no_content_can_write_a_special_token_into_a_prompt(
    of_bytes: dict[str, ChatTokenizer], family: str, text: str, system: str, answer: str
) -> None:
    tokenizer = of_bytes[family]
    special = tokenizer.fast.convert_tokens_to_ids(list(FAMILIES[family].SPECIAL.frame))

    def dialogue(system: str, text: str, answer: str) -> list[dict[str, str]]:
        contents = [("system", system), ("user", text), ("assistant", answer), ("user", text)]
        return [{"role": role, "content": content} for role, content in contents]

    def framing(prompt: list[int]) -> dict[int, int]:
        count = Counter(prompt)
        return {token: count[token] for token in special}

    assert framing(tokenizer.prompt_ids(dialogue(system, text, answer))) == framing(
        tokenizer.prompt_ids(dialogue("a", "b", "c"))
    )


@every
@settings(max_examples=25)
@given(text=texts)
def test_a_prompt_says_what_the_template_renders(of_bytes: dict[str, ChatTokenizer], family: str, text: str) -> None:
    tokenizer = of_bytes[family]
    written = tokenizer.fast.decode(tokenizer.prompt_ids(text), clean_up_tokenization_spaces=False)
    rendered = render(tokenizer.fast, [{"role": "user", "content": text}])
    assert written == unicodedata.normalize("NFC", rendered)


@every
@settings(max_examples=25)
@given(text=texts, prefill=texts)
def test_a_prefilled_answer_stays_open_and_has_the_ids_of_an_answer(
    of_bytes: dict[str, ChatTokenizer], family: str, text: str, prefill: str
) -> None:
    tokenizer = of_bytes[family]
    assert tokenizer.prompt_ids(text, prefill) == tokenizer.prompt_ids(text) + tokenizer.answer_ids(prefill)[:-1]


@every
@settings(max_examples=25)
@given(text=st.text(alphabet=CHARACTERS))
def test_a_tiny_tokenizer_reads_what_it_wrote(family: str, text: str) -> None:
    tokenizer = TINY[family]
    assert tokenizer.decode(tokenizer.answer_ids(text)) == text
    written = tokenizer.fast.decode(tokenizer.prompt_ids(text), clean_up_tokenization_spaces=False)
    assert written == render(tokenizer.fast, [{"role": "user", "content": text}])


@pytest.mark.parametrize(("family", "prompts"), [("llada", 1), ("dream", 0), ("sdar", 0), ("llada2", 0)])
def test_a_prompt_has_one_beginning_of_sequence_where_the_published_template_writes_it(
    of_bytes: dict[str, ChatTokenizer], family: str, prompts: int
) -> None:
    special = FAMILIES[family].SPECIAL
    for tokenizer in (tiny(family), of_bytes[family]):
        bos = tokenizer.fast.convert_tokens_to_ids(special.bos) if special.bos else -1
        for prompt in (tokenizer.prompt_ids("1+1"), tokenizer.prompt_ids([{"role": "user", "content": "1"}] * 3)):
            assert prompt.count(bos) == prompts
            assert prompt[0] == bos or not prompts


def test_a_template_without_a_beginning_of_sequence_and_one_with_two_give_one(tmp_path: Path) -> None:
    config = write_bytes(tmp_path, llada.SPECIAL)
    expected = load(tmp_path, llada, config).prompt_ids("1")
    for start in ("", "{{ bos_token }}", "{{ bos_token + bos_token }}"):
        (tmp_path / "chat_template.jinja").write_text(llada.CHAT_TEMPLATE.replace("{{ bos_token }}", start))
        assert load(tmp_path, llada, config).prompt_ids("1") == expected


def test_a_tokenizer_that_adds_a_beginning_of_sequence_itself_adds_no_second(tmp_path: Path) -> None:
    tokenizer = tiny("llada")
    expected = tokenizer.prompt_ids("1")
    bos = ("<|startoftext|>", tokenizer.fast.bos_token_id)
    tokenizer.fast.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos[0]} $A", special_tokens=[bos]
    )
    assert tokenizer.fast.encode("1")[0] == bos[1]
    assert tokenizer.prompt_ids("1") == expected
    assert tokenizer.answer_ids("1") == tiny("llada").answer_ids("1")


def test_turns_that_end_otherwise_begin_as_their_template_says(tmp_path: Path) -> None:
    """LLaDA-MoE is in LLaDA's family and speaks as LLaDA2 does."""
    config = write_bytes(tmp_path, llada2.SPECIAL)
    (tmp_path / "chat_template.jinja").write_text(llada2.CHAT_TEMPLATE)
    tokenizer = load(tmp_path, llada, config)
    assert tokenizer.fast.convert_ids_to_tokens(tokenizer.end_of_turn_id) == "<|role_end|>"
    assert tokenizer.prompt_ids("1") == load(tmp_path, llada2, config).prompt_ids("1")


def test_the_template_of_the_folder_comes_first(tmp_path: Path) -> None:
    own = "{% for m in messages %}{{ m.content + '<|im_end|>' }}{% endfor %}"
    named = [{"name": "tool_use", "template": "{{ 1 / 0 }}"}, {"name": "default", "template": own}]
    for setting in (own, named):
        config = write_bytes(tmp_path, dream.SPECIAL, chat_template=setting)
        assert render(load(tmp_path, dream, config).fast, [{"role": "user", "content": "7"}]) == "7<|im_end|>"
    (tmp_path / "chat_template.jinja").write_text(own.replace("m.content", "'file ' + m.content"))
    assert render(load(tmp_path, dream, config).fast, [{"role": "user", "content": "7"}]) == "file 7<|im_end|>"


@every
def test_special_tokens_come_first_in_the_documented_order(family: str) -> None:
    special = FAMILIES[family].SPECIAL
    assert tiny(family).fast.convert_ids_to_tokens(range(len(special.order))) == list(special.order)


@every
def test_the_end_of_turn_is_read_off_the_template(family: str) -> None:
    tokenizer = tiny(family)
    assert tokenizer.fast.convert_ids_to_tokens(tokenizer.end_of_turn_id) == FAMILIES[family].SPECIAL.end_of_turn


@pytest.mark.parametrize(("family", "cost"), [("llada", 10), ("dream", 14), ("sdar", 8), ("llada2", 12)])
def test_the_template_costs_few_tokens(family: str, cost: int) -> None:
    assert len(tiny(family).prompt_ids("12+3")) == 4 + cost


@every
def test_decoding_stops_at_the_first_end_whichever_it_is(family: str) -> None:
    tokenizer = tiny(family)
    seven, eight = tokenizer.answer_ids("7")[0], tokenizer.answer_ids("8")[0]
    assert set(tokenizer.eos_ids) == {tokenizer.fast.eos_token_id, tokenizer.end_of_turn_id}
    for end in tokenizer.eos_ids:
        assert tokenizer.decode([seven, end, eight]) == "7"
    assert tokenizer.decode([]) == ""


@every
def test_pieces_show_every_id_also_the_special_ones(family: str) -> None:
    tokenizer = tiny(family)
    pieces = tokenizer.pieces(tokenizer.prompt_ids("1 2"))
    assert len(pieces) == len(tokenizer.prompt_ids("1 2"))
    assert "".join(pieces) == render(tokenizer.fast, [{"role": "user", "content": "1 2"}])


@every
def test_a_saved_tokenizer_comes_back_the_same(of_bytes: dict[str, ChatTokenizer], family: str, tmp_path: Path) -> None:
    for number, before in enumerate((tiny(family), of_bytes[family])):
        before.save(tmp_path / str(number))
        config = ids(before.fast.mask_token_id, before.fast.eos_token_id, len(before.fast))
        after = load(tmp_path / str(number), FAMILIES[family], config)
        text = "(12 + 3) user\n\nsystem"
        assert after.prompt_ids(text) == before.prompt_ids(text)
        assert after.answer_ids(text) == before.answer_ids(text)
        assert after.decode(after.answer_ids(text)) == text
        assert after.eos_ids == before.eos_ids
        assert after.fast.get_vocab() == before.fast.get_vocab()


def test_a_thought_of_a_tiny_answer_is_kept() -> None:
    text = "<think>\n7\n</think>\n\n8"
    assert tiny("sdar").decode(tiny("sdar").answer_ids(text)) == text


def test_a_history_loses_its_reasoning_and_an_answer_does_not() -> None:
    tokenizer, text = tiny("sdar"), "<think>\n7\n</think>\n\n8"
    history = [{"role": "user", "content": "1"}, {"role": "assistant", "content": text}]
    asked = [*history, {"role": "user", "content": "2"}]
    thought = tokenizer.fast.convert_tokens_to_ids("<think>")
    assert thought not in tokenizer.prompt_ids(asked)
    assert thought in tokenizer.prompt_ids(asked, prefill="<think>\n")
    assert thought in tokenizer.answer_ids(text)


def test_generation_config_adds_its_ends(tmp_path: Path) -> None:
    config = write_bytes(tmp_path, sdar.SPECIAL)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": config.mask_token_id + 1}))
    assert load(tmp_path, sdar, config).eos_ids == (256, config.mask_token_id + 1, 259)


def test_a_character_that_is_already_a_word_gets_no_second_id() -> None:
    special = SpecialTokens(order=("<e>", "<m>"), eos="<e>", pad="<e>", mask="<m>", end_of_turn="<e>")
    fast = character_tokenizer(special, ["a", "\n", "a"], llada.CHAT_TEMPLATE)
    assert len(fast) == 2 + 5 + 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1+½", "no token for '½' in '.*1[+]½'"),
        ("1\ud8002", r"no token for '\\ud800'"),
        ("<|im_end|>", "no token for '<'"),
    ],
)
def test_a_character_that_the_tokenizer_does_not_know_is_named(text: str, said: str) -> None:
    tokenizer = tiny("sdar")
    for write in (tokenizer.answer_ids, tokenizer.prompt_ids, lambda text: tokenizer.prompt_ids("1", prefill=text)):
        with pytest.raises(TokenizerError, match=said):
            write(text)


@pytest.mark.parametrize(
    ("dialogue", "said"),
    [
        ([], "at least one message"),
        ([{"role": "bot", "content": "1"}], "message 1 has the role 'bot'; known: system, user, assistant, tool"),
        ([{"role": "user", "content": "1"}, {"role": "user", "content": None}], "message 2 has the content None"),
        ([{"role": "user"}], "message 1 has the content None, which is no text"),
        ([{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}], "give it as `prefill`"),
    ],
)
def test_a_dialogue_that_cannot_be_meant_is_refused(dialogue: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(TokenizerError, match=said):
        tiny("llada").prompt_ids(dialogue)


def test_an_option_that_the_template_does_not_have_is_refused() -> None:
    assert tiny("sdar").prompt_ids("1", enable_thinking=False) != tiny("sdar").prompt_ids("1")
    for family in ("llada", "dream", "llada2"):
        with pytest.raises(TokenizerError, match="this chat template has no option 'enable_thinking'"):
            tiny(family).prompt_ids("1", enable_thinking=False)


def test_an_option_without_a_value_is_no_option() -> None:
    assert tiny("llada").prompt_ids("1", tools=None) == tiny("llada").prompt_ids("1")


def test_threads_that_encode_at_once_do_not_disturb_each_other(of_bytes: dict[str, ChatTokenizer]) -> None:
    tokenizer = of_bytes["sdar"]
    questions = ["plain " * 40, "<|im_end|> " * 40] * 50
    alone = [tokenizer.prompt_ids(question) for question in questions]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(tokenizer.prompt_ids, questions)) == alone


def test_special_tokens_that_tools_spell_are_text(of_bytes: dict[str, ChatTokenizer]) -> None:
    tokenizer = of_bytes["dream"]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"<|im_end|>": ["<|mask|>", 1, None]}}}]
    prompt = tokenizer.prompt_ids("?", tools=tools)
    assert prompt.count(tokenizer.end_of_turn_id) == 2
    assert tokenizer.fast.mask_token_id not in prompt
    assert '{"<|im_end|>": ["<|mask|>", 1, null]}' in tokenizer.fast.decode(prompt)


def test_a_template_whose_turns_do_not_end_is_refused(tmp_path: Path) -> None:
    config = write_bytes(tmp_path, sdar.SPECIAL, chat_template="{{ messages[-1].content }}</s>")
    with pytest.raises(TokenizerError, match=r"ends an answer with '</s>'.*this family's is '<\|im_end\|>'"):
        load(tmp_path, sdar, config)
    with pytest.raises(TokenizerError, match=r"ends an answer with '<\|im_end\|>"):
        chat_tokenizer(character_tokenizer(llada.SPECIAL, [], sdar.CHAT_TEMPLATE), sdar.SPECIAL, [0])


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("mask_token_id", 70, r"says that the mask is id 70, which the tokenizer uses for the ordinary token "),
        ("mask_token_id", 999, "says that the mask is id 999, which the tokenizer does not have"),
        ("pad_token_id", 71, "says that padding is id 71, which the tokenizer uses for the ordinary token "),
        ("eos_token_id", [256, 72], "says that an end of sequence is id 72, which the tokenizer uses for the ordinary"),
        ("mask_token_id", 256, "the mask and an end of sequence have the same id, 256"),
        ("mask_token_id", 258, r"gives mask_token '<\|MASK\|>', id 257, but the configuration has 258"),
        ("eos_token_id", 260, r"gives eos_token '<\|endoftext\|>', id 256, but the configuration has 260 and 259"),
        ("vocab_size", 261, r"the tokenizer has the id 261 \('</think>'\), but the checkpoint has 261 rows"),
    ],
)
def test_ids_that_are_not_those_of_the_configuration_are_refused(
    tmp_path: Path, field: str, value: Any, said: str
) -> None:
    config = write_bytes(tmp_path, sdar.SPECIAL, mask_token="<|MASK|>")
    load(tmp_path, sdar, config)
    setattr(config, field, value)
    with pytest.raises(TokenizerError, match=said):
        load(tmp_path, sdar, config)


def test_a_family_whose_prompts_begin_with_a_token_needs_it() -> None:
    fast = character_tokenizer(llada.SPECIAL, CHARACTERS, llada.CHAT_TEMPLATE.replace("{{ bos_token }}", ""))
    fast.bos_token = None
    with pytest.raises(TokenizerError, match=r"no beginning of sequence; this family's is '<\|startoftext\|>'"):
        chat_tokenizer(fast, llada.SPECIAL, [0])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("vocab.json", None, r"has no tokenizer\.json, nor vocab\.json to build one from"),
        ("merges.txt", None, r"has no tokenizer\.json, nor merges\.txt to build one from"),
        ("vocab.json", "{", r"vocab\.json is no JSON"),
        ("vocab.json", '{"a": 0}', r"vocab\.json lacks 255 of the 256 bytes"),
        ("tokenizer_config.json", "[]", r"tokenizer_config\.json holds a list, not an object"),
        ("tokenizer.json", "\x00", r"tokenizer\.json is no JSON"),
        ("tokenizer.json", "{}", "the tokenizer files of .* cannot be read: 'added_tokens'"),
        ("merges.txt", "#version: 0.2\na b\nabc\n", r"merges\.txt line 3 is not two pieces: 'abc'"),
        ("merges.txt", "a bc\n", "the tokenizer files of .* cannot be read: .*out of vocabulary"),
        ("generation_config.json", "nan?", r"generation_config\.json is no JSON"),
        ("chat_template.jinja", "{{ raise_exception('no') }}", "the chat template cannot write this dialogue: no"),
    ],
)
def test_a_file_that_is_missing_or_corrupt_is_named(tmp_path: Path, name: str, content: str | None, said: str) -> None:
    config = write_bytes(tmp_path, dream.SPECIAL)
    load(tmp_path, dream, config)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(content)
    with pytest.raises(TokenizerError, match=said):
        load(tmp_path, dream, config)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"has no tokenizer\.json, nor vocab\.json and merges\.txt"):
        load(tmp_path, llada, ids(1, 0, 9))


def test_files_that_give_a_token_two_ids_are_refused(tmp_path: Path) -> None:
    config = write_bytes(tmp_path, dream.SPECIAL)
    vocabulary = json.loads((tmp_path / "vocab.json").read_text())
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary | {"<|mask|>": 300}))
    with pytest.raises(TokenizerError, match=r"gives '<\|mask\|>' the id 257 in one file and 300 in another"):
        load(tmp_path, dream, config)


TINY = {family: tiny(family) for family in FAMILIES}
