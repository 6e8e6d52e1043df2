"""The gradient of any loss of log-probabilities, in memory that does not grow with the number of views.

Two phases: score all views without a graph, differentiate the loss in those numbers, run each chunk of views again
and back-propagate `sum(gradient * logp)`. The chain rule makes this exact, also for losses that are not linear in the
views, where applying the loss chunk by chunk and averaging would be wrong. When all views fit into one chunk the first
pass keeps its graph and no second one is needed. The first pass is also the behaviour policy's score in the first
update after a rollout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
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


class Backward(NamedTuple):
    """What one backward pass leaves besides gradients."""

    loss: float
    logp: Tensor
    terms: LossTerms
    pull: float
    """Largest derivative of the loss by a log-probability: above zero, some parameter must get a gradient."""


def backward(
    score: Score,
    loss_of: Loss,
    views: NoisyViews,
    old: Tensor | None,
    micro_batch: int,
    total: Total = lambda x: x,
) -> Backward:
    """Add the gradient of sum(num) / sum(den) to the parameters behind `score`.

    `old=None` takes the first pass as the behaviour policy's log-probabilities.
    Raises NonFiniteLossError before anything is added.
    """
    chunks = [slice(start, start + micro_batch) for start in range(0, len(views), micro_batch)]
    direct = len(chunks) == 1
    if direct:
        logp = score(views)
    else:
        with torch.no_grad():
            logp = torch.cat([score(views.rows(chunk)) for chunk in chunks])
    leaf = logp.detach().requires_grad_(True)
    terms = loss_of(leaf, leaf.detach() if old is None else old)
    denominator = total(terms.den.detach().sum()).clamp(min=torch.finfo(logp.dtype).tiny)
    loss = terms.num.sum() / denominator
    value = float(total(loss.detach()))
    if not torch.isfinite(torch.tensor(value)):
        raise NonFiniteLossError(f"the loss is {value}")
    if not loss.requires_grad:
        return Backward(value, logp.detach(), terms, 0.0)
    (gradient,) = torch.autograd.grad(loss, leaf, materialize_grads=True)
    if not direct:
        # A view whose unit has no advantage adds nothing. One must be run even so: an optimiser with momentum moves on
        # where the gradient is zero and stands still where there is none.
        busy = [chunk for chunk in chunks if bool(gradient[chunk].any())] or chunks[:1]
        for chunk in busy:
            (score(views.rows(chunk)) * gradient[chunk]).sum().backward()  # type: ignore[no-untyped-call]
    elif logp.requires_grad:
        logp.backward(gradient)  # type: ignore[no-untyped-call]
    return Backward(value, logp.detach(), terms, float(gradient.abs().max()))
