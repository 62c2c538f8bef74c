"""How the kernels are compiled: on first use, with the machine's own instructions, cached on disk.

No `fastmath`: it drops the rules for NaN. No `parallel`: `workqueue` is not thread-safe, `omp` not
fork-safe; the kernels release the GIL instead, and `_threads` brings them the threads of torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import sigutils
from numba.core.caching import FunctionCache
from numba.core.ccallback import CFunc
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    infer_getattr,
    intrinsic,
    lower_getattr_generic,
    models,
    register_model,
)

inner = numba.njit(nogil=True, error_model="numpy")


class _At(types.Type):
    """The type of a record, a named tuple of 64-bit integers, at an address."""

    def __init__(self, record: Any) -> None:
        self.record = record
        super().__init__(name=f"{record.__name__} at an address")


@register_model(_At)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, ir.IntType(64))


@infer_getattr
class _Fields(AttributeTemplate):
    key = _At

    def generic_resolve(self, kind: _At, name: str) -> Any:
        return types.int64 if name in kind.record._fields else None


@lower_getattr_generic(_At)
def _load_field(context: Any, builder: Any, kind: _At, address: Any, name: str) -> Any:
    base = builder.inttoptr(address, ir.IntType(64).as_pointer())
    index = ir.Constant(ir.IntType(64), kind.record._fields.index(name))
    value = builder.load(builder.gep(base, [index]))
    value.set_metadata("invariant.load", builder.module.add_metadata([]))
    return value


def reader(record: Any) -> Any:
    """A function for the kernels: the record at an address, whose fields do not change there."""
    kind = _At(record)

    @intrinsic
    def read(typing: Any, address: Any) -> Any:
        return kind(types.int64), lambda context, builder, signature, args: args[0]

    return read


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


def callback(signature: str) -> Callable[[Callable[..., Any]], int]:
    """Compile to a C function: its address."""

    def compile_(function: Callable[..., Any]) -> int:
        kind = sigutils.normalize_signature(signature)
        made: Any = CFunc(function, kind, locals={}, options={"error_model": "numpy"})
        with suppress(RuntimeError, OSError):
            made._cache = _PackageCache(function)
        made.compile()
        _MADE.append(made)
        return made.address

    return compile_


_MADE: list[Any] = []  # whose code is freed with them


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
