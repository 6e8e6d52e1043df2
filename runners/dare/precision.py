"""Training in bfloat16: float32 master copies of what trains, where gradients are added up and updates are made.

The weights themselves are bfloat16, so that rollouts, scoring, the update's forward pass and the exported policy run
the very same kernels on the very same numbers: no ambient autocast that one of them could be missing, no cast of every
weight in every denoising step, and a frozen base takes two bytes a parameter. An update of a relative 1e-6 would be
lost in bfloat16, which keeps eight bits; the master copy keeps it until it amounts to a bit.

Log-probabilities are float32 in either case: norms, softmax and losses are computed there. What bfloat16 costs is
the rounding of activations and logits, the same in sampling and in scoring.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from dare.families.layers import at_least_float32


class PrecisionError(ValueError):
    """The weights are not of the dtype that the settings name."""


def check_dtype(model: nn.Module, dtype: str) -> None:
    """PrecisionError when a model of one precision is about to be trained under settings of the other."""
    low = next((p.dtype for p in model.parameters() if p.dtype in (torch.bfloat16, torch.float16)), None)
    found = "float32 or wider" if low is None else str(low).removeprefix("torch.")
    if (dtype == "float32") != (low is None) or low == torch.float16:
        raise PrecisionError(f"the settings train in {dtype}, the weights are {found}: load them as {dtype}")


class MasterWeights:
    """The trained parameters in float32 or wider: themselves, or copies of those that are narrower.

    Every gradient of a narrow parameter moves to its copy as soon as it is complete, so that micro-batches add up in
    float32 and no second set of gradients is kept.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self.masters = [_master(parameter) for parameter in self._parameters]
        for parameter, master in self._copied():
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                _moves_its_gradient(weakref.ref(master))
            )

    @torch.no_grad()
    def publish(self) -> None:
        """Round the masters into the weights that everybody else sees."""
        for parameter, master in self._copied():
            parameter.copy_(master)

    def state(self) -> list[Tensor]:
        """The copies, in the order of the parameters."""
        return [master.detach() for _, master in self._copied()]

    @torch.no_grad()
    def restore(self, state: list[Tensor]) -> None:
        """Take saved copies up again; the weights follow them."""
        for (_, master), saved in zip(self._copied(), state, strict=True):
            master.copy_(saved)
        self.publish()

    def _copied(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        return [(p, m) for p, m in zip(self._parameters, self.masters, strict=True) if m is not p]


def _master(parameter: nn.Parameter) -> nn.Parameter:
    wide = at_least_float32(parameter.dtype)
    return parameter if parameter.dtype == wide else nn.Parameter(parameter.detach().to(wide))


def _moves_its_gradient(master: weakref.ref[nn.Parameter]) -> Callable[[Tensor], None]:
    """A hook on the narrow parameter; weak, so that it ends with the masters and a model can be trained again."""

    def move(parameter: Tensor) -> None:
        wide = master()
        if wide is None or parameter.grad is None:
            return
        gradient = parameter.grad.to(wide.dtype)
        wide.grad = gradient if wide.grad is None else wide.grad.add_(gradient)
        parameter.grad = None

    return move
