"""The few operations on memory that Numba cannot say itself.

Addresses are plain integers: an array as argument costs a call a microsecond, an integer nothing,
and every kernel has one signature. Vectors are LLVM's, of eight lanes or a multiple: they become
AVX2, SSE or NEON, whatever the machine has, so no flag of the processor is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function

from meprop.kernels._jit import emitted
from meprop.selection import MIX

LANES = 8
ROW = 32  # keys that are counted side by side
NAN_RANK = 0x7F800001
LARGEST = 0x7F7FFFFF  # the rank of the largest finite float

_I1, I8, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))
F32, _F64 = ir.FloatType(), ir.DoubleType()
_BYTES = ir.PointerType(I8)
INT, _FLOAT, _DOUBLE, VOID = types.int64, types.float32, types.float64, types.void


def const(value: int, bits: ir.IntType = I64) -> Any:
    return ir.Constant(bits, value)


def ints(value: int, lanes: int) -> Any:
    return ir.Constant(ir.VectorType(I32, lanes), [value] * lanes)


def floats(value: float, lanes: int) -> Any:
    return ir.Constant(ir.VectorType(F32, lanes), [value] * lanes)


def splat(builder: Any, value: Any, lanes: int) -> Any:
    vector = ir.VectorType(value.type, lanes)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, const(0, I32))
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), ints(0, lanes))


def load(builder: Any, address: Any, kind: Any) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=4)


def _store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=4)


def by_llvm(builder: Any, name: str, returns: Any, *args: Any) -> Any:
    """Call one of LLVM's own functions."""
    kind = ir.FunctionType(returns, [arg.type for arg in args])
    return builder.call(get_or_insert_function(builder.module, kind, f"llvm.{name}"), args)


def at(builder: Any, address: Any, index: Any) -> Any:
    return builder.add(address, builder.shl(index, const(2)))


def _memory(kind: Any, value: Any, wide: bool = False) -> tuple[Any, Any]:
    """Functions (address, index) that load, and (address, index, value) that store, this kind."""
    size = const(3 if kind in (_F64, I64) else 2)

    @emitted(value, INT, INT)
    def read(builder: Any, address: Any, index: Any) -> Any:
        found = load(builder, builder.add(address, builder.shl(index, size)), kind)
        return builder.sext(found, I64) if wide else found

    @emitted(VOID, INT, INT, value)
    def write(builder: Any, address: Any, index: Any, new: Any) -> None:
        given = builder.trunc(new, kind) if wide else new
        _store(builder, given, builder.add(address, builder.shl(index, size)))

    return read, write


get, put = _memory(F32, _FLOAT)
geti, puti = _memory(I32, INT, wide=True)
getd, putd = _memory(_F64, _DOUBLE)
getl, putl = _memory(I64, INT)


@emitted(_DOUBLE, INT)
def as_double(builder: Any, bits: Any) -> Any:
    """The double of these bits."""
    return builder.bitcast(bits, _F64)


@emitted(INT, INT, INT)
def add_at(builder: Any, address: Any, number: Any) -> Any:
    """Add to the 64-bit integer that threads share; returns what it was."""
    place = builder.inttoptr(address, I64.as_pointer())
    return builder.atomic_rmw("add", place, number, "seq_cst")


@emitted(INT, INT)
def shared(builder: Any, address: Any) -> Any:
    """The 64-bit integer that threads share, and all that was written before it."""
    return builder.load_atomic(builder.inttoptr(address, I64.as_pointer()), "seq_cst", 8)


@emitted(VOID, INT, INT, INT, INT, INT)
def call(builder: Any, function: Any, first: Any, second: Any, third: Any, fourth: Any) -> None:
    """Call the C function at an address, with pointers and integers; fewer than four is fine."""
    kind = ir.FunctionType(ir.VoidType(), [I64, I64, I32, I32])
    numbers = [builder.trunc(number, I32) for number in (third, fourth)]
    builder.call(builder.inttoptr(function, kind.as_pointer()), [first, second, *numbers])


@emitted(VOID, INT, INT)
def fill(builder: Any, address: Any, count: Any) -> None:
    """Set that many floats or 32-bit integers to zero."""
    place, size = builder.inttoptr(address, _BYTES), builder.shl(count, const(2))
    by_llvm(builder, "memset.p0i8.i64", ir.VoidType(), place, const(0, I8), size, const(0, _I1))


@emitted(VOID, INT, INT, INT)
def copy(builder: Any, target: Any, source: Any, count: Any) -> None:
    """Copy that many floats to where they do not overlap."""
    places = (builder.inttoptr(address, _BYTES) for address in (target, source))
    size = builder.shl(count, const(2))
    by_llvm(builder, "memcpy.p0i8.p0i8.i64", ir.VoidType(), *places, size, const(0, _I1))


