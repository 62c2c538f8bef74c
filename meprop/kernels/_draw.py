"""Unbiased selection: what passes is drawn, so one pass over the gradient lists it.

`_guess` has left a threshold by group, from a sample. Equals `meprop.selection.draw` with these
thresholds: its random numbers are a hash of the step's key and the entry's index (b, c, h, w).
"""

from __future__ import annotations

from meprop.kernels._choose import PART_FIELDS, period_of, raw_lists, sum_up
from meprop.kernels._jit import inner
from meprop.kernels._plan import read_job, read_part
from meprop.kernels._simd import (
    copy,
    drawn64,
    fill,
    get,
    geti,
    lowest_bit,
    put,
    puti,
    with_sign,
)
from meprop.selection import WEYL


@inner
def _list(
    mask: int, grad: int, low: int, channels: int, place: int, per_maps: float, out: int,
    position: int, channel: int, value: int,
) -> int:  # fmt: skip
    """Entries of a mask: those below their threshold are raised to it.

    place: of the first of the 64; in channels_last `per_maps` = 1 / maps, else 0 and they are
    side by side.
    """
    while mask != 0:
        i = lowest_bit(mask)
        v, bound = get(grad, i), get(low, i)
        puti(position, out, int((place + i + 0.5) * per_maps) if per_maps > 0 else place + i)
        puti(channel, out, geti(channels, i))
        put(value, out, with_sign(bound, v) if abs(v) < bound else v)
        mask &= mask - 1
        out += 1
    return out


@inner
def draw(job: int, task: int, work: int) -> None:
    """List what passes of a part, as (position, channel, value), like `_choose.keep`."""
    p = read_job(job)
    part = read_part(p.part_table + 8 * PART_FIELDS * task)
    position, channel, value = raw_lists(job)
    out = part.start
    maps, area = p.maps, p.area
    period = period_of(p.nhwc, maps)
    bounds, channels = work, work + 4 * period
    steps, rest = work + 8 * period, work + 12 * period
    for j in range(period):
        # Indices of the entries that follow each other in memory, times the hash's first factor.
        ahead = (j % maps) * area + j // maps if p.nhwc != 0 else j
        puti(steps, j, ahead * WEYL)
        puti(channels, j, j % maps)
    per_maps = 1.0 / maps if p.nhwc != 0 else 0.0
    row = part.first
    while row < part.last:
        sample = row // (area if p.nhwc != 0 else maps)
        last = row + 1
        if p.nhwc == 0:
            c = row - sample * maps
            bound = geti(p.low, sample * p.by_sample + c * p.by_map)
            for j in range(64):
                puti(bounds, j, bound)
                puti(channels, j, c)
            begin, run = row * area, area
        else:
            last = min((sample + 1) * area, part.last)
            if row == part.first or p.by_sample != 0:
                for j in range(period):
                    bound = geti(p.low, sample * p.by_sample + geti(channels, j) * p.by_map)
                    puti(bounds, j, bound)
            begin, run = row * maps, (last - row) * maps
        j = 0
        for at in range(0, run, 64):
            values = p.grad + 4 * (begin + at)
            if at + 64 > run:
                fill(rest, 64)
                copy(rest, values, run - at)
                values = rest
            index = begin + at
            if p.nhwc != 0:
                # Of the first map, `(at - j) // maps` positions ahead.
                index = sample * (maps - 1) * area + row + (at - j) // maps
                place = begin + at
            else:
                place = sample * area + at
            mask = drawn64(values, bounds + 4 * j, steps + 4 * j, index * WEYL + p.key, p.second)
            out = _list(
                mask, values, bounds + 4 * j, channels + 4 * j, place, per_maps, out, position,
                channel, value,
            )  # fmt: skip
            j = 0 if p.nhwc == 0 or j + 64 == period else j + 64
        row = last
    puti(p.part_count, task, out - part.start)
    sum_up(job, task, out)
