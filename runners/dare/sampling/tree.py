"""Trees of completions: those of one prompt share beginnings, which are decoded once and then go on apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dare.sampling.plan import DecodingError
from dare.sampling_config import SamplingConfig
from dare.seeds import generator_for
from dare.types import Samples, Tree, TreeShape


class Branches:
    """Implements `types.Forks`: the leaves of a tree are consecutive rows, a node stands in the first row below it.

    A node forks after the step with which its share of the window is decided: level / depth, whatever the selector.
    A row that ends before is the completion of all leaves below it, whose edges then change nothing.
    """

    def __init__(self, shape: TreeShape, seeds: Sequence[int], gen_length: int) -> None:
        self.generators: list[torch.Generator] = []
        """Of every row, for the sampler to read at every step: a node draws from one keyed by its place in its tree."""
        self.path = torch.empty(0, dtype=torch.long)
        """The states of the nodes from level 1 to each leaf, [N, depth, S]."""
        self._shape, self._seeds, self._gen_length = shape, seeds, gen_length
        self._level = [0] * (len(seeds) * shape.leaves)  # of the node that stands in a row; 0 for a row that waits
        for row in range(len(self._level)):
            self._level[row] = int(row % shape.below(1) == 0)
            self.generators.append(self._generator(row))

    @property
    def first(self) -> Int[Tensor, " n"]:
        return torch.arange(0, len(self._level), self._shape.below(1))

    def due(
        self, live: Int[Tensor, " n"], ids: Int[Tensor, "N S"], undecided: Bool[Tensor, "N S"]
    ) -> Int[Tensor, "m 2"]:
        decided = self._gen_length - undecided.sum(1)
        ready = [
            row
            for row, tokens in zip(live.tolist(), decided[live].tolist(), strict=True)
            if self._level[row] < self._shape.depth
            and tokens * self._shape.depth >= self._level[row] * self._gen_length
        ]
        return self._fork(ready, ids)

    def finish(self, ids: Int[Tensor, "N S"]) -> Int[Tensor, "m 2"]:
        for level in range(1, self._shape.depth):
            whole = [row for row, at in enumerate(self._level) if at == level]
            if whole:
                return self._fork(whole, ids)
        self._keep(range(len(self._level)), self._shape.depth, ids)
        return self._fork([], ids)

    def _fork(self, rows: Sequence[int], ids: Tensor) -> Tensor:
        pairs = []
        for row in rows:
            level = self._level[row]
            below = range(row, row + self._shape.below(level))
            self._keep(below, level, ids[row])
            for child in below[:: self._shape.below(level + 1)]:
                self._level[child] = level + 1
                self.generators[child] = self._generator(child)
                pairs += [(row, child)] if child != row else []
        return torch.tensor(pairs, dtype=torch.long, device=ids.device).reshape(-1, 2)

    def _keep(self, rows: range, level: int, state: Tensor) -> None:
        if not len(self.path):
            self.path = state.new_empty(len(self._level), self._shape.depth, state.shape[-1])
        self.path[rows.start : rows.stop, level - 1] = state

    def _generator(self, row: int) -> torch.Generator:
        tree, leaf = divmod(row, self._shape.leaves)
        return generator_for(self._seeds[tree], "tree", self._level[row], leaf)


class SampledTrees(NamedTuple):
    """Completions, and the states they came by."""

    samples: Samples
    """`nfe` counts what was decoded for several rows once, in the first of them."""
    path: Int[Tensor, "N D S"]
    """The states of the nodes from the root to each leaf, masks where nothing is decided."""


def sample_trees(
    sample: Callable[..., Samples],
    prompts: Sequence[Sequence[int]],
    config: SamplingConfig,
    seeds: Sequence[int],
    shape: TreeShape,
    mask_id: int,
) -> SampledTrees:
    """One tree per prompt; the leaves of each are consecutive rows.

    Args:
        sample: `Backbone.sample` of either kind.
        seeds: one per tree, which alone decides what it draws.
    """
    if config.edit_threshold is not None:
        raise DecodingError(
            f"edit_threshold is {config.edit_threshold:g}: a tree needs children that keep what their parent decided"
        )
    branches = Branches(shape, seeds, config.gen_length)
    rows = [prompt for prompt in prompts for _ in range(shape.leaves)]
    samples = sample(rows, config, branches.generators, forks=branches)
    root = torch.where(samples.window, mask_id, samples.ids)
    return SampledTrees(samples, torch.cat((root[:, None], branches.path[:, :, : root.shape[1]]), dim=1))


def tree_of(path: Int[Tensor, "N D S"], reward: Float[Tensor, " N"], shape: TreeShape) -> Tree:
    """The trees of all prompts in one: roots, then all nodes of the next level, the leaves last, in order of rows.

    A leaf is worth its reward, a node what its children are on average.
    """
    row = [torch.arange(0, len(path), shape.below(level)) for level in range(shape.depth + 1)]
    value = [reward]
    for level in reversed(range(shape.depth)):
        value.insert(0, value[0].view(len(row[level]), -1).mean(1))
    parent, first = [torch.full((len(row[0]),), -1)], 0
    for above, nodes in pairwise(row):
        parent.append(first + torch.arange(len(nodes)) // (len(nodes) // len(above)))
        first += len(above)
    return Tree(
        state=torch.cat([path[nodes, level] for level, nodes in enumerate(row)]),
        parent=torch.cat(parent),
        value=torch.cat(value),
        row=torch.cat(row),
    )
