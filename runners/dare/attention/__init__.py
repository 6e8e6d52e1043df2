"""Scaled dot-product attention by named backends, chosen per call and tested equal."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from dare.attention.dense import SDPA, Eager
from dare.attention.errors import (
    AttentionError,
    UnavailableAttentionError,
    UnknownAttentionError,
    UnsupportedAttentionError,
)
from dare.attention.flash import HALF, Flash
from dare.attention.flex import Flex
from dare.attention.sight import NOWHERE, Mask, Pack, SameKeys, Sight

__all__ = [
    "ATTENTION", "NOWHERE", "Attention", "AttentionError", "Capability", "Mask", "Pack", "SameKeys", "Sight",
    "UnavailableAttentionError", "UnknownAttentionError", "UnsupportedAttentionError", "attention_named", "available",
    "default_attention", "usable",
]  # fmt: skip


class Attention(Protocol):
    """One backend. H heads may share K key-value heads. A query that may look nowhere (padding) never gives NaN."""

    @property
    def computes(self) -> str:
        """What it can do, in a sentence for people."""

    def missing(self) -> str | None:
        """Why this machine cannot use it; None if it can."""

    def prepare(self, mask: Any) -> Any:
        """The mask in the form that this backend takes, once for all layers of a forward pass."""

    def __call__(
        self,
        query: Float[Tensor, "B H Q D"],
        key: Float[Tensor, "B K L D"],
        value: Float[Tensor, "B K L D"],
        prepared: Any,
    ) -> Float[Tensor, "B H Q D"]: ...


_FLEX = Flex()
ATTENTION: Mapping[str, Attention] = {"eager": Eager(), "flash": Flash(otherwise=_FLEX), "flex": _FLEX, "sdpa": SDPA()}


class Capability(NamedTuple):
    """What a backend can do, and why this machine cannot use it (None if it can)."""

    computes: str
    missing: str | None


def available() -> dict[str, Capability]:
    """Every backend on this machine, to be printed."""
    return {name: Capability(backend.computes, backend.missing()) for name, backend in ATTENTION.items()}


def usable() -> frozenset[str]:
    """The backends that this machine can use."""
    return frozenset(name for name, can in available().items() if can.missing is None)


def attention_named(name: str) -> Attention:
    """A backend by name, if this machine can use it."""
    if name not in ATTENTION:
        raise UnknownAttentionError(f"unknown attention {name!r}; known: {_listed()}")
    missing = ATTENTION[name].missing()
    if missing is not None:
        raise UnavailableAttentionError(f"attention {name!r} cannot be used here: {missing}; known: {_listed()}")
    return ATTENTION[name]


def _listed() -> str:
    return ", ".join(
        name if can.missing is None else f"{name} (not here: {can.missing})" for name, can in available().items()
    )


def default_attention(device: str, among: Collection[str], kind: Literal["masked", "block"], dtype: torch.dtype) -> str:
    """The fastest of the backends `among` for a model, and on CUDA none that builds a matrix if that can be helped.

    sdpa off CUDA. On CUDA flash in half precision, with flex for what flash has no form for; without it flex for block
    models, whose scoring input would else need a (2S)^2 matrix, and sdpa for those with full attention.
    """
    if device != "cuda":
        return "sdpa"
    if dtype in HALF and "flash" in among and (kind == "masked" or "flex" in among):
        return "flash"
    return "flex" if kind == "block" and "flex" in among else "sdpa"
