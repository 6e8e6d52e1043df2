"""How far each row is within its current block, and when an end of sequence ends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dare.sampling.canvas import take_over
from dare.sampling.denoise import Block
from dare.sampling.draw import reveal_steps
from dare.sampling.plan import BlockPlan, reveal_chances
from dare.sampling_config import SamplingConfig


@dataclass(frozen=True)
class Progress:
    """Written in place while decoding."""

    config: SamplingConfig
    quotas: Int[Tensor, "blocks steps"]
    step: Int[Tensor, " N"]
    """Steps done in the block."""
    reveal: Int[Tensor, "N K"] | None
    """The step that reveals each position of the block, where `remasking` is `origin`."""

    @classmethod
    def start(cls, config: SamplingConfig, blocks: Sequence[BlockPlan], rows: int, device: torch.device) -> Progress:
        """All rows at the beginning of a block."""
        steps = max(len(block.quotas) for block in blocks)
        quotas = [[*block.quotas, *[0] * (steps - len(block.quotas))] for block in blocks]
        none = torch.zeros(rows, dtype=torch.long, device=device)
        reveal = none[:, None].repeat(1, config.block_length) if config.remasking == "origin" else None
        return cls(config, torch.tensor(quotas, device=device), none, reveal)

    def block(
        self,
        rows: Int[Tensor, " n"],
        number: Int[Tensor, " n"],
        masked: Bool[Tensor, "n K"],
        window: Bool[Tensor, "n K"],
        total: Int[Tensor, " n"],
        generators: Sequence[torch.Generator],
    ) -> Block:
        """What the next step of `rows` starts from.

        Args:
            number: which of the planned blocks.
            window: positions of the block that are decoded; the others are prompt or padding.
            total: steps done in the whole decode.
        """
        step = self.step[rows]
        planned = step.clamp(max=self.quotas.shape[1] - 1)  # `budget` and `origin` may take more steps
        if self.config.selector == "budget":
            share = self.quotas.cumsum(1)[number, planned] - (window & ~masked).sum(1)
        else:
            share = self.quotas[number, planned]
        return Block(masked, share, self._reveals(rows, step, masked, generators), total)

    def advance(self, rows: Int[Tensor, " n"], full: Bool[Tensor, " n"]) -> None:
        """A step is done; a full block is followed by the first step of the next."""
        self.step[rows] = torch.where(full, 0, self.step[rows] + 1)

    def copy(self, pairs: Int[Tensor, "m 2"]) -> None:
        """Rows take over where others stand."""
        take_over(pairs, self.step, *(() if self.reveal is None else (self.reveal,)))

    def _reveals(
        self, rows: Tensor, step: Tensor, masked: Tensor, generators: Sequence[torch.Generator]
    ) -> Tensor | None:
        if self.reveal is None:
            return None
        fresh = ((step == 0) & masked.any(1)).nonzero().squeeze(1)
        if len(fresh):
            own = [generators[row] for row in fresh.tolist()]
            chances = reveal_chances(self.config.steps_per_block, self.config.eps)
            self.reveal[rows[fresh]] = reveal_steps(chances, masked[fresh], own)
        return masked & (self.reveal[rows] == step[:, None])


def ended(
    config: SamplingConfig,
    ids: Int[Tensor, "n K"],
    masked: Bool[Tensor, "n K"],
    window: Bool[Tensor, "n K"],
    ends: Int[Tensor, " E"],
) -> Bool[Tensor, " n"]:
    """Whether an end of sequence in the current block ends the row; all blocks before it are full."""
    end = window & ~masked & torch.isin(ids, ends)
    if config.early_stop == "never":
        return torch.zeros_like(end[:, 0])
    if config.early_stop == "filled":
        return (end & (masked.cumsum(1) == 0)).any(1)
    return end.any(1) & ~masked.any(1)
