"""LLaDA (LLaDA-8B-Base, -Instruct, LLaDA-1.5, iLLaDA): masked diffusion with full attention."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from dare.attention import attention_named
from dare.families.backbone import RECORDS
from dare.families.checkpoint_files import load_model
from dare.families.llada.modeling import LLaDAModelLM
from dare.families.llada.tiny import SPECIAL, tiny_llada
from dare.families.masked import MaskedBackbone
from dare.family import ModelFamily
from dare.tokenizer import ChatTokenizer, chat_tokenizer, load_tokenizer
from dare.types import Records


class LLaDAFamily:
    """Implements `family.ModelFamily`."""

    name: str = "llada"
    kind: Literal["masked", "block"] = "masked"
    records: frozenset[Records] = RECORDS
    # Not `ff_out`: the head has that name too.
    lora_targets: ClassVar[tuple[str, ...]] = ("q_proj", "k_proj", "v_proj", "attn_out", "ff_proj", "up_proj")

    def load(self, directory: Path, dtype: torch.dtype = torch.float32, attention: str = "sdpa") -> MaskedBackbone:
        """Load a checkpoint strictly: a missing or unexpected key is an error that names it."""
        model = load_model(LLaDAModelLM, directory, dtype)
        tokenizer = load_tokenizer(directory, SPECIAL.end_of_turn, [model.config.eos_token_id])
        return self.backbone(model, tokenizer, attention)

    def tiny(self, vocabulary: Sequence[str], generator: torch.Generator) -> MaskedBackbone:
        """A fresh tiny backbone of the real classes, randomly initialised from `generator`."""
        model, fast = tiny_llada(vocabulary, generator)
        tokenizer = chat_tokenizer(fast, SPECIAL.end_of_turn, [model.config.eos_token_id])
        return self.backbone(model, tokenizer)

    def backbone(self, model: Any, tokenizer: ChatTokenizer, attention: str = "sdpa") -> MaskedBackbone:
        """The adapter over a model that is already there."""
        attention_named(attention)
        return MaskedBackbone(
            model=model,
            tokenizer=tokenizer,
            mask_id=model.config.mask_token_id,
            eos_ids=tokenizer.eos_ids,
            pad_id=model.config.pad_token_id,
            attention=attention,
        )


FAMILY: ModelFamily = LLaDAFamily()
