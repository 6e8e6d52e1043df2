"""Mixtures of experts: stacked in memory, one by one in the checkpoint, and no token is ever dropped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from dare.families.layers import at_least_float32

SPARE = 4
"""Rows that the padded product may compute for each row that is needed, before experts are visited one by one."""


class Experts(nn.Module):
    """E gated feed-forward layers of `inner` numbers.

    Parameters are stacked, which one batched product can use. The state dict has the published names
    `{expert}.{gate,up,down}_proj.weight`, as views of the stacked memory.
    """

    def __init__(self, experts: int, width: int, inner: int) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.empty(experts, 2 * inner, width))
        self.down = nn.Parameter(torch.empty(experts, width, inner))

    def forward(
        self, x: Float[Tensor, "T d"], chosen: Int[Tensor, "T k"], weight: Float[Tensor, "T k"]
    ) -> Float[Tensor, "T d"]:
        """Weighted sum of the chosen experts' answers, added up in the dtype of `weight`.

        The order of addition is that of the experts, as in the published modules: in low precision it is part of the
        result, and a sum that does not depend on the machine is worth more than one that is done at once.
        """
        tokens, each = chosen.shape
        if not tokens:
            return torch.zeros_like(x, dtype=weight.dtype)
        chosen, by_number = chosen.sort(dim=-1)
        weight = weight.gather(1, by_number)
        order = chosen.flatten().argsort(stable=True)  # copies of tokens, expert by expert
        count = torch.bincount(chosen.flatten(), minlength=len(self.down))
        rows = x[order // each]
        most = int(count.max())
        if len(self.down) * most <= SPARE * len(rows):
            answers = self._at_once(rows, count, most)
        else:
            answers = self._one_by_one(rows, count)
        answers = torch.empty_like(answers).index_copy(0, order, answers).view(tokens, each, -1)
        weighted = answers.to(weight.dtype) * weight[..., None]
        return sum(weighted.unbind(1)[1:], start=weighted[:, 0])

    def _at_once(self, rows: Tensor, count: Tensor, most: int) -> Tensor:
        """All experts in two batched products, each with its rows filled up to the longest list."""
        expert = torch.repeat_interleave(torch.arange(len(count), device=rows.device), count)
        place = torch.arange(len(rows), device=rows.device) - (count.cumsum(0) - count)[expert]
        at = expert * most + place
        padded = rows.new_zeros(len(count) * most, rows.shape[-1]).index_copy(0, at, rows)
        gate, up = torch.bmm(padded.view(len(count), most, -1), self.gate_up.transpose(1, 2)).chunk(2, dim=-1)
        return torch.bmm(F.silu(gate) * up, self.down.transpose(1, 2)).flatten(0, 1)[at]

    def _one_by_one(self, rows: Tensor, count: Tensor) -> Tensor:
        """Only the experts that have a token, so that the weights of the others are not even read."""
        parts = []
        for expert, own in enumerate(torch.split(rows, count.tolist())):
            if len(own):
                gate, up = F.linear(own, self.gate_up[expert]).chunk(2, dim=-1)
                parts.append(F.linear(F.silu(gate) * up, self.down[expert]))
        return torch.cat(parts) if parts else rows

    def published(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        """Every expert's matrices by their published names, as views."""
        inner = self.down.shape[-1]
        for expert in range(len(self.down)):
            yield f"{prefix}{expert}.gate_proj.weight", self.gate_up[expert, :inner]
            yield f"{prefix}{expert}.up_proj.weight", self.gate_up[expert, inner:]
            yield f"{prefix}{expert}.down_proj.weight", self.down[expert]

    def merged_tensors(self, prefix: str) -> dict[str, Tensor]:
        """The same matrices by the names of checkpoints whose experts are merged, as views."""
        inner = self.down.shape[-1]
        return {
            f"{prefix}gate_proj": self.gate_up[:, :inner],
            f"{prefix}up_proj": self.gate_up[:, inner:],
            f"{prefix}down_proj": self.down,
        }

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        for name, view in self.published(prefix):
            destination[name] = view if keep_vars else view.detach()

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        if self.down.is_meta:
            error_msgs.append(f"{prefix}: experts on the meta device have no memory to load into")
            return
        with torch.no_grad():
            views = dict(self.published(prefix))
            for name, view in views.items():
                if name not in state_dict:
                    missing_keys.append(name)
                elif state_dict[name].shape != view.shape:
                    error_msgs.append(f"{name} has shape {tuple(state_dict[name].shape)}, not {tuple(view.shape)}")
                else:
                    view.copy_(state_dict[name])
        unexpected_keys.extend(name for name in state_dict if name.startswith(prefix) and name not in views)


class SoftmaxRouter(nn.Module):
    """The matrix of a router that chooses by softmax; the name of its weight is `gate.weight`."""

    def __init__(self, experts: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, width))

    def forward(self, x: Float[Tensor, "T d"]) -> Float[Tensor, "T E"]:
        """Probabilities in float32, of logits in the dtype of the stream."""
        return F.linear(x, self.weight).softmax(-1, dtype=at_least_float32(x.dtype))
