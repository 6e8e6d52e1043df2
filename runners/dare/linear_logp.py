"""Log-probabilities of target tokens straight from hidden states: the head in chunks, never all logits at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

CHUNK_LOGITS = 2**24
"""Logits alive at a time: 64 MiB in float32."""


class _Head(NamedTuple):
    """How a chunk of hidden states becomes logits."""

    scale: float
    excluded: int | None
    chunk: int

    def logits(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        logits = hidden @ weight.T
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if bias is not None:
            logits = logits + bias
        logits = logits * self.scale if self.scale != 1.0 else logits
        if self.excluded is not None:
            logits[:, self.excluded] = -torch.inf  # the product above is ours alone
        return logits


def linear_logp(
    hidden: Float[Tensor, "N d"],
    weight: Float[Tensor, "V d"],
    target: Int[Tensor, " N"],
    *,
    bias: Float[Tensor, " V"] | None = None,
    scale: float = 1.0,
    temperature: float = 1.0,
    excluded: int | None = None,
    chunk: int | None = None,
) -> Float[Tensor, " N"]:
    """log softmax(scale * (hidden weight^T + bias) / temperature) at `target`, in float32 or better.

    The backward pass computes each chunk of logits again, so the peak is one chunk of them in both directions.

    Args:
        excluded: a token with probability zero (the mask token).
        chunk: rows at a time; by default as many as keep the logits under 2**24 numbers.
    """
    if temperature <= 0:
        raise ValueError(f"temperature is {temperature}: log-probabilities need one above 0")
    rows = chunk if chunk is not None else max(1, CHUNK_LOGITS // weight.shape[0])
    head = _Head(scale / temperature, excluded, rows)
    logp: Tensor = _LinearLogp.apply(hidden, weight, bias, target, head)  # type: ignore[no-untyped-call]
    return logp


class _LinearLogp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, head: _Head) -> Tensor:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        logp = hidden.new_empty(len(hidden), dtype=wide)
        normaliser = hidden.new_empty(len(hidden), dtype=wide)
        for start in range(0, len(hidden), head.chunk):
            part = slice(start, start + head.chunk)
            logits = head.logits(hidden[part], weight, bias)  # (chunk, V)
            normaliser[part] = logits.logsumexp(-1)
            logp[part] = logits.gather(1, target[part, None]).squeeze(1) - normaliser[part]
        ctx.save_for_backward(hidden, weight, bias, target, normaliser)
        ctx.head = head
        return logp

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        hidden, weight, bias, target, normaliser = ctx.saved_tensors
        head: _Head = ctx.head
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden) if wants_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=upstream.dtype) if wants_weight else None
        grad_bias = torch.zeros_like(bias, dtype=upstream.dtype) if wants_bias else None
        for start in range(0, len(hidden), head.chunk):
            part = slice(start, start + head.chunk)
            logits = head.logits(hidden[part], weight, bias)
            # d logp / d logits = onehot(target) - softmax, times what comes from above
            grad = logits.sub_(normaliser[part, None]).exp_().mul_(-upstream[part, None])  # (chunk, V)
            grad.scatter_add_(1, target[part, None], upstream[part, None])
            grad.mul_(head.scale)
            if grad_hidden is not None:
                grad_hidden[part] = grad.to(weight.dtype) @ weight
            if grad_weight is not None:
                grad_weight.addmm_(grad.T, hidden[part].to(grad.dtype))  # no second matrix of this size
            if grad_bias is not None:
                grad_bias += grad.sum(0)
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            None,
            None,
        )
