"""The few operations on memory that Numba cannot say itself.

Addresses are plain integers: an array as argument costs a call a microsecond, an integer nothing,
and every kernel has one signature. Vectors are LLVM's, of eight lanes: they become AVX2, SSE or
NEON, whatever the machine has, so no flag of the processor is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic

from meprop.selection import MIX

LANES = 8
ROW = 32  # keys that are counted side by side
NAN_RANK = 0x7F800001
LARGEST = 0x7F7FFFFF  # the rank of the largest finite float

_I1, _I8, _I32, _I64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))
_F32, _F64 = ir.FloatType(), ir.DoubleType()
_INT, _FLOAT = types.int64, types.float32


def _const(value: int, bits: ir.IntType = _I64) -> Any:
    return ir.Constant(bits, value)


def _vector_const(value: int, lanes: int) -> Any:
    return ir.Constant(ir.VectorType(_I32, lanes), [value] * lanes)


def _splat(builder: Any, value: Any, lanes: int) -> Any:
    vector = ir.VectorType(value.type, lanes)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, _const(0, _I32))
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), _vector_const(0, lanes))


def _load(builder: Any, address: Any, kind: Any) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=4)


def _store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=4)


def _fma(builder: Any, factor: Any, term: Any, total: Any) -> Any:
    vector = total.type
    kind = ir.FunctionType(vector, [vector] * 3)
    function = get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")
    return builder.call(function, [factor, term, total])


def _at(builder: Any, address: Any, index: Any) -> Any:
    return builder.add(address, builder.shl(index, _const(2)))


def _memory(kind: Any, value: Any, wide: bool = False) -> tuple[Any, Any]:
    """Functions (address, index) that load, and (address, index, value) that store, this kind."""
    size = _const(3 if kind in (_F64, _I64) else 2)

    @intrinsic
    def load(typing: Any, address: Any, index: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            found = _load(builder, builder.add(args[0], builder.shl(args[1], size)), kind)
            return builder.sext(found, _I64) if wide else found

        return value(_INT, _INT), code

    @intrinsic
    def store(typing: Any, address: Any, index: Any, new: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            given = builder.trunc(args[2], kind) if wide else args[2]
            _store(builder, given, builder.add(args[0], builder.shl(args[1], size)))
            return context.get_dummy_value()

        return types.void(_INT, _INT, value), code

    return load, store


get, put = _memory(_F32, _FLOAT)
geti, puti = _memory(_I32, _INT, wide=True)
getd, putd = _memory(_F64, types.float64)
getl, putl = _memory(_I64, _INT)


@intrinsic
def as_double(typing: Any, bits: Any) -> Any:
    """The double of these bits."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _F64)

    return types.float64(_INT), code


@intrinsic
def add_at(typing: Any, address: Any, number: Any) -> Any:
    """Add to the 64-bit integer that threads share; returns what it was."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.inttoptr(args[0], _I64.as_pointer())
        return builder.atomic_rmw("add", place, args[1], "seq_cst")

    return _INT(_INT, _INT), code


@intrinsic
def shared(typing: Any, address: Any) -> Any:
    """The 64-bit integer that threads share, and all that was written before it."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(args[0], _I64.as_pointer()), "seq_cst", 8)

    return _INT(_INT), code


@intrinsic
def call(typing: Any, function: Any, first: Any, second: Any, third: Any, fourth: Any) -> Any:
    """Call the C function at an address, with pointers and integers; fewer than four is fine."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_I64, _I64, _I32, _I32])
        numbers = [builder.trunc(arg, _I32) for arg in args[3:]]
        pointer = builder.inttoptr(args[0], kind.as_pointer())
        builder.call(pointer, [*args[1:3], *numbers])
        return context.get_dummy_value()

    return types.void(*[_INT] * 5), code


@intrinsic
def rank_row(typing: Any, target: Any, source: Any) -> Any:
    """The ranks of 32 floats."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        for p in range(ROW // LANES):
            target, source = (builder.add(arg, _const(4 * LANES * p)) for arg in args)
            bits = _load(builder, source, ir.VectorType(_I32, LANES))
            _store(builder, _rank(builder, bits, LANES), target)
        return context.get_dummy_value()

    return types.void(_INT, _INT), code


