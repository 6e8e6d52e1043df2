"""Who sees whom is what its definition says, and all backends compute the formula on it."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from flash_double import FlashDouble
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import ARCHITECTURES
from torch import Tensor

from dare import attention
from dare.attention import (
    ATTENTION,
    Sight,
    UnavailableAttentionError,
    UnknownAttentionError,
    UnsupportedAttentionError,
    attention_named,
    available,
    default_attention,
    usable,
)
from dare.attention.flash import Flash
from dare.attention.flex import TILE, Flex, tiles
from dare.families.doubled import DoubledInput, doubled_input
from dare.family import load_family
from dare.sampling_config import SamplingConfig
from dare.seeds import generator_for
from dare.types import NoisyViews

HERE = ("eager", "flex", "sdpa")
"""Backends that any machine has."""
TRAINS = ("eager", "sdpa")


# Sights


def lengths(rows: int = 3, longest: int = 9, shortest: int = 0) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(shortest, longest), min_size=1, max_size=rows)


@dataclass(frozen=True)
class Case:
    """A sight, and the definition that it should have: (row, query, key) seen."""

    sight: Sight
    seen: set[tuple[int, int, int]]
    rows: int
    queries: int
    keys: int


def case(sight: Sight, rows: int, queries: int, keys: int, sees: Any) -> Case:
    pairs = itertools.product(range(rows), range(queries), range(keys))
    return Case(sight, {pair for pair in pairs if sees(*pair)}, rows, queries, keys)


@st.composite
def padded(draw: st.DrawFn) -> Case:
    """Padding on either side or in between; as many queries as keys, or a block against a cache."""
    rows, keys = draw(st.integers(1, 3)), draw(st.integers(1, 9))
    real = torch.tensor(
        draw(st.lists(st.lists(st.booleans(), min_size=keys, max_size=keys), min_size=rows, max_size=rows))
    )
    queries = draw(st.sampled_from([None, 1, 4]))
    sight = Sight.everywhere(real, queries)
    return case(sight, rows, queries or keys, keys, lambda row, query, key: bool(real[row, key]))


@st.composite
def first(draw: st.DrawFn, longest: int = 9) -> Case:
    count = draw(lengths(longest=longest))
    keys, queries = max(count) + draw(st.integers(0, 2)) or 1, draw(st.sampled_from([1, 4, longest]))
    sight = Sight.first(torch.tensor(count), keys, queries)
    return case(sight, len(count), queries, keys, lambda row, query, key: key < count[row])


@st.composite
def blocks(draw: st.DrawFn, longest: int = 9) -> Case:
    count, size = draw(lengths(longest=longest)), draw(st.integers(1, 5))
    keys = max(count) or 1
    real = torch.arange(keys) < torch.tensor(count)[:, None]
    sight = Sight.blocks(torch.arange(keys).expand(len(count), -1), size, real)
    return case(sight, len(count), keys, keys, lambda row, q, k: k // size <= q // size and k < count[row])


@st.composite
def packed(draw: st.DrawFn, longest: int = 9) -> Case:
    count = draw(lengths(rows=5, longest=longest, shortest=1))
    owner = [one for one, length in enumerate(count) for _ in range(length)]
    sight = Sight.packed(count)
    return case(sight, 1, len(owner), len(owner), lambda _, q, k: owner[q] == owner[k])


@st.composite
def views(draw: st.DrawFn, copies: int = 3, longest: int = 13) -> NoisyViews:
    """Several views of ragged completions that score at least one token each."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    count = torch.tensor(draw(lengths(longest=longest, shortest=2))).repeat_interleave(draw(st.integers(1, copies)))
    valid = torch.arange(int(count.max())) < count[:, None]
    target = torch.randint(5, 30, valid.shape, generator=generator).masked_fill(~valid, 0)
    last = torch.arange(valid.shape[1]) == count[:, None] - 1
    score = valid & ((torch.rand(valid.shape, generator=generator) < 0.3) | last)
    score[:, 0] = False
    return NoisyViews(
        target.masked_fill(score, 4), target, score, score.float(), torch.arange(len(count)), valid, valid
    )


