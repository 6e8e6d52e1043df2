"""Packed views score as padded ones, only sooner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from flash_double import FlashDouble
from hypothesis import given, settings
from hypothesis import strategies as st

from dare.attention import ATTENTION
from dare.attention.flash import Flash
from dare.families import packing
from dare.families.packing import PAYS_FROM, packed_input, packing_pays
from dare.family import load_family
from dare.seeds import generator_for
from dare.types import NoisyViews

MASKED = {"LLaDAModelLM": "llada", "DreamModel": "dream"}
CHARACTERS = list("0123456789+-*/=()., abcdefghijklmno")
NEVER = 2.0
"""A share of padding that no batch has."""


def views_of(lengths: list[int], copies: int = 1, seed: int = 0, first_too: bool = False, left: int = 0) -> NoisyViews:
    """Views of these lengths, right-padded, or with `left` columns of padding before each."""
    generator = torch.Generator().manual_seed(seed)
    count = torch.tensor(lengths).repeat_interleave(copies)
    column = torch.arange(left + int(count.max()))
    valid = (column >= left) & (column < left + count[:, None])
    ids = torch.randint(5, 30, valid.shape, generator=generator).masked_fill(~valid, 0)
    score = valid & (torch.rand(valid.shape, generator=generator) < 0.5)
    score[:, left] &= first_too
    return NoisyViews(ids.masked_fill(score, 4), ids, score, score.float(), torch.arange(len(count)), valid, valid)


def tiny(architecture: str) -> Any:
    family = load_family(MASKED[architecture])
    return family.tiny(CHARACTERS, generator_for(0, "init"), architecture)


ragged = st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any)


@given(ragged, st.integers(1, 3), st.integers(0, 1), st.booleans(), st.integers(0, 2))
def test_a_pack_is_every_real_token_once(
    lengths: list[int], copies: int, shift: int, first_too: bool, left: int
) -> None:
    views = views_of(lengths, copies, first_too=first_too, left=left)
    packed = packed_input(views, shift)
    tokens = []  # (view, column) of each token of the pack, by following the lengths that attention is told
    order = sorted(range(len(views)), key=lambda view: (int(views.valid[view].sum()), view))
    for view in order:
        tokens += [(view, column) for column in views.valid[view].nonzero().flatten().tolist()]
    assert packed.sight.form.lengths == tuple(n for view in order if (n := int(views.valid[view].sum())))  # type: ignore[union-attr]
    assert packed.ids.tolist() == [[views.ids[token].item() for token in tokens]]
    assert packed.position.tolist() == [[column for _, column in tokens]]
    scored = [(place, token) for place, token in enumerate(tokens) if views.score[token]]
    assert packed.home.tolist() == [view * views.ids.shape[1] + column for _, (view, column) in scored]
    for read, (place, (view, column)) in zip(packed.read[0].tolist(), scored, strict=True):
        assert read == place - (shift if column > left else 0)
        assert tokens[read][0] == view


@pytest.mark.parametrize("architecture", MASKED)
@settings(max_examples=4)
@given(lengths=ragged.filter(lambda lengths: len(set(lengths)) > 1), copies=st.integers(1, 2), first_too=st.booleans())
def test_scores_and_gradients_are_those_of_the_padded_batch(
    architecture: str, lengths: list[int], copies: int, first_too: bool
) -> None:
    backbone = tiny(architecture)
    views = views_of(lengths, copies, first_too=first_too)
    weight = torch.rand(views.ids.shape, generator=generator_for(1)) / max(1, int(views.score.sum()))
    assert packing_pays(views.valid, backbone.attention)
    found = []
    with pytest.MonkeyPatch.context() as patch:
        for pays_from in (PAYS_FROM, NEVER):
            patch.setattr(packing, "PAYS_FROM", pays_from)
            backbone.model.zero_grad()
            logp = backbone.logprobs(backbone.model, views, 0.7)
            (logp * weight).sum().backward()
            found.append([logp.detach(), *(p.grad for p in backbone.model.parameters() if p.grad is not None)])
    packed, padded = found
    assert len(packed) == len(padded)
    torch.testing.assert_close(packed[0], padded[0], atol=1e-5, rtol=0)
    torch.testing.assert_close((packed[0] * weight).sum(), (padded[0] * weight).sum(), atol=1e-6, rtol=1e-6)
    for one, other in zip(packed[1:], padded[1:], strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("architecture", MASKED)
def test_left_padding_is_left_out_too(architecture: str) -> None:
    backbone = tiny(architecture)
    right, left = views_of([9, 4, 7]), views_of([9, 4, 7], left=3)
    left = replace(left, **{
        name: torch.nn.functional.pad(getattr(right, name), (3, 0)) for name in ("ids", "target", "score", "coef")
    })  # fmt: skip
    with torch.no_grad():
        expected, found = (backbone.logprobs(backbone.model, views) for views in (right, left))
    torch.testing.assert_close(found[:, 3:], expected, atol=1e-5, rtol=0)


def test_a_pack_goes_through_one_varlen_call_per_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = FlashDouble()
    monkeypatch.setitem(ATTENTION, "flash", Flash(otherwise=None, kernels=kernels))
    monkeypatch.setattr(packing, "PACKS", {("cpu", "flash")})
    backbone, exact = tiny("DreamModel"), tiny("DreamModel")
    backbone.model.bfloat16()
    backbone.attention = "flash"
    views = views_of([9, 4, 7, 4])
    logp = backbone.logprobs(backbone.model, views)
    logp.sum().backward()
    assert dict(kernels.calls) == {"varlen": len(backbone.model.parts.layers)}
    torch.testing.assert_close(logp.float(), exact.logprobs(exact.model, views), atol=0.15, rtol=0.05)


@pytest.mark.parametrize("attention", ["eager", "flex"])
def test_backends_without_a_cheap_pack_get_a_padded_batch(attention: str) -> None:
    assert not packing_pays(views_of([9, 4]).valid, attention)
    assert packing_pays(views_of([9, 4]).valid, "sdpa")
    assert not packing_pays(views_of([9, 9]).valid, "sdpa")
    assert not packing_pays(torch.zeros(2, 0, dtype=torch.bool), "sdpa")


def test_checkpointed_packs_have_the_same_gradients() -> None:
    backbone = tiny("LLaDAModelLM")
    views, found = views_of([9, 4, 7]), []
    for enable in (False, True):
        if enable:
            backbone.model.gradient_checkpointing_enable()
        backbone.model.zero_grad()
        backbone.logprobs(backbone.model, views).sum().backward()
        found.append([parameter.grad for parameter in backbone.model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
