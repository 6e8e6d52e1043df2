"""Looks at a checkpoint before any weight is read: who can load it, whether its tensors and its tokenizer fit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dare.families.checkpoint_files import CheckpointError, check_tensors, meta_model, read_config
from dare.families.published_config import ConfigError
from dare.family import ModelFamily, UnknownFamilyError, family_of
from dare.sampling_config import SamplingConfig
from dare.weights.headers import StoredWeights, stored_weights

SUFFIXES = (".safetensors", ".json", ".txt", ".jinja")
"""What a checkpoint is made of. Never code, never pickles."""
RECORD = "backbone.json"
GEN_LENGTH, MASKED_BLOCK = 256, 32


class BackboneError(ValueError):
    """A checkpoint that cannot become a backbone here. One sentence."""


@dataclass(frozen=True)
class Inspected:
    """What the files of a checkpoint say, without their numbers."""

    family: str
    architecture: str
    parameters: int
    weights: StoredWeights
    sampling: SamplingConfig
    """How its rollouts are decoded when nobody says otherwise."""


def loadable(directory: Path) -> tuple[ModelFamily, Any]:
    """The family of a checkpoint and its model without memory, from `config.json` alone."""
    try:
        values = read_config(directory)
        family = family_of(values)
        return family, meta_model(family.model_class(values), values)
    except (CheckpointError, UnknownFamilyError, ConfigError) as error:
        raise BackboneError(str(error)) from error


def inspect(directory: Path) -> Inspected:
    """Configuration, headers of all weight files and tokenizer; BackboneError says what does not fit."""
    family, model = loadable(directory)
    try:
        weights = stored_weights(directory)
        check_tensors(model, weights, directory)
    except CheckpointError as error:
        raise BackboneError(str(error)) from error
    if weights.stated_bytes not in (None, weights.bytes):
        raise BackboneError(
            f"the index in {directory} states {weights.stated_bytes:,} bytes of tensors, its files hold "
            f"{weights.bytes:,}: they are not from the same checkpoint"
        )
    _check_tokenizer(directory, model, family)
    return Inspected(
        family=family.name,
        architecture=type(model).__name__,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        weights=weights,
        sampling=default_sampling(model.config, family),
    )


def checkpoint_files(directory: Path) -> list[Path]:
    """Every file of a checkpoint, by name; what else lies in the folder does not count."""
    files = (file for file in directory.iterdir() if file.suffix in SUFFIXES and file.is_file())
    return sorted(file for file in files if file.name != RECORD and not file.name.startswith("."))


def default_sampling(config: Any, family: ModelFamily) -> SamplingConfig:
    """One token a step, in blocks of the model's own size or of 32, at temperature 1; a prompt has half the context."""
    room = min(GEN_LENGTH, int(config.max_position_embeddings) // 2)
    block = config.block_size if family.kind == "block" else min(MASKED_BLOCK, room)
    length = room // block * block or block
    return SamplingConfig(gen_length=length, block_length=block, steps_per_block=block, temperature=1.0)


def _check_tokenizer(directory: Path, model: Any, family: ModelFamily) -> None:
    """The tokenizer is there, knows the tokens that the configuration names, and has no id beyond the embedding."""
    token_ids = _token_ids(directory)
    rows = len(model.get_input_embeddings().weight)
    highest = max(token_ids.values(), default=-1)
    if highest >= rows:
        token = next(token for token, number in token_ids.items() if number == highest)
        raise BackboneError(
            f"the tokenizer in {directory} has {token!r} as {highest}, but the embedding has {rows} rows: "
            "they are not from the same checkpoint"
        )
    known = set(token_ids.values())
    for key in ("mask_token_id", "eos_token_id", "pad_token_id"):
        if getattr(model.config, key) not in known:
            raise BackboneError(
                f"config.json in {directory} has {key} {getattr(model.config, key)}, which its tokenizer does not know"
            )
    end_of_turn = getattr(getattr(family, "special", None), "end_of_turn", None)
    if end_of_turn is not None and end_of_turn not in token_ids:
        raise BackboneError(
            f"the tokenizer in {directory} has no token {end_of_turn!r}, which ends a turn of family {family.name}"
        )


def _token_ids(directory: Path) -> dict[str, int]:
    """Every token of the tokenizer's files, whichever of the published forms they have."""
    found: dict[str, int] = {}
    if (directory / "tokenizer.json").is_file():
        content = _object(directory / "tokenizer.json")
        vocabulary = (content.get("model") or {}).get("vocab") or {}
        if isinstance(vocabulary, list):  # [token, score] pairs, numbered by place
            vocabulary = {pair[0]: number for number, pair in enumerate(vocabulary)}
        found |= vocabulary
        found |= {token["content"]: token["id"] for token in content.get("added_tokens") or []}
    elif (directory / "vocab.json").is_file() and (directory / "merges.txt").is_file():
        found |= _object(directory / "vocab.json")
    else:
        raise BackboneError(f"{directory} has no tokenizer: neither tokenizer.json nor vocab.json with merges.txt")
    if (directory / "added_tokens.json").is_file():
        found |= _object(directory / "added_tokens.json")
    if (directory / "tokenizer_config.json").is_file():
        added: Mapping[str, Any] = _object(directory / "tokenizer_config.json").get("added_tokens_decoder") or {}
        found |= {token["content"]: int(number) for number, token in added.items()}
    return found


def _object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BackboneError(f"{path} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise BackboneError(f"{path} is no JSON object")
    return content
