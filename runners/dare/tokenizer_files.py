"""The tokenizer files beside a checkpoint, read without remote code.

Most folders have a tokenizer.json. Dream's has the vocabulary and merges of Qwen2's byte-level BPE and a Python class;
the same tokenizer is built from the two files.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen2 cuts a text before the merges: contractions, words with their space, single digits, punctuation, space."""


class TokenizerError(ValueError):
    """The tokenizer cannot be used with its checkpoint, or a text cannot be written with it."""


@dataclass(frozen=True)
class TokenizerFiles:
    """What the files say. Every token that frames a text is special in `backend`, whatever they call it."""

    backend: Any  # tokenizers.Tokenizer, which is untyped here
    added: Mapping[int, str]
    """Names of the tokens beside the model's vocabulary: special ones, and words such as `<think>`."""
    chat_template: str | None
    names: Mapping[str, str]
    """`bos_token`, `eos_token` and `mask_token`, where tokenizer_config.json gives them."""
    eos_ids: tuple[int, ...]
    """Of generation_config.json."""


def read_tokenizer_files(
    directory: Path, special_names: Collection[str], special_ids: Collection[int]
) -> TokenizerFiles:
    """Read the folder. Tokens with these names or ids become special: a published file may call its mask a word."""
    from tokenizers import Tokenizer

    settings = _json(directory / "tokenizer_config.json", {})
    state = _state(directory)
    declared = _declared(directory, settings)
    try:
        entries = {entry["id"]: entry for entry in state["added_tokens"]}
        for index in declared.keys() - entries.keys():  # by id: SDAR's files disagree about the name of the mask
            entries[index] = declared[index]
            if isinstance(state["model"]["vocab"], dict):  # where a token has an id, which gaps cannot move
                state["model"]["vocab"].setdefault(declared[index]["content"], index)
        for index, entry in entries.items():
            entry["special"] = entry["special"] or entry["content"] in special_names or index in special_ids
        state["added_tokens"] = [entries[index] for index in sorted(entries)]
        backend = Tokenizer.from_str(json.dumps(state))
    except Exception as error:  # the library raises nothing narrower for a state that makes no sense
        raise TokenizerError(f"the tokenizer files of {directory} cannot be read: {error}") from error
    added = {index: str(entry["content"]) for index, entry in entries.items()}
    for index, name in added.items():
        if backend.token_to_id(name) != index:
            raise TokenizerError(
                f"{directory} gives {name!r} the id {index} in one file and {backend.token_to_id(name)} in another"
            )
    return TokenizerFiles(backend, added, _chat_template(directory, settings), _names(settings), _eos_ids(directory))


def _state(directory: Path) -> dict[str, Any]:
    """What tokenizer.json holds, or would hold."""
    if (directory / "tokenizer.json").is_file():
        state: dict[str, Any] = _json(directory / "tokenizer.json", {})
        return state
    absent = [name for name in ("vocab.json", "merges.txt") if not (directory / name).is_file()]
    if absent:
        raise TokenizerError(f"{directory} has no tokenizer.json, nor {' and '.join(absent)} to build one from")
    return byte_level_bpe(_json(directory / "vocab.json", {}), _merges(directory / "merges.txt"))


def byte_level_bpe(vocabulary: Mapping[str, int], merges: list[tuple[str, str]]) -> dict[str, Any]:
    """The content of a tokenizer.json for Qwen2's tokenizer, which normalises to NFC and knows every byte."""
    from tokenizers import pre_tokenizers

    absent = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - vocabulary.keys())
    if absent:
        raise TokenizerError(
            f"vocab.json lacks {len(absent)} of the 256 bytes, {absent[0]!r} first: texts would lose characters"
        )
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    words = {"type": "Split", "pattern": {"Regex": QWEN2_WORDS}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [words, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": dict(vocabulary),
            "merges": merges,
        },
    }


def _declared(directory: Path, settings: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Added tokens by id, as tokenizer_config.json lists them, or added_tokens.json."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    if "added_tokens_decoder" in settings:
        decoder = settings["added_tokens_decoder"].items()
        return {int(index): flags | entry | {"id": int(index)} for index, entry in decoder}
    names = _json(directory / "added_tokens.json", {}).items()
    return {index: flags | {"content": name, "id": index} for name, index in names}


def _chat_template(directory: Path, settings: Mapping[str, Any]) -> str | None:
    if (directory / "chat_template.jinja").is_file():
        return (directory / "chat_template.jinja").read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several by name
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template


def _names(settings: Mapping[str, Any]) -> dict[str, str]:
    tokens = {key: settings.get(key) for key in ("bos_token", "eos_token", "mask_token")}
    return {key: token["content"] if isinstance(token, dict) else token for key, token in tokens.items() if token}


def _eos_ids(directory: Path) -> tuple[int, ...]:
    value = _json(directory / "generation_config.json", {}).get("eos_token_id")
    return tuple(value) if isinstance(value, list) else () if value is None else (value,)


def _merges(path: Path) -> list[tuple[str, str]]:
    merges = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if line and not line.startswith("#version"):
            pieces = line.split(" ")
            if len(pieces) != 2:
                raise TokenizerError(f"{path} line {number} is not two pieces: {line!r}")
            merges.append((pieces[0], pieces[1]))
    return merges


def _json(path: Path, otherwise: dict[str, Any]) -> dict[str, Any]:
    if not path.is_file():
        return otherwise
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # no UTF-8, or no JSON
        raise TokenizerError(f"{path} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path} holds a {type(value).__name__}, not an object")
    return value
