"""Selection: the k largest magnitudes of every group, exactly and without sorting.

A bound guessed from a sample lets a single pass over the gradient drop almost everything
(`guess`, `scan`); the exact k-th largest is then found among the few that are left (`cut`). Where
a bound was too high, which a count shows, the scan is repeated with a safe one.

The group of an entry is `sample * by_sample + map * by_map`. The order of memory is the order of
a group's indices: gradients in `channels_last` come with the scopes `map` and `sample` only.
Equals `meprop.selection.select`, without the zeros that it may select.
"""

from __future__ import annotations

from meprop.kernels._guess import new_run_grad, padded
from meprop.kernels._jit import inner, kernel
from meprop.kernels._simd import (
    LARGEST,
    NAN_RANK,
    ROW,
    above64,
    average_rows,
    count_all,
    fill,
    get,
    geti,
    lowest_bit,
    put,
    puti,
    rank,
    shift_right,
)

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


@kernel("void(i8,i8,i8,i8)")
def wild_scores(run: int, grad: int, count: int, scores: int) -> None:
    """What ranks where gradients may not be finite: run_grad, or else the gradient."""
    for i in range(count):
        puti(scores, i, geti(run if rank(grad, i) <= LARGEST else grad, i))


@kernel("i8(i8,i8,i8,f4,f4,i8,i8,i8,i8,i8,i8,i8,i8,i8,i8,i8,i8,i8,i8,i8)")
def scan(
    score: int, run: int, grad: int, decay: float, fresh: float, nhwc: int, first: int, last: int,
    maps: int, area: int, by_sample: int, by_map: int, low: int, index: int, channel: int,
    value: int, work: int, part: int, part_start: int, part_count: int,
) -> int:  # fmt: skip
    """List where samples first:last exceed their group's bound, from part_start[part] on.

    With a `run` address, updates run_grad (Eq. 15) on the way and ranks by it. Returns 0, or
    else a gradient is not finite: then rank by `wild_scores`.
    """
    wild = 0
    updates = run != 0
    score = run if updates else score
    start = first * maps * area
    out = start
    # Bounds and channels, repeated until 64 of them begin wherever they are needed.
    period = maps if nhwc != 0 else 64
    while period % 64 != 0:
        period *= 2
    bounds, channels = work, work + 4 * period
    if nhwc == 0:
        for plane in range(first * maps, last * maps):
            sample = plane // maps
            c = plane - sample * maps
            bound = geti(low, sample * by_sample + c * by_map)
            for j in range(64):
                puti(bounds, j, bound)
                puti(channels, j, c)
            at = plane * area
            stop = at + area
            if updates:
                wild |= _update(run, grad, at, stop, decay, fresh)
            while at + 64 <= stop:
                mask = above64(score + 4 * at, bounds)
                out = _list(mask, score, at, channels, out, index, channel, value)
                at += 64
            seen = 64 - (stop - at)
            if seen < 64 and stop - 64 >= start:
                # The last 64 entries once more, without those that were seen.
                mask = shift_right(above64(score + 4 * (stop - 64), bounds), seen) << seen
                out = _list(mask, score, stop - 64, channels, out, index, channel, value)
            else:
                out = _tail(score, at, stop, bounds, channels, out, index, channel, value)
    else:
        for j in range(period):
            puti(channels, j, j % maps)
        step = 1 if by_sample != 0 else last - first
        for sample in range(first, last, step):
            for j in range(period):
                puti(bounds, j, geti(low, sample * by_sample + geti(channels, j) * by_map))
            at = sample * maps * area
            stop = at + step * maps * area
            updated, j = at, 0
            while at + 64 <= stop:
                if updates and at + 64 > updated:
                    ahead = min(updated + _PIECE, stop)
                    wild |= _update(run, grad, updated, ahead, decay, fresh)
                    updated = ahead
                mask = above64(score + 4 * at, bounds + 4 * j)
                out = _list(mask, score, at, channels + 4 * j, out, index, channel, value)
                at += 64
                j = 0 if j + 64 == period else j + 64
            if updates:
                wild |= _update(run, grad, updated, stop, decay, fresh)
            shift = 4 * j
            out = _tail(
                score, at, stop, bounds + shift, channels + shift, out, index, channel, value
            )
    puti(part_start, part, start)
    puti(part_count, part, out - start)
    return wild


