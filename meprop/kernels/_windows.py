"""Windows of 2x2 outputs in eight channels at a time: the vector code behind `winograd`."""

from __future__ import annotations

from itertools import chain
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic

from meprop.kernels._simd import _F32, _INT, LANES, _at, _const, _fma, _load, _loop, _splat, _store

# The transposes of B and A in `winograd`.
_B = [
    [4, 0, -5, 0, 1, 0],
    [0, -4, -4, 1, 1, 0],
    [0, 4, -4, -1, 1, 0],
    [0, -2, -1, 2, 1, 0],
    [0, 2, -1, -2, 1, 0],
    [0, 4, 0, -5, 0, 1],
]
_A = [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 1]]
_SIX = range(6)

POINTS = 36
# Twelve sums leave four of AVX2's registers free, as in `_tiles`.
ROWS = 6
WIDE = 2 * LANES

_VECTOR = ir.VectorType(_F32, LANES)


def _sum(builder: Any, factors: list[int], terms: list[Any]) -> Any:
    total = None
    for factor, term in zip(factors, terms, strict=True):
        constant = ir.Constant(_VECTOR, [float(factor)] * LANES)
        if factor and total is None:
            total = builder.fmul(constant, term)
        elif factor:
            total = _fma(builder, constant, term, total)
    return total


def _square(builder: Any, matrix: list[list[int]], values: list[list[Any]]) -> list[list[Any]]:
    """matrix @ values @ matrix.T"""
    columns = [[_sum(builder, row, [v[x] for v in values]) for row in matrix] for x in _SIX]
    return [
        [_sum(builder, row, [column[y] for column in columns]) for row in matrix]
        for y in range(len(matrix))
    ]


def _step(builder: Any, base: Any, step: Any, count: int) -> Any:
    return builder.add(base, builder.mul(step, _const(count)))


@intrinsic
def window_in(typing: Any, source: Any, row: Any, column: Any, target: Any, step: Any) -> Any:
    """Transform 6x6 inputs; row, column: bytes between them, step: between the 36 results."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, row, column, target, step = args
        lines = [_step(builder, source, row, y) for y in _SIX]
        inputs = [
            [_load(builder, _step(builder, line, column, x), _VECTOR) for x in _SIX]
            for line in lines
        ]
        for p, value in enumerate(chain.from_iterable(_square(builder, _B, inputs))):
            _store(builder, value, _step(builder, target, step, p))
        return context.get_dummy_value()

    return types.void(*[_INT] * 5), code


@intrinsic
def multiply(
    typing: Any, left: Any, left_step: Any, depth: Any, right: Any, target: Any, target_step: Any
) -> Any:
    """target (ROWS, WIDE) = left (ROWS, depth) @ right (depth, WIDE); steps: bytes of a row."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        left, left_step, depth, right, target, target_step = args
        rows = [_step(builder, left, left_step, r) for r in range(ROWS)]
        places = [_const(4 * LANES * v) for v in range(WIDE // LANES)]

        def body(k: Any, totals: list[Any]) -> list[Any]:
            here = _step(builder, right, k, 4 * WIDE)
            terms = [_load(builder, builder.add(here, place), _VECTOR) for place in places]
            new: list[Any] = []
            for row in rows:
                factor = _splat(builder, _load(builder, _at(builder, row, k), _F32), LANES)
                new += [
                    _fma(builder, factor, term, totals[len(new) + v])
                    for v, term in enumerate(terms)
                ]
            return new

        zero = ir.Constant(_VECTOR, [0.0] * LANES)
        totals = iter(_loop(builder, _const(0), depth, [zero] * (ROWS * len(places)), body))
        for r in range(ROWS):
            here = _step(builder, target, target_step, r)
            for place in places:
                _store(builder, next(totals), builder.add(here, place))
        return context.get_dummy_value()

    return types.void(*[_INT] * 6), code


@intrinsic
def window_out(typing: Any, source: Any, step: Any, bias: Any, target: Any) -> Any:
    """The largest of the 2x2 outputs, plus the bias; step: bytes between the 36 sums."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, step, bias, target = args
        places = [_step(builder, source, step, p) for p in range(POINTS)]
        sums = [[_load(builder, places[6 * y + x], _VECTOR) for x in _SIX] for y in _SIX]
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * 2)
        larger = get_or_insert_function(builder.module, kind, "llvm.maximum.v8f32")  # keeps NaN
        (a, b), (c, d) = _square(builder, _A, sums)
        best = builder.call(larger, [builder.call(larger, [a, b]), builder.call(larger, [c, d])])
        _store(builder, builder.fadd(best, _load(builder, bias, _VECTOR)), target)
        return context.get_dummy_value()

    return types.void(*[_INT] * 4), code
