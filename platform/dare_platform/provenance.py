"""What a result must say of its making, or it is refused: nobody could repeat it, or tell why it came out differently.

What the platform knows by itself (entry, track, weights, seed, image, hardware) stands in its own columns, which hold
no NULL. The rest only the runner knows: its libraries, the way of computing, what it did and what that cost.
"""

from __future__ import annotations

from collections.abc import Mapping

from dare.spec import Result, RunKind

MACHINE = ("dare", "source_revision", "python", "processor", "system")
MODEL = ("torch", "transformers", "numpy", "threads", "dtype", "attention", "device")
SAYS: Mapping[RunKind, tuple[str, ...]] = {
    "train": MACHINE + MODEL,
    "evaluate": MACHINE + MODEL,
    "score": MACHINE,
    "check": (),
}
"""Names in `Result.provenance`, by kind of run. A check leaves no number, so nothing rests on it."""
COUNTS: Mapping[RunKind, tuple[str, ...]] = {
    "train": ("train_seconds", "device_seconds", "optimiser_steps", "gradient_forwards", "forwards"),
    "evaluate": ("evaluate_seconds", "device_seconds", "forwards"),
    "score": ("evaluate_seconds",),
    "check": (),
}
"""Clocks and counters of `Usage` that no run of a kind can have at zero: zero means that it was not measured."""


def missing(result: Result) -> tuple[str, ...]:
    """What a result fails to say, by name, in the order in which a page shows it."""
    unsaid = [name for name in SAYS[result.kind] if not result.provenance.get(name, "").strip()]
    return tuple(unsaid + [f"usage.{name}" for name in COUNTS[result.kind] if not getattr(result.usage, name)])
