"""What the transformers of all families are made of: RMSNorm, rotary positions, gated feed-forward."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The dtype to accumulate in."""
    return torch.promote_types(dtype, torch.float32)


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in float32.

    In low precision the library rule rounds twice, before and after the weight; a fused GPU kernel that some
    checkpoints were trained with multiplies by the weight in float32 and rounds once.
    """

    def __init__(self, size: int, eps: float, rounds_once: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps
        self.rounds_once = rounds_once

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(at_least_float32(x.dtype))
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        if self.rounds_once:
            return (self.weight.to(wide.dtype) * normed).to(x.dtype)
        return self.weight * normed.to(x.dtype)


class SwiGLU(nn.Module):
    """Gated feed-forward under the names that most families publish."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


def rotary_tables(
    position: Int[Tensor, "B L"], size: int, theta: float
) -> tuple[Float[Tensor, "B 1 L D"], Float[Tensor, "B 1 L D"]]:
    """Cosines and sines in float32. Frequencies are computed anew, never stored: a rounded buffer moves logits."""
    exponent = torch.arange(0, size, 2, device=position.device).float() / size
    frequency = 1.0 / (theta**exponent)  # (D/2,)
    angle = position[:, None, :, None].float() * frequency
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Float[Tensor, "B H L D"], cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding in the wider of the two dtypes; the halves of what is rotated are the pairs.

    Where the tables are narrower than a head, only its first numbers are rotated and the rest pass through.
    """
    size = cos.shape[-1]
    wide = x[..., :size].to(torch.promote_types(x.dtype, cos.dtype))
    first, second = wide.chunk(2, dim=-1)
    turned = (wide * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)
    return turned if size == x.shape[-1] else torch.cat((turned, x[..., size:]), dim=-1)


def split_heads(x: Float[Tensor, "B L E"], size: int) -> Float[Tensor, "B H L D"]:
    """Heads of `size` numbers each."""
    rows, length, _ = x.shape
    return x.view(rows, length, -1, size).transpose(1, 2)


def at_positions(hidden: Float[Tensor, "B L d"], where: Bool[Tensor, "B L"] | Int[Tensor, "B K"] | None) -> Tensor:
    """Hidden states at a boolean mask (N, d), at K indices per row (B, K, d), or all of them."""
    if where is None:
        return hidden
    if where.dtype == torch.bool:
        return hidden[where]
    return hidden.gather(1, where[..., None].expand(-1, -1, hidden.shape[-1]))


def fresh_model(model_class: Any, config: Any, generator: torch.Generator) -> Any:
    """A randomly initialised model; the global random state is neither read nor moved.

    Matrices are N(0, 1/columns), so that signals keep their size; norms are 1, biases and buffers 0.
    """
    with torch.device("meta"):
        model = model_class(config)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5, generator=generator)
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
        for buffer in model.buffers():
            buffer.zero_()
    return model.eval()