@intrinsic
def fill(typing: Any, address: Any, floats: Any) -> Any:
    """Set that many floats or 32-bit integers to zero."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.PointerType(_I8))
        kind = ir.FunctionType(ir.VoidType(), [ir.PointerType(_I8), _I8, _I64, _I1])
        memset = builder.module.declare_intrinsic("llvm.memset", [ir.PointerType(_I8), _I64], kind)
        size = builder.shl(args[1], _const(2))
        builder.call(memset, [pointer, _const(0, _I8), size, _const(0, _I1)])
        return context.get_dummy_value()

    return types.void(_INT, _INT), code


@intrinsic
def copy(typing: Any, target: Any, source: Any, floats: Any) -> Any:
    """Copy that many floats to where they do not overlap."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte = ir.PointerType(_I8)
        target, source = (builder.inttoptr(arg, byte) for arg in args[:2])
        kind = ir.FunctionType(ir.VoidType(), [byte, byte, _I64, _I1])
        memcpy = builder.module.declare_intrinsic("llvm.memcpy", [byte, byte, _I64], kind)
        builder.call(memcpy, [target, source, builder.shl(args[2], _const(2)), _const(0, _I1)])
        return context.get_dummy_value()

    return types.void(_INT, _INT, _INT), code


def _rank(builder: Any, bits: Any, lanes: int) -> Any:
    """Magnitudes as integers of the same order; all NaN alike, above infinity."""
    magnitude = builder.and_(bits, _vector_const(0x7FFFFFFF, lanes))
    nan = _vector_const(NAN_RANK, lanes)
    return builder.select(builder.icmp_signed("<", magnitude, nan), magnitude, nan)


@intrinsic
def rank(typing: Any, address: Any, index: Any) -> Any:
    """The rank of the float at an index: its magnitude's bits, all NaN alike, above infinity."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bits = _load(builder, _at(builder, *args), ir.VectorType(_I32, 1))
        one = builder.extract_element(_rank(builder, bits, 1), _const(0, _I32))
        return builder.zext(one, _I64)

    return _INT(_INT, _INT), code


@intrinsic
def rank_of(typing: Any, value: Any) -> Any:
    """The rank of a float in a register."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bits = builder.bitcast(args[0], ir.VectorType(_I32, 1))
        one = builder.extract_element(_rank(builder, bits, 1), _const(0, _I32))
        return builder.zext(one, _I64)

    return _INT(_FLOAT), code


@intrinsic
def above64(typing: Any, score: Any, bound: Any) -> Any:
    """Bit i is set where the rank of the i-th of 64 floats exceeds the i-th of 64 bounds."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = ir.VectorType(_I32, 64)
        ranks = _rank(builder, _load(builder, args[0], vector), 64)
        above = builder.icmp_signed(">", ranks, _load(builder, args[1], vector))
        return builder.bitcast(above, _I64)

    return _INT(_INT, _INT), code


@intrinsic
def drawn64(typing: Any, values: Any, low: Any, steps: Any, start: Any, second: Any) -> Any:
    """Bit i is set where the i-th of 64 floats is above u times its threshold, or NaN.

    u: `meprop.selection.uniform`'s hash, of start + steps[i] and the key's second half.
    """

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        floats, ints = ir.VectorType(_F32, LANES), ir.VectorType(_I32, LANES)
        start, second = (_splat(builder, builder.trunc(arg, _I32), LANES) for arg in args[3:])
        unit = ir.Constant(floats, [2.0**-24] * LANES)
        mask = _const(0)

        def mixed(h: Any, shift: int, factor: int) -> Any:
            h = builder.xor(h, builder.lshr(h, _vector_const(shift, LANES)))
            return builder.mul(h, _vector_const(factor, LANES))

        for p in range(64 // LANES):
            value, bound, step = (
                _load(builder, builder.add(address, _const(4 * LANES * p)), kind)
                for address, kind in zip(args[:3], (ints, floats, ints), strict=True)
            )
            h = builder.add(mixed(builder.add(start, step), 16, MIX[0]), second)
            h = builder.lshr(mixed(h, 15, MIX[1]), _vector_const(8, LANES))
            u = builder.fmul(builder.sitofp(h, floats), unit)
            magnitude = builder.and_(value, _vector_const(0x7FFFFFFF, LANES))
            magnitude = builder.bitcast(magnitude, floats)
            above = builder.fcmp_unordered(">", magnitude, builder.fmul(u, bound))
            bits = builder.zext(builder.bitcast(above, _I8), _I64)
            mask = builder.or_(mask, builder.shl(bits, _const(LANES * p)))
        return mask

    return _INT(_INT, _INT, _INT, _INT, _INT), code


@intrinsic
def with_sign(typing: Any, magnitude: Any, sign: Any) -> Any:
    """The first, with the sign of the second."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_F32, [_F32, _F32])
        function = get_or_insert_function(builder.module, kind, "llvm.copysign.f32")
        return builder.call(function, args)

    return _FLOAT(_FLOAT, _FLOAT), code


