"""LLaDA2.0, LLaDA2.1 (mini, flash): block diffusion on a mixture of experts."""

from __future__ import annotations

from dare.families.backbone import RECORDS
from dare.families.llada2.chat import CHAT_TEMPLATE, SPECIAL
from dare.families.llada2.modeling import LLaDA2MoeModelLM
from dare.families.llada2.tiny import tiny_llada2
from dare.families.published import Architecture, PublishedFamily
from dare.family import ModelFamily

FAMILY: ModelFamily = PublishedFamily(
    name="llada2",
    kind="block",
    records=RECORDS,
    architectures={"LLaDA2MoeModelLM": Architecture(LLaDA2MoeModelLM, tiny_llada2)},
    special=SPECIAL,
    chat_template=CHAT_TEMPLATE,
)
