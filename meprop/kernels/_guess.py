"""Bounds for the selection, guessed from a sample of each group: the first step of `_choose`.

Where a share is drawn they are thresholds, which need only come from the gradient alone.
"""

from __future__ import annotations

import math

import numpy as np

from meprop.kernels._jit import inner
from meprop.kernels._plan import read_job
from meprop.kernels._simd import (
    LARGEST,
    ROW,
    as_double,
    below_columns,
    count_all,
    count_columns,
    fill,
    get,
    geti,
    put,
    puti,
    rank,
    rank_row,
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
def _column_bounds(keys: int, rows: int, wanted: int, low: int, work: int) -> None:
    """low[j]: the largest bound, to a few percent, that `wanted` keys of column j exceed, or 0."""
    tried, counts, half = work, work + 4 * ROW, 1 << 30
    fill(low, ROW)
    while half >= 1 << 17:
        for j in range(ROW):
            puti(tried, j, geti(low, j) + half)
        count_columns(keys, rows, tried, counts)
        for j in range(ROW):
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
def _thresholds(keys: int, one: bool, rows: int, share: float, bounds: int, sums: int) -> None:
    """`meprop.selection.thresholds` of 32 columns, or of all as `one` group.

    From above: t is the sum of what is below t over the room the others leave, until no other
    entry is below.
    """
    for i in range(ROW):
        puti(bounds, i, _INFINITY)
    moved = True
    while moved:
        moved = False
        below_columns(keys, rows, bounds, sums)
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


@inner
def guess(job: int, task: int, work: int) -> None:
    """low[group] = a bound that, very likely, at least k of the group's `size` entries exceed.

    Where a share is drawn, the threshold with which so many pass on average. A task has some of the
    groups; in channels_last those of 32 maps go side by side.
    """
    p = read_job(job)
    drawn = np.float32(as_double(p.drawn))
    decay = as_double(p.decay)
    fresh = np.float32(1 - decay)
    decay = np.float32(decay)
    sampled, size, maps, low = p.sampled, p.size, p.maps, p.low
    share = p.k * sampled / size
    wanted = p.k
    if sampled < size:
        wanted = math.ceil(share + 3.5 * math.sqrt(share * (1 - share / sampled)) + 1)
    across = p.nhwc != 0 and p.by_map != 0
    blocks = padded(maps) // ROW if across else 1
    units = p.groups // maps * blocks if across else p.groups
    first, last = units * task // p.guess_tasks, units * (task + 1) // p.guess_tasks
    if drawn == 0 and (p.k >= size or wanted > sampled):
        if task == 0:
            fill(low, p.groups)
        return
    width = maps if across else 1
    columns, rows = (ROW, sampled) if across else (1, padded(sampled) // ROW)
    bounds, sums = work, work + 4 * ROW
    places = work + 16 * ROW
    keys = places + 4 * padded(sampled)
    split = p.by_map != 0 and p.by_sample == 0 and not across  # a group: a plane of every sample
    stride = p.area if split else size * width
    seed = np.uint32(12345)
    stretch, per_area = size / sampled, 1.0 / p.area
    for i in range(sampled):
        at = i
        if sampled < size:
            # One place at random in each of `sampled` equal stretches, the same every time.
            seed = np.uint32(seed * np.uint32(1664525) + np.uint32(1013904223))
            at = int((i + seed * (1.0 / 4294967296.0)) * stretch)
        if split:
            at += int((at + 0.5) * per_area) * (maps - 1) * p.area
        puti(places, i, at * width)
    fill(keys, padded(sampled) * columns)
    for unit in range(first, last):
        part = unit // blocks
        column = (unit - part * blocks) * ROW
        here = min(ROW, maps - column) if across else 1
        for i in range(sampled):
            at = part * stride + geti(places, i) + column
            if p.run != 0:
                for j in range(here):
                    slot = i * columns + j
                    put(keys, slot, new_run_grad(p.run, p.grad, at + j, decay, fresh))
                    puti(keys, slot, rank(keys, slot))
            elif here == ROW:
                rank_row(keys + 4 * i * ROW, p.score + 4 * at)
            else:
                for j in range(here):
                    puti(keys, i * columns + j, rank(p.score, at + j))
        if drawn > 0:
            # Zeros fill the last row of a single group up.
            share = drawn if across else drawn * sampled / padded(sampled)
            _thresholds(keys, not across, rows, share, bounds, sums)
        elif across:
            _column_bounds(keys, rows, wanted, bounds, sums)
        else:
            puti(bounds, 0, _bound(keys, rows, wanted))
        for j in range(here):
            puti(low, part * width + column + j, geti(bounds, j))
