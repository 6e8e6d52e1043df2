"""The rows that are being decoded: prompts and masks at the start, `Samples` at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dare.types import Samples


@dataclass(frozen=True)
class Canvas:
    """N right-padded rows; the tensors are written in place while decoding."""

    ids: Int[Tensor, "N S"]
    length: Int[Tensor, " N"]  # of prompt and window
    prompt_length: Int[Tensor, " N"]
    step_map: Int[Tensor, "N S"]
    steps: Int[Tensor, " N"]  # denoising steps so far
    nfe: Int[Tensor, " N"]
    mask_id: int
    pad_id: int

    @classmethod
    def start(
        cls,
        prompts: Sequence[Sequence[int]],
        gen_length: int,
        mask_id: int,
        pad_id: int,
        device: torch.device,
        multiple: int = 1,
    ) -> Canvas:
        """Every prompt followed by `gen_length` masks; the width is rounded up to a multiple of `multiple`."""
        prompt_length = torch.tensor([len(prompt) for prompt in prompts], dtype=torch.long, device=device)
        length = prompt_length + gen_length
        longest = max((len(prompt) for prompt in prompts), default=0) + gen_length
        width = -(-longest // multiple) * multiple
        rows = [
            [*prompt, *[mask_id] * gen_length, *[pad_id] * (width - gen_length - len(prompt))] for prompt in prompts
        ]
        ids = torch.tensor(rows, dtype=torch.long, device=device).reshape(len(prompts), width)
        none = torch.zeros_like(length)
        return cls(ids, length, prompt_length, torch.zeros_like(ids), none.clone(), none.clone(), mask_id, pad_id)

    @property
    def valid(self) -> Bool[Tensor, "N S"]:
        """Prompt and window."""
        return self._column < self.length[:, None]

    @property
    def window(self) -> Bool[Tensor, "N S"]:
        """The generation window."""
        return self.valid & (self._column >= self.prompt_length[:, None])

    def write(self, rows: Int[Tensor, " n"], columns: Int[Tensor, "n K"], ids: Tensor, committed: Tensor) -> None:
        """The outcome of one denoising step of `rows`; rows that committed nothing had no step."""
        self.steps[rows] += committed.any(1)
        at = (rows[:, None], columns)
        self.ids[at] = torch.where(committed, ids, self.ids[at])
        self.step_map[at] = torch.where(committed, self.steps[rows, None], self.step_map[at])

    def samples(self, eos_ids: Sequence[int]) -> Samples:
        """What was decoded. Window positions that no step reached (behind an end of sequence) are padding now."""
        width = int(self.length.max()) if len(self.length) else 0
        step_map, valid, window = self.step_map[:, :width], self.valid[:, :width], self.window[:, :width]
        decoded = step_map > 0
        ids = torch.where(window & ~decoded, self.pad_id, self.ids[:, :width])
        end = decoded & torch.isin(ids, torch.tensor(list(eos_ids), device=ids.device))
        behind = (end.cumsum(1) - end.long()) > 0
        return Samples(
            ids=ids,
            valid=valid,
            window=window,
            completion=decoded & ~behind,
            step_map=step_map,
            nfe=self.nfe,
            truncated=~end.any(1),
        )

    @property
    def _column(self) -> Tensor:
        return torch.arange(self.ids.shape[1], device=self.ids.device)
