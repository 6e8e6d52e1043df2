"""MDPO: every denoising step has an advantage of its own, from the reward of what it predicts (arXiv 2508.13148)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dare.algorithm import GRPO
from dare.forward_process import RowGenerators, step_map_of
from dare.objectives import clip_fraction, clipped_surrogate, group_advantages, k2
from dare.types import Credit, LossTerms, NoisyViews, Rollout, RolloutSpec


@dataclass(frozen=True, kw_only=True)
class MDPO(GRPO):
    """Per step t the mean over what is masked there of c (clipped ratio - beta k2), times L / #masked, summed over t.

    The target of a masked position is what the step predicted for it and c the confidence in that, also where nothing
    was committed. A block family predicts its current block only: that is what is scored and judged there.
    """

    record: ClassVar[frozenset[str]] = frozenset({"step_map", "x0", "confidence"})

    kl_coef: float = 0.02
    """Weight of the k2 penalty towards the frozen reference; 0 leaves the reference out."""
    train_steps: int = 8
    """Denoising steps of a rollout batch that are trained: those with the largest advantages in it."""
    std_floor: float = 1e-4
    """Added to the standard deviation that "grpo" divides a step's advantages by within their group."""

    def rollout(self) -> RolloutSpec:
        return RolloutSpec(record=self.record, judge_predictions=True)  # type: ignore[arg-type]

    def credit(self, rollout: Rollout, generator: torch.Generator) -> Credit:
        reward = rollout.trace.x0_reward
        assert reward is not None
        steps = step_map_of(rollout).amax(1)
        raw = torch.zeros_like(reward)
        for group in torch.unique(rollout.group):
            rows = (rollout.group == group).nonzero().flatten()
            last = int(steps[rows].max())  # completions that ended before have their final reward from there on
            raw[rows, :last] = stepwise(reward[rows, :last])
        by_step = [group_advantages(step, rollout.group, self.advantage, self.std_floor) for step in raw.unbind(1)]
        advantage = torch.stack(by_step, dim=1)
        kept = advantage.abs().sum(0).argsort(descending=True, stable=True)[: self.train_steps]
        trained = torch.zeros_like(reward, dtype=torch.bool).index_fill(1, kept, True)
        row, step = (trained & (torch.arange(reward.shape[1]) < steps[:, None])).nonzero(as_tuple=True)
        count = torch.bincount(row, minlength=len(reward)).to(reward.dtype)
        weight = 1 / (count[row] * len(reward))
        return Credit(row, advantage[row, step], rollout.completion.sum(1).to(reward.dtype)[row], weight, step + 1)

    def forward_process(self, rollout: Rollout, credit: Credit, mask_id: int, generators: RowGenerators) -> NoisyViews:
        x0, confidence = rollout.trace.x0, rollout.trace.confidence
        assert x0 is not None
        assert confidence is not None
        row, step = credit.row, credit.part
        decided, window, target = step_map_of(rollout)[row], rollout.window[row], x0[row, step - 1]
        hidden = window & ((decided >= step[:, None]) | (decided == 0))
        score = hidden & (target != mask_id)
        masked = score.sum(1, keepdim=True).clamp(min=1).to(credit.advantage.dtype)
        weight = window.sum(1, keepdim=True) / masked**2  # lambda, and the mean
        ids = torch.where(hidden, mask_id, rollout.ids[row])
        coef = (confidence[row, step - 1] * weight * score).to(credit.advantage.dtype)
        return NoisyViews(ids, target, score, coef, torch.arange(len(row)), rollout.valid[row], window)

    def loss(
        self, logp: Tensor, old: Tensor | None, ref: Tensor | None, credit: Credit, views: NoisyViews
    ) -> LossTerms:
        assert old is not None
        log_ratio, scored = (logp - old)[views.score], views.score
        advantage = credit.advantage[views.unit, None].expand_as(logp)[scored]
        loss = clipped_surrogate(log_ratio, advantage, self.clip_low, self.clip_high)
        below, above = clip_fraction(log_ratio.detach(), advantage, self.clip_low, self.clip_high)
        metrics = {"clip_fraction_low": below, "clip_fraction_high": above}
        metrics["log_ratio_abs"] = float(log_ratio.detach().abs().mean())
        if ref is not None and self.kl_coef:
            penalty = k2((logp - ref)[scored])
            metrics["kl"] = float(penalty.detach().mean())
            loss = loss + self.kl_coef * penalty
        view = scored.nonzero()[:, 0]
        total = torch.zeros(len(credit.row), dtype=logp.dtype)
        total = total.index_add(0, views.unit[view], loss * views.coef[scored])
        steps = torch.bincount(credit.row)[credit.row].to(logp.dtype)  # a completion is the sum of its steps
        return LossTerms(total, 1 / steps, metrics)


def stepwise(reward: Tensor) -> Tensor:
    """Raw advantages [G, T]: what a step gained, 1, and the mean of what comes later; the last has its reward alone."""
    later = reward.flip(1).cumsum(1).flip(1) - reward
    count = torch.arange(reward.shape[1] - 1, -1, -1, dtype=reward.dtype)
    gained = torch.diff(reward, dim=1, prepend=torch.zeros_like(reward[:, :1]))
    raw = gained + 1 + later / count.clamp(min=1)
    return torch.where(count == 0, reward, raw)
