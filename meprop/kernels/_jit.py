"""How the kernels are compiled: on first use, with the machine's own instructions, cached on disk.

No `fastmath`: it drops the rules for NaN. No `parallel`: `workqueue` is not thread-safe, `omp` not
fork-safe; the kernels release the GIL instead, and `threads` calls them from threads of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache

inner = numba.njit(nogil=True, error_model="numpy")


def kernel(signature: str) -> Callable[[Callable[..., Any]], Any]:
    """Compile for one signature; nothing is typed by the arguments of a call."""

    def compile_(function: Callable[..., Any]) -> Any:
        options = {"nogil": True, "error_model": "numpy"}
        dispatcher = numba.njit(**options)(function)
        try:
            dispatcher._cache = _PackageCache(function)
        except (RuntimeError, OSError):  # no folder to write to: compile anew in each process
            dispatcher = numba.njit(**options)(function)
        dispatcher.compile(signature)
        dispatcher.disable_compile()
        return dispatcher

    return compile_


class _PackageCache(FunctionCache):
    """Numba's cache, stale as soon as any file of this package changes.

    Numba looks only at the file a kernel stands in, not at the ones whose functions it calls.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file._source_stamp = (self._cache_file._source_stamp, _digest())


@cache
def _digest() -> str:
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
