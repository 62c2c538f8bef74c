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
    """The buffer that a thread keeps from call to call: fresh pages cost more than the kernels.

    torch's memory is aligned to 64 bytes, NumPy's is not.
    """

    words: Tensor | None = None

    def address(self, count: int) -> int:
        """Where at least `count` 32-bit words are, with whatever was in them."""
        if self.words is None or self.words.numel() < count:
            self.words = None  # first, to make room; the allocation may fail, and be caught
            self.words = torch.empty(count + 64, dtype=torch.int32, device="cpu")
        return self.words.data_ptr()

    def trim(self) -> None:
        """Give it back, if it is more than may be kept."""
        if self.words is not None and self.words.numel() > _KEPT:
            self.words = None


MEMORY = Memory()
