"""`python -m benchmarks attention`: packing against padding, masks against none, memory of the doubled input's mask.

As ratios in one run, like the other tables; forward and backward where gradients are what a run pays for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.pairs import Row, paired
from dare.attention import Sight, attention_named
from dare.attention.flex import Flex
from dare.families import packing
from dare.families.doubled import doubled_input
from dare.families.layers import fresh_model
from dare.families.llada import FAMILY as LLADA
from dare.families.llada.modeling import LLaDAModelLM
from dare.families.masked import MaskedBackbone, used_width
from dare.seeds import generator_for
from dare.types import NoisyViews

MIDDLE = {"d_model": 512, "n_heads": 8, "n_kv_heads": 8, "n_layers": 10, "mlp_hidden_size": 2048}
"""About 42 M parameters beside a small vocabulary."""


def backbone(**sizes: int) -> MaskedBackbone:
    """LLaDA at tiny size, or with other sizes, and random weights."""
    found = LLADA.tiny([chr(code) for code in range(33, 123)], generator_for(0, "init"))
    assert isinstance(found, MaskedBackbone)
    if sizes:
        config = found.model.config
        for name, value in sizes.items():
            setattr(config, name, value)
        found = replace(found, model=fresh_model(LLaDAModelLM, config, generator_for(0, "init")))
    return found


def views_of(lengths: list[int], copies: int = 1) -> NoisyViews:
    """Right-padded views whose second half is the answer, half of it hidden and scored; `copies` of each sequence."""
    generator = torch.Generator().manual_seed(0)
    length = torch.tensor(lengths).repeat_interleave(copies)[:, None]
    column = torch.arange(max(lengths))
    valid, window = column < length, (column < length) & (column >= length // 2)
    ids = torch.randint(10, 90, valid.shape, generator=generator)
    score = window & (torch.rand(valid.shape, generator=generator) < 0.5)
    return NoisyViews(ids.masked_fill(score, 4), ids, score, score.float(), torch.arange(len(length)), valid, window)


def spread(count: int, shortest: int, longest: int) -> list[int]:
    """Lengths that are even on a logarithmic scale."""
    step = (math.log(longest) - math.log(shortest)) / max(1, count - 1)
    return [round(math.exp(math.log(shortest) + step * index)) for index in range(count)]


def packing_rows(pairs: int) -> Iterator[Row]:
    """Score and differentiate a batch as it is, packed, and in buckets, for several spreads of lengths."""
    tiny, middle = backbone(), backbone(**MIDDLE)
    cases = (
        (tiny, "tiny, 64 x 12..62, log-uniform", views_of(spread(64, 12, 62))),
        (tiny, "tiny, 16 x 12..62, 8 views each", views_of(spread(16, 12, 62), 8)),
        (tiny, "tiny, 64 x 40..60", views_of(spread(64, 40, 60))),
        (tiny, "tiny, 64 x 56..60", views_of(spread(64, 56, 60))),
        (tiny, "tiny, 64 x 59..60", views_of(spread(64, 59, 60))),
        (tiny, "tiny, 64 x 60", views_of([60] * 64)),
        (middle, "42M, 4 x 64..370, log-uniform", views_of(spread(4, 64, 370))),
        (middle, "42M, 2 x 64..370, 4 views each", views_of(spread(2, 64, 370), 4)),
        (middle, "42M, 4 x 256..320", views_of(spread(4, 256, 320))),
        (middle, "42M, 4 x 300..310", views_of(spread(4, 300, 310))),
    )
    for model, name, views in cases:
        share = 1 - views.valid.float().mean().item()

        def padded(model: MaskedBackbone = model, views: NoisyViews = views) -> Tensor:
            return _gradient(model, [views], pays_from=2.0)

        def packed(model: MaskedBackbone = model, views: NoisyViews = views) -> Tensor:
            return _gradient(model, [views], pays_from=-1.0)

        def buckets(model: MaskedBackbone = model, views: NoisyViews = views) -> Tensor:
            return _gradient(model, list(_buckets(views, 4)), pays_from=2.0)

        expected = padded()
        for fast, label in ((packed, "packed"), (buckets, "4 length buckets")):
            torch.testing.assert_close(fast(), expected, rtol=1e-3, atol=1e-3 * expected.abs().max().item())
            yield paired(
                f"{name}, {share:.0%} padding: {label} against padded",
                fast,
                padded,
                pairs if model is tiny else min(pairs, 3),
            )


def _gradient(model: MaskedBackbone, batches: list[NoisyViews], pays_from: float) -> Tensor:
    """Of the mean log-probability, at the embedding."""
    model.model.zero_grad()
    before, packing.PAYS_FROM = packing.PAYS_FROM, pays_from
    try:
        scored = sum(int(views.score.sum()) for views in batches)
        total = sum((model.logprobs(model.model, views).sum() for views in batches), torch.zeros(()))
        (total / scored).backward()  # type: ignore[no-untyped-call]
    finally:
        packing.PAYS_FROM = before
    gradient: Tensor = model.model.get_input_embeddings().weight.grad.clone()
    return gradient


def _buckets(views: NoisyViews, count: int) -> Iterator[NoisyViews]:
    for rows in views.valid.sum(1).argsort(stable=True).chunk(count):
        part = views.rows(rows)
        width = used_width(part.valid)
        yield NoisyViews(**{
            f.name: x[:, :width] if (x := getattr(part, f.name)).ndim == 2 else x for f in fields(part)
        })  # fmt: skip


def mask_rows(pairs: int) -> Iterator[Row]:
    """sdpa on one layer: no mask against a boolean one that hides nothing; shared heads against copies of them."""
    sdpa = attention_named("sdpa")
    for rows, heads, shared, length, size in ((64, 2, 2, 62, 32), (4, 8, 2, 370, 64), (1, 8, 2, 1024, 64)):
        query = torch.randn(rows, heads, length, size, requires_grad=True)
        key, value = (torch.randn(rows, shared, length, size, requires_grad=True) for _ in range(2))
        everything = torch.ones(rows, 1, length, length, dtype=torch.bool)
        half = Sight.first(torch.full((rows,), length // 2), length)
        shape = f"sdpa {rows} x {length}, {heads} heads on {shared}"

        def run(mask: Any, q: Tensor = query, k: Tensor = key, v: Tensor = value) -> Callable[[], None]:
            return lambda: sdpa(q, k, v, mask).sum().backward()  # type: ignore[no-untyped-call]

        yield paired(f"{shape}: no mask against a matrix that hides nothing", run(None), run(everything), pairs)
        yield paired(
            f"{shape}: one row for all queries against a matrix, half hidden",
            run(sdpa.prepare(half)),
            run(half.matrix()),
            pairs,
        )
        if heads != shared:

            def copied(q: Tensor = query, k: Tensor = key, v: Tensor = value) -> None:
                k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
                sdpa(q, k, v, None).sum().backward()  # type: ignore[no-untyped-call]

            yield paired(
                f"{shape}: shared heads in the kernel against copies of keys and values", run(None), copied, pairs
            )


def memory_rows() -> Iterator[Row]:
    """Bytes that say who sees whom in a doubled input of S tokens that hides all of them, one completion, blocks of 4.

    The matrix is what sdpa takes; CUDA kernels that take a mask want it as numbers, two bytes each in half precision.
    """
    for length in (2048, 8192):
        ids = torch.full((1, length), 7)
        every = torch.ones_like(ids, dtype=torch.bool)
        doubled = doubled_input(NoisyViews(ids, ids, every, every.float(), torch.arange(1), every, every), 4)
        assert doubled is not None
        sight, queries = doubled.sight, doubled.ids.shape[1]
        prepared = Flex().prepare(sight)
        kept = [x for x in (sight.limit, sight.block, sight.query_place, sight.key_place) if x is not None]
        kept += [
            getattr(prepared, f"{full}{side}_{what}")
            for full in ("", "full_") for side in ("kv", "q") for what in ("num_blocks", "indices")
        ]  # fmt: skip
        ours = sum(x.numel() * x.element_size() for x in kept)
        matrix = sight.matrix().numel()
        name = f"doubled input, S = {length} ({queries} tokens): index arithmetic and tiles against a boolean matrix"
        yield Row(name, ours / 2**20, matrix / 2**20, matrix / ours, "MiB", 1)


def rows(pairs: int) -> Iterator[Row]:
    """All tables."""
    yield from packing_rows(pairs)
    yield from mask_rows(pairs)
    yield from memory_rows()
