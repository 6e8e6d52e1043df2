"""Attention backends agree with one another and with the formula."""

from __future__ import annotations

import itertools

import pytest
import torch

from dare.attention import ATTENTION, UnknownAttentionError, attention_named


def tensors(heads: int = 4, shared: int = 2, queries: int = 5, keys: int = 7) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((3, heads, queries, 8), (3, shared, keys, 8), (3, shared, keys, 8))
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


@pytest.mark.parametrize("name", sorted(ATTENTION))
@pytest.mark.parametrize("shared", [1, 2, 4])
def test_every_backend_is_the_formula(name: str, shared: int) -> None:
    query, key, value = tensors(shared=shared)
    mask = torch.rand(3, 1, 5, 7, generator=torch.Generator().manual_seed(1)) < 0.6
    mask[..., 0] = True
    out = attention_named(name)(query, key, value, mask)
    for row, head, place in itertools.product(range(3), range(4), range(5)):
        visible = mask[row, 0, place].nonzero().squeeze(1)
        of_head = head * shared // 4
        scores = key[row, of_head, visible] @ query[row, head, place] / 8**0.5
        expected = scores.softmax(0) @ value[row, of_head, visible]
        torch.testing.assert_close(out[row, head, place], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", sorted(ATTENTION))
def test_no_mask_means_everything_is_visible(name: str) -> None:
    query, key, value = tensors()
    backend = attention_named(name)
    everything = torch.ones(3, 1, 1, 7, dtype=torch.bool)
    torch.testing.assert_close(backend(query, key, value, None), backend(query, key, value, everything))


@pytest.mark.parametrize("name", sorted(ATTENTION))
def test_a_query_that_sees_nothing_gets_zeros_and_finite_gradients(name: str) -> None:
    query, key, value = (tensor.requires_grad_() for tensor in tensors())
    mask = torch.ones(3, 1, 5, 7, dtype=torch.bool)
    mask[1, :, 2] = False
    out = attention_named(name)(query, key, value, mask)
    assert (out[1, :, 2] == 0).all()
    out.sum().backward()
    assert all(tensor.grad is not None and tensor.grad.isfinite().all() for tensor in (query, key, value))


def test_an_unknown_backend_is_refused_with_the_known_names() -> None:
    with pytest.raises(UnknownAttentionError, match=r"unknown attention 'fast'; known: .*eager.*sdpa"):
        attention_named("fast")
