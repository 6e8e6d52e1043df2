"""DPO: the log-likelihoods of a pair replaced by one-view ELBO estimates (LLaDA2.0, arXiv 2512.15745)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dare.algorithm import Algorithm, completion_credit
from dare.forward_process import RowGenerators, hide_by_chance
from dare.objectives import per_unit, views_per_unit
from dare.types import Credit, LossTerms, NoisyViews, Rollout


@dataclass(frozen=True, kw_only=True)
class DPO(Algorithm):
    """-log sigmoid(beta m), m = (B - B_ref)(chosen) - (B - B_ref)(rejected), B the ELBO in nats, summed over tokens.

    Public code divides B by the padded length of 512, which leaves the loss at log 2; nothing is divided here. Policy
    and reference are scored on the same views, so before the first update the margin is 0 in every draw.
    """

    published_for: ClassVar[frozenset[str]] = frozenset({"block"})
    trains_on: ClassVar = "preferences"
    needs: ClassVar[frozenset[str]] = frozenset({"ref"})

    beta: float = 0.1
    """Inverse temperature of the preference, per nat of the margin."""

    def credit(self, rollout: Rollout, generator: torch.Generator) -> Credit:
        """A unit is a side of a pair: chosen and rejected of the first pair, then of the second, by group id."""
        order = torch.argsort(2 * rollout.group - (rollout.reward > 0).long())
        chosen, rejected = rollout.reward[order].reshape(-1, 2).unbind(1)
        if not bool(((chosen > 0) & (rejected < 0)).all()):
            raise ValueError("a pair needs exactly one chosen row, with reward +1, and one rejected row, with -1")
        return completion_credit(rollout, rollout.reward).units(order)

    def forward_process(self, rollout: Rollout, credit: Credit, mask_id: int, generators: RowGenerators) -> NoisyViews:
        return hide_by_chance(rollout, credit, 1e-3, mask_id, generators)

    def loss(
        self, logp: Tensor, old: Tensor | None, ref: Tensor | None, credit: Credit, views: NoisyViews
    ) -> LossTerms:
        assert ref is not None
        units = len(credit.advantage)
        gain = per_unit((logp - ref) * views.coef, views, units) / views_per_unit(views, units, logp.dtype)
        margin = gain[0::2] - gain[1::2]  # in nats
        loss = -torch.nn.functional.logsigmoid(self.beta * margin)
        booked = torch.stack([loss, torch.zeros_like(loss)], dim=1).flatten()  # once per pair, on the chosen side
        metrics = {
            "margin": float(margin.detach().mean()),
            "prefers_chosen": float((margin > 0).double().mean()),
            "chosen_gain": float(gain.detach()[0::2].mean()),
        }
        return LossTerms(booked, (credit.advantage > 0).to(logp.dtype), metrics)
