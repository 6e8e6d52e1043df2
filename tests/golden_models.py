"""The tiny models that reference implementations computed with, loaded into our modules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from dare.families.checkpoint_files import load_model, read_config
from dare.family import family_of

MASK_ID = 2
GOLDEN = (
    "llada", "llada/variant_gqa_bias", "llada/variant_tied", "llada_moe", "llada_moe/variant_bias_shared", "dream",
    "sdar", "sdar/variant_square", "sdar_moe", "sdar_moe/variant_dense_first", "llada2", "llada2/variant_biases",
    "llada2_1",
)  # fmt: skip
BLOCK = {"sdar": 4, "sdar_moe": 4, "llada2": 8, "llada2_1": 8}
"""Block length of the recorded logits; the published configurations do not always say it."""


def golden_values(shared: Path, folder: str, block: int | None = None) -> dict[str, Any]:
    """The configuration of a golden model, with the ids and block length that published files leave out."""
    values = read_config(shared / "goldens" / folder)
    size = block or BLOCK.get(folder.split("/")[0])
    return {"mask_token_id": MASK_ID} | values | ({} if size is None else {"block_size": size})


def golden_model(shared: Path, folder: str, dtype: torch.dtype = torch.float32, block: int | None = None) -> Any:
    """The native module with the golden weights."""
    values: Mapping[str, Any] = golden_values(shared, folder, block)
    model_class = family_of(values).model_class(values)
    return load_model(model_class, shared / "goldens" / folder, dtype, values=values)


def golden_logits(shared: Path, folder: str) -> dict[str, Tensor]:
    """Inputs, masks and logits."""
    return load_file(shared / "goldens" / folder / "logits.safetensors")


def golden_inputs(golden: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What the reference was given: the published mask, and positions where padding moves them."""
    given = {"input_ids": golden["input_ids"], "attention_mask": golden["attention_mask"]}
    return given | ({"position_ids": golden["position_ids"]} if "position_ids" in golden else {})