def doubled_of(views: NoisyViews, size: int) -> tuple[DoubledInput, Case]:
    """The doubled input with its definition (families.md 3.5), derived from what each column stands for.

    [noisy ; clean], both with positions: a noisy query sees noisy keys of its own block of its own view, and clean
    keys of earlier blocks; a clean query sees clean keys of its own and earlier blocks, never a noisy one.
    """
    doubled = doubled_input(views, size)
    assert doubled is not None
    groups, columns = doubled.ids.shape
    view_of = torch.full((groups, columns), -1)  # -1: clean
    view_of[doubled.score] = doubled.home // views.ids.shape[1]
    clean = columns - doubled.sight.query_place.unique().max().item() * size - size  # type: ignore[union-attr]
    noisy = view_of[:, clean:].unflatten(1, (-1, size)).amax(-1, keepdim=True).expand(-1, -1, size).flatten(1)
    used = torch.cat((torch.ones(groups, clean, dtype=torch.bool), noisy >= 0), dim=1)
    view_of[:, clean:] = noisy
    target = [views.target[view_of[row].max()] for row in range(groups)]
    length = [int(views.valid[view_of[row].max()].sum()) for row in range(groups)]
    position = doubled.position

    def sees(row: int, query: int, key: int) -> bool:
        at, there = int(position[row, query]), int(position[row, key])
        if not used[row, key] or there >= length[row]:
            return False
        mine, theirs = int(view_of[row, query]), int(view_of[row, key])
        if theirs < 0:
            return there // size < at // size if mine >= 0 else there // size <= at // size
        return mine == theirs and at // size == there // size

    for row in range(groups):  # what stands in each column
        for column in range(columns):
            where = int(position[row, column])
            if used[row, column] and where < length[row]:
                source = target[row] if column < clean else views.ids[view_of[row, column]]
                assert doubled.ids[row, column] == source[where]
    return doubled, case(doubled.sight, groups, columns, columns, lambda r, q, k: bool(used[r, q]) and sees(r, q, k))


@st.composite
def doubled_inputs(draw: st.DrawFn) -> Case:
    return doubled_of(draw(views()), draw(st.integers(1, 4)))[1]


sights = st.one_of(padded(), first(), blocks(), packed(), doubled_inputs())


def matrix_of(case: Case) -> Tensor:
    seen = torch.zeros(case.rows, 1, case.queries, case.keys, dtype=torch.bool)
    for row, query, key in case.seen:
        seen[row, 0, query, key] = True
    return seen


@given(st.one_of(padded(), first(), blocks(), packed()))
def test_a_sight_is_its_definition(case: Case) -> None:
    assert torch.equal(case.sight.matrix(), matrix_of(case))


@given(views(), st.integers(1, 4))
def test_the_doubled_input_is_its_definition(views: NoisyViews, size: int) -> None:
    """Columns that fill up the shorter targets are nobody's: what they see is thrown away, and nobody sees them."""
    doubled, expected = doubled_of(views, size)
    found, should = doubled.sight.matrix(), matrix_of(expected)
    nobodys = ~should.any(-1, keepdim=True)
    assert torch.equal(found & ~nobodys, should)
    assert not nobodys[doubled.score[:, None]].any()


# Backends


