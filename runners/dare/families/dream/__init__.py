"""Dream (v0-Base, v0-Instruct, Dream-Coder, DiffuCoder): masked diffusion on Qwen2.5, its logits shifted by one."""

from __future__ import annotations

from dare.families.backbone import RECORDS
from dare.families.dream.chat import CHAT_TEMPLATE, SPECIAL
from dare.families.dream.modeling import DreamModel
from dare.families.dream.tiny import tiny_dream
from dare.families.published import Architecture, PublishedFamily
from dare.family import ModelFamily

FAMILY: ModelFamily = PublishedFamily(
    name="dream",
    kind="masked",
    records=RECORDS,
    architectures={"DreamModel": Architecture(DreamModel, tiny_dream)},
    special=SPECIAL,
    chat_template=CHAT_TEMPLATE,
)
