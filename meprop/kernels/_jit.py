"""How the kernels are compiled: on first use, with the machine's own instructions, cached on disk.

No `fastmath`: it drops the rules for NaN. No `parallel`: `workqueue` is not thread-safe, `omp` not
fork-safe; the kernels release the GIL instead, and `_threads` brings them the threads of torch.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import codegen, sigutils
from numba.core.caching import FunctionCache
from numba.core.ccallback import CFunc
from numba.core.compiler_lock import global_compiler_lock
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    infer_getattr,
    intrinsic,
    lower_getattr_generic,
    models,
    register_model,
)

_STEPS = ("_optimize_final_module", "_finalize_final_module", "get_pointer_to_function")
_INNER: set[str] = set()


def inner(function: Callable[..., Any]) -> Any:
    """A function that kernels call."""
    _INNER.add(function.__qualname__)
    return numba.njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)(function)


@contextmanager
def _at_once() -> Iterator[None]:
    """Compile a kernel and all inner functions as one.

    Numba optimizes each of them, together with all that it calls, and makes machine code of it that
    nobody uses: more than half of the time.
    """
    library, generator = codegen.JITCodeLibrary, codegen.JITCPUCodegen
    own = {name: getattr(library, name) for name in _STEPS}
    set_env = generator.set_env

    def step(name: str) -> Callable[..., Any]:
        def take(self: Any, *args: Any) -> Any:
            if self.name not in _INNER:
                return own[name](self, *args)
            if name == "_finalize_final_module":
                self._finalize_dynamic_globals()
                self._finalized = True
            elif name == "get_pointer_to_function":
                self._ensure_finalized()
            return 0

        return take

    def set_known(self: Any, name: str, environment: Any) -> None:
        if self._engine.is_symbol_defined(name):
            set_env(self, name, environment)

    with global_compiler_lock, ExitStack() as patches:
        for name in _STEPS:
            patches.enter_context(_replaced(library, name, step(name)))
        patches.enter_context(_replaced(generator, "set_env", set_known))
        yield


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def _saying_so() -> Iterator[None]:
    """Say once that the kernels are being compiled, if that takes more than a second."""

    def say() -> None:
        print("meprop: compiling its kernels, once for this machine", file=sys.stderr, flush=True)

    timer = threading.Timer(1.0, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


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
        with _at_once(), _saying_so():
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