def tensors(case: Case, heads: int, shared: int, size: int = 8, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(case.keys)
    shapes = ((case.rows, heads, case.queries, size), *2 * ((case.rows, shared, case.keys, size),))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def by_hand(query: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> Tensor:
    """The formula in float64, one query at a time."""
    query, key, value = query.double(), key.double(), value.double()
    out = torch.zeros_like(query)
    rows, heads, queries, size = query.shape
    for row, head, place in itertools.product(range(rows), range(heads), range(queries)):
        visible = seen[row, 0, place].nonzero().squeeze(1)
        of_head = head * key.shape[1] // heads
        scores = key[row, of_head, visible] @ query[row, head, place] / size**0.5
        out[row, head, place] = scores.softmax(0) @ value[row, of_head, visible]
    return out


HEADS = st.sampled_from([(1, 1), (4, 4), (4, 2), (4, 1)])


@settings(max_examples=15)
@given(case=sights, heads=HEADS)
def test_every_backend_is_the_formula(case: Case, heads: tuple[int, int]) -> None:
    inputs = tensors(case, *heads)
    for name in TRAINS:
        check_formula(name, case, inputs)


@settings(max_examples=4)  # flex is traced again for every shape
@given(case=sights, heads=HEADS)
def test_flex_is_the_formula(case: Case, heads: tuple[int, int]) -> None:
    check_formula("flex", case, tensors(case, *heads))


def check_formula(name: str, case: Case, inputs: list[Tensor]) -> None:
    backend = attention_named(name)
    found = backend(*inputs, backend.prepare(case.sight))
    seen = case.sight.matrix()
    torch.testing.assert_close(found, by_hand(*inputs, seen).float(), atol=2e-6, rtol=1e-5)
    assert (found.transpose(1, 2)[~seen[:, 0].any(-1)] == 0).all()  # who sees nothing gets zeros


@settings(max_examples=15)
@given(case=sights, heads=HEADS)
def test_every_backend_is_the_formula_in_bfloat16(case: Case, heads: tuple[int, int]) -> None:
    inputs = tensors(case, *heads, dtype=torch.bfloat16)
    expected = by_hand(*inputs, case.sight.matrix()).float()
    flash = Flash(otherwise=ATTENTION["sdpa"], kernels=FlashDouble())
    with torch.no_grad():
        for backend in (flash, *map(attention_named, TRAINS)):
            found = backend(*inputs, backend.prepare(case.sight))
            assert found.dtype == torch.bfloat16
            torch.testing.assert_close(found.float(), expected, atol=2e-2, rtol=2e-2)


@settings(max_examples=15)
@given(case=sights, heads=HEADS)
def test_gradients_agree(case: Case, heads: tuple[int, int]) -> None:
    found = {}
    kinds = {name: (attention_named(name), torch.float32) for name in TRAINS}
    kinds["flash"] = Flash(otherwise=ATTENTION["sdpa"], kernels=FlashDouble()), torch.bfloat16
    for name, (backend, dtype) in kinds.items():
        inputs = [x.requires_grad_() for x in tensors(case, *heads, dtype=dtype)]
        out = backend(*inputs, backend.prepare(case.sight)).float()
        (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
        found[name] = [torch.zeros_like(x) if x.grad is None else x.grad for x in inputs]
    for eager, sdpa, flash in zip(*found.values(), strict=True):
        assert eager.isfinite().all()
        torch.testing.assert_close(sdpa, eager, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(flash.float(), eager, atol=5e-2, rtol=5e-2)


@pytest.mark.parametrize("name", HERE)
def test_no_mask_means_everything_is_visible(name: str) -> None:
    everything = Sight.everywhere(torch.ones(3, 7, dtype=torch.bool), queries=5)
    inputs = tensors(Case(everything, set(), 3, 5, 7), 4, 2)
    backend = attention_named(name)
    found = [backend(*inputs, backend.prepare(mask)) for mask in (None, everything)]
    torch.testing.assert_close(*found, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", TRAINS)
def test_a_boolean_matrix_is_a_mask_too(name: str) -> None:
    seen = torch.rand(3, 1, 5, 7, generator=torch.Generator().manual_seed(1)) < 0.6
    inputs = tensors(Case(Sight.first(torch.ones(3), 7), set(), 3, 5, 7), 4, 2)
    backend = attention_named(name)
    found = backend(*inputs, backend.prepare(seen))
    torch.testing.assert_close(found, by_hand(*inputs, seen).float(), atol=2e-6, rtol=1e-5)


def test_where_all_see_all_sdpa_gets_no_mask() -> None:
    assert attention_named("sdpa").prepare(Sight.everywhere(torch.ones(2, 3))) is None


def test_flash_takes_the_kernel_that_fits() -> None:
    kernels = FlashDouble()
    flash = Flash(otherwise=ATTENTION["sdpa"], kernels=kernels)
    real = torch.tensor([[True, True, False, False], [True, True, True, False]])
    left, where = ~real, torch.arange(4).expand(2, -1)
    doubled = Sight(torch.zeros(2, 4), torch.zeros(2, 4), torch.zeros(2, 4), torch.zeros(2, 4))
    used = []
    for grad, mask in (
        (True, None), (True, Sight.everywhere(real)), (True, Sight.first(torch.tensor([2, 3]), 4)),
        (False, Sight.everywhere(real)), (False, Sight.first(torch.tensor([2, 3]), 4, queries=1)),
        (False, Sight.everywhere(left)), (False, Sight.blocks(where, 2)), (True, doubled),
    ):  # fmt: skip
        kernels.calls.clear()
        queries = mask.limit.shape[1] if mask is not None else 4
        with torch.set_grad_enabled(grad):
            flash(
                *tensors(Case(Sight.first(torch.ones(2), 4), set(), 2, queries, 4), 4, 2, dtype=torch.float16),
                flash.prepare(mask),
            )
        used.append(" ".join(kernels.calls) or "otherwise")
    assert used == ["dense", "varlen", "varlen", "kvcache", "kvcache", "varlen", "otherwise", "otherwise"]


def test_flash_refuses_what_its_kernels_cannot_compute() -> None:
    flash = Flash(otherwise=ATTENTION["sdpa"], kernels=FlashDouble())
    inputs = tensors(Case(Sight.first(torch.ones(1), 3), set(), 1, 3, 3), 2, 1)
    with pytest.raises(UnsupportedAttentionError, match=r"float16 or bfloat16.*torch\.float32.*sdpa or flex"):
        flash(*inputs, flash.prepare(None))


def test_flex_says_what_to_use_where_it_has_no_backward_pass() -> None:
    inputs = [x.requires_grad_() for x in tensors(Case(Sight.first(torch.ones(1), 3), set(), 1, 3, 3), 2, 1)]
    with pytest.raises(UnsupportedAttentionError, match=r"no backward pass on cpu: use sdpa"):
        attention_named("flex")(*inputs, None)
    with torch.no_grad():
        attention_named("flex")(*inputs, None)


def test_flex_takes_no_matrix() -> None:
    with pytest.raises(UnsupportedAttentionError, match=r"given a \(1, 1, 3, 3\) matrix: give a Sight, or use sdpa"):
        attention_named("flex").prepare(torch.ones(1, 1, 3, 3, dtype=torch.bool))


# The tiles that the compiled kernel of flex skips or takes whole


@settings(max_examples=20)
@given(st.one_of(blocks(longest=400), packed(longest=200), first(longest=400)))
def test_flex_skips_no_tile_in_which_somebody_sees_somebody(case: Case) -> None:
    check_tiles(case.sight)


@pytest.mark.parametrize("size", [4, 32])
def test_flex_finds_most_of_the_empty_tiles_of_a_doubled_input(size: int) -> None:
    """Of S = 512 in blocks: the clean half is a triangle, each noisy block looks at a stripe and at itself."""
    doubled = doubled_input(whole(512, rows=2), size)
    assert doubled is not None
    check_tiles(doubled.sight)
    some, full = tiles(doubled.sight)
    looked_at = (some | full)[0].sum().item()
    short = -doubled.ids.shape[1] % TILE
    matrix = torch.nn.functional.pad(doubled.sight.matrix()[0, 0], (0, short, 0, short))
    needed = matrix.unflatten(1, (-1, TILE)).unflatten(0, (-1, TILE)).any(3).any(1).sum().item()
    assert looked_at <= needed + 1  # in vain: one, where the halves meet


def whole(length: int, rows: int = 1) -> NoisyViews:
    """Views that hide everything but the first block."""
    ids = torch.randint(5, 30, (rows, length), generator=torch.Generator().manual_seed(0))
    score = (torch.arange(length) >= 32).expand(rows, -1)
    every = torch.ones_like(score)
    return NoisyViews(ids.masked_fill(score, 4), ids, score, score.float(), torch.arange(rows), every, every)


def check_tiles(sight: Sight) -> None:
    some, full = tiles(sight)
    matrix = sight.matrix()[:, 0]
    for row, i, j in itertools.product(*map(range, some.shape)):
        tile = matrix[row, i * TILE : (i + 1) * TILE, j * TILE : (j + 1) * TILE]
        if full[row, i, j]:
            assert tile.all()
            assert tile.shape == (TILE, TILE)
            assert not some[row, i, j]
        elif not some[row, i, j]:
            assert not tile.any()


def test_flex_keeps_a_few_numbers_per_token_and_tile() -> None:
    doubled = doubled_input(whole(2048), 4)
    assert doubled is not None
    queries = doubled.ids.shape[1]
    prepared = Flex().prepare(doubled.sight)
    kept = [prepared.kv_num_blocks, prepared.kv_indices, prepared.full_kv_num_blocks, prepared.full_kv_indices]
    kept += [prepared.q_num_blocks, prepared.q_indices, prepared.full_q_num_blocks, prepared.full_q_indices]
    sight = doubled.sight
    kept += [sight.limit, sight.block, sight.query_place, sight.key_place]
    assert sum(x.numel() * x.element_size() for x in kept) < queries**2 / 50
    assert attention_named("sdpa").prepare(sight).numel() == queries**2


@pytest.mark.full
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")
def test_compiled_flex_skips_tiles_and_stays_the_formula() -> None:
    """The only run of the tables by a compiled kernel that a machine without CUDA allows: one shape, no gradients."""
    from torch.nn.attention.flex_attention import flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)
    position = torch.arange(300).expand(2, -1)
    real = position < torch.tensor([[170], [300]])
    doubled = doubled_input(whole(164, rows=2), 4)
    assert doubled is not None
    assert doubled.ids.shape == (2, 292)
    for sight in (Sight.blocks(position, 4, real), doubled.sight):
        length = sight.limit.shape[1]
        inputs = tensors(Case(sight, set(), 2, length, length), 4, 2, size=32)
        with torch.no_grad():
            found = compiled(*inputs, block_mask=Flex().prepare(sight), enable_gqa=True)
        eager = attention_named("eager")
        torch.testing.assert_close(found, eager(*inputs, eager.prepare(sight)), atol=5e-6, rtol=1e-5)


# Whole models


def tiny(architecture: str) -> Any:
    """A tiny backbone with peaked logits."""
    characters = list("0123456789+-*/=()., abcdefghijklmno")
    backbone = load_family(ARCHITECTURES[architecture]).tiny(characters, generator_for(0, "init"), architecture)
    with torch.no_grad():
        backbone.model.get_output_embeddings().weight.mul_(3.0)
    return backbone


def some_views(rows: int = 3) -> NoisyViews:
    generator = torch.Generator().manual_seed(3)
    valid = torch.arange(15) < torch.tensor([15, 9, 12])[:rows, None]
    ids = torch.randint(5, 30, valid.shape, generator=generator)
    score = valid & (torch.arange(15) >= 4) & (torch.rand(valid.shape, generator=generator) < 0.5)
    return NoisyViews(ids.masked_fill(score, 4), ids, score, score.float(), torch.arange(rows), valid, valid)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_model_scores_and_decodes_the_same_with_every_backend(architecture: str) -> None:
    backbone = tiny(architecture)
    config = SamplingConfig(gen_length=8, block_length=4, steps_per_block=2)
    prompts = [[7, 8, 9, 10, 11], [12, 13]]
    scores, tokens = [], []
    for name in HERE:
        backbone.attention = name
        with torch.no_grad():
            scores.append(backbone.logprobs(backbone.model, some_views()))
        if name in TRAINS:  # flex would be traced again for every block
            tokens.append(backbone.sample(prompts, config, [generator_for(0, row) for row in range(2)]).ids)
    for other in scores[1:]:
        torch.testing.assert_close(other, scores[0], atol=2e-5, rtol=1e-5)
    assert all(torch.equal(tokens[0], other) for other in tokens[1:])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_gradients_of_a_model_are_the_same_with_every_backend(architecture: str) -> None:
    backbone = tiny(architecture)
    found = []
    for name in TRAINS:
        backbone.attention = name
        backbone.model.zero_grad()
        backbone.logprobs(backbone.model, some_views()).sum().backward()
        found.append({name: parameter.grad for name, parameter in backbone.model.named_parameters()})
    for name, gradient in found[0].items():
        scale = max(1.0, gradient.abs().max().item())
        torch.testing.assert_close(found[1][name], gradient, atol=1e-5 * scale, rtol=1e-4)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_model_in_bfloat16_scores_the_same_through_flash(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = FlashDouble()
    monkeypatch.setitem(ATTENTION, "flash", Flash(otherwise=ATTENTION["sdpa"], kernels=kernels))
    backbone = tiny(architecture)
    backbone.model.bfloat16()
    exact = tiny(architecture)
    with torch.no_grad():
        expected = exact.logprobs(exact.model, some_views())
        distance = {}
        for name in ("sdpa", "flash"):
            backbone.attention = name
            difference = backbone.logprobs(backbone.model, some_views()).float() - expected
            distance[name] = difference.abs().mean().item()  # one token of a mixture may be routed differently
        config = SamplingConfig(gen_length=8, block_length=4, steps_per_block=2)
        backbone.sample([[7, 8, 9, 10, 11], [12, 13]], config, [generator_for(0, row) for row in range(2)])
    assert distance["flash"] < 1.5 * distance["sdpa"] + 0.01
    assert kernels.calls["kvcache"] > 0
    backbone.logprobs(backbone.model, some_views())
    assert backbone.kind == "block" or kernels.calls["varlen"] > 0


def test_rollout_and_update_may_use_different_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler asks one backend, scoring another, of the same weights."""
    asked: list[str] = []

    class Watched:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getattr__(self, part: str) -> Any:
            asked.append(self.name)
            return getattr(ATTENTION["eager"], part)

        def __call__(self, *given: Any) -> Tensor:
            return ATTENTION["eager"](*given)

    for name in ("scores", "decodes"):
        monkeypatch.setitem(ATTENTION, name, Watched(name))
    for architecture in ARCHITECTURES:
        backbone = tiny(architecture)
        backbone.attention, backbone.decode_attention = "scores", "decodes"
        asked.clear()
        for cache in ("none", "prefix", "dual") if backbone.kind == "masked" else ("none",):
            config = SamplingConfig(gen_length=8, block_length=4, steps_per_block=2, cache=cache)
            backbone.sample([[7, 8, 9, 10, 11]], config, [generator_for(0)])
        assert set(asked) == {"decodes"}
        asked.clear()
        backbone.logprobs(backbone.model, some_views())
        assert set(asked) == {"scores"}


# Names


def test_an_unknown_backend_is_refused_with_the_known_names() -> None:
    with pytest.raises(UnknownAttentionError, match=r"unknown attention 'fast'; known: eager, flash.*, flex, sdpa"):
        attention_named("fast")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine without CUDA")
def test_a_backend_that_this_machine_lacks_is_refused_with_the_reason() -> None:
    with pytest.raises(UnavailableAttentionError, match=r"'flash' cannot be used here: flash-attn needs CUDA; known: "):
        attention_named("flash")
    assert usable() == set(HERE)
    assert available()["flash"].missing == "flash-attn needs CUDA"


@pytest.mark.full
def test_importing_backends_imports_no_kernels() -> None:
    script = (
        "import sys, torch; before = set(sys.modules); import dare.attention; "
        "print([name for name in set(sys.modules) - before if name.startswith(('flash_attn', 'torch.nn.attention'))])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_default_builds_no_matrix_for_blocks_on_cuda() -> None:
    everything, half = set(ATTENTION), torch.bfloat16
    for kind in ("masked", "block"):
        assert default_attention("cpu", everything, kind, half) == "sdpa"
        assert default_attention("cuda", everything, kind, half) == "flash"
    for among, dtype in ((everything, torch.float32), (everything - {"flash"}, half)):
        assert default_attention("cuda", among, "masked", dtype) == "sdpa"
        assert default_attention("cuda", among, "block", dtype) == "flex"
    assert default_attention("cuda", everything - {"flex"}, "block", half) == "sdpa"
    assert default_attention("cuda", everything - {"flex"}, "masked", half) == "flash"


def test_the_names_that_others_import_are_there() -> None:
    assert all(hasattr(attention, name) for name in attention.__all__)