def _rank(builder: Any, bits: Any) -> Any:
    """Magnitudes as integers of the same order; all NaN alike, above infinity."""
    lanes = bits.type.count
    magnitude = builder.and_(bits, ints(0x7FFFFFFF, lanes))
    nan = ints(NAN_RANK, lanes)
    return builder.select(builder.icmp_signed("<", magnitude, nan), magnitude, nan)


@emitted(INT, INT, INT)
def rank(builder: Any, address: Any, index: Any) -> Any:
    """The rank of the float at an index: its magnitude's bits, all NaN alike, above infinity."""
    ranks = _rank(builder, load(builder, at(builder, address, index), ir.VectorType(I32, 1)))
    return builder.zext(builder.extract_element(ranks, const(0, I32)), I64)


@emitted(VOID, INT, INT)
def rank_row(builder: Any, target: Any, source: Any) -> None:
    """The ranks of 32 floats."""
    _store(builder, _rank(builder, load(builder, source, ir.VectorType(I32, ROW))), target)


@emitted(INT, INT, INT)
def above64(builder: Any, score: Any, bound: Any) -> Any:
    """Bit i is set where the rank of the i-th of 64 floats exceeds the i-th of 64 bounds."""
    vector = ir.VectorType(I32, 64)
    ranks = _rank(builder, load(builder, score, vector))
    return builder.bitcast(builder.icmp_signed(">", ranks, load(builder, bound, vector)), I64)


