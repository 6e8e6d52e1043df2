"""Rollouts of one run: prompts sampled, judged and described.

Where the algorithm asks for it a rollout also has the tree that it was sampled as, or the judge's word on what every
step predicted. What is logged of a rollout is made here too, with one row of it to look at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dare.data import PromptData
from dare.data.batches import prompt_rows
from dare.family import Backbone
from dare.forward_process import hide_counts
from dare.parallel import PolicyGroup
from dare.rewards.weighted import WeightedReward, reward_metrics
from dare.sampling.tree import tree_of
from dare.seeds import generator_for, seed_of
from dare.spec import Sample
from dare.tasks import Item, Task, text_of
from dare.types import PER_ROW, Credit, Rollout, RolloutSpec, Trace

ELBO_ROWS, ELBO_VIEWS = 16, 2


@dataclass(frozen=True)
class Drawn:
    """A rollout, what a step logs of it, a row to look at, and what all of it cost."""

    rollout: Rollout
    metrics: dict[str, float]
    sample: Sample
    forwards: float
    """Of one sequence, those of the metrics included."""
    tokens_decoded: int
    tokens_kept: int


@dataclass(frozen=True)
class Rollouts:
    """Draws rollouts by the phases `sample` and `score` of a group."""

    backbone: Backbone
    data: PromptData
    reward: WeightedReward
    group: PolicyGroup
    seed: int

    def draw(self, step: int, chosen: Sequence[int], completions: int, spec: RolloutSpec) -> Drawn:
        """`completions` of each of the chosen prompts, with seeds of their own."""
        items = [self.data.items[i] for i in chosen for _ in range(completions)]
        tasks = [self.data.tasks[i] for i in chosen for _ in range(completions)]
        prompt, length = prompt_rows(self.backbone, [item.prompt for item in items])
        seeds = torch.tensor([seed_of(self.seed, "rollout", step, row) for row in range(len(items))])
        sampled = self.group.map("sample", {"prompt": prompt, "length": length, "seed": seeds})
        texts = [
            self.backbone.tokenizer.decode(ids[done].tolist())
            for ids, done in zip(sampled["ids"], sampled["completion"], strict=True)
        ]
        rows = list(zip(tasks, items, texts, strict=True))
        judged = self.group.once(lambda: [self.reward.judge(*row) for row in rows])
        reward = torch.tensor([row.reward for row in judged], dtype=torch.float32)
        rollout = Rollout(
            ids=sampled["ids"],
            valid=sampled["valid"],
            window=sampled["window"],
            completion=sampled["completion"],
            group=torch.arange(len(chosen)).repeat_interleave(completions),
            reward=reward,
            trace=Trace(**{name: sampled.get(name) for name in PER_ROW if name in spec.record}),  # type: ignore[arg-type]
        )
        decoded, cost = int((sampled["step_map"] > 0).sum()), dict[str, float]()
        if spec.tree is not None:
            tree = tree_of(sampled["path"], reward, spec.tree)
            rollout = replace(rollout, trace=replace(rollout.trace, tree=tree))
            decoded = int((tree.state[tree.parent] != tree.state)[tree.parent >= 0].sum())
        if spec.judge_predictions:
            predicted, count = self._judged_predictions(rollout, sampled["step_map"], items, tasks)
            rollout = replace(rollout, trace=replace(rollout.trace, x0_reward=predicted))
            cost = {"verifications_per_completion": count / len(items)}
        likelihood, scored = self._elbo(rollout, step)
        metrics = {
            "reward": float(reward.mean()),
            "reward_std": float(reward.std()),
            **reward_metrics(judged),
            "completion_length": float(rollout.completion.sum(1).float().mean()),
            "post_eos_share": 1 - float(rollout.completion.sum() / rollout.window.sum()),
            "truncated": float(sampled["truncated"].float().mean()),
            "nfe": float(sampled["nfe"].float().mean()),
            "repetition": _commonest_share(rollout.ids[rollout.completion]),
            **cost,
            **likelihood,
        }
        return Drawn(
            rollout,
            metrics,
            self._sample(step % len(items), items, sampled, reward),
            forwards=float(sampled["nfe"].sum()) + scored,
            tokens_decoded=decoded,
            tokens_kept=int(sampled["completion"].sum()),
        )

    def _sample(self, row: int, items: Sequence[Item], sampled: dict[str, Tensor], reward: Tensor) -> Sample:
        window = sampled["window"][row]
        return Sample(
            prompt=text_of(items[row].prompt),
            tokens=tuple(self.backbone.tokenizer.pieces(sampled["ids"][row][window].tolist())),
            step_map=tuple(sampled["step_map"][row][window].tolist()),
            reward=float(reward[row]),
        )

    def _judged_predictions(
        self, rollout: Rollout, step_map: Tensor, items: Sequence[Item], tasks: Sequence[Task]
    ) -> tuple[Float[Tensor, "N T"], int]:
        """Rewards of what each step predicted, and how many judgements that took with those of the completions.

        The judge reads the tokens predicted so far: with full attention a whole answer, in a block family the finished
        blocks and the current one. Equal texts for one prompt are judged once, a row's last step is its completion.
        """
        x0 = rollout.trace.x0
        assert x0 is not None
        reward = rollout.reward[:, None].repeat(1, x0.shape[1])
        said = rollout.window[:, None] & (x0 != self.backbone.mask_id)
        texts: dict[tuple[int, str], list[tuple[int, int]]] = {}
        for row, steps in enumerate(step_map.amax(1).tolist()):
            for step in range(steps - 1):
                text = self.backbone.tokenizer.decode(x0[row, step][said[row, step]].tolist())
                texts.setdefault((int(rollout.group[row]), text), []).append((row, step))
        first = [(places[0][0], text) for (_, text), places in texts.items()]
        verdicts = self.group.once(lambda: [self.reward.judge(tasks[row], items[row], text) for row, text in first])
        for places, verdict in zip(texts.values(), verdicts, strict=True):
            for row, step in places:
                reward[row, step] = verdict.reward
        return reward, len(items) + len(first)

    @torch.no_grad()
    def _elbo(self, rollout: Rollout, step: int) -> tuple[dict[str, float], int]:
        """Random-order ELBO per completion token of a few completions, its standard error, and the forwards it took."""
        few = rollout.rows(torch.arange(min(ELBO_ROWS, len(rollout.ids))))
        few = few.rows(few.completion.any(1).nonzero().flatten())
        n = len(few.ids)
        if n < 2:
            return {}, 0
        credit = Credit(
            torch.arange(n),
            torch.zeros(n),
            few.completion.sum(1).float(),
            torch.zeros(n),
            torch.zeros(n, dtype=torch.long),
        )
        generators = [generator_for(self.seed, "elbo", step, row) for row in range(n)]
        views = hide_counts(few, credit, ELBO_VIEWS, self.backbone.mask_id, generators)
        logp = self.group.map("score", views.tensors())["logp"]
        elbo = (logp * views.coef).sum(1).view(n, ELBO_VIEWS).mean(1) / credit.length
        spread = float(elbo.std() / math.sqrt(n))
        return {"elbo_per_token": float(elbo.mean()), "elbo_standard_error": spread}, len(views)


def _commonest_share(tokens: Int[Tensor, " n"]) -> float:
    return float(torch.bincount(tokens).max() / len(tokens)) if len(tokens) else 0.0
