"""A family: the models it publishes, its chat, and how its checkpoints become backbones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from dare.attention import attention_named
from dare.families.backbone import refuse_forward
from dare.families.block import BlockBackbone
from dare.families.checkpoint_files import load_model, meta_model, read_config
from dare.families.layers import fresh_model
from dare.families.masked import MaskedBackbone
from dare.families.published_config import PublishedConfig, UnsupportedValueError
from dare.families.transformer import DiffusionTransformer
from dare.tokenizer import ChatTokenizer, SpecialTokens, character_tokenizer, chat_tokenizer, load_tokenizer
from dare.types import Records


@dataclass(frozen=True)
class Architecture:
    """One model class, and its configuration at the size of a laptop for a given tokenizer."""

    model: type[DiffusionTransformer]
    tiny: Callable[[Any], PublishedConfig]


@dataclass(frozen=True)
class PublishedFamily:
    """Implements `family.ModelFamily`. `architectures` maps what config.json says to classes; the first is typical."""

    name: str
    kind: Literal["masked", "block"]
    records: frozenset[Records]
    architectures: Mapping[str, Architecture]
    special: SpecialTokens
    chat_template: str

    @property
    def lora_targets(self) -> tuple[str, ...]:
        """Linear layers of the typical architecture that adapters go to, by the last part of their name."""
        return next(iter(self.architectures.values())).model.lora_targets

    def model_class(self, values: Mapping[str, Any]) -> type[DiffusionTransformer]:
        """The class for a configuration, by `architectures`: two classes of a family may share a `model_type`."""
        named = (values.get("architectures") or [None])[0]
        if named not in self.architectures:
            raise UnsupportedValueError(
                f"config.json names architecture {named!r}; family {self.name} has {', '.join(self.architectures)}"
            )
        return self.architectures[named].model

    def load(
        self, directory: Path, dtype: torch.dtype = torch.float32, attention: str = "sdpa"
    ) -> MaskedBackbone | BlockBackbone:
        """Load a checkpoint strictly: a missing or unexpected key is an error that names it."""
        model = load_model(self.model_class(read_config(directory)), directory, dtype)
        tokenizer = load_tokenizer(directory, self.special, self.chat_template, model.config)
        return self.backbone(model, tokenizer, attention)

    def outline(self, directory: Path) -> MaskedBackbone | BlockBackbone:
        """All of a checkpoint but its weights: no weight file is opened, and every forward is refused."""
        values = read_config(directory)
        model = meta_model(self.model_class(values), values)
        model.register_forward_pre_hook(refuse_forward)
        return self.backbone(model, load_tokenizer(directory, self.special, self.chat_template, model.config))

    def tiny(
        self, vocabulary: Sequence[str], generator: torch.Generator, architecture: str | None = None
    ) -> MaskedBackbone | BlockBackbone:
        """A fresh tiny backbone of the real classes, randomly initialised from `generator`."""
        chosen = self.architectures[architecture or next(iter(self.architectures))]
        fast = character_tokenizer(self.special, vocabulary, self.chat_template)
        model = fresh_model(chosen.model, chosen.tiny(fast), generator)
        return self.backbone(model, chat_tokenizer(fast, self.special, [model.config.eos_token_id]))

    def backbone(self, model: Any, tokenizer: ChatTokenizer, attention: str = "sdpa") -> MaskedBackbone | BlockBackbone:
        """The adapter over a model that is already there."""
        attention_named(attention)
        config = model.config
        shared: dict[str, Any] = {
            "model": model,
            "tokenizer": tokenizer,
            "mask_id": config.mask_token_id,
            "eos_ids": tokenizer.eos_ids,
            "pad_id": config.pad_token_id,
            "attention": attention,
        }
        if self.kind == "block":
            return BlockBackbone(**shared, block_size=config.block_size)
        return MaskedBackbone(**shared, logit_shift=model.logit_shift)
