"""Weight and input gradient of a convolution from the lists of its selected output gradients.

Sample by sample, or a few at a time where they are small, so that the padded input and the input
gradient under way stay in the cache. A linear layer is a 1x1 convolution of 1x1 images.
Equals `torch.ops.aten.convolution_backward` on the selected gradient.
"""

from __future__ import annotations

from meprop.kernels._jit import inner
from meprop.kernels._layout import move_images
from meprop.kernels._plan import DX, X, read_job
from meprop.kernels._rows import add_patches
from meprop.kernels._simd import LANES, fill, get, geti, put, puti


@inner
def _key(by_map: bool, low: int, high: int, place: int, map: int, per_group: float) -> int:
    """The list that an entry belongs to, or -1 where it lies outside; per_group 0: one group."""
    at = map if by_map else place
    if at < low or at >= high:
        return -1
    if by_map:
        return map
    if per_group == 0:
        return at - low
    return at - low + int((map + 0.5) * per_group) * (high - low)


@inner
def _sort(job: int, by_map: bool, begin: int, end: int, low: int, high: int, mine: int) -> None:
    """Lists of the entries of samples begin:end by map, or by (group, position), but no empty ones.

    Of the maps low:high, or of the positions low:high of those samples. In the thread's memory
    `mine`: see `Job`.
    """
    p = read_job(job)
    counts, starts, rows = mine + p.counted, mine + p.starts, mine + p.rows
    patch, entry, scale = mine + p.patch, mine + p.entry, mine + p.scale
    first, stop = geti(p.sample_start, begin), geti(p.sample_start, end)
    size = p.maps // p.channel_groups
    per_group = 1.0 / size if p.channel_groups > 1 else 0.0
    if not by_map:
        size = high - low
    origin = begin * p.area
    fill(counts, p.channel_groups * size + 1)
    for i in range(first, stop):
        c, place = geti(p.channel, i), geti(p.position, i) - origin
        key = _key(by_map, low, high, place, c, per_group)
        if key >= 0:
            puti(counts, key, geti(counts, key) + 1)
    row = 0
    puti(starts, 0, 0)
    puti(starts, 1, 0)
    for g in range(p.channel_groups):
        puti(mine + p.group_row, g, row)
        for j in range(size):
            key = g * size + j
            count = geti(counts, key)
            puti(rows, row, key * p.row_size if by_map else geti(patch, low + j))
            puti(starts, row + 2, count)
            puti(counts, key, row)
            row += int(count > 0)
    puti(mine + p.group_row, p.channel_groups, row)
    for r in range(2, row + 2):
        puti(starts, r, geti(starts, r) + geti(starts, r - 1))
    for i in range(first, stop):
        c, place = geti(p.channel, i), geti(p.position, i) - origin
        key = _key(by_map, low, high, place, c, per_group)
        if key >= 0:
            following = geti(counts, key) + 1
            slot = geti(starts, following)
            puti(starts, following, slot + 1)
            puti(entry, slot, geti(patch, place) if by_map else c * p.row_size)
            put(scale, slot, get(p.value, i))


@inner
def _prepare(job: int, samples: int, mine: int) -> None:
    """Where the patch of each position of some samples begins, and which lanes may be written."""
    p = read_job(job)
    i = 0
    for sample in range(samples):
        for y in range(p.out_height):
            for column in range(p.out_columns):
                at = sample * p.image + y * p.row_step + column * p.column_step
                puti(mine + p.patch, i, at)
                i += 1
    for lane in range(3 * LANES):
        puti(mine + p.lanes, lane, 1)
    for lane in range(LANES):
        puti(mine + p.lanes, 3 * LANES + lane, int(lane <= (p.length - 1) % LANES))


