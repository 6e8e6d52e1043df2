"""The gradient of any loss of log-probabilities, in memory that does not grow with the number of views.

Two phases: score all views without a graph, differentiate the loss in those numbers, run each chunk of views again
and back-propagate `sum(gradient * logp)`. The chain rule makes this exact, also for losses that are not linear in the
views, where applying the loss chunk by chunk and averaging would be wrong. When all views fit into one chunk the first
pass keeps its graph and no second one is needed. The first pass is also the behaviour policy's score in the first
update after a rollout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from dare.types import LossTerms, NoisyViews

Score = Callable[[NoisyViews], Tensor]
"""Log-probabilities [n, S] of views under the policy, with gradient where enabled."""
Loss = Callable[[Tensor, Tensor], LossTerms]
"""(log-probabilities, those of the behaviour policy) -> terms, over all views of the optimiser step at once."""
Total = Callable[[Tensor], Tensor]
"""Sum of a scalar over all ranks; the identity on one."""


class NonFiniteLossError(ArithmeticError):
    """The loss is NaN or infinite; no gradient was taken."""


class Auxiliary(NamedTuple):
    """A second objective, on whole distributions, that is a sum over the inputs of the views."""

    distributions: Callable[[NoisyViews], Tensor]
    """Log-probabilities [P, V] at the scored positions, with gradient where enabled; the scores are read off them."""
    loss: Callable[[Tensor, NoisyViews], LossTerms]
    """Terms of the views of some inputs, of each input all of them."""


class Backward(NamedTuple):
    """What one backward pass leaves besides gradients."""

    loss: float
    logp: Tensor
    terms: LossTerms
    pull: float
    """Largest derivative of the loss by a log-probability: above zero, some parameter must get a gradient."""
    auxiliary: float = 0.0
    """The part of the loss that is the second objective's."""


def backward(
    score: Score,
    loss_of: Loss,
    views: NoisyViews,
    old: Tensor | None,
    micro_batch: int,
    total: Total = lambda x: x,
    auxiliary: Auxiliary | None = None,
) -> Backward:
    """Add the gradient of sum(num) / sum(den) to the parameters behind `score`.

    `old=None` takes the first pass as the behaviour policy's log-probabilities.
    With an `auxiliary` the distributions of one chunk are in memory at a time, micro_batch x scored positions x V, and
    a chunk may be larger than `micro_batch` where more views than that share one input.
    Raises NonFiniteLossError before anything is added.
    """

    def run(part: NoisyViews) -> tuple[Tensor, LossTerms | None]:
        if auxiliary is None:
            return score(part), None
        full = auxiliary.distributions(part)
        chosen = full.gather(1, part.target[part.score][:, None]).squeeze(1)
        logp = torch.zeros(part.score.shape, dtype=full.dtype, device=full.device).masked_scatter(part.score, chosen)
        return logp, auxiliary.loss(full, part)

    chunks = _slices(len(views), micro_batch) if auxiliary is None else _by_input(views.ids, micro_batch)
    direct = len(chunks) == 1
    with nullcontext() if direct else torch.no_grad():
        first = [run(views.rows(chunk)) for chunk in chunks]
    logp = torch.cat([part for part, _ in first]).detach()
    if auxiliary is not None:
        logp = logp[torch.cat(chunks).argsort()]  # type: ignore[arg-type]
    extra = [terms for _, terms in first if terms is not None]
    leaf = logp.clone().requires_grad_(True)
    terms = loss_of(leaf, logp if old is None else old)
    tiny = torch.finfo(logp.dtype).tiny
    loss = terms.num.sum() / total(terms.den.detach().sum()).clamp(min=tiny)
    extra_den = total(logp.new_zeros(()) + sum(float(t.den.detach().sum()) for t in extra)).clamp(min=tiny)
    second = float(total(logp.new_zeros(()) + sum(float(t.num.detach().sum()) for t in extra)) / extra_den)
    value = float(total(loss.detach())) + second
    if not math.isfinite(value):
        raise NonFiniteLossError(f"the loss is {value}")
    if not loss.requires_grad and not extra:
        return Backward(value, logp, terms, 0.0)
    gradient = torch.zeros_like(logp)
    if loss.requires_grad:
        (gradient,) = torch.autograd.grad(loss, leaf, materialize_grads=True)
    # A view whose unit has no advantage adds nothing. One must be run even so: an optimiser with momentum moves on
    # where the gradient is zero and stands still where there is none.
    busy = [chunk for chunk in chunks if extra or bool(gradient[chunk].any())] or chunks[:1]
    for chunk in busy:
        part, added = first[0] if direct else run(views.rows(chunk))
        objective = (part * gradient[chunk]).sum()
        if added is not None:
            objective = objective + added.num.sum() / extra_den
        if objective.requires_grad:
            objective.backward()  # type: ignore[no-untyped-call]
    return Backward(value, logp, terms, float(gradient.abs().max()), second)


def _slices(count: int, size: int) -> Sequence[slice | Tensor]:
    return [slice(start, start + size) for start in range(0, count, size)]


def _by_input(ids: Int[Tensor, "n S"], size: int) -> Sequence[slice | Tensor]:
    """Whole sets of views with the same input, as many at a time as have `size` views, at least one."""
    _, home, count = torch.unique(ids, dim=0, return_inverse=True, return_counts=True)
    chunks: list[list[int]] = [[]]
    filled = 0
    for which, views in enumerate(count.tolist()):
        if filled and filled + views > size:
            chunks.append([])
            filled = 0
        chunks[-1].append(which)
        filled += views
    return [torch.isin(home, torch.tensor(chunk, device=ids.device)).nonzero().squeeze(1) for chunk in chunks]
