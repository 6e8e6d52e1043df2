"""SDAR (1.7B, 4B, 8B Chat) and SDAR-30B-A3B: block diffusion on a Qwen3-shaped transformer."""

from __future__ import annotations

from dare.families.backbone import RECORDS
from dare.families.published import Architecture, PublishedFamily
from dare.families.sdar.chat import CHAT_TEMPLATE, SPECIAL
from dare.families.sdar.modeling import SDARForCausalLM, SDARMoeForCausalLM
from dare.families.sdar.tiny import tiny_sdar, tiny_sdar_moe
from dare.family import ModelFamily

FAMILY: ModelFamily = PublishedFamily(
    name="sdar",
    kind="block",
    records=RECORDS,
    architectures={
        "SDARForCausalLM": Architecture(SDARForCausalLM, tiny_sdar),
        "SDARMoeForCausalLM": Architecture(SDARMoeForCausalLM, tiny_sdar_moe),
    },
    special=SPECIAL,
    chat_template=CHAT_TEMPLATE,
)
