"""Bytes of tensors alive while a piece of code runs, on any device and on none.

Every operation is watched for storages that it makes, until they are freed. On the meta device, where tensors have a
shape and no memory, this tells what a run would need before anything is loaded. What a kernel takes for itself, and
what an allocator keeps in reserve, is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Answer = TypeVar("Answer")


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts new storages of one device type; `peak` is the most that were alive at once."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive = 0
        self.peak = 0
        self._device = device
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        made = [tensor for tensor in _tensors((out,)) if tensor.device.type == self._device]
        new = {_key(tensor): tensor for tensor in made if _key(tensor) not in self._sizes}
        if new:  # or a view of a tensor that was there before
            for tensor in _tensors((*args, *kwargs.values())):
                new.pop(_key(tensor), None)
        for tensor in new.values():
            self._count(tensor.untyped_storage())
        return out

    def start_again(self) -> None:
        """Forget the peak so far: what is alive now is the new one."""
        self.peak = self.alive

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._sizes[key] = size
        self.alive += size
        self.peak = max(self.peak, self.alive)
        weakref.finalize(storage, self._freed, key)

    def _freed(self, key: int) -> None:
        self.alive -= self._sizes.pop(key, 0)


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Those among arguments or results of an operation, which nests lists at most."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _key(tensor: torch.Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key


def peak_of(work: Callable[[], Answer], device: str = "cpu") -> tuple[Answer, int]:
    """What `work` returns, and the most bytes of new tensors that were alive while it ran."""
    with Allocations(device) as counted:
        answer = work()
    return answer, counted.peak