@inner
def _kth(keys: int, count: int, k: int, low: int) -> tuple[int, int]:
    """(bound, ties): the k largest are those above `bound` and the first `ties` equal to it.

    All of the `count` > k keys exceed `low`; zeros fill their last row.
    """
    rows = padded(count) // ROW
    step = 1 << 20
    bound, high, above = low, NAN_RANK + 1, 0
    while True:  # gallop
        tried = min(bound + step, NAN_RANK)
        found = count_all(keys, rows, tried)
        if found == k:
            return tried, 0
        if found < k:
            high, above = tried, found
            break
        bound = tried
        step *= 2
    while high - bound > 1:
        tried = bound + ((high - bound) >> 1)
        found = count_all(keys, rows, tried)
        if found == k:
            return tried, 0
        if found > k:
            bound = tried
        else:
            high, above = tried, found
    return high, k - above


@kernel("i8(i8,i8,i8,i8,i8,i8,i8,i8,i8,i8,i8,i8,i8,i8,i8,i8,i8,i8,i8,i8)")
def cut(
    apart: int, grad: int, nhwc: int, samples: int, maps: int, area: int, by_sample: int,
    by_map: int, k: int, size: int, zeros: int, low: int, parts: int, part_start: int,
    part_count: int, position: int, channel: int, value: int, sample_start: int, work: int,
) -> int:  # fmt: skip
    """Keep exactly the k largest of each group, as lists (position, channel, value) in order.

    At first the lists are as `scan` left them, part by part, with indices for positions and scores
    for values; then position = sample*area + place, and value is the gradient, which the scores
    already are unless `apart`. sample_start[b]: where sample b begins. Entries whose gradient is
    zero are left out unless `zeros`. Returns how many are kept, or -1 where a bound was too high:
    it is 0 now.
    """
    groups = samples * maps * area // size
    chosen = k < size
    # (at + 0.5) / n is never near an integer, so a product with 1 / n tells the quotient.
    per_maps, per_area, per_sample = 1.0 / maps, 1.0 / area, 1.0 / (maps * area)
    bounds, ties, counts = work, work + 4 * groups, work + 8 * groups
    keys, stride = work + 12 * groups + 256, padded(size) + ROW
    any_ties = False
    if chosen:
        fill(counts, groups)
        for part in range(parts):
            begin = geti(part_start, part)
            for i in range(begin, begin + geti(part_count, part)):
                group = geti(channel, i) * by_map
                if by_sample != 0:
                    group += int((geti(position, i) + 0.5) * per_sample) * by_sample
                slot = geti(counts, group)
                puti(keys, group * stride + slot, rank(value, i))
                puti(counts, group, slot + 1)
        missed = 0
        for group in range(groups):
            count = geti(counts, group)
            if count < k and geti(low, group) > 0:
                puti(low, group, 0)
                missed += 1
            bound, tied = 0, 0
            if count > k:
                for j in range(count, padded(count)):
                    puti(keys, group * stride + j, 0)
                bound, tied = _kth(keys + 4 * group * stride, count, k, geti(low, group))
            puti(bounds, group, bound)
            puti(ties, group, tied)
            any_ties |= tied > 0
        if missed != 0:
            return -1
    out = 0
    for part in range(parts):
        begin = geti(part_start, part)
        for i in range(begin, begin + geti(part_count, part)):
            at, c, v = geti(position, i), geti(channel, i), get(value, i)
            keep = True
            if chosen:
                group = c * by_map
                if by_sample != 0:
                    group += int((at + 0.5) * per_sample) * by_sample
                ranked, bound = rank(value, i), geti(bounds, group)
                keep = ranked > bound
                if any_ties and ranked == bound and geti(ties, group) > 0:
                    puti(ties, group, geti(ties, group) - 1)
                    keep = True
            if apart != 0:
                v = get(grad, at)
            keep &= (zeros != 0) | (v != 0)
            puti(position, out, at)
            puti(channel, out, c)
            put(value, out, v)
            out += int(keep)
    for i in range(out):
        at = geti(position, i)
        if nhwc != 0:
            place = int((at + 0.5) * per_maps)
        else:
            sample = int((at + 0.5) * per_sample)
            place = at - (int((at + 0.5) * per_area) - sample) * area
        puti(position, i, place)
    for sample in range(samples + 1):
        start, end = 0, out
        while start < end:
            middle = (start + end) >> 1
            if geti(position, middle) < sample * area:
                start = middle + 1
            else:
                end = middle
        puti(sample_start, sample, start)
    return out
