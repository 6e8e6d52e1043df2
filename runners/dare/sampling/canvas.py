"""The rows that are being decoded: prompts and masks at the start, `Samples` at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dare.types import Frame, Samples, Trace


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
    edits: list[Int[Tensor, "E 4"]] = field(default_factory=list)

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

    def write(
        self,
        rows: Int[Tensor, " n"],
        columns: Int[Tensor, "n K"],
        token: Int[Tensor, "n K"],
        committed: Bool[Tensor, "n K"],
        edited: Bool[Tensor, "n K"] | None = None,
    ) -> None:
        """The outcome of one denoising step of `rows`; rows in which nothing changed had no step."""
        changed = committed if edited is None else committed | edited
        self.steps[rows] += changed.any(1)
        at = (rows[:, None], columns)
        self.ids[at] = torch.where(changed, token, self.ids[at])
        self.step_map[at] = torch.where(committed, self.steps[rows, None], self.step_map[at])
        if edited is not None and edited.any():
            row, place = edited.nonzero(as_tuple=True)
            owner = rows[row]
            self.edits.append(
                torch.stack((self.steps[owner], owner, columns[row, place], token[row, place]), dim=1)  # (E, 4)
            )

    def copy(self, pairs: Int[Tensor, "m 2"]) -> None:
        """Rows take over where others stand. What that cost was spent on the others."""
        take_over(pairs, self.ids, self.step_map, self.steps)

    def frame(
        self, rows: Int[Tensor, " n"], live: Int[Tensor, " m"], open_from: Int[Tensor, " N"] | None = None
    ) -> Frame:
        """What a watcher sees after a denoising step of `rows`.

        Args:
            live: rows that go on.
            open_from: the first column that may still be edited, where committed tokens may be.
        """
        undecided = self.window & (self.step_map == 0)
        settled = torch.where(undecided, self._column, self.length[:, None]).amin(1)
        if open_from is not None:
            settled = torch.minimum(settled, torch.maximum(open_from, self.prompt_length))
        finished = torch.ones_like(self.length, dtype=torch.bool).index_fill(0, live, False)
        settled = torch.where(finished, self.length, settled)
        return Frame(rows, self.ids, self.window, self.step_map, settled, self.nfe, finished)

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
            trace=Trace(step_map=step_map, edits=torch.cat(self.edits) if self.edits else None),
        )

    @property
    def _column(self) -> Tensor:
        return torch.arange(self.ids.shape[1], device=self.ids.device)


def take_over(pairs: Int[Tensor, "m 2"], *states: Tensor) -> None:
    """For each pair (source, copy) the copy's row of every state becomes the source's."""
    source, copy = pairs.unbind(1)
    for state in states:
        state[copy] = state[source]


def joined(live: Int[Tensor, " n"], pairs: Int[Tensor, "m 2"]) -> tuple[Int[Tensor, " k"], Int[Tensor, " k"]]:
    """The live rows and behind them the copies of some; and the place of each, or of its source, among the former."""
    place = (live == pairs[:, :1]).int().argmax(1)
    return torch.cat((live, pairs[:, 1])), torch.cat((torch.arange(len(live), device=live.device), place))
