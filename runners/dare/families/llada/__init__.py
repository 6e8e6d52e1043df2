"""LLaDA (8B-Base, -Instruct, 1.5, iLLaDA) and LLaDA-MoE: masked diffusion with full attention."""

from __future__ import annotations

from dare.families.backbone import RECORDS
from dare.families.llada.chat import CHAT_TEMPLATE, SPECIAL
from dare.families.llada.modeling import LLaDAModelLM
from dare.families.llada.moe import LLaDAMoEModelLM
from dare.families.llada.tiny import tiny_llada, tiny_llada_moe
from dare.families.published import Architecture, PublishedFamily
from dare.family import ModelFamily

FAMILY: ModelFamily = PublishedFamily(
    name="llada",
    kind="masked",
    records=RECORDS,
    architectures={
        "LLaDAModelLM": Architecture(LLaDAModelLM, tiny_llada),
        "LLaDAMoEModelLM": Architecture(LLaDAMoEModelLM, tiny_llada_moe),
    },
    special=SPECIAL,
    chat_template=CHAT_TEMPLATE,
)
