"""What every denoising step predicted, for algorithms that ask for it."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dare.sampling.canvas import Canvas
from dare.sampling.denoise import Denoised, Guess
from dare.types import Records, Samples


class Recorder:
    """Collects `Trace.x0` and `Trace.confidence`; see there what stands where."""

    def __init__(self, canvas: Canvas, record: frozenset[Records]) -> None:
        self._canvas = canvas
        self._record = record
        self._committed = torch.zeros(canvas.ids.shape, dtype=torch.float32, device=canvas.ids.device)
        self._steps: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []

    def __bool__(self) -> bool:
        return bool(self._record & {"x0", "confidence"})

    def predicted(
        self,
        rows: Int[Tensor, " n"],
        columns: Int[Tensor, "n K"],
        masked: Bool[Tensor, "n K"],
        done: Denoised,
        changed: Bool[Tensor, "n K"],
        guess: Guess | None = None,
    ) -> None:
        """One denoising step, before it is written on the canvas. What was drawn replaces what was guessed."""
        x0, confidence = self._canvas.ids[rows], self._committed[rows]  # copies
        if guess is not None:
            open_later = self._canvas.step_map[rows[:, None], guess.columns] == 0
            _put(x0, guess.columns, open_later, guess.token)
            _put(confidence, guess.columns, open_later, guess.probability.float())
        _put(x0, columns, masked, done.token)
        _put(confidence, columns, masked, done.probability.float())
        had_step = changed.any(1)
        self._steps.append((rows[had_step], self._canvas.steps[rows][had_step], x0[had_step], confidence[had_step]))
        at = (rows[:, None], columns)
        self._committed[at] = torch.where(changed, done.probability.float(), self._committed[at])

    def add_to(self, samples: Samples) -> Samples:
        """The samples with what was asked for."""
        if not self:
            return samples
        rows, width = samples.ids.shape
        steps = int(self._canvas.steps.max()) if rows else 0
        x0 = samples.ids[:, None].repeat(1, steps, 1)  # (N, T, S)
        confidence = self._committed[:, None, :width].repeat(1, steps, 1)
        for row, step, tokens, probabilities in self._steps:
            x0[row, step], confidence[row, step] = tokens[:, :width], probabilities[:, :width]
        trace = replace(
            samples.trace,
            x0=x0 if "x0" in self._record else None,
            confidence=confidence if "confidence" in self._record else None,
        )
        return replace(samples, trace=trace)


def _put(values: Tensor, columns: Tensor, where: Tensor, new: Tensor) -> None:
    values.scatter_(1, columns, torch.where(where, new, values.gather(1, columns)))
