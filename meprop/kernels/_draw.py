"""Unbiased selection: what passes is drawn, so one pass over the gradient lists it.

`_guess` has left a threshold by group, from a sample. Equals `meprop.selection.draw` with these
thresholds: its random numbers are a hash of the step's key and the entry's index (b, c, h, w).
"""

from __future__ import annotations

from meprop.kernels._jit import inner, kernel
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


@kernel("void(" + ",".join(["i8"] * 19) + ")")
def draw(
    grad: int, nhwc: int, first: int, last: int, maps: int, area: int, by_sample: int, by_map: int,
    low: int, key: int, second: int, position: int, channel: int, value: int, sample_start: int,
    work: int, part: int, part_start: int, part_count: int,
) -> None:  # fmt: skip
    """List what passes of samples first:last, as (position, channel, value), like `_choose.cut`.

    From first * maps * area on: `join` brings the parts together. key, second: the step's key.
    """
    start = first * maps * area
    out = start
    period = maps if nhwc != 0 else 64
    while period % 64 != 0:
        period *= 2
    bounds, channels = work, work + 4 * period
    steps, rest = work + 8 * period, work + 12 * period
    for j in range(period):
        # Indices of the entries that follow each other in memory, times the hash's first factor.
        ahead = (j % maps) * area + j // maps if nhwc != 0 else j
        puti(steps, j, ahead * WEYL)
        puti(channels, j, j % maps)
    run = maps * area if nhwc != 0 else area
    per_maps = 1.0 / maps if nhwc != 0 else 0.0
    for sample in range(first, last):
        puti(sample_start, sample, out)
        for c in range(1 if nhwc != 0 else maps):
            if nhwc == 0:
                bound = geti(low, sample * by_sample + c * by_map)
                for j in range(64):
                    puti(bounds, j, bound)
                    puti(channels, j, c)
            elif sample == first or by_sample != 0:
                for j in range(period):
                    puti(bounds, j, geti(low, sample * by_sample + geti(channels, j) * by_map))
            here = sample * maps * area + c * area
            j = 0
            for at in range(0, run, 64):
                values = grad + 4 * (here + at)
                if at + 64 > run:
                    fill(rest, 64)
                    copy(rest, values, run - at)
                    values = rest
                index, place = here + at, sample * area + at
                if nhwc != 0:
                    index, place = here + (at - j) // maps, sample * area * maps + at
                mask = drawn64(values, bounds + 4 * j, steps + 4 * j, index * WEYL + key, second)
                out = _list(
                    mask, values, bounds + 4 * j, channels + 4 * j, place, per_maps, out, position,
                    channel, value,
                )  # fmt: skip
                j = 0 if nhwc == 0 or j + 64 == period else j + 64
    puti(part_start, part, start)
    puti(part_count, part, out - start)


@kernel("i8(i8,i8,i8,i8,i8,i8,i8,i8,i8)")
def join(
    samples: int, entries: int, parts: int, part_start: int, part_count: int, position: int,
    channel: int, value: int, sample_start: int,
) -> int:  # fmt: skip
    """Bring the parts' lists together; returns how long they are. entries: of a sample."""
    out = geti(part_count, 0)
    for part in range(1, parts):
        begin, count = geti(part_start, part), geti(part_count, part)
        end = geti(part_start, part + 1) if part + 1 < parts else samples * entries
        for i in range(count):
            puti(position, out + i, geti(position, begin + i))
            puti(channel, out + i, geti(channel, begin + i))
            puti(value, out + i, geti(value, begin + i))
        for sample in range(begin // entries, end // entries):
            puti(sample_start, sample, geti(sample_start, sample) - begin + out)
        out += count
    puti(sample_start, samples, out)
    return out
