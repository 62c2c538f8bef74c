"""Selection: the k largest magnitudes of every group, exactly and without sorting.

A bound guessed from a sample lets a single pass over the gradient drop almost everything
(`guess`, `scan`); the exact k-th largest is then found among the few that are left (`kth`), and
what is above it kept (`keep`, `join`). Where a bound was too high, which a count shows, the scan is
repeated with a safe one. All go part by part of the gradient, or group by group, in any order.

The group of an entry is `sample * by_sample + map * by_map`. The order of memory is the order of
a group's indices: gradients in `channels_last` come with the scopes `map` and `sample` only.
Equals `meprop.selection.select`, without the zeros that it may select.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meprop.kernels._guess import new_run_grad, padded
from meprop.kernels._jit import inner
from meprop.kernels._plan import Part, read_job, read_part
from meprop.kernels._simd import (
    LARGEST,
    NAN_RANK,
    ROW,
    above64,
    as_double,
    average_rows,
    copy,
    count_all,
    drawn64,
    fill,
    get,
    getd,
    geti,
    lowest_bit,
    put,
    putd,
    puti,
    rank,
    with_sign,
)
from meprop.selection import WEYL

_PART = len(Part._fields)
_PIECE = 4096  # entries of run_grad that are updated and then scanned: they stay in the cache


@inner
def _list(
    mask: int, values: int, at: int, channels: int, out: int, index: int, channel: int, value: int
) -> int:
    while mask != 0:
        i = lowest_bit(mask)
        puti(index, out, at + i)
        puti(channel, out, geti(channels, i))
        puti(value, out, geti(values, i))  # now, while it is in the cache
        mask &= mask - 1
        out += 1
    return out


@inner
def _update(run: int, grad: int, first: int, last: int, decay: float, fresh: float) -> int:
    """Eq. 15, but not where the gradient is not finite; returns 0 where all of it is."""
    rows = (last - first) // ROW
    wild = average_rows(run + 4 * first, grad + 4 * first, rows, decay, fresh) if rows > 0 else 0
    for i in range(first + rows * ROW, last):
        if rank(grad, i) <= LARGEST:
            put(run, i, new_run_grad(run, grad, i, decay, fresh))
        else:
            wild = 1
    return wild


@inner
def wild_scores(job: int, task: int) -> None:
    """What ranks where gradients may not be finite: run_grad, or else the gradient."""
    p = read_job(job)
    part = _part(p.part_table, task)
    for i in range(part.start, part.stop):
        puti(p.scores, i, geti(p.run if rank(p.grad, i) <= LARGEST else p.grad, i))


@inner
def _part(table: int, index: int) -> Any:
    return read_part(table + 8 * _PART * index)


@inner
def scan(job: int, task: int, score: int, update: int, work: int) -> None:
    """List where a part of the gradient exceeds its group's bound, from its place in `raw` on.

    Where a share is drawn, what passes: the bound is a threshold, and the random numbers are a hash
    of the step's key and the entry's index (b, c, h, w), as in `meprop.selection.draw`.
    With `update`, moves run_grad on (Eq. 15) before it is compared. Then the ranks of what is
    listed go to the keys of their group. wild[part]: whether a gradient was not finite.
    """
    p = read_job(job)
    part = _part(p.part_table, task)
    decay = as_double(p.decay)
    fresh = np.float32(1 - decay)
    decay = np.float32(decay)
    area, maps, by_sample, by_map = p.area, p.maps, p.by_sample, p.by_map
    nhwc, drawn, total = p.nhwc != 0, as_double(p.drawn) > 0, p.samples * p.maps * p.area
    index, channel, value = raw_lists(job)
    width, per_image = (maps, area) if nhwc else (area, maps)  # of a row; rows
    # Bounds and channels, repeated until 64 of them begin wherever they are needed.
    period = maps if nhwc else 64
    while period % 64 != 0:
        period *= 2
    bounds, channels = work, work + 4 * period
    steps, rest = work + 8 * period, work + 12 * period
    c = place = 0
    for j in range(period):
        puti(channels, j, c)
        # From one index to those that follow in memory, times the hash's first factor.
        puti(steps, j, (c * area + place if nhwc else j) * WEYL)
        c += 1
        if c == maps:
            c, place = 0, place + 1
    out, wild, row = part.start, 0, part.first
    while row < part.last:
        sample, last = row // per_image, row + 1
        if nhwc:
            last = part.last
            if drawn or by_sample != 0:
                last = min((sample + 1) * area, last)
            for j in range(period if row == part.first or by_sample != 0 else 0):
                puti(bounds, j, geti(p.low, sample * by_sample + geti(channels, j) * by_map))
        else:
            c = row - sample * maps
            bound = geti(p.low, sample * by_sample + c * by_map)
            for j in range(64):
                puti(bounds, j, bound)
                puti(channels, j, c)
        begin, stop, j = row * width, last * width, 0
        at = updated = begin
        while at < stop:
            if update != 0 and min(at + 64, stop) > updated:
                ahead = min(updated + _PIECE, stop)
                wild |= _update(p.run, p.grad, updated, ahead, decay, fresh)
                updated = ahead
            values, left = score + 4 * at, stop - at
            if left < 64 and at + 64 > total:
                fill(rest, 64)
                copy(rest, values, total - at)
                values = rest
            if drawn:
                first = at
                if nhwc:  # of the first map, `(at - begin - j) // maps` positions ahead
                    first = sample * (maps - 1) * area + row + (at - begin - j) // maps
                start = first * WEYL + p.key
                mask = drawn64(values, bounds + 4 * j, steps + 4 * j, start, p.second)
            else:
                mask = above64(values, bounds + 4 * j)
            if left < 64:
                mask &= (1 << left) - 1
            out = _list(mask, values, at, channels + 4 * j, out, index, channel, value)
            at += 64
            j = 0 if j + 64 == period else j + 64
        row = last
    puti(p.part_count, task, out - part.start)
    puti(p.wild, task, wild)
    if p.k >= p.size:
        return
    per_sample = 1.0 / (maps * area)
    counts, keys = p.counts + 4 * part.slot, p.keys + 4 * part.keys
    fill(counts, part.last_group - part.first_group)
    for i in range(part.start, out):
        group = geti(channel, i) * by_map - part.first_group
        if by_sample != 0:
            group += int((geti(index, i) + 0.5) * per_sample) * by_sample
        slot = geti(counts, group)
        puti(keys, group * part.stride + slot, rank(value, i))
        puti(counts, group, slot + 1)


@inner
def raw_lists(job: int) -> tuple[int, int, int]:
    """Where the lists of the scan begin."""
    p = read_job(job)
    step = 4 * p.samples * p.maps * p.area + 64
    return p.raw, p.raw + step, p.raw + 2 * step


@inner
def _above(job: int, group: int, first: int, last: int, bound: int) -> int:
    """How many keys of a group, in parts first:last, exceed the bound."""
    p = read_job(job)
    found = 0
    for index in range(first, last):
        part = _part(p.part_table, index)
        count = geti(p.counts, part.slot + group - part.first_group)
        if count > 0:
            keys = p.keys + 4 * (part.keys + (group - part.first_group) * part.stride)
            found += count_all(keys, padded(count) // ROW, bound)
    return found


@inner
def _kth(job: int, group: int, first: int, last: int, k: int, low: int) -> tuple[int, int]:
    """(bound, ties): the k largest are those above `bound` and the first `ties` equal to it.

    More than k keys exceed `low`; zeros fill their last row.
    """
    step = 1 << 20
    bound, high, above = low, NAN_RANK + 1, 0
    while True:  # gallop
        tried = min(bound + step, NAN_RANK)
        found = _above(job, group, first, last, tried)
        if found == k:
            return tried, 0
        if found < k:
            high, above = tried, found
            break
        bound = tried
        step *= 2
    while high - bound > 1:
        tried = bound + ((high - bound) >> 1)
        found = _above(job, group, first, last, tried)
        if found == k:
            return tried, 0
        if found > k:
            bound = tried
        else:
            high, above = tried, found
    return high, k - above


@inner
def kth(job: int, task: int) -> int:
    """The exact bounds of a task's groups, and how many ties each part may keep.

    Returns how many groups had a bound that was too high: it is 0 now.
    """
    p = read_job(job)
    missed = 0
    first = 0
    for group in range(p.groups * task // p.group_tasks, p.groups * (task + 1) // p.group_tasks):
        while _part(p.part_table, first).last_group <= group:
            first += 1
        last, count = first, 0
        while last < p.parts and _part(p.part_table, last).first_group <= group:
            part = _part(p.part_table, last)
            mine = geti(p.counts, part.slot + group - part.first_group)
            keys = p.keys + 4 * (part.keys + (group - part.first_group) * part.stride)
            for j in range(mine, padded(mine)):
                puti(keys, j, 0)
            puti(p.ties, part.slot + group - part.first_group, 0)
            count += mine
            last += 1
        low = geti(p.low, group)
        if count < p.k and low > 0:
            puti(p.low, group, 0)
            missed += 1
        bound, ties = 0, 0
        if count > p.k:
            bound, ties = _kth(job, group, first, last, p.k, low)
        puti(p.bounds, group, bound)
        for index in range(first, last if ties > 0 else first):
            equal = _above(job, group, index, index + 1, bound - 1)
            equal = min(ties, equal - _above(job, group, index, index + 1, bound))
            part = _part(p.part_table, index)
            puti(p.ties, part.slot + group - part.first_group, equal)
            ties -= equal
    return missed


@inner
def keep(job: int, task: int) -> None:
    """Leave the k largest of each group in a part's lists, as (position, channel, value).

    position = sample*area + place; value is the gradient, which a score need not be; what is drawn
    and below its threshold is raised to it. Entries whose gradient is zero are left out.
    """
    p = read_job(job)
    part = _part(p.part_table, task)
    index, channel, value = raw_lists(job)
    maps, area, by_sample, by_map = p.maps, p.area, p.by_sample, p.by_map
    # (at + 0.5) / n is never near an integer, so a product with 1 / n tells the quotient.
    per_maps, per_area, per_sample = 1.0 / maps, 1.0 / area, 1.0 / (maps * area)
    chosen, drawn = p.k < p.size, as_double(p.drawn) > 0
    apart = p.score != p.grad or p.run != 0
    ties = p.ties + 4 * part.slot
    start, out = part.start, part.start + geti(p.part_count, task)
    if chosen or apart:
        listed, out = out, start
        for i in range(start, listed):
            at, c, v, kept = geti(index, i), geti(channel, i), get(value, i), True
            if chosen:
                group = c * by_map
                if by_sample != 0:
                    group += int((at + 0.5) * per_sample) * by_sample
                ranked, bound = rank(value, i), geti(p.bounds, group)
                kept = ranked > bound
                if ranked == bound:
                    left = geti(ties, group - part.first_group)
                    if left > 0:
                        puti(ties, group - part.first_group, left - 1)
                        kept = True
            if apart:
                v = get(p.grad, at)
            kept &= v != 0
            puti(index, out, at)
            puti(channel, out, c)
            put(value, out, v)
            out += int(kept)
    for i in range(start, out):
        at = geti(index, i)
        sample = int((at + 0.5) * per_sample)
        if drawn:
            v = get(value, i)
            bound = get(p.low, geti(channel, i) * by_map + sample * by_sample)
            put(value, i, with_sign(bound, v) if abs(v) < bound else v)
        if p.nhwc != 0:
            place = int((at + 0.5) * per_maps)
        else:
            place = at - (int((at + 0.5) * per_area) - sample) * area
        puti(index, i, place)
    puti(p.part_count, task, out - part.start)
    if p.centred == 0 and p.sparse_bias == 0:
        return
    # By map, the sum and number of the part's selected entries.
    sums, found = p.sums + 8 * maps * task, p.found + 8 * maps * task
    fill(sums, 2 * maps)
    fill(found, 2 * maps)
    for i in range(part.start, out):
        c = geti(channel, i)
        putd(sums, c, getd(sums, c) + get(value, i))
        putd(found, c, getd(found, c) + 1)


@inner
def join(job: int, task: int, work: int) -> None:
    """Copy a part's lists to where they follow those of the parts before it.

    sample_start[b]: where sample b begins, of those that begin in this part. A `centred` rule takes
    each map's mean from what is selected of it: `meprop.selection.centre`.
    """
    p = read_job(job)
    part = _part(p.part_table, task)
    index, channel, value = raw_lists(job)
    count, out = geti(p.part_count, task), 0
    for before in range(task):
        out += geti(p.part_count, before)
    if p.centred != 0 or p.sparse_bias != 0:
        for c in range(p.maps):
            total, found = 0.0, 0.0
            for other in range(p.parts):
                total += getd(p.sums, p.maps * other + c)
                found += getd(p.found, p.maps * other + c)
            mean = np.float32(total / found if p.centred != 0 and found > 0 else 0.0)
            put(work, c, mean)
            if task == 0 and p.bias != 0 and p.sparse_bias != 0:
                put(p.bias, c, np.float32(total - found * mean))
    here = index + 4 * part.start
    copy(p.position + 4 * out, here, count)
    copy(p.channel + 4 * out, channel + 4 * part.start, count)
    copy(p.value + 4 * out, value + 4 * part.start, count)
    if p.centred != 0:
        for i in range(out, out + count):
            put(p.value, i, get(p.value, i) - get(work, geti(p.channel, i)))
    if p.kept != 0:
        fill(p.kept + 4 * part.start, part.stop - part.start)
        per_area = 1.0 / p.area
        for i in range(out, out + count):
            place, c = geti(p.position, i), geti(p.channel, i)
            at = place * p.maps + c
            if p.nhwc == 0:
                at = place + (int((place + 0.5) * per_area) * (p.maps - 1) + c) * p.area
            put(p.kept, at, get(p.value, i))
    rows = p.area if p.nhwc != 0 else p.maps
    for sample in range(-(-part.first // rows), -(-part.last // rows)):
        start, end = 0, count
        while start < end:
            middle = (start + end) >> 1
            if geti(here, middle) < sample * p.area:
                start = middle + 1
            else:
                end = middle
        puti(p.sample_start, sample, out + start)
    if task == p.parts - 1:
        puti(p.sample_start, p.samples, out + count)
