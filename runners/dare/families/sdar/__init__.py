"""SDAR (1.7B, 4B, 8B Chat): block diffusion on a Qwen3-shaped transformer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from dare.attention import attention_named
from dare.families.backbone import RECORDS
from dare.families.block import BlockBackbone
from dare.families.checkpoint_files import load_model
from dare.families.sdar.modeling import SDARForCausalLM
from dare.families.sdar.tiny import SPECIAL, tiny_sdar
from dare.family import ModelFamily
from dare.tokenizer import ChatTokenizer, chat_tokenizer, load_tokenizer
from dare.types import Records


class SDARFamily:
    """Implements `family.ModelFamily`."""

    name: str = "sdar"
    kind: Literal["masked", "block"] = "block"
    records: frozenset[Records] = RECORDS
    lora_targets: ClassVar[tuple[str, ...]] = (
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    )  # fmt: skip

    def load(self, directory: Path, dtype: torch.dtype = torch.float32, attention: str = "sdpa") -> BlockBackbone:
        """Load a checkpoint strictly: a missing or unexpected key is an error that names it."""
        model = load_model(SDARForCausalLM, directory, dtype)
        tokenizer = load_tokenizer(directory, SPECIAL.end_of_turn, [model.config.eos_token_id])
        return self.backbone(model, tokenizer, attention)

    def tiny(self, vocabulary: Sequence[str], generator: torch.Generator) -> BlockBackbone:
        """A fresh tiny backbone of the real classes, randomly initialised from `generator`."""
        model, fast = tiny_sdar(vocabulary, generator)
        tokenizer = chat_tokenizer(fast, SPECIAL.end_of_turn, [model.config.eos_token_id])
        return self.backbone(model, tokenizer)

    def backbone(self, model: Any, tokenizer: ChatTokenizer, attention: str = "sdpa") -> BlockBackbone:
        """The adapter over a model that is already there."""
        attention_named(attention)
        return BlockBackbone(
            model=model,
            tokenizer=tokenizer,
            mask_id=model.config.mask_token_id,
            eos_ids=tokenizer.eos_ids,
            pad_id=model.config.pad_token_id,
            attention=attention,
            block_size=model.config.block_size,
        )


FAMILY: ModelFamily = SDARFamily()
