"""Weight and input gradient of a convolution from the lists of its selected output gradients.

Sample by sample, or a few at a time where they are small, so that the padded input and the input
gradient under way stay in the cache. A linear layer is a 1x1 convolution of 1x1 images.
Equals `torch.ops.aten.convolution_backward` on the selected gradient.
"""

from __future__ import annotations

from meprop.kernels._jit import inner
from meprop.kernels._layout import crop, pad
from meprop.kernels._plan import read_job
from meprop.kernels._rows import add_patches
from meprop.kernels._simd import LANES, fill, get, geti, put, puti


@inner
def _lists_by_map(
    first: int, stop: int, origin: int, position: int, channel: int, value: int, first_map: int,
    last_map: int, patch: int, starts: int, at: int, scaled: int,
) -> None:  # fmt: skip
    """Sort entries first:stop of some maps by map; at: where the patch of their position begins."""
    maps = last_map - first_map
    fill(starts, maps + 2)
    for i in range(first, stop):
        c = geti(channel, i) - first_map
        if 0 <= c < maps:
            puti(starts, c + 2, geti(starts, c + 2) + 1)
    for c in range(2, maps + 2):
        puti(starts, c, geti(starts, c) + geti(starts, c - 1))
    for i in range(first, stop):
        c = geti(channel, i) - first_map
        if 0 <= c < maps:
            slot = geti(starts, c + 1)
            puti(starts, c + 1, slot + 1)
            puti(at, slot, geti(patch, geti(position, i) - origin))
            put(scaled, slot, get(value, i))


@inner
def _lists_by_position(
    first: int, stop: int, origin: int, places: int, position: int, channel: int, value: int,
    groups: int, group_maps: int, row_size: int, patch: int, counts: int, starts: int, rows: int,
    at: int, scaled: int, group_row: int,
) -> None:  # fmt: skip
    """Sort entries by (group, position), leaving positions without any out.

    Only the `places` positions from `origin` on. starts: where a row's list begins; rows: where its
    patch begins; at: where the map's filter begins; group_row: the first row of each group;
    counts: the first row at or after each (group, position).
    """
    keys = groups * places
    fill(counts, keys + 1)
    per_group = 1.0 / group_maps
    for i in range(first, stop):
        key = geti(position, i) - origin
        if 0 <= key < places:
            if groups > 1:
                key += int((geti(channel, i) + 0.5) * per_group) * places
            puti(counts, key, geti(counts, key) + 1)
    row = 0
    puti(starts, 0, 0)
    puti(starts, 1, 0)
    for g in range(groups):
        puti(group_row, g, row)
        for p in range(places):
            count = geti(counts, g * places + p)
            puti(rows, row, geti(patch, p))
            puti(starts, row + 2, count)
            puti(counts, g * places + p, row)
            row += int(count > 0)
    puti(group_row, groups, row)
    for r in range(2, row + 2):
        puti(starts, r, geti(starts, r) + geti(starts, r - 1))
    for i in range(first, stop):
        key = geti(position, i) - origin
        if 0 <= key < places:
            c = geti(channel, i)
            if groups > 1:
                key += int((c + 0.5) * per_group) * places
            mine = geti(counts, key) + 1
            slot = geti(starts, mine)
            puti(starts, mine, slot + 1)
            puti(at, slot, c * row_size)
            put(scaled, slot, get(value, i))


@inner
def _patches(job: int, samples: int, patch: int) -> None:
    """Where in padded images the patch of each output position begins."""
    p = read_job(job)
    image = (p.height + 2 * p.pad_y) * (p.columns + 2 * p.pad_x) * p.width
    i = 0
    for sample in range(samples):
        for y in range(p.out_height):
            for column in range(p.out_columns):
                puti(patch, i, sample * image + y * p.row_step + column * p.column_step)
                i += 1


@inner
def _lanes(length: int, lanes: int) -> None:
    """Sixteen lanes that may be written, and then those of the last vectors of a stretch."""
    for i in range(2 * LANES):
        puti(lanes, i, 1)
        puti(lanes, 2 * LANES + i, int(i < LANES or i - LANES < (length - 1) % LANES + 1))


@inner
def _scratch(job: int, work: int) -> tuple[int, int, int, int, int, int, int, int]:
    """at, scaled, patch, counts, starts, rows, group_row, lanes: after the padded images."""
    p = read_job(job)
    most = max(p.together, p.together_input)
    pixels = (p.height + 2 * p.pad_y) * (p.columns + 2 * p.pad_x)
    places = most * p.area
    keys = 4 * (p.channel_groups * places + p.maps + 2)
    at = work + 4 * (most * pixels * p.width * p.channel_groups + 2 * LANES)
    scaled = at + 4 * p.entries
    patch = scaled + 4 * p.entries
    counts = patch + 4 * places
    group_row = counts + 3 * keys
    lanes = group_row + 4 * (p.channel_groups + 1)
    return at, scaled, patch, counts, counts + keys, counts + 2 * keys, group_row, lanes


