"""Text to ids and back through a checkpoint's own tokenizer, and tiny character tokenizers of the same kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WHOLE_WORDS = ("user", "assistant", "system", "\n\n", "\n")
"""Single tokens of every tiny tokenizer, so that a chat template costs few."""


class TokenizerError(ValueError):
    """The tokenizer lacks a token that the family needs."""


@dataclass(frozen=True)
class ChatTokenizer:
    """A fast tokenizer with its chat template; implements `family.Tokenizer`."""

    fast: Any  # PreTrainedTokenizerFast, which is untyped here
    end_of_turn_id: int
    eos_ids: tuple[int, ...]

    def prompt_ids(self, text: str) -> list[int]:
        """One user turn. The template writes the beginning of sequence where there is one, so the encoder adds none."""
        rendered = render(self.fast, [{"role": "user", "content": text}])
        return self._encode(rendered)

    def answer_ids(self, text: str) -> list[int]:
        """The answer and its end-of-turn token."""
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

    def _encode(self, text: str) -> list[int]:
        try:
            ids: list[int] = self.fast.encode(text, add_special_tokens=False)
        except Exception as error:  # the library raises nothing narrower for a character that it does not know
            raise TokenizerError(
                f"the tokenizer has no token for some character of {text[-60:]!r} ({error})"
            ) from error
        return ids


def render(fast: Any, messages: Sequence[dict[str, str]], **options: Any) -> str:
    """A dialogue through the chat template, up to where the assistant's next answer begins."""
    text: str = fast.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True, **options)
    return text


def chat_tokenizer(fast: Any, end_of_turn: str, eos_ids: Sequence[int]) -> ChatTokenizer:
    """`eos_ids` are those of the configuration; the end of turn ends a completion as well."""
    token = fast.get_vocab().get(end_of_turn)
    if token is None:
        raise TokenizerError(f"the tokenizer has no token {end_of_turn!r}, which ends a turn of this family")
    return ChatTokenizer(fast, token, tuple(dict.fromkeys((*eos_ids, token))))


def load_tokenizer(directory: Path, end_of_turn: str, eos_ids: Sequence[int]) -> ChatTokenizer:
    """The tokenizer saved beside a checkpoint."""
    from transformers import PreTrainedTokenizerFast

    if not (directory / "tokenizer.json").is_file():
        raise TokenizerError(f"{directory} has no tokenizer.json")
    return chat_tokenizer(PreTrainedTokenizerFast.from_pretrained(str(directory)), end_of_turn, eos_ids)


@dataclass(frozen=True)
class SpecialTokens:
    """A family's special-token strings. `order` gives them the ids 0, 1, ..."""

    order: tuple[str, ...]
    eos: str
    pad: str
    mask: str
    end_of_turn: str
    bos: str | None = None


def character_tokenizer(special: SpecialTokens, characters: Sequence[str], chat_template: str) -> Any:
    """A fast tokenizer of single characters: special tokens, whole words, then the characters in the given order."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = list(dict.fromkeys((*special.order, *WHOLE_WORDS, *characters)))
    tokenizer = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token=None))
    tokenizer.add_special_tokens(list(special.order))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("|".join((*WHOLE_WORDS, r"[\s\S]"))), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    names = {"eos_token": special.eos, "pad_token": special.pad, "mask_token": special.mask}
    if special.bos is not None:
        names["bos_token"] = special.bos
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **names)
    fast.chat_template = chat_template
    return fast
