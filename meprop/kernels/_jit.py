"""How the kernels are compiled: on first use, with the machine's own instructions, cached on disk.

No `fastmath`: it drops the rules for NaN. No `parallel`: `workqueue` is not thread-safe, `omp` not
fork-safe; the kernels release the GIL instead, and `_threads` brings them the threads of torch.
"""

from __future__ import annotations

import gc
import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numba
from llvmlite import ir
from numba import extending, types
from numba.core import codegen, sigutils
from numba.core.caching import FunctionCache
from numba.core.ccallback import CFunc
from numba.core.compiler_lock import global_compiler_lock
from numba.core.types.functions import BaseFunction
from numba.core.typing.templates import AttributeTemplate

_STEPS = ("_optimize_final_module", "_finalize_final_module", "get_pointer_to_function")
_INNER: set[str] = set()


def inner(function: Callable[..., Any]) -> Any:
    """A function that kernels call."""
    _INNER.add(function.__qualname__)
    return numba.njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)(function)


@contextmanager
def _at_once() -> Iterator[None]:
    """Compile a kernel and all inner functions as one, in about half of the time.

    Numba optimizes each of them, together with all that it calls, and makes machine code of it that
    nobody uses; it looks anew for the type of each call, and Python for garbage.
    """
    library, generator, callee = codegen.JITCodeLibrary, codegen.JITCPUCodegen, BaseFunction
    own = {name: getattr(library, name) for name in _STEPS}
    set_env, get_call_type = generator.set_env, callee.get_call_type
    known: dict[Any, Any] = {}

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

    def type_once(self: Any, context: Any, args: Any, kws: Any) -> Any:
        key = self, args, tuple(kws.items())
        if key not in known:
            known[key] = get_call_type(self, context, args, kws)
        return known[key]

    collecting = gc.isenabled()
    with global_compiler_lock, ExitStack() as patches:
        for name in _STEPS:
            patches.enter_context(patch.object(library, name, step(name)))
        patches.enter_context(patch.object(generator, "set_env", set_known))
        patches.enter_context(patch.object(callee, "get_call_type", type_once))
        gc.disable()
        try:
            yield
        finally:
            if collecting:
                gc.enable()


@cache
def _say_so() -> None:
    print("meprop: compiling its kernels, once for this machine", file=sys.stderr, flush=True)


class _At(types.Type):
    """The type of a record, a named tuple of 64-bit integers, at an address."""

    def __init__(self, record: Any) -> None:
        self.record = record
        super().__init__(name=f"{record.__name__} at an address")


@extending.register_model(_At)
class _Model(extending.models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, ir.IntType(64))


@extending.infer_getattr
class _Fields(AttributeTemplate):
    key = _At

    def generic_resolve(self, kind: _At, name: str) -> Any:
        return types.int64 if name in kind.record._fields else None


@extending.lower_getattr_generic(_At)
def _load_field(context: Any, builder: Any, kind: _At, address: Any, name: str) -> Any:
    base = builder.inttoptr(address, ir.IntType(64).as_pointer())
    index = ir.Constant(ir.IntType(64), kind.record._fields.index(name))
    value = builder.load(builder.gep(base, [index]))
    value.set_metadata("invariant.load", builder.module.add_metadata([]))
    return value


def reader(record: Any) -> Any:
    """A function for the kernels: the record at an address, whose fields do not change there."""

    @emitted(_At(record), types.int64)
    def read(builder: Any, address: Any) -> Any:
        return address

    return read


def emitted(returns: Any, *takes: Any) -> Callable[[Callable[..., Any]], Any]:
    """A function for the kernels whose body writes its own LLVM code."""

    def make(emit: Callable[..., Any]) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            result = emit(builder, *args)
            return context.get_dummy_value() if result is None else result

        @wraps(emit)
        def typed(typing: Any, *args: Any) -> Any:
            return returns(*takes), code

        return extending.intrinsic(typed)

    return make


def kernel(signature: str) -> Callable[[Callable[..., Any]], int]:
    """Compile to a C function for one signature, or read it from disk: its address."""

    def compile_(function: Callable[..., Any]) -> int:
        kind = sigutils.normalize_signature(signature)
        made: Any = CFunc(function, kind, locals={}, options={"error_model": "numpy"})
        try:
            made._cache = _PackageCache(function)
        except (RuntimeError, OSError):  # no folder to write to: compile anew in each process
            _say_so()
        with _at_once():
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

    def load_overload(self, signature: Any, target: Any) -> Any:
        found = super().load_overload(signature, target)
        if found is None:
            _say_so()
        return found


@cache
def _digest() -> str:
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
