"""Text to ids and back through a checkpoint's own tokenizer, and tiny character tokenizers of the same kind."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

from dare.tokenizer_files import TokenizerError as TokenizerError
from dare.tokenizer_files import TokenizerFiles, read_tokenizer_files

ROLES = ("system", "user", "assistant", "tool")
WHOLE_WORDS = ("user", "assistant", "system", "\n\n", "\n")
"""Single tokens of a tiny tokenizer, so that a chat template costs few."""

ENCODING = Lock()
"""Held while a text is encoded: the library keeps in the tokenizer whether special tokens are text this time."""

Message = Mapping[str, Any]
"""`role` and `content`; an assistant's may have `tool_calls`, which nest."""


@dataclass(frozen=True)
class SpecialTokens:
    """A family's special-token strings. `order` gives a tiny tokenizer the ids 0, 1, ..."""

    order: tuple[str, ...]
    eos: str
    pad: str
    mask: str
    end_of_turn: str
    bos: str | None = None
    prompt_starts_with_bos: bool = False
    text: tuple[str, ...] = ()
    """Those of the order that belong to a text, such as `<think>`: answers may write them, decoding keeps them."""
    words: tuple[str, ...] = WHOLE_WORDS
    """Further single tokens of a tiny tokenizer: what its chat template writes."""

    @property
    def frame(self) -> tuple[str, ...]:
        """Those around a text. No text can write one, whatever it says."""
        return tuple(token for token in self.order if token not in self.text)


