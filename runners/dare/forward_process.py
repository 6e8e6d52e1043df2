"""Ways to hide tokens: all of them, an exact stratified count, by chance, or along the trajectory that decoded them.

Each returns `NoisyViews` for the units of a Credit whose rows index a Rollout. Every draw is keyed by the row, so a
view does not depend on which other rows are in the batch, nor on their order.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dare.types import Credit, NoisyViews, Rollout, Tree

RowGenerators = list[torch.Generator]
"""One private generator per unit, in the order of the units."""


def views_of(
    rollout: Rollout,
    credit: Credit,
    unit: Int[Tensor, " n"],
    hidden: Bool[Tensor, "n S"],
    score: Bool[Tensor, "n S"],
    coef: Float[Tensor, "n S"],
    mask_id: int,
) -> NoisyViews:
    """Views that hide `hidden` and score `score` of the completions that own them."""
    row = credit.row[unit]
    target = rollout.ids[row]
    return NoisyViews(
        ids=torch.where(hidden, mask_id, target),
        target=target,
        score=score,
        coef=coef * score,
        unit=unit,
        valid=rollout.valid[row],
        window=rollout.window[row],
    )


def hide_everything(rollout: Rollout, credit: Credit, mask_id: int) -> NoisyViews:
    """One view per unit with the whole window masked and the completion scored: the mean-field estimate."""
    unit = torch.arange(len(credit.row))
    score = rollout.completion[credit.row]
    return views_of(rollout, credit, unit, rollout.window[credit.row], score, _ones(score, credit), mask_id)


def hide_prompt_too(
    views: NoisyViews, rollout: Rollout, credit: Credit, probability: float, mask_id: int, generators: RowGenerators
) -> NoisyViews:
    """The same views with each prompt token masked by chance as well; prompt tokens are never scored."""
    prompt = (rollout.valid & ~rollout.window)[credit.row[views.unit]]
    drawn = torch.stack([torch.rand(prompt.shape[1], generator=generators[int(u)]) for u in views.unit.tolist()])
    return NoisyViews(
        ids=torch.where(prompt & (drawn < probability), mask_id, views.ids),
        target=views.target,
        score=views.score,
        coef=views.coef,
        unit=views.unit,
        valid=views.valid,
        window=views.window,
    )


def stratified_counts(length: int, views: int, generator: torch.Generator) -> list[int]:
    """Numbers of tokens to hide: k_j = ((round(k_0 + j L / n) - 1) mod L) + 1, each uniform on 1..L.

    Halves round up: rounding them to even would make some counts twice as likely and the estimate biased.
    """
    first = int(torch.randint(1, length + 1, (), generator=generator))
    return [(math.floor(first + j * length / views + 0.5) - 1) % length + 1 for j in range(views)]


def hide_counts(rollout: Rollout, credit: Credit, views: int, mask_id: int, generators: RowGenerators) -> NoisyViews:
    """`views` views per unit that hide exactly k of its L completion tokens, weight L / k each (E-k, stratified).

    Averaged over the views of a unit, the weighted sum of log-probabilities is unbiased for the random-order ELBO.
    """
    completion = rollout.completion[credit.row]
    hidden = torch.zeros(len(credit.row) * views, completion.shape[1], dtype=torch.bool)
    coef = torch.zeros(len(hidden), dtype=credit.advantage.dtype)
    for u, generator in enumerate(generators):
        positions = completion[u].nonzero().flatten()
        for j, count in enumerate(stratified_counts(len(positions), views, generator)):
            order = torch.randperm(len(positions), generator=generator)
            hidden[u * views + j, positions[order[:count]]] = True
            coef[u * views + j] = len(positions) / count
    unit = torch.arange(len(credit.row)).repeat_interleave(views)
    return views_of(rollout, credit, unit, hidden, hidden, coef[:, None].expand(hidden.shape), mask_id)


def hide_by_chance(
    rollout: Rollout, credit: Credit, smallest: float, mask_id: int, generators: RowGenerators
) -> NoisyViews:
    """One view per unit: t ~ U(smallest, 1), each completion token hidden with probability t, weight 1 / t (E-bern)."""
    completion = rollout.completion[credit.row]
    level = torch.stack([torch.rand((), generator=g, dtype=torch.float64) for g in generators])
    level = smallest + (1 - smallest) * level
    drawn = torch.stack([torch.rand(completion.shape[1], generator=g, dtype=torch.float64) for g in generators])
    hidden = completion & (drawn < level[:, None])
    coef = (1 / level).to(credit.advantage.dtype)[:, None].expand(hidden.shape)
    return views_of(rollout, credit, torch.arange(len(credit.row)), hidden, hidden, coef, mask_id)


def hide_set_and_rest(
    rollout: Rollout,
    credit: Credit,
    unit: Int[Tensor, " m"],
    chosen: Bool[Tensor, "m S"],
    coef: Float[Tensor, " m"],
    rest_coef: Float[Tensor, " m"],
    mask_id: int,
) -> NoisyViews:
    """For each set of completion tokens a view that hides it and one that hides the rest: each token is scored once.

    A side without tokens says nothing about the policy and gives no view.
    """
    rest = rollout.completion[credit.row[unit]] & ~chosen
    hidden, weight = torch.cat([chosen, rest]), torch.cat([coef, rest_coef]).to(credit.advantage.dtype)
    some = hidden.any(1)
    hidden, weight = hidden[some], weight[some, None].expand(-1, hidden.shape[1])
    return views_of(rollout, credit, unit.repeat(2)[some], hidden, hidden, weight, mask_id)


def step_map_of(rollout: Rollout) -> Int[Tensor, "N S"]:
    """The recorded step map; a ValueError says how to get one."""
    if rollout.trace.step_map is None:
        raise ValueError("replaying a trajectory needs its step map; the algorithm asks for it by record={'step_map'}")
    return rollout.trace.step_map


def steps_of(rollout: Rollout) -> tuple[Int[Tensor, " U"], Int[Tensor, " U"]]:
    """(row, step) of every step that decided a completion token, by row and then by step."""
    step_map = torch.where(rollout.completion, step_map_of(rollout), 0).long()
    rows = torch.arange(len(step_map))[:, None].expand_as(step_map)
    pairs = torch.unique(torch.stack([rows, step_map], dim=-1)[step_map > 0], dim=0)
    return pairs[:, 0], pairs[:, 1]


def replay_steps(rollout: Rollout, credit: Credit, mask_id: int) -> NoisyViews:
    """One view per (completion, step): the canvas the sampler saw before that step, scoring what the step decided.

    The step is the unit's `part`. Window positions that were never decoded belong to no step; the sampler saw a mask
    there at every step.
    """
    decided = step_map_of(rollout)[credit.row]
    step = credit.part[:, None]
    hidden = rollout.window[credit.row] & ((decided >= step) | (decided == 0))
    score = rollout.completion[credit.row] & (decided == step)
    return views_of(rollout, credit, torch.arange(len(step)), hidden, score, _ones(score, credit), mask_id)


def recorded_tree(rollout: Rollout) -> Tree:
    """The recorded tree; a ValueError says how to get one."""
    if rollout.trace.tree is None:
        raise ValueError(
            "edges need a tree; the algorithm asks for it by record={'tree'} and RolloutSpec(sampler='tree', tree=...)"
        )
    return rollout.trace.tree


def added_tokens(rollout: Rollout) -> Bool[Tensor, "M S"]:
    """What a node adds to its parent's state and some completion below it keeps, that is: has not ended before."""
    tree = recorded_tree(rollout)
    parent = tree.parent
    leaf = torch.ones(len(parent), dtype=torch.bool).index_fill(0, parent[parent >= 0], False)
    kept = rollout.completion[tree.row] & leaf[:, None]
    for node, above in reversed(list(enumerate(parent.tolist()))):
        if above >= 0:
            kept[above] |= kept[node]
    return kept & (tree.state != tree.state[parent]) & (parent >= 0)[:, None]


def replay_edges(rollout: Rollout, credit: Credit) -> NoisyViews:
    """One view per edge: the parent's state, scoring what the child adds to it. The child is the unit's `part`.

    Views of siblings have the same input. A child that adds nothing has none.
    """
    tree, added = recorded_tree(rollout), added_tokens(rollout)[credit.part]
    unit = added.any(1).nonzero().flatten()
    row, child, score = credit.row[unit], credit.part[unit], added[unit]
    return NoisyViews(
        ids=tree.state[tree.parent[child]],
        target=tree.state[child],
        score=score,
        coef=score.to(credit.advantage.dtype),
        unit=unit,
        valid=rollout.valid[row],
        window=rollout.window[row],
    )


def _ones(score: Bool[Tensor, "n S"], credit: Credit) -> Float[Tensor, "n S"]:
    return torch.ones(score.shape, dtype=credit.advantage.dtype)
