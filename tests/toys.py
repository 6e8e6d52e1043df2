"""Small pieces for tests on the models of `dare.diagnosis.toys`, which are handed on from here."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dare.diagnosis.toys import MASK, SEQUENCES, L, Table, ToyBackbone, V, X, Y, code, t1, t2, uniform
from dare.types import Credit, NoisyViews, Rollout, Trace


def rollout_of(
    sequences: Sequence[Sequence[int]], reward: Sequence[float], step_map: Sequence[int] | None = None
) -> Rollout:
    """Completions of one group."""
    ids = torch.tensor(sequences)
    everywhere = torch.ones(ids.shape, dtype=torch.bool)
    return Rollout(
        ids=ids,
        valid=everywhere,
        window=everywhere,
        completion=everywhere,
        group=torch.zeros(len(ids), dtype=torch.long),
        reward=torch.tensor(reward, dtype=torch.float64),
        trace=Trace(step_map=None if step_map is None else torch.tensor(step_map).expand(ids.shape)),
    )


def views_for(
    cases: Sequence[tuple[Sequence[int], Sequence[int], float, int]], sequence: Sequence[int] = X
) -> NoisyViews:
    """Views from (masked positions, scored positions, coefficient, unit)."""
    n = len(cases)
    ids = torch.tensor(sequence).expand(n, L).clone()
    score = torch.zeros(n, L, dtype=torch.bool)
    coef = torch.zeros(n, L, dtype=torch.float64)
    for row, (masked, scored, weight, _) in enumerate(cases):
        ids[row, list(masked)] = MASK
        score[row, list(scored)] = True
        coef[row, list(scored)] = weight
    everywhere = torch.ones(n, L, dtype=torch.bool)
    return NoisyViews(
        ids=ids,
        target=torch.tensor(sequence).expand(n, L),
        score=score,
        coef=coef,
        unit=torch.tensor([case[3] for case in cases]),
        valid=everywhere,
        window=everywhere,
    )


def credit_of(advantage: Sequence[float], length: Sequence[float], weight: Sequence[float] | None = None) -> Credit:
    """Units that all belong to row 0."""
    n = len(advantage)
    return Credit(
        row=torch.zeros(n, dtype=torch.long),
        advantage=torch.tensor(advantage, dtype=torch.float64),
        length=torch.tensor(length, dtype=torch.float64),
        weight=torch.tensor([1 / n] * n if weight is None else weight, dtype=torch.float64),
        part=torch.arange(n),
    )


__all__ = [
    "MASK",
    "SEQUENCES",
    "L",
    "Table",
    "ToyBackbone",
    "V",
    "X",
    "Y",
    "code",
    "credit_of",
    "rollout_of",
    "t1",
    "t2",
    "uniform",
    "views_for",
]
