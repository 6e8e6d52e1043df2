"""Dream: a Qwen2-shaped transformer that looks both ways; the logits at a position still predict the next token."""

from __future__ import annotations

from torch import nn

from dare.families.dream.configuration import DreamConfig
from dare.families.prenorm import PreNormLayer, PreNormTransformer, SelfAttention, dense
from dare.families.published_config import PublishedConfig


class DreamModel(PreNormTransformer):
    """Masked language model with the published state dict. Its logits are raw: see `logit_shift`."""

    config_class = DreamConfig
    logit_shift = 1

    def layer(self, config: PublishedConfig, index: int) -> nn.Module:
        return PreNormLayer(config, SelfAttention(config, bias=True, norms=False), dense(config))
