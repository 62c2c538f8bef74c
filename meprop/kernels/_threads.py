"""Threads, and memory that they keep.

The threads are those of torch: OpenMP's, which wait for work on a processor of their own, so that
others would only take turns with them. None of Numba's threading layers is safe both from several
threads and after a fork.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any

import torch
from torch import Tensor

_KEPT = 1 << 26  # words that a thread may keep from call to call


def _address(name: str) -> int:
    """Of a C function of this process, or 0."""
    try:
        function: Any = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class Threads:
    """Addresses of C functions."""

    parallel = _address("GOMP_parallel")
    can = parallel != 0  # also after a fork, so that results repeat
    pause = _address("sched_yield")


def _forget() -> None:
    # After a fork OpenMP waits for threads that are gone: one does all the tasks.
    Threads.parallel = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


class Memory(threading.local):
    """Buffers that a thread keeps from call to call: fresh pages cost more than the kernels.

    torch's memory is aligned to 64 bytes, NumPy's is not.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._known: dict[str, tuple[int, int]] = {}

    def address(self, name: str, count: int) -> int:
        """Where at least `count` 32-bit words are."""
        size, place = self._known.get(name, (-1, 0))
        if size >= count:
            return place
        return self.words(name, count).data_ptr()

    def words(self, name: str, count: int) -> Tensor:
        """At least `count` 32-bit words, with whatever was in them."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < count:
            # First, to make room; both, since the allocation may fail, and be caught.
            self._buffers.pop(name, None)
            self._known.pop(name, None)
            buffer = torch.empty(count + 64, dtype=torch.int32, device="cpu")
            self._buffers[name] = buffer
            self._known[name] = (buffer.numel(), buffer.data_ptr())
        return buffer

    def trim(self) -> None:
        """Give back the largest, until no more is held than may be kept."""
        while sum(size for size, _ in self._known.values()) > _KEPT:
            name = max(self._known, key=self._known.__getitem__)
            del self._buffers[name], self._known[name]


MEMORY = Memory()
