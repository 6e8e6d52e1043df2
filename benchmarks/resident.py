"""Peak memory of a piece of work, on the CPU by the kernel's count and on CUDA by the allocator's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

Answer = TypeVar("Answer")


def peak_of(work: Callable[[], Answer], device: str) -> tuple[Answer, int]:
    """What `work` returns, and the most bytes that were held beyond those held before."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        answer = work()
        torch.cuda.synchronize()
        return answer, torch.cuda.max_memory_allocated() - before
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again at what is held now
    before = _held("VmRSS")
    answer = work()
    return answer, _held("VmHWM") - before


def _held(which: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(which))
    return int(line.split()[1]) * 1024
