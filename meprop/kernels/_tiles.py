"""Sums of scaled rows, held in registers: the vector code behind `_rows`."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from meprop.kernels._simd import (
    _F32,
    _I8,
    _I32,
    _I64,
    _INT,
    LANES,
    _at,
    _const,
    _fma,
    _load,
    _loop,
    _splat,
    _vector_const,
)

# Sums that are under way at a time: (segments, vectors of each). Twelve leave four of AVX2's
# registers free; short stretches go several at a time, for a multiply-add takes four cycles.
TILE = 12
SHAPES = [(1, v) for v in range(1, TILE + 1)] + [
    (s, v) for v in range(1, 7) for s in range(2, min(5, TILE // v) + 1)
]
SEVERAL = tuple(min(5, TILE // v) for v in range(1, 7))
FIRST_SEVERAL = tuple(SHAPES.index((2, v)) for v in range(1, 7))


@intrinsic
def add_rows(
    typing: Any, shape: Any, rows: Any, starts: Any, places: Any, at: Any, value: Any, sums: Any,
    sums_step: Any, source: Any, source_step: Any, lanes: Any,
) -> Any:  # fmt: skip
    """For each row: sums[places[row]] += sum of value[i] * source[at[i]], i in the row's list.

    A row's list is starts[row]:starts[row + 1]; the sums stay in registers while it is walked.
    shape: index in SHAPES; places, at: offsets in floats; steps: bytes from one segment to the
    next; lanes: address of eight integers, zero where a lane of a segment's last vector must not
    be changed.
    """

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        blocks = [builder.append_basic_block("shape") for _ in SHAPES]
        done = builder.append_basic_block("shapes.done")
        switch = builder.switch(args[0], done)
        for index, (shape, block) in enumerate(zip(SHAPES, blocks, strict=True)):
            switch.add_case(_const(index), block)
            builder.position_at_end(block)
            _add_rows(builder, *shape, *args[1:])
            builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return types.void(*[_INT] * 11), code


def _add_rows(
    builder: Any, segments: int, vectors: int, rows: Any, starts: Any, places: Any, at: Any,
    value: Any, sums: Any, sums_step: Any, source: Any, source_step: Any, lanes: Any,
) -> None:  # fmt: skip
    tiles = [(s, v) for s in range(segments) for v in range(vectors)]
    vector = ir.VectorType(_F32, LANES)
    byte = ir.PointerType(_I8)
    zero = _vector_const(0, LANES)
    open_lanes = builder.icmp_signed("!=", _load(builder, lanes, zero.type), zero)

    def integer(address: Any, index: Any) -> Any:
        return builder.sext(_load(builder, _at(builder, address, index), _I32), _I64)

    def segment_rows(base: Any, step: Any) -> list[Any]:
        places = (builder.add(base, builder.mul(step, _const(s))) for s in range(segments))
        return [builder.inttoptr(place, byte) for place in places]

    def tile(row: Any, v: int) -> Any:
        place = builder.gep(row, [_const(4 * LANES * v)])
        return builder.bitcast(place, vector.as_pointer())

    source_rows = segment_rows(source, source_step)

    def add_list(i: Any, totals: list[Any]) -> list[Any]:
        offset = builder.shl(integer(at, i), _const(2))
        factor = _splat(builder, _load(builder, _at(builder, value, i), _F32), LANES)
        here = [builder.gep(row, [offset]) for row in source_rows]
        terms = [builder.load(tile(here[s], v), align=4) for s, v in tiles]
        return [
            _fma(builder, factor, term, total) for term, total in zip(terms, totals, strict=True)
        ]

    def add_row(row: Any, carried: list[Any]) -> list[Any]:
        start = carried[0]
        stop = integer(starts, builder.add(row, _const(1)))
        with builder.if_then(builder.icmp_signed(">", stop, start)):
            target = segment_rows(_at(builder, sums, integer(places, row)), sums_step)
            before = [builder.load(tile(target[s], v), align=4) for s, v in tiles]
            totals = _loop(builder, start, stop, before, add_list)
            for (s, v), total, old in zip(tiles, totals, before, strict=True):
                if v == vectors - 1:
                    total = builder.select(open_lanes, total, old)
                builder.store(total, tile(target[s], v), align=4)
        return [stop]

    with builder.if_then(builder.icmp_signed(">", rows, _const(0))):
        _loop(builder, _const(0), rows, [integer(starts, _const(0))], add_row)
