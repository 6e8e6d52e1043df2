"""Randomness by name: every draw of a run comes from a private generator keyed by what it is for."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def seed_of(run_seed: int, *key: str | int) -> int:
    """A 63-bit seed that depends on the run's seed and the key, and on nothing else (not on rank, batch or order)."""
    text = "/".join(str(part) for part in (run_seed, *key))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator_for(run_seed: int, *key: str | int) -> torch.Generator:
    """A private CPU generator for `key`, for example `generator_for(seed, "rollout", step, row)`."""
    import torch

    return torch.Generator().manual_seed(seed_of(run_seed, *key))