@inner
def weight_gradient(job: int, task: int, mine: int) -> None:
    """Sum the weight gradient of some samples and some maps, in rows of `dfilters`."""
    p = read_job(job)
    cut = task // p.map_cuts
    piece = task - cut * p.map_cuts
    first_map, last_map = p.maps * piece // p.map_cuts, p.maps * (piece + 1) // p.map_cuts
    sums = p.dfilters + 4 * cut * p.maps * p.row_size
    if p.in_rows != 0 and p.sample_cuts == 1:
        sums = p.dw
    fill(sums + 4 * first_map * p.row_size, (last_map - first_map) * p.row_size)
    _prepare(job, p.together, mine)
    if p.direct == 0:
        fill(mine, p.together * p.channel_groups * p.image)
    last = p.samples * (cut + 1) // p.sample_cuts
    for begin in range(p.samples * cut // p.sample_cuts, last, p.together):
        end = min(begin + p.together, last)
        images = p.x + 4 * begin * p.x_sample
        if p.direct == 0:
            move_images(job, X, images, mine, p.together, end - begin, 0, p.height, False)
            images = mine
        _sort(job, True, begin, end, first_map, last_map, mine)
        for g in range(p.channel_groups):
            row, until = geti(mine + p.group_row, g), geti(mine + p.group_row, g + 1)
            for outer in range(p.outer):
                add_patches(
                    job, mine, row, until, sums + 4 * outer * p.segments * p.stretch,
                    4 * p.stretch, images + 4 * (g * p.together * p.image + outer * p.outer_step),
                    4 * p.segment_step, p.segments, mine + p.lanes + 4 * LANES,
                )  # fmt: skip


@inner
def input_gradient(job: int, task: int, mine: int) -> None:
    """Write the input gradient of some samples, or of some rows of one."""
    p = read_job(job)
    _prepare(job, p.together_input, mine)
    filters = p.weight if p.in_rows != 0 else p.filters
    block = task // p.row_cuts
    cut = task - block * p.row_cuts
    begin = block * p.together_input
    samples = min(begin + p.together_input, p.samples) - begin
    # Rows of the padded input gradient that are this task's, and of the output that reach them.
    top, bottom = p.height * cut // p.row_cuts, p.height * (cut + 1) // p.row_cuts
    first, last = (0 if cut == 0 else top + p.pad_y), bottom + p.pad_y
    if cut == p.row_cuts - 1:
        last += p.pad_y
    reach = (p.lines - 1) * p.dilation_y
    first_row = max(0, -((reach - first) // p.stride_y))
    last_row = min(p.out_height, (last - 1) // p.stride_y + 1)
    # Of those, the ones whose patches lie inside.
    inner_first = min(max(-(-first // p.stride_y), first_row), last_row)
    inner_last = max(min((last - 1 - reach) // p.stride_y + 1, last_row), inner_first)
    cleared = (last - first) * p.line
    if p.row_cuts == 1:
        first_row, last_row = inner_first, inner_last = 0, samples * p.out_height
        cleared = samples * p.image
    images = mine if p.direct == 0 else p.dx + 4 * begin * p.dx_sample
    for g in range(p.channel_groups):
        fill(images + 4 * (g * p.together_input * p.image + first * p.line), cleared)
    low, high = first_row * p.out_columns, last_row * p.out_columns
    _sort(job, False, begin, begin + samples, low, high, mine)
    for g in range(p.channel_groups):
        sums = images + 4 * g * p.together_input * p.image
        for edge in range(p.lines + 1):
            # All lines of a filter at once inside; then line by line at the edges.
            ky = edge - 1
            for side in range(1 if ky < 0 else 2):
                y, stop = inner_first, inner_last
                if ky >= 0:
                    y = max(first_row, -((ky * p.dilation_y - first) // p.stride_y))
                    stop = min(last_row, (last - 1 - ky * p.dilation_y) // p.stride_y + 1)
                    if side == 0:
                        stop = min(stop, inner_first)
                    else:
                        y = max(y, inner_last)
                if y >= stop:
                    continue
                outer, outer_stop, segment, segments = 0, p.outer, 0, p.segments
                if ky >= 0 and p.joined != 0:
                    segment, segments = ky, 1
                elif ky >= 0:
                    outer, outer_stop = ky, ky + 1
                row = _row_at(job, y, first_row, last_row, g, mine)
                until = _row_at(job, stop, first_row, last_row, g, mine)
                for part in range(outer, outer_stop):
                    add_patches(
                        job, mine, row, until,
                        sums + 4 * (part * p.outer_step + segment * p.segment_step),
                        4 * p.segment_step,
                        filters + 4 * (part * p.segments + segment) * p.stretch, 4 * p.stretch,
                        segments, mine + p.lanes + 8 * LANES,
                    )  # fmt: skip
    if p.direct == 0:
        target = p.dx + 4 * begin * p.dx_sample
        move_images(job, DX, target, mine, p.together_input, samples, top, bottom, True)


@inner
def _row_at(job: int, y: int, first: int, last: int, g: int, mine: int) -> int:
    """The first row of the lists by position at or after row y of the output."""
    p = read_job(job)
    if y == last:
        return geti(mine + p.group_row, g + 1)
    return geti(mine + p.counted, (g * (last - first) + y - first) * p.out_columns)
