"""Threads of our own: kernels release the GIL, so plain Python threads run them side by side.

None of Numba's threading layers is safe both from several threads and after a fork. Work is cut
into fixed parts, so results depend on the number of threads only.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

_KEPT = 1 << 26  # words that a thread may keep from call to call

_pool: ThreadPoolExecutor | None = None
_lock = threading.Lock()


def parts(samples: int, threads: int) -> list[tuple[int, int]]:
    """Cut the samples into as many equal stretches as there are threads.

    >>> parts(10, 4)
    [(0, 2), (2, 5), (5, 7), (7, 10)]
    """
    threads = max(1, min(threads, samples))
    return [(samples * t // threads, samples * (t + 1) // threads) for t in range(threads)]


def run(task: Callable[[int], None], count: int) -> None:
    """Call the task with each of the `count` part numbers, 0 in this thread, and wait for all."""
    if count == 1:
        return task(0)
    others = [_executor().submit(_tidily, task, part) for part in range(1, count)]
    try:
        task(0)
    finally:
        for other in others:
            other.result()


def _tidily(task: Callable[[int], None], part: int) -> None:
    try:
        task(part)
    finally:
        MEMORY.trim()


def _executor() -> ThreadPoolExecutor:
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="meprop")
        return _pool


def _forget() -> None:
    # After a fork the threads are gone and the lock may have been held by one of them.
    global _pool, _lock
    _pool, _lock = None, threading.Lock()


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
