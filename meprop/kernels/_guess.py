"""Bounds for the selection, guessed from a sample of each group: the first step of `_choose`.

For `_draw` they are thresholds, which need no more than to come from the gradient alone.
"""

from __future__ import annotations

import math

import numpy as np

from meprop.kernels._jit import inner, kernel
from meprop.kernels._simd import (
    LARGEST,
    ROW,
    below_columns,
    count_all,
    count_columns,
    fill,
    get,
    geti,
    put,
    puti,
    rank,
    rank_of,
)

_INFINITY = LARGEST + 1  # its bits


@inner
def new_run_grad(run: int, grad: int, i: int, decay: float, fresh: float) -> float:
    # Rounded three times, as torch rounds it: a fused multiply-add could change the winner.
    return decay * get(run, i) + fresh * abs(get(grad, i))


@inner
def padded(n: int) -> int:
    return (n + ROW - 1) // ROW * ROW


@inner
def _column_bounds(keys: int, columns: int, rows: int, wanted: int, low: int, work: int) -> None:
    """low[j]: the largest bound, to a few percent, that `wanted` keys of column j exceed, or 0."""
    tried, counts, half = work, work + 4 * columns, 1 << 30
    fill(low, columns)
    while half >= 1 << 17:
        for j in range(columns):
            puti(tried, j, geti(low, j) + half)
        for j in range(0, columns, ROW):
            count_columns(keys + 4 * j, 4 * columns, rows, tried + 4 * j, counts + 4 * j)
        for j in range(columns):
            puti(low, j, geti(tried, j) if geti(counts, j) >= wanted else geti(low, j))
        half >>= 1


@inner
def _bound(keys: int, rows: int, wanted: int) -> int:
    """The same for one group that fills all columns."""
    low, half = 0, 1 << 30
    while half >= 1 << 17:
        if count_all(keys, rows, low + half) >= wanted:
            low += half
        half >>= 1
    return low


@inner
def _thresholds(keys: int, columns: int, rows: int, share: float, low: int, sums: int) -> None:
    """`meprop.selection.thresholds` of the columns, or of all as one group where they are 0.

    From above: t is the sum of what is below t over the room the others leave, until no other
    entry is below.
    """
    one = columns == 0
    for j in range(0, ROW if one else columns, ROW):
        bounds = low + 4 * j
        for i in range(ROW):
            puti(bounds, i, _INFINITY)
        moved = True
        while moved:
            moved = False
            below_columns(keys + 4 * j, 4 * ROW if one else 4 * columns, rows, bounds, sums)
            if one:
                for i in range(1, ROW):
                    put(sums, 0, get(sums, 0) + get(sums, i))
                    put(sums, ROW, get(sums, ROW) + get(sums, ROW + i))
            for i in range(ROW):
                at = 0 if one else i
                room = share * (ROW * rows if one else rows) - get(sums, ROW + at)
                t = np.float32(get(sums, at) / room if room > 0 else 0.0)
                if t < get(bounds, i):
                    put(bounds, i, t)
                    moved = True


@kernel("void(i8,i8,i8,f4,f4,i8,i8,i8,i8,i8,i8,i8,i8,i8,f4,i8,i8)")
def guess(
    score: int, run: int, grad: int, decay: float, fresh: float, nhwc: int, samples: int,
    maps: int, area: int, by_sample: int, by_map: int, k: int, size: int, sampled: int,
    drawn: float, low: int, work: int,
) -> None:  # fmt: skip
    """low[group] = a bound that, very likely, at least k of the group's `size` entries exceed.

    Where a share is `drawn`, the threshold with which so many pass on average.
    """
    groups = samples * maps * area // size
    share = k * sampled / size
    wanted = k
    if sampled < size:
        wanted = math.ceil(share + 3.5 * math.sqrt(share * (1 - share / sampled)) + 1)
    if drawn == 0 and (k >= size or wanted > sampled):
        fill(low, groups)
        return
    across = nhwc != 0 and by_map != 0
    width = maps if across else 1
    columns = padded(maps) if across else 1
    keys = work + 8 * padded(maps)
    places = keys + 4 * padded(sampled) * columns + 8 * columns
    split = by_map != 0 and by_sample == 0 and not across  # a group is a plane of every sample
    stride = area if split else size * width
    seed = np.uint32(12345)
    stretch, per_area = size / sampled, 1.0 / area
    for i in range(sampled):
        at = i
        if sampled < size:
            # One place at random in each of `sampled` equal stretches, the same every time.
            seed = np.uint32(seed * np.uint32(1664525) + np.uint32(1013904223))
            at = int((i + seed * (1.0 / 4294967296.0)) * stretch)
        if split:
            at += int((at + 0.5) * per_area) * (maps - 1) * area
        puti(places, i, at * width)
    fill(keys, padded(sampled) * columns)
    for part in range(groups // width):
        for i in range(sampled):
            at = part * stride + geti(places, i)
            if run != 0:
                for j in range(width):
                    key = rank_of(new_run_grad(run, grad, at + j, decay, fresh))
                    puti(keys, i * columns + j, key)
            else:
                for j in range(width):
                    puti(keys, i * columns + j, rank(score, at + j))
        if drawn > 0 and across:
            sums = keys + 4 * padded(sampled) * columns
            _thresholds(keys, columns, sampled, drawn, work, sums)
            for j in range(maps):
                puti(low, part * maps + j, geti(work, j))
        elif drawn > 0:
            # Zeros fill the last row up.
            share = drawn * sampled / padded(sampled)
            sums = places + 4 * padded(sampled)
            _thresholds(keys, 0, padded(sampled) // ROW, share, work, sums)
            puti(low, part, geti(work, 0))
        elif across:
            _column_bounds(
                keys, columns, sampled, wanted, work, keys + 4 * padded(sampled) * columns
            )
            for j in range(maps):
                puti(low, part * maps + j, geti(work, j))
        else:
            puti(low, part, _bound(keys, padded(sampled) // ROW, wanted))
