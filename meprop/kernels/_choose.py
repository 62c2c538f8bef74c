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
    fill,
    get,
    getd,
    geti,
    lowest_bit,
    put,
    putd,
    puti,
    rank,
    shift_right,
)

PART_FIELDS = len(Part._fields)
_PIECE = 4096  # entries of run_grad that are updated and then scanned: they stay in the cache


@inner
def _list(
    mask: int, score: int, at: int, channels: int, out: int, index: int, channel: int, value: int
) -> int:
    while mask != 0:
        i = lowest_bit(mask)
        puti(index, out, at + i)
        puti(channel, out, geti(channels, i))
        puti(value, out, geti(score, at + i))  # now, while it is in the cache
        mask &= mask - 1
        out += 1
    return out


@inner
def _tail(
    score: int, at: int, stop: int, low: int, channels: int, out: int, index: int, channel: int,
    value: int,
) -> int:  # fmt: skip
    """The last entries of a run, fewer than 64."""
    for i in range(at, stop):
        puti(index, out, i)
        puti(channel, out, geti(channels, i - at))
        puti(value, out, geti(score, i))
        out += int(rank(score, i) > geti(low, i - at))
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
    return read_part(table + 8 * PART_FIELDS * index)


@inner
def period_of(nhwc: int, maps: int) -> int:
    """After how many entries bounds and channels repeat, in whole 64s."""
    period = maps if nhwc != 0 else 64
    while period % 64 != 0:
        period *= 2
    return period


@inner
def scan(job: int, task: int, score: int, update: int, work: int) -> None:
    """List where a part of the gradient exceeds its group's bound, from its place in `raw` on.

    With `update`, moves run_grad on (Eq. 15) before it is compared. Then the ranks of what is
    listed go to the keys of their group. wild[part]: whether a gradient was not finite.
    """
    p = read_job(job)
    part = _part(p.part_table, task)
    decay = as_double(p.decay)
    fresh = np.float32(1 - decay)
    decay = np.float32(decay)
    wild = 0
    area, maps, by_sample, by_map = p.area, p.maps, p.by_sample, p.by_map
    index, channel, value = raw_lists(job)
    out = part.start
    # Bounds and channels, repeated until 64 of them begin wherever they are needed.
    period = period_of(p.nhwc, maps)
    bounds, channels = work, work + 4 * period
    if p.nhwc == 0:
        for plane in range(part.first, part.last):
            sample = plane // maps
            c = plane - sample * maps
            bound = geti(p.low, sample * by_sample + c * by_map)
            for j in range(64):
                puti(bounds, j, bound)
                puti(channels, j, c)
            at = plane * area
            stop = at + area
            if update != 0:
                wild |= _update(p.run, p.grad, at, stop, decay, fresh)
            while at + 64 <= stop:
                mask = above64(score + 4 * at, bounds)
                out = _list(mask, score, at, channels, out, index, channel, value)
                at += 64
            seen = 64 - (stop - at)
            if seen < 64 and stop - 64 >= part.start:
                # The last 64 entries once more, without those that were seen.
                mask = shift_right(above64(score + 4 * (stop - 64), bounds), seen) << seen
                out = _list(mask, score, stop - 64, channels, out, index, channel, value)
            else:
                out = _tail(score, at, stop, bounds, channels, out, index, channel, value)
    else:
        for j in range(period):
            puti(channels, j, j % maps)
        first = part.first
        while first < part.last:
            sample = first // area
            last = min((sample + 1) * area, part.last) if by_sample != 0 else part.last
            for j in range(period):
                puti(bounds, j, geti(p.low, sample * by_sample + geti(channels, j) * by_map))
            at = first * maps
            stop = last * maps
            updated, j = at, 0
            while at + 64 <= stop:
                if update != 0 and at + 64 > updated:
                    ahead = min(updated + _PIECE, stop)
                    wild |= _update(p.run, p.grad, updated, ahead, decay, fresh)
                    updated = ahead
                mask = above64(score + 4 * at, bounds + 4 * j)
                out = _list(mask, score, at, channels + 4 * j, out, index, channel, value)
                at += 64
                j = 0 if j + 64 == period else j + 64
            if update != 0:
                wild |= _update(p.run, p.grad, updated, stop, decay, fresh)
            shift = 4 * j
            out = _tail(
                score, at, stop, bounds + shift, channels + shift, out, index, channel, value
            )
            first = last
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

    position = sample*area + place; value is the gradient, which a score need not be. Entries whose
    gradient is zero are left out unless `zeros`.
    """
    p = read_job(job)
    part = _part(p.part_table, task)
    index, channel, value = raw_lists(job)
    maps, area, by_sample, by_map = p.maps, p.area, p.by_sample, p.by_map
    # (at + 0.5) / n is never near an integer, so a product with 1 / n tells the quotient.
    per_maps, per_area, per_sample = 1.0 / maps, 1.0 / area, 1.0 / (maps * area)
    chosen, apart = p.k < p.size, p.score != p.grad or p.run != 0
    ties = p.ties + 4 * part.slot
    out = part.start
    for i in range(part.start, part.start + geti(p.part_count, task)):
        at, c, v = geti(index, i), geti(channel, i), get(value, i)
        kept = True
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
        kept &= (p.zeros != 0) | (v != 0)
        puti(index, out, at)
        puti(channel, out, c)
        put(value, out, v)
        out += int(kept)
    for i in range(part.start, out):
        at = geti(index, i)
        if p.nhwc != 0:
            place = int((at + 0.5) * per_maps)
        else:
            sample = int((at + 0.5) * per_sample)
            place = at - (int((at + 0.5) * per_area) - sample) * area
        puti(index, i, place)
    puti(p.part_count, task, out - part.start)
    sum_up(job, task, out)


@inner
def sum_up(job: int, task: int, stop: int) -> None:
    """By map, the sum and number of a part's selected entries, where the rule needs them."""
    p = read_job(job)
    _, channel, value = raw_lists(job)
    if p.centred == 0 and p.sparse_bias == 0:
        return
    sums, found = p.sums + 8 * p.maps * task, p.found + 8 * p.maps * task
    fill(sums, 2 * p.maps)
    fill(found, 2 * p.maps)
    for i in range(_part(p.part_table, task).start, stop):
        if get(value, i) != 0:
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
            v = get(p.value, i)
            put(p.value, i, v - get(work, geti(p.channel, i)) if v != 0 else v)
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
