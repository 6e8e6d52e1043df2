"""Does the hook carry what is to come? d-TreeRPO (one unit per tree edge), sketched, and EBPO on doubled block input.

These are sketches in a test, not implementations: they prove that credit, views and losses fit the seam. What the
sampler and the executor cannot do yet is an expected failure that names it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tiny import rollout_sampling, tiny
from torch import Tensor
from toys import MASK, ToyBackbone, rollout_of, t1

from dare.algorithm import GRPO, completion_credit, load_algorithm
from dare.data import load_data
from dare.executor import Executor, check_views
from dare.gradients import backward
from dare.objectives import group_advantages
from dare.spec import AlgorithmSpec, Budget, TrainSettings
from dare.types import Credit, NoisyViews, Rollout, RolloutSpec, Trace, Tree

GOLDENS = Path(__file__).parent / "goldens" / "algorithms"


@dataclass(frozen=True, kw_only=True)
class SketchTree(GRPO):
    """One unit per tree edge: advantage over the other siblings, the parent's state scored where the child differs."""

    record: ClassVar[frozenset[str]] = frozenset({"tree"})

    def rollout(self) -> RolloutSpec:
        return RolloutSpec(sampler="tree", record=frozenset({"tree"}))

    def credit(self, rollout: Rollout, generator: torch.Generator) -> Credit:
        tree = rollout.trace.tree
        assert tree is not None
        child = (tree.parent >= 0).nonzero().flatten()
        advantage = torch.zeros(len(child), dtype=tree.value.dtype)
        for i, node in enumerate(child.tolist()):
            others = (tree.parent == tree.parent[node]) & (torch.arange(len(tree.parent)) != node)
            advantage[i] = tree.value[node] - tree.value[others].mean()
        length = (tree.state[child] != tree.state[tree.parent[child]]).sum(1).to(advantage.dtype)
        return Credit(tree.row[child], advantage, length, torch.full_like(advantage, 1 / len(child)), child)

    def forward_process(self, rollout: Rollout, credit: Credit, mask_id: int, generators: Any) -> NoisyViews:
        tree = rollout.trace.tree
        assert tree is not None
        before, after = tree.state[tree.parent[credit.part]], tree.state[credit.part]
        score = (before == mask_id) & (after != mask_id)
        return NoisyViews(
            ids=before,
            target=after,
            score=score,
            coef=score.to(credit.advantage.dtype),
            unit=torch.arange(len(credit.part)),
            valid=rollout.valid[credit.row],
            window=rollout.window[credit.row],
        )

    def reduce(self, loss: Tensor, scored: Tensor, credit: Credit) -> tuple[Tensor, Tensor]:
        return loss.sum(1) / scored.sum(1) * credit.weight, credit.weight


def _tree() -> Rollout:
    """Two children of the root with three leaves each; leaf rewards (1, 0, 0) and (1, 1, 0)."""
    root = [MASK] * 3
    inner = [[2, MASK, MASK], [MASK, 0, MASK]]
    leaves = [[2, a, b] for a, b in ((0, 1), (1, 1), (2, 0))] + [[a, 0, b] for a, b in ((0, 1), (1, 2), (2, 2))]
    value = torch.tensor([0.5, 1 / 3, 2 / 3, 1, 0, 0, 1, 1, 0], dtype=torch.float64)
    tree = Tree(
        state=torch.tensor([root, *inner, *leaves]),
        parent=torch.tensor([-1, 0, 0, 1, 1, 1, 2, 2, 2]),
        value=value,
        row=torch.tensor([0, 0, 3, 0, 1, 2, 3, 4, 5]),
    )
    return replace(rollout_of(leaves, value[3:].tolist()), trace=Trace(tree=tree))


def test_tree_edges_get_the_enumerated_advantages_and_siblings_share_their_parents_state() -> None:
    golden = json.loads((GOLDENS / "advantages.json").read_text())["tree_leave_one_out"]
    rollout = _tree()
    algorithm = SketchTree()
    credit = algorithm.credit(rollout, torch.Generator())
    expected = [*golden["root_edge_advantages"], *golden["leaf_edge_advantages"][0], *golden["leaf_edge_advantages"][1]]
    torch.testing.assert_close(credit.advantage, torch.tensor(expected, dtype=torch.float64))
    views = algorithm.forward_process(rollout, credit, MASK, [])
    check_views(views, rollout, credit, MASK)
    assert len(torch.unique(views.ids, dim=0)) == 3  # eight edges, three parents: siblings may share one forward
    backbone = ToyBackbone(t1())
    done = backward(
        lambda part: backbone.logprobs(backbone.model, part),
        lambda logp, old: algorithm.loss(logp, old, None, credit, views),
        views,
        None,
        100,
    )
    assert done.loss == pytest.approx(-float(credit.advantage.mean()), abs=1e-9)


@pytest.mark.xfail(raises=ValueError, strict=True, reason="no sampler decodes trees yet; it comes with d-TreeRPO")
def test_the_executor_rolls_out_a_tree() -> None:
    Executor(
        backbone=tiny("llada"),
        algorithm=SketchTree(),
        data=load_data("prompts:sudoku", Path()),
        settings=TrainSettings(learning_rate=1e-4),
        sampling=rollout_sampling("llada"),
        budget=Budget(optimiser_steps=1, wall_seconds=60),
        seed=0,
    ).step()


@pytest.mark.xfail(
    raises=NotImplementedError, strict=True, reason="aux_loss on whole distributions comes with d-TreeRPO"
)
def test_the_executor_gives_whole_distributions_to_an_auxiliary_loss() -> None:
    @dataclass(frozen=True, kw_only=True)
    class WantsDistributions(GRPO):
        needs: ClassVar[frozenset[str]] = frozenset({"old", "full"})

    Executor(
        backbone=tiny("llada"),
        algorithm=WantsDistributions(),
        data=load_data("prompts:sudoku", Path()),
        settings=TrainSettings(learning_rate=1e-4, prompts_per_step=2, group_size=2),
        sampling=rollout_sampling("llada"),
        budget=Budget(optimiser_steps=1, wall_seconds=60),
        seed=0,
    ).step()


def test_one_doubled_forward_carries_a_view_that_hides_part_of_every_block() -> None:
    backbone = tiny("sdar")
    algorithm = load_algorithm(AlgorithmSpec(name="ebpo", hyperparameters={"mc_samples": 2, "block_length": 4}))
    executor = Executor(
        backbone=backbone,
        algorithm=algorithm,
        data=load_data("prompts:sudoku", Path()),
        settings=TrainSettings(learning_rate=1e-4, prompts_per_step=2, group_size=2),
        sampling=rollout_sampling("sdar"),
        budget=Budget(optimiser_steps=1, wall_seconds=60),
        seed=0,
    )
    rollout, _, _ = executor._rollout(0, [0, 1])
    credit = completion_credit(rollout, group_advantages(torch.rand(4), rollout.group, "centred"))
    views = executor._views(rollout, credit, 0, 0)
    logp = backbone.logprobs(backbone.model, views)
    assert bool(torch.isfinite(logp).all())
    scored = rollout.completion.sum(1).gt(0).sum()
    assert len(views) == 2 * int(scored)
    assert bool((backbone.forwards(views) > 0).all())
