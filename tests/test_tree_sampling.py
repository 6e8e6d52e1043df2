"""Tree rollouts on real tiny models of both kinds: what is shared is decoded once, and every path leads to its leaf."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest
import torch
from tiny import FAMILIES, rollout_sampling, tiny

from dare.family import Backbone
from dare.sampling.plan import DecodingError
from dare.sampling.tree import Branches, SampledTrees, sample_trees, tree_of
from dare.sampling_config import SamplingConfig
from dare.seeds import generator_for
from dare.types import TreeShape

PROMPTS = ("S0321003004002100", "C1 2 3=6", "S3102200002100320")
SHAPES = [TreeShape(2, 3, 2), TreeShape(3, 2, 3), TreeShape(4, 2, 1)]


@cache
def backbone(family: str) -> Backbone:
    return tiny(family)


def whole_windows(family: str) -> SamplingConfig:
    """No row ends before its window does."""
    return rollout_sampling(family).model_copy(update={"early_stop": "never"})


def prompts(family: str) -> list[list[int]]:
    return [backbone(family).tokenizer.prompt_ids(text) for text in PROMPTS]


def trees(
    family: str, shape: TreeShape, which: slice = slice(None), config: SamplingConfig | None = None
) -> SampledTrees:
    seeds = [11, 12, 13]
    sample, mask = backbone(family).sample, backbone(family).mask_id
    return sample_trees(sample, prompts(family)[which], config or rollout_sampling(family), seeds[which], shape, mask)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_child_extends_its_parent_and_a_path_from_the_root_ends_at_its_leaf(family: str, shape: TreeShape) -> None:
    mask = backbone(family).mask_id
    sampled = trees(family, shape)
    tree = tree_of(sampled.path, torch.arange(3.0 * shape.leaves), shape)
    child = (tree.parent >= 0).nonzero().flatten()
    before, after = tree.state[tree.parent[child]], tree.state[child]
    assert torch.equal(before[before != mask], after[before != mask])
    assert bool((tree.parent[child] < child).all())
    samples = sampled.samples
    decided = samples.window & (samples.step_map > 0)
    roots = (tree.parent < 0).nonzero().flatten()
    assert torch.equal(tree.state[roots] == mask, samples.window[:: shape.leaves])
    children = torch.bincount(tree.parent[child])
    leaves = (torch.nn.functional.pad(children, (0, len(tree.parent) - len(children))) == 0).nonzero().flatten()
    for row, leaf in enumerate(leaves.tolist()):
        assert int(tree.row[leaf]) == row
        replayed, node, path = tree.state[int(roots[row // shape.leaves])].clone(), leaf, []
        while int(tree.parent[node]) >= 0:
            path.append(node)
            node = int(tree.parent[node])
        assert len(path) == shape.depth
        for node in reversed(path):
            added = tree.state[node] != tree.state[tree.parent[node]]
            assert bool((replayed[added] == mask).all())
            replayed[added] = tree.state[node][added]
        assert torch.equal(replayed[decided[row]], samples.ids[row][decided[row]])
        assert bool((replayed[samples.window[row] & ~decided[row]] == mask).all())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tree_is_a_function_of_its_prompt_and_seed_whatever_shares_the_batch(family: str) -> None:
    shape = SHAPES[0]
    together, again = trees(family, shape), trees(family, shape)
    assert torch.equal(together.path, again.path)
    for tree in range(3):
        alone = trees(family, shape, slice(tree, tree + 1))
        rows = slice(tree * shape.leaves, (tree + 1) * shape.leaves)
        width = alone.path.shape[-1]
        assert torch.equal(alone.path, together.path[rows, :, :width])
        assert torch.equal(alone.samples.step_map, together.samples.step_map[rows, :width])
        assert torch.equal(alone.samples.nfe, together.samples.nfe[rows])


@pytest.mark.parametrize("family", FAMILIES)
def test_siblings_go_apart_and_each_branch_has_randomness_of_its_own(family: str) -> None:
    shape = TreeShape(3, 3, 2)
    sampled = trees(family, shape, config=whole_windows(family))
    for level in (1, 2):
        nodes = sampled.path[:: shape.below(level), level]
        assert len(torch.unique(nodes, dim=0)) > 0.8 * len(nodes)


@pytest.mark.parametrize("family", FAMILIES)
def test_up_to_its_fork_a_row_is_what_plain_decoding_gives(family: str) -> None:
    """With the generator of the node at level 1, decoded without any tree, up to the step that made it fork."""
    shape, config = TreeShape(2, 2, 2), whole_windows(family)
    sampled = trees(family, shape, config=config)
    for row in range(0, 3 * shape.leaves, shape.below(1)):
        tree, leaf = divmod(row, shape.leaves)
        generator = generator_for((11, 12, 13)[tree], "tree", 1, leaf)
        plain = backbone(family).sample([prompts(family)[tree]], config, [generator])
        width, state = plain.ids.shape[1], sampled.path[row, 1]
        decided = (state[:width] != backbone(family).mask_id) & plain.window[0]
        assert torch.equal(state[:width][decided], plain.ids[0][decided])
        last = int(plain.step_map[0][decided].max())
        assert torch.equal(decided, (plain.step_map[0] > 0) & (plain.step_map[0] <= last))
        share = torch.bincount(plain.step_map[0][decided])
        assert int(decided.sum()) * 2 >= config.gen_length  # half of the window, and not before this step
        assert (int(decided.sum()) - int(share[last])) * 2 < config.gen_length


def test_shared_beginnings_are_paid_for_once() -> None:
    """Four steps a completion; with a fork after two, two beginnings and four ends of two forwards each make twelve."""
    config = whole_windows("llada")
    sampled = trees("llada", TreeShape(2, 2, 2), slice(0, 1), config)
    assert sampled.samples.nfe.tolist() == [4, 2, 4, 2]
    assert sampled.samples.step_map.amax(1).tolist() == [4, 4, 4, 4]
    flat = trees("llada", TreeShape(4, 2, 1), slice(0, 1), config)
    assert flat.samples.nfe.tolist() == [4, 4, 4, 4]


def test_a_cached_block_is_shared_exactly() -> None:
    """A block family's rows go on from copied keys and values: greedy siblings are equal, and to plain decoding."""
    config = rollout_sampling("sdar").model_copy(update={"temperature": 0.0})
    sampled = trees("sdar", TreeShape(2, 2, 2), config=config)
    plain = backbone("sdar").sample(prompts("sdar"), config, [generator_for(0) for _ in PROMPTS])
    width = plain.ids.shape[1]
    for row in range(12):
        assert torch.equal(sampled.samples.ids[row, :width], plain.ids[row // 4])
        assert torch.equal(sampled.samples.step_map[row, :width], plain.step_map[row // 4])


def test_a_masked_family_forks_with_an_approximate_cache_as_without_sharing() -> None:
    config = rollout_sampling("llada").model_copy(
        update={"temperature": 0.0, "cache": "dual", "block_length": 10, "steps_per_block": 5}
    )
    sampled = trees("llada", TreeShape(2, 2, 3), config=config)
    plain = backbone("llada").sample(prompts("llada"), config, [generator_for(0) for _ in PROMPTS])
    for row in range(24):
        assert torch.equal(sampled.samples.ids[row], plain.ids[row // 8])


def test_a_row_that_ends_before_a_fork_is_all_the_leaves_below_it() -> None:
    shape = TreeShape(2, 2, 3)
    branches = Branches(shape, [5], gen_length=6)
    ids = torch.arange(8 * 6).reshape(8, 6)
    undecided = torch.ones(8, 6, dtype=torch.bool)
    assert branches.first.tolist() == [0, 4]
    undecided[0, :2] = False  # a third of the window: the first fork
    assert branches.due(torch.tensor([0, 4]), ids, undecided).tolist() == [[0, 2]]
    copies = []
    while len(pairs := branches.finish(ids)):  # and then both ended
        ids[pairs[:, 1]] = ids[pairs[:, 0]]
        copies += pairs.tolist()
    assert copies == [[4, 6], [0, 1], [2, 3], [4, 5], [6, 7]]
    assert ids[4].equal(ids[7])
    assert branches.path[4:].unique(dim=0).shape[0] == 1


@pytest.mark.parametrize("shape", SHAPES)
def test_a_node_is_worth_what_its_children_are_on_average(shape: TreeShape) -> None:
    reward = torch.rand(2 * shape.leaves, generator=generator_for(0), dtype=torch.float64)
    path = torch.zeros(len(reward), shape.depth + 1, 4, dtype=torch.long)
    tree = tree_of(path, reward, shape)
    assert torch.equal(tree.value[-len(reward) :], reward)
    for node in range(len(tree.parent)):
        children = tree.parent == node
        if bool(children.any()):
            assert int(children.sum()) == (shape.root_children if int(tree.parent[node]) < 0 else shape.children)
            assert float(tree.value[node]) == pytest.approx(float(tree.value[children].mean()), abs=1e-12)
            assert tree.row[children].min() == tree.row[node]
    spans = [shape.below(level) for level in range(shape.depth + 1)]
    assert spans[0] == shape.leaves
    assert spans[-1] == 1
    assert all(a % b == 0 for a, b in pairwise(spans))


def test_a_tree_that_compares_nothing_and_one_of_edits_are_refused() -> None:
    with pytest.raises(ValueError, match="1 children of its root"):
        TreeShape(1, 2, 2)
    config = SamplingConfig(
        gen_length=20, block_length=4, steps_per_block=4, selector="dynamic", threshold=0.9, edit_threshold=0.5
    )
    with pytest.raises(DecodingError, match="keep what their parent decided"):
        trees("sdar", SHAPES[0], config=config)