@intrinsic
def lowest_bit(typing: Any, mask: Any) -> Any:
    """The index of the lowest bit that is set; the mask is not zero."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], _const(1, _I1))

    return _INT(_INT), code


@intrinsic
def shift_right(typing: Any, mask: Any, bits: Any) -> Any:
    """A logical shift of 64 bits, for masks."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.lshr(*args)

    return _INT(_INT, _INT), code


def _count(builder: Any, keys: Any, step: Any, rows: Any, bounds: list[Any]) -> list[Any]:
    """Per lane, how many keys of the rows (`step` bytes apart) exceed the bounds."""
    vector = ir.VectorType(_I32, LANES)

    def body(row: Any, sums: list[Any]) -> list[Any]:
        base = builder.add(keys, builder.mul(row, step))
        new = []
        for p, (total, bound) in enumerate(zip(sums, bounds, strict=True)):
            key = _load(builder, builder.add(base, _const(4 * LANES * p)), vector)
            above = builder.sext(builder.icmp_signed(">", key, bound), vector)
            new.append(builder.sub(total, above))
        return new

    return _loop(builder, _const(0), rows, [_vector_const(0, LANES) for _ in bounds], body)


@intrinsic
def count_columns(typing: Any, keys: Any, step: Any, rows: Any, bounds: Any, counts: Any) -> Any:
    """counts[j] = how many keys of column j exceed bounds[j], for 32 columns side by side."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        keys, step, rows, bounds, counts = args
        vector = ir.VectorType(_I32, LANES)
        places = [_const(4 * LANES * p) for p in range(ROW // LANES)]
        bound = [_load(builder, builder.add(bounds, place), vector) for place in places]
        sums = _count(builder, keys, step, rows, bound)
        for place, total in zip(places, sums, strict=True):
            _store(builder, total, builder.add(counts, place))
        return context.get_dummy_value()

    return types.void(_INT, _INT, _INT, _INT, _INT), code


@intrinsic
def count_all(typing: Any, keys: Any, rows: Any, bound: Any) -> Any:
    """How many of rows*32 keys exceed one bound."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        keys, rows, bound = args
        bounds = [_splat(builder, builder.trunc(bound, _I32), LANES)] * (ROW // LANES)
        sums = _count(builder, keys, _const(4 * ROW), rows, bounds)
        total = builder.add(builder.add(sums[0], sums[1]), builder.add(sums[2], sums[3]))
        kind = ir.FunctionType(_I32, [total.type])
        add = get_or_insert_function(builder.module, kind, "llvm.vector.reduce.add.v8i32")
        return builder.zext(builder.call(add, [total]), _I64)

    return _INT(_INT, _INT, _INT), code


@intrinsic
def below_columns(typing: Any, keys: Any, step: Any, rows: Any, bounds: Any, sums: Any) -> Any:
    """For 32 columns: the sum of what is below the column's bound; then how many are not."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        keys, step, rows, bounds, sums = args
        floats, ints = ir.VectorType(_F32, LANES), ir.VectorType(_I32, LANES)
        places = [_const(4 * LANES * p) for p in range(ROW // LANES)]
        bound = [_load(builder, builder.add(bounds, place), ints) for place in places]
        zero, one = (ir.Constant(floats, [value] * LANES) for value in (0.0, 1.0))

        def body(row: Any, totals: list[Any]) -> list[Any]:
            base = builder.add(keys, builder.mul(row, step))
            new = []
            for p, place in enumerate(places):
                key = _load(builder, builder.add(base, place), ints)
                below = builder.icmp_signed("<", key, bound[p])
                term = builder.select(below, builder.bitcast(key, floats), zero)
                new.append(builder.fadd(totals[2 * p], term))
                new.append(builder.fadd(totals[2 * p + 1], builder.select(below, zero, one)))
            return new

        totals = _loop(builder, _const(0), rows, [zero] * (2 * len(places)), body)
        for p, place in enumerate(places):
            _store(builder, totals[2 * p], builder.add(sums, place))
            _store(builder, totals[2 * p + 1], builder.add(sums, _const(4 * (ROW + LANES * p))))
        return context.get_dummy_value()

    return types.void(_INT, _INT, _INT, _INT, _INT), code


@intrinsic
def sum_columns(typing: Any, values: Any, step: Any, rows: Any, sums: Any) -> Any:
    """sums[j] = sum over the rows, `step` bytes apart, of column j, for 32 columns."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values, step, rows, sums = args
        vector = ir.VectorType(_F32, LANES)
        places = [_const(4 * LANES * p) for p in range(ROW // LANES)]

        def body(row: Any, totals: list[Any]) -> list[Any]:
            base = builder.add(values, builder.mul(row, step))
            terms = [_load(builder, builder.add(base, place), vector) for place in places]
            return [builder.fadd(a, b) for a, b in zip(totals, terms, strict=True)]

        zero = ir.Constant(vector, [0.0] * LANES)
        totals = _loop(builder, _const(0), rows, [zero for _ in places], body)
        for place, total in zip(places, totals, strict=True):
            _store(builder, total, builder.add(sums, place))
        return context.get_dummy_value()

    return types.void(_INT, _INT, _INT, _INT), code


@intrinsic
def add_all(typing: Any, sums: Any, values: Any, vectors: Any) -> Any:
    """sums += values, of vectors * 8 floats."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = ir.VectorType(_F32, LANES)

        def body(i: Any, carried: list[Any]) -> list[Any]:
            place, other = (builder.add(arg, builder.mul(i, _const(4 * LANES))) for arg in args[:2])
            total = builder.fadd(_load(builder, place, vector), _load(builder, other, vector))
            _store(builder, total, place)
            return carried

        _loop(builder, _const(0), args[2], [], body)
        return context.get_dummy_value()

    return types.void(_INT, _INT, _INT), code


@intrinsic
def average_rows(typing: Any, run: Any, grad: Any, rows: Any, decay: Any, fresh: Any) -> Any:
    """run = decay * run + fresh * |grad| for rows*32 floats; no change where that is not finite.

    Returns other than 0 where it is not. Rounded three times, as torch rounds it: a fused
    multiply-add could change the winner of a selection.
    """

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        run, grad, rows, decay, fresh = args
        floats, ints = ir.VectorType(_F32, LANES), ir.VectorType(_I32, LANES)
        decay, fresh = (_splat(builder, factor, LANES) for factor in (decay, fresh))

        def body(row: Any, wild: list[Any]) -> list[Any]:
            new = []
            for p, seen in enumerate(wild):
                place = builder.add(builder.mul(row, _const(4 * ROW)), _const(4 * LANES * p))
                old = _load(builder, builder.add(run, place), floats)
                bits = _load(builder, builder.add(grad, place), ints)
                bits = builder.and_(bits, _vector_const(0x7FFFFFFF, LANES))
                past = builder.fmul(decay, old)
                value = builder.fadd(past, builder.fmul(fresh, builder.bitcast(bits, floats)))
                infinite = builder.icmp_signed(">", bits, _vector_const(LARGEST, LANES))
                _store(builder, builder.select(infinite, old, value), builder.add(run, place))
                new.append(builder.or_(seen, builder.sext(infinite, ints)))
            return new

        zeros = [_vector_const(0, LANES) for _ in range(ROW // LANES)]
        wild = _loop(builder, _const(0), rows, zeros, body)
        total = builder.or_(builder.or_(wild[0], wild[1]), builder.or_(wild[2], wild[3]))
        kind = ir.FunctionType(_I32, [ints])
        any_ = get_or_insert_function(builder.module, kind, "llvm.vector.reduce.or.v8i32")
        return builder.zext(builder.call(any_, [total]), _I64)

    return _INT(_INT, _INT, _INT, _FLOAT, _FLOAT), code


def _loop(builder: Any, start: Any, stop: Any, carried: list[Any], body: Callable) -> list[Any]:
    """for i in range(start, stop): carried = body(i, carried); runs at least once."""
    before = builder.block
    inside = builder.append_basic_block("loop")
    after = builder.append_basic_block("done")
    builder.branch(inside)
    builder.position_at_end(inside)
    i = builder.phi(_I64)
    i.add_incoming(start, before)
    values = []
    for value in carried:
        values.append(builder.phi(value.type))
        values[-1].add_incoming(value, before)
    new = body(i, values)
    following = builder.add(i, _const(1))
    i.add_incoming(following, builder.block)
    for phi, value in zip(values, new, strict=True):
        phi.add_incoming(value, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, stop), inside, after)
    builder.position_at_end(after)
    return new
