"""The parity table: our modules beside the numbers of reference implementations, as largest absolute differences.

python tests/parity.py [folder of reference data]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from golden_models import GOLDEN, golden_inputs, golden_logits, golden_model
from torch import Tensor

from dare.families.block import CachedBlocks


def gap(ours: Tensor, theirs: Tensor) -> str:
    """The largest absolute difference."""
    largest = (ours.float() - theirs).abs().max().item()
    return "0" if largest == 0 else f"{largest:.1e}"


def cached(model: object, golden: dict[str, Tensor]) -> str:
    """The cache steps that were recorded."""
    found = []
    if "cached_block" in golden:
        start, end = golden["cached_block"].tolist()
        ids = golden["input_ids"][2:]
        blocks = CachedBlocks(model, model.config.block_size, "sdpa")  # type: ignore[attr-defined]
        blocks.prefill(ids[:, :start], torch.tensor([start]), ids.shape[1])
        columns = torch.arange(start, end)[None]
        logits = blocks.logits(ids[:, start:end], columns, torch.ones_like(columns, dtype=torch.bool))
        found.append(f"block {gap(logits, golden['cached_block_logits'])}")
    if "cache_block" in golden:
        start, end = golden["cache_block"].tolist()
        before, step = golden["cache_before_ids"], golden["cache_step_ids"]
        width = before.shape[1]
        for last, length, name in ((width, start, "prefix"), (end, width, "dual")):
            if f"{name}_cache_logits" in golden:
                cache = model.empty_cache(1, width)  # type: ignore[attr-defined]
                columns = torch.arange(width)[None]
                model(before, position_ids=columns, cache=cache)  # type: ignore[operator]
                cache.length[:] = length
                logits = model(step[:, start:last], position_ids=columns[:, start:last], cache=cache)  # type: ignore[operator]
                found.append(f"{name} {gap(logits, golden[f'{name}_cache_logits'])}")
    return ", ".join(found)


@torch.no_grad()
def main(shared: Path) -> None:
    """Print the table in Markdown."""
    print("| reference | tensors | fp32 sdpa | fp32 eager | alone against padded | cache | bf16 (mean) |")
    print("|---|---|---|---|---|---|---|")
    for folder in GOLDEN:
        golden, model = golden_logits(shared, folder), golden_model(shared, folder)
        real = golden["attention_mask"].bool()
        given = golden_inputs(golden)
        cells = [folder, str(len(model.state_dict()))]
        cells += [gap(model(**given, attention=name)[real], golden["logits"][real]) for name in ("sdpa", "eager")]
        cells.append(gap(model(golden["input_ids"][1:2, 5:]), golden["logits_row1_unpadded"]))
        cells.append(cached(model, golden))
        half = golden_model(shared, folder, torch.bfloat16)
        name = next(n for n in sorted(golden, reverse=True) if n.startswith("logits_bf16"))
        rows = [0, 2] if name.endswith("rows_0_and_2") else [0, 1, 2]
        logits = half(**{key: value[rows] for key, value in given.items()}).float()
        difference = (logits - golden[name])[real[rows]].abs()
        cells.append("0" if difference.max() == 0 else f"{difference.mean():.1e}")
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "../shared"))