@inner
def weight_gradient(job: int, task: int, padded: int) -> None:
    """Sum the weight gradient of some samples and some maps, in rows of `dfilters`."""
    p = read_job(job)
    at, scaled, patch, _, starts, rows, _, lanes = _scratch(job, padded)
    _lanes(p.length, lanes)
    _patches(job, p.together, patch)
    cut = task // p.map_cuts
    piece = task - cut * p.map_cuts
    first_map, last_map = p.maps * piece // p.map_cuts, p.maps * (piece + 1) // p.map_cuts
    sums = p.dfilters + 4 * cut * p.maps * p.row_size
    if p.in_rows != 0 and p.sample_cuts == 1:
        sums = p.dw
    fill(sums + 4 * first_map * p.row_size, (last_map - first_map) * p.row_size)
    for c in range(first_map, last_map):
        puti(rows, c - first_map, c * p.row_size)
    image = (p.height + 2 * p.pad_y) * (p.columns + 2 * p.pad_x) * p.width
    group_maps = p.maps // p.channel_groups
    last = p.samples * (cut + 1) // p.sample_cuts
    for begin in range(p.samples * cut // p.sample_cuts, last, p.together):
        end = min(begin + p.together, last)
        images = p.x + 4 * begin * p.x_sample
        if p.direct == 0:
            pad(
                images, p.x_sample, p.x_channel, p.x_row, p.x_column, end - begin,
                p.channel_groups, p.width, p.height, p.columns, p.pad_y, p.pad_x, padded,
            )  # fmt: skip
            images = padded
        _lists_by_map(
            geti(p.sample_start, begin), geti(p.sample_start, end), begin * p.area, p.position,
            p.channel, p.value, first_map, last_map, patch, starts, at, scaled,
        )  # fmt: skip
        for g in range(p.channel_groups):
            row = max(g * group_maps, first_map) - first_map
            count = min((g + 1) * group_maps, last_map) - first_map - row
            for outer in range(p.outer if count > 0 else 0):
                add_patches(
                    count, starts + 4 * row, rows + 4 * row, at, scaled,
                    sums + 4 * outer * p.segments * p.stretch, 4 * p.stretch,
                    images + 4 * (g * (end - begin) * image + outer * p.outer_step),
                    4 * p.segment_step, p.segments, p.length, lanes,
                )  # fmt: skip


@inner
def input_gradient(job: int, task: int, padded: int) -> None:
    """Write the input gradient of some samples, or of some rows of one."""
    p = read_job(job)
    at, scaled, patch, counts, starts, rows, group_row, lanes = _scratch(job, padded)
    _lanes(p.length, lanes)
    _patches(job, p.together_input, patch)
    filters = p.weight if p.in_rows != 0 else p.filters
    block = task // p.row_cuts
    cut = task - block * p.row_cuts
    begin = block * p.together_input
    samples = min(begin + p.together_input, p.samples) - begin
    line = (p.columns + 2 * p.pad_x) * p.width
    image = (p.height + 2 * p.pad_y) * line
    group_maps = p.maps // p.channel_groups
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
    if p.row_cuts == 1:
        first_row, last_row = inner_first, inner_last = 0, samples * p.out_height
    images = padded if p.direct == 0 else p.dx + 4 * begin * p.dx_sample
    for g in range(p.channel_groups):
        if p.row_cuts == 1:
            fill(images + 4 * g * samples * image, samples * image)
        else:
            fill(images + 4 * (g * image + first * line), (last - first) * line)
    places = (last_row - first_row) * p.out_columns
    shift = first_row * p.out_columns
    _lists_by_position(
        geti(p.sample_start, begin), geti(p.sample_start, begin + samples),
        begin * p.area + shift, places, p.position, p.channel, p.value, p.channel_groups,
        group_maps, p.row_size, patch + 4 * shift, counts, starts, rows, at, scaled, group_row,
    )  # fmt: skip
    for g in range(p.channel_groups):
        sums = images + 4 * g * samples * image
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
                row = _row_at(
                    y - first_row, last_row - first_row, g, p.out_columns, counts, group_row
                )
                until = _row_at(
                    stop - first_row, last_row - first_row, g, p.out_columns, counts, group_row
                )
                outer, outer_stop, segment, segments = 0, p.outer, 0, p.segments
                if ky >= 0 and p.joined != 0:
                    segment, segments = ky, 1
                elif ky >= 0:
                    outer, outer_stop = ky, ky + 1
                for part in range(outer, outer_stop):
                    add_patches(
                        until - row, starts + 4 * row, rows + 4 * row, at, scaled,
                        sums + 4 * (part * p.outer_step + segment * p.segment_step),
                        4 * p.segment_step,
                        filters + 4 * (part * p.segments + segment) * p.stretch, 4 * p.stretch,
                        segments, p.length, lanes + 8 * LANES,
                    )  # fmt: skip
    if p.direct == 0:
        crop(
            padded, samples, p.channel_groups, p.width, p.height, p.columns, p.pad_y, p.pad_x, top,
            bottom, p.dx + 4 * begin * p.dx_sample, p.dx_sample, p.dx_channel, p.dx_row,
            p.dx_column,
        )  # fmt: skip


@inner
def _row_at(y: int, height: int, g: int, columns: int, counts: int, group_row: int) -> int:
    """The first row of the lists by position at or after row y of the output."""
    if y == height:
        return geti(group_row, g + 1)
    return geti(counts, (g * height + y) * columns)