@dataclass(frozen=True)
class ChatTokenizer:
    """A fast tokenizer with its chat template; implements `family.Tokenizer`."""

    fast: Any  # PreTrainedTokenizerFast, which is untyped here
    end_of_turn_id: int
    eos_ids: tuple[int, ...]
    bos_id: int | None = None
    """What every prompt begins with; None where the published template writes none."""

    def prompt_ids(self, dialogue: str | Sequence[Message], prefill: str = "", **options: Any) -> list[int]:
        """One user turn, or a dialogue, through the chat template, up to where the assistant's answer begins.

        `prefill` is the beginning of that answer: byte for byte, and the turn stays open. It has the ids that
        `answer_ids` gives, whatever the header before it. `options` are the template's, such as `enable_thinking`.
        """
        options = {name: value for name, value in options.items() if value is not None}
        ids = self._dialogue_ids(self._checked(dialogue, options), options)
        if self.bos_id is not None:  # exactly one, whether the template writes none or several
            first = next((place for place, token in enumerate(ids) if token != self.bos_id), len(ids))
            ids = [self.bos_id, *ids[first:]]
        return [*ids, *self._encode(prefill)]

    def answer_ids(self, text: str) -> list[int]:
        """The answer, byte for byte, and its end-of-turn token: neither stripped nor sent through the template."""
        return [*self._encode(text), self.end_of_turn_id]

    def decode(self, ids: Sequence[int]) -> str:
        """Text before the first end of sequence."""
        end = next((place for place, token in enumerate(ids) if token in self.eos_ids), len(ids))
        text: str = self.fast.decode(list(ids[:end]), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Each id decoded alone, special tokens by their name."""
        return [self.fast.decode([token], clean_up_tokenization_spaces=False) for token in ids]

    def save(self, directory: Path) -> None:
        """Write the files that `load_tokenizer` reads."""
        self.fast.save_pretrained(str(directory))

    def _checked(self, dialogue: str | Sequence[Message], options: Mapping[str, Any]) -> list[Message]:
        messages: list[Message] = (
            [{"role": "user", "content": dialogue}] if isinstance(dialogue, str) else list(dialogue)
        )
        if not messages:
            raise TokenizerError("a dialogue needs at least one message")
        for number, message in enumerate(messages, start=1):
            if message.get("role") not in ROLES:
                raise TokenizerError(
                    f"message {number} has the role {message.get('role')!r}; known: {', '.join(ROLES)}"
                )
            calls = message.get("tool_calls") and "tool_calls" in self.fast.chat_template
            if not isinstance(message.get("content"), str) and not calls:
                raise TokenizerError(f"message {number} has the content {message.get('content')!r}, which is no text")
        if messages[-1]["role"] == "assistant":
            raise TokenizerError("the dialogue ends with an answer: give it as `prefill` to have it continued")
        unknown = [name for name in options if not re.search(rf"\b{re.escape(name)}\b", self.fast.chat_template)]
        if unknown:
            raise TokenizerError(f"this chat template has no option {unknown[0]!r}")
        return messages

    def _dialogue_ids(self, messages: list[Message], options: Mapping[str, Any]) -> list[int]:
        """Special tokens come from the template alone: one that a content spells is text like any other."""
        texts = "".join(_strings([messages, options]))
        if not self._special.search(texts):
            return self._encode(render(self.fast, messages, **options), split_special_tokens=False)
        mark = next(character for character in map(chr, range(0xE000, 0x110000)) if character not in texts)
        broken = self._break(messages, mark), self._break(options, mark)
        parts = self._special.split(render(self.fast, broken[0], **broken[1]))  # text, name, text, name, ..., text
        ids: list[int] = []
        for place, part in enumerate(parts):
            ids += [self.fast.convert_tokens_to_ids(part)] if place % 2 else self._encode(part.replace(mark, ""))
        return ids

    def _break(self, value: Any, mark: str) -> Any:
        """The same with `mark` inside every special token that a string spells."""
        if isinstance(value, str):
            return self._special.sub(lambda match: match[0][:1] + mark + match[0][1:], value)
        if isinstance(value, Mapping):
            return {self._break(key, mark): self._break(item, mark) for key, item in value.items()}
        return [self._break(item, mark) for item in value] if isinstance(value, (list, tuple)) else value

    @cached_property
    def _special(self) -> re.Pattern[str]:
        """The name of any special token, the longest where several begin."""
        names = [str(token) for token in self.fast.added_tokens_decoder.values() if token.special]
        return re.compile("(" + "|".join(map(re.escape, sorted(names, key=len, reverse=True))) + ")")

    def _encode(self, text: str, split_special_tokens: bool = True) -> list[int]:
        try:
            with ENCODING:
                ids: list[int] = self.fast.encode(
                    text, add_special_tokens=False, split_special_tokens=split_special_tokens
                )
        except Exception as error:  # the library raises nothing narrower for a character that it does not know
            parts = [text] if split_special_tokens else self._special.split(text)[::2]
            unknown = ((piece, part) for part in parts for piece in self._unknown(part))
            piece, part = next(unknown, (text, text))
            raise TokenizerError(f"the tokenizer has no token for {piece!r} in {part[-60:]!r}") from error
        return ids

    def _unknown(self, text: str) -> Iterator[str]:
        """The pieces of a text that have no token: characters, where each is a piece."""
        yield from (character for character in text if "\ud800" <= character <= "\udfff")  # half of a pair
        cut = self.fast.backend_tokenizer.pre_tokenizer
        for piece, _ in cut.pre_tokenize_str(text) if cut else []:
            try:
                with ENCODING:
                    self.fast.encode(piece, add_special_tokens=False, split_special_tokens=True)
            except Exception:  # as above
                yield piece


def _strings(value: Any) -> list[str]:
    """Every string in nested lists and mappings."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    return [text for item in value for text in _strings(item)] if isinstance(value, (list, tuple)) else []


def render(fast: Any, messages: Sequence[Message], **options: Any) -> str:
    """A dialogue through the chat template, up to where the assistant's next answer begins."""
    try:
        text: str = fast.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True, **options)
    except Exception as error:  # a template is a program of the checkpoint's authors: it may raise anything
        raise TokenizerError(f"the chat template cannot write this dialogue: {error}") from error
    return text


