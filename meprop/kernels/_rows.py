"""The one inner loop of every backward pass: rows of a sum, each over a list of scaled rows.

    sums[row] += sum of value[i] * source[at[i]]    for i in the list of `row`

Weight gradient: a row is a feature map, `source` the patches of the input (Eq. 13). Input
gradient: a row is a position, `source` the filters (Eq. 10): the maps that share a position are
summed in registers before the input gradient is touched. A patch is `segments` stretches of
`length` floats; it is cut into tiles that fit the registers, and the lists are walked once per
tile, so that a tile of `source` stays in the cache.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from meprop.kernels._jit import emitted, inner
from meprop.kernels._plan import TILE, read_job
from meprop.kernels._simd import (
    F32,
    I8,
    I32,
    I64,
    INT,
    LANES,
    VOID,
    at,
    by_llvm,
    const,
    ints,
    load,
    loop,
    splat,
)

# Sums that are under way at a time: (segments, vectors of each). Short stretches go several at a
# time, for a multiply-add takes four cycles.
SHAPES = [(1, v) for v in range(1, TILE + 1)] + [
    (s, v) for v in range(1, 7) for s in range(2, min(5, TILE // v) + 1)
]
SEVERAL = tuple(min(5, TILE // v) for v in range(1, 7))
FIRST_SEVERAL = tuple(SHAPES.index((2, v)) for v in range(1, 7))


@emitted(VOID, *[INT] * 11)
def add_rows(
    builder: Any, shape: Any, rows: Any, starts: Any, places: Any, entries: Any, value: Any,
    sums: Any, sums_step: Any, source: Any, source_step: Any, lanes: Any,
) -> None:  # fmt: skip
    """For each row: sums[places[row]] += sum of value[i] * source[entries[i]], i in its list.

    A row's list is starts[row]:starts[row + 1]; neither they nor it are empty. The sums stay in
    registers while it is walked. shape: index in SHAPES; places, entries: offsets in floats; steps:
    bytes from one segment to the next; lanes: address of eight integers behind eight ones, zero
    where a lane of a segment's last vector must not be changed.
    """
    blocks = [builder.append_basic_block("shape") for _ in SHAPES]
    done = builder.append_basic_block("shapes.done")
    switch = builder.switch(shape, done)
    for index, ((segments, vectors), block) in enumerate(zip(SHAPES, blocks, strict=True)):
        switch.add_case(const(index), block)
        builder.position_at_end(block)
        _add_rows(
            builder, segments, vectors, rows, starts, places, entries, value, sums, sums_step,
            source, source_step, lanes,
        )  # fmt: skip
        builder.branch(done)
    builder.position_at_end(done)


def _add_rows(
    builder: Any, segments: int, vectors: int, rows: Any, starts: Any, places: Any,
    entries: Any, value: Any, sums: Any, sums_step: Any, source: Any, source_step: Any, lanes: Any,
) -> None:  # fmt: skip
    # Two vectors as one, where they are: AVX-512's registers take them, others' code is the same.
    widths = [min(2, vectors - v) for v in range(0, vectors, 2)]
    tiles = [(s, 2 * i, LANES * width) for s in range(segments) for i, width in enumerate(widths)]
    byte = ir.PointerType(I8)
    zero = ints(0, LANES * widths[-1])
    last = builder.sub(lanes, const(4 * LANES * (widths[-1] - 1)))
    open_lanes = builder.icmp_signed("!=", load(builder, last, zero.type), zero)

    def integer(address: Any, index: Any) -> Any:
        return builder.sext(load(builder, at(builder, address, index), I32), I64)

    def segment_rows(base: Any, step: Any) -> list[Any]:
        places = (builder.add(base, builder.mul(step, const(s))) for s in range(segments))
        return [builder.inttoptr(place, byte) for place in places]

    def tile(row: Any, v: int, width: int) -> Any:
        place = builder.gep(row, [const(4 * LANES * v)])
        return builder.bitcast(place, ir.VectorType(F32, width).as_pointer())

    source_rows = segment_rows(source, source_step)

    def add_list(i: Any, totals: list[Any]) -> list[Any]:
        offset = builder.shl(integer(entries, i), const(2))
        factor = load(builder, at(builder, value, i), F32)
        factors = {width: splat(builder, factor, width) for _, _, width in tiles}
        here = [builder.gep(row, [offset]) for row in source_rows]
        terms = [builder.load(tile(here[s], v, width), align=4) for s, v, width in tiles]
        return [
            by_llvm(builder, f"fma.v{width}f32", term.type, factors[width], term, total)
            for (_, _, width), term, total in zip(tiles, terms, totals, strict=True)
        ]

    def add_row(row: Any, carried: list[Any]) -> list[Any]:
        start = carried[0]
        stop = integer(starts, builder.add(row, const(1)))
        target = segment_rows(at(builder, sums, integer(places, row)), sums_step)
        before = [builder.load(tile(target[s], v, width), align=4) for s, v, width in tiles]
        totals = loop(builder, start, stop, before, add_list)
        for (s, v, width), total, old in zip(tiles, totals, before, strict=True):
            if LANES * v + width == LANES * vectors:
                total = builder.select(open_lanes, total, old)
            builder.store(total, tile(target[s], v, width), align=4)
        return [stop]

    loop(builder, const(0), rows, [integer(starts, const(0))], add_row)


@inner
def add_patches(
    job: int, mine: int, first: int, last: int, sums: int, sums_step: int, source: int,
    source_step: int, segments: int, lanes: int,
) -> None:  # fmt: skip
    """Add the lists of rows first:last, over `segments` stretches of `length` floats.

    mine: the thread's memory, where the lists are; steps in bytes; lanes: address of 16 integers
    behind eight ones, first eight ones and then the lanes a stretch's last vector may write.
    """
    p = read_job(job)
    if first >= last:
        return
    vectors = (p.length + LANES - 1) // LANES
    tiles = (vectors + TILE - 1) // TILE
    segment = 0
    while segment < segments:
        many = 1
        if vectors <= len(SEVERAL):
            many = min(SEVERAL[vectors - 1], segments - segment)
        start = 0
        for tile in range(tiles):
            after = vectors * (tile + 1) // tiles
            shape = after - start - 1
            if many > 1:
                shape = FIRST_SEVERAL[vectors - 1] + many - 2
            add_rows(
                shape, last - first, mine + p.starts + 4 * first, mine + p.rows + 4 * first,
                mine + p.entry, mine + p.scale,
                sums + segment * sums_step + 4 * LANES * start, sums_step,
                source + segment * source_step + 4 * LANES * start, source_step,
                lanes + 4 * LANES if after == vectors else lanes,
            )  # fmt: skip
            start = after
        segment += many