@emitted(INT, INT, INT, INT, INT, INT)
def drawn64(builder: Any, values: Any, low: Any, steps: Any, start: Any, second: Any) -> Any:
    """Bit i is set where the i-th of 64 floats is above u times its threshold, or NaN.

    u: `meprop.selection.uniform`'s hash, of start + steps[i] and the key's second half.
    """
    single, whole = ir.VectorType(F32, LANES), ir.VectorType(I32, LANES)
    start, second = (splat(builder, builder.trunc(n, I32), LANES) for n in (start, second))
    mask = const(0)

    def mixed(h: Any, shift: int, factor: int) -> Any:
        h = builder.xor(h, builder.lshr(h, ints(shift, LANES)))
        return builder.mul(h, ints(factor, LANES))

    for p in range(64 // LANES):
        value, bound, step = (
            load(builder, builder.add(address, const(4 * LANES * p)), kind)
            for address, kind in ((values, whole), (low, single), (steps, whole))
        )
        h = builder.add(mixed(builder.add(start, step), 16, MIX[0]), second)
        h = builder.lshr(mixed(h, 15, MIX[1]), ints(8, LANES))
        u = builder.fmul(builder.sitofp(h, single), floats(2.0**-24, LANES))
        magnitude = builder.bitcast(builder.and_(value, ints(0x7FFFFFFF, LANES)), single)
        above = builder.fcmp_unordered(">", magnitude, builder.fmul(u, bound))
        bits = builder.zext(builder.bitcast(above, I8), I64)
        mask = builder.or_(mask, builder.shl(bits, const(LANES * p)))
    return mask


@emitted(_FLOAT, _FLOAT, _FLOAT)
def with_sign(builder: Any, magnitude: Any, sign: Any) -> Any:
    """The first, with the sign of the second."""
    return by_llvm(builder, "copysign.f32", F32, magnitude, sign)


@emitted(INT, INT)
def lowest_bit(builder: Any, mask: Any) -> Any:
    """The index of the lowest bit that is set; the mask is not zero."""
    return builder.cttz(mask, const(1, _I1))


_PIECES = [const(4 * LANES * p) for p in range(ROW // LANES)]


def _columns(builder: Any, address: Any) -> list[Any]:
    """32 integers as vectors: comparing all as one would take twice the time."""
    places = (builder.add(address, piece) for piece in _PIECES)
    return [load(builder, place, ir.VectorType(I32, LANES)) for place in places]


def _rows(builder: Any, address: Any, rows: Any, start: list[Any], body: Any) -> list[Any]:
    """For each vector p of rows of 32 integers: totals = body(p, its address, it, totals)."""

    def each(i: Any, totals: list[Any]) -> list[Any]:
        row = builder.add(address, builder.mul(i, const(4 * ROW)))
        new = []
        for p, vector in enumerate(_columns(builder, row)):
            mine = totals[p * len(start) : (p + 1) * len(start)]
            new += body(p, builder.add(row, _PIECES[p]), vector, mine)
        return new

    return loop(builder, const(0), rows, start * len(_PIECES), each)


def _counts(builder: Any, keys: Any, rows: Any, bounds: list[Any]) -> list[Any]:
    """How many keys of each of 32 columns exceed its bound."""

    def count(p: int, place: Any, row: Any, total: list[Any]) -> list[Any]:
        above = builder.sext(builder.icmp_signed(">", row, bounds[p]), row.type)
        return [builder.sub(total[0], above)]

    return _rows(builder, keys, rows, [ints(0, LANES)], count)


@emitted(VOID, INT, INT, INT, INT)
def count_columns(builder: Any, keys: Any, rows: Any, bounds: Any, counts: Any) -> None:
    """counts[j] = how many keys of column j exceed bounds[j], for 32 columns side by side."""
    found = _counts(builder, keys, rows, _columns(builder, bounds))
    for piece, total in zip(_PIECES, found, strict=True):
        _store(builder, total, builder.add(counts, piece))


@emitted(INT, INT, INT, INT)
def count_all(builder: Any, keys: Any, rows: Any, bound: Any) -> Any:
    """How many of rows*32 keys exceed one bound."""
    bounds = [splat(builder, builder.trunc(bound, I32), LANES)] * len(_PIECES)
    found = reduce(builder.add, _counts(builder, keys, rows, bounds))
    return builder.zext(by_llvm(builder, "vector.reduce.add.v8i32", I32, found), I64)


@emitted(VOID, INT, INT, INT, INT)
def below_columns(builder: Any, keys: Any, rows: Any, bounds: Any, sums: Any) -> None:
    """For 32 columns: the sum of what is below the column's bound; then how many are not."""
    zero, one = floats(0, LANES), floats(1, LANES)
    bound = _columns(builder, bounds)

    def add(p: int, place: Any, row: Any, totals: list[Any]) -> list[Any]:
        below = builder.icmp_signed("<", row, bound[p])
        term = builder.select(below, builder.bitcast(row, zero.type), zero)
        other = builder.select(below, zero, one)
        return [builder.fadd(totals[0], term), builder.fadd(totals[1], other)]

    totals = _rows(builder, keys, rows, [zero, zero], add)
    for p, piece in enumerate(_PIECES):
        _store(builder, totals[2 * p], builder.add(sums, piece))
        _store(builder, totals[2 * p + 1], builder.add(sums, const(4 * (ROW + LANES * p))))


@emitted(VOID, INT, INT, INT, INT)
def sum_columns(builder: Any, values: Any, step: Any, rows: Any, sums: Any) -> None:
    """sums[j] = sum over the rows, `step` bytes apart, of column j, for 32 columns."""

    def add(i: Any, totals: list[Any]) -> list[Any]:
        row = load(builder, builder.add(values, builder.mul(i, step)), totals[0].type)
        return [builder.fadd(totals[0], row)]

    _store(builder, loop(builder, const(0), rows, [floats(0, ROW)], add)[0], sums)


@emitted(VOID, INT, INT, INT)
def add_all(builder: Any, sums: Any, values: Any, vectors: Any) -> None:
    """sums += values, of vectors * 8 floats."""

    def add(i: Any, carried: list[Any]) -> list[Any]:
        places = [builder.add(a, builder.mul(i, const(4 * LANES))) for a in (sums, values)]
        old, new = (load(builder, place, ir.VectorType(F32, LANES)) for place in places)
        _store(builder, builder.fadd(old, new), places[0])
        return carried

    loop(builder, const(0), vectors, [], add)


@emitted(INT, INT, INT, INT, _FLOAT, _FLOAT)
def average_rows(builder: Any, run: Any, grad: Any, rows: Any, decay: Any, fresh: Any) -> Any:
    """run = decay * run + fresh * |grad| for rows*32 floats; no change where that is not finite.

    Returns other than 0 where it is not. Rounded three times, as torch rounds it: a fused
    multiply-add could change the winner of a selection.
    """
    decay, fresh = (splat(builder, factor, LANES) for factor in (decay, fresh))
    ahead = builder.sub(run, grad)

    def average(p: int, place: Any, bits: Any, wild: list[Any]) -> list[Any]:
        bits = builder.and_(bits, ints(0x7FFFFFFF, LANES))
        place = builder.add(place, ahead)
        old = load(builder, place, decay.type)
        new = builder.fmul(fresh, builder.bitcast(bits, old.type))
        new = builder.fadd(builder.fmul(decay, old), new)
        infinite = builder.icmp_signed(">", bits, ints(LARGEST, LANES))
        _store(builder, builder.select(infinite, old, new), place)
        return [builder.or_(wild[0], builder.sext(infinite, bits.type))]

    wild = reduce(builder.or_, _rows(builder, grad, rows, [ints(0, LANES)], average))
    return builder.zext(by_llvm(builder, "vector.reduce.or.v8i32", I32, wild), I64)


def loop(builder: Any, start: Any, stop: Any, carried: list[Any], body: Callable) -> list[Any]:
    """for i in range(start, stop): carried = body(i, carried); runs at least once."""
    before = builder.block
    inside = builder.append_basic_block("loop")
    after = builder.append_basic_block("done")
    builder.branch(inside)
    builder.position_at_end(inside)
    i = builder.phi(I64)
    i.add_incoming(start, before)
    values = []
    for value in carried:
        values.append(builder.phi(value.type))
        values[-1].add_incoming(value, before)
    new = body(i, values)
    following = builder.add(i, const(1))
    i.add_incoming(following, builder.block)
    for phi, value in zip(values, new, strict=True):
        phi.add_incoming(value, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, stop), inside, after)
    builder.position_at_end(after)
    return new