def chat_tokenizer(fast: Any, special: SpecialTokens, eos_ids: Sequence[int]) -> ChatTokenizer:
    """`eos_ids` are those of the configuration; the end of turn, read off the chat template, ends a completion as well.

    LLaDA-MoE shares a family with LLaDA but not its turns: only turns that end as the family's begin as the family's.
    """
    answer = "\ue000"
    rendered = render(fast, [{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}])
    rest = rendered.rpartition(answer)[2]
    following = [str(token) for token in fast.added_tokens_decoder.values() if rest.startswith(str(token))]
    if not following:
        raise TokenizerError(
            f"the chat template ends an answer with {rest[:20]!r}, which is no special token of the tokenizer; "
            f"this family's is {special.end_of_turn!r}"
        )
    end_of_turn = max(following, key=len)
    has_bos = special.prompt_starts_with_bos and end_of_turn == special.end_of_turn
    if has_bos and fast.bos_token is None:
        raise TokenizerError(f"the tokenizer has no beginning of sequence; this family's is {special.bos!r}")
    if fast.bos_token is not None and rendered.startswith(fast.bos_token):
        has_bos = True
    end_of_turn_id: int = fast.convert_tokens_to_ids(end_of_turn)
    stops = tuple(dict.fromkeys((*eos_ids, end_of_turn_id)))
    return ChatTokenizer(fast, end_of_turn_id, stops, fast.bos_token_id if has_bos else None)


def load_tokenizer(directory: Path, special: SpecialTokens, chat_template: str, config: Any) -> ChatTokenizer:
    """The tokenizer beside a checkpoint, refused where its ids are not those of the configuration.

    `config` has mask_token_id, eos_token_id, pad_token_id and vocab_size. `chat_template` serves a folder without one.
    """
    from transformers import PreTrainedTokenizerFast

    named = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    files = read_tokenizer_files(directory, special.frame, {config.mask_token_id, config.pad_token_id, *named})
    eos_ids = tuple(dict.fromkeys((*named, *files.eos_ids)))
    _check_ids(files, config, eos_ids)
    bos = files.names.get("bos_token", special.bos)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=files.backend,
        clean_up_tokenization_spaces=False,
        eos_token=files.added[named[0]],
        pad_token=files.added[config.pad_token_id],
        mask_token=files.added[config.mask_token_id],
        **({} if files.backend.token_to_id(bos or "") is None else {"bos_token": bos}),
    )
    fast.chat_template = files.chat_template or chat_template
    tokenizer = chat_tokenizer(fast, special, eos_ids)
    _check_names(files, {"mask_token": (config.mask_token_id,), "eos_token": tokenizer.eos_ids})
    return tokenizer


def _check_ids(files: TokenizerFiles, config: Any, eos_ids: Sequence[int]) -> None:
    """Every id of the configuration is a special token, and every token has a row."""
    roles = [("the mask", config.mask_token_id), ("padding", config.pad_token_id)]
    for role, index in [*roles, *(("an end of sequence", index) for index in eos_ids)]:
        if index not in files.added:
            name = files.backend.id_to_token(index)
            found = "does not have" if name is None else f"uses for the ordinary token {name!r}"
            raise TokenizerError(f"the configuration says that {role} is id {index}, which the tokenizer {found}")
    if config.mask_token_id in eos_ids:
        raise TokenizerError(f"the mask and an end of sequence have the same id, {config.mask_token_id}")
    largest = max(files.backend.get_vocab().values())
    if largest >= config.vocab_size:
        raise TokenizerError(
            f"the tokenizer has the id {largest} ({files.backend.id_to_token(largest)!r}), "
            f"but the checkpoint has {config.vocab_size} rows"
        )


def _check_names(files: TokenizerFiles, expected: Mapping[str, Sequence[int]]) -> None:
    """What tokenizer_config.json calls the mask and the end is what the configuration calls so.

    A name that no token has says nothing: SDAR's files disagree about the mask's.
    """
    for key, ids in expected.items():
        index = files.backend.token_to_id(files.names.get(key, ""))
        if index is not None and index not in ids:
            raise TokenizerError(
                f"tokenizer_config.json gives {key} {files.names[key]!r}, id {index}, "
                f"but the configuration has {' and '.join(map(str, ids))}"
            )


def character_tokenizer(special: SpecialTokens, characters: Sequence[str], chat_template: str) -> Any:
    """A fast tokenizer of single characters: special tokens, whole words, then the characters in the given order."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = list(dict.fromkeys((*special.order, *special.words, *characters)))
    tokenizer = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token=None))
    tokenizer.add_special_tokens(list(special.frame))
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in special.text])
    words = "|".join((*map(re.escape, special.words), r"[\s\S]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(words), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    names = {"eos_token": special.eos, "pad_token": special.pad, "mask_token": special.mask}
    if special.bos is not None:
        names["bos_token"] = special.bos
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **names)
    fast.chat_template = chat_template
    return fast
