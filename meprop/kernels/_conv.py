"""Weight and input gradient of a convolution from the lists of its selected output gradients.

Sample by sample, or a few at a time where they are small, so that the padded input and the input
gradient under way stay in the cache. A linear layer is a 1x1 convolution of 1x1 images.
Equals `torch.ops.aten.convolution_backward` on the selected gradient.
"""

from __future__ import annotations

from meprop.kernels._jit import inner, kernel
from meprop.kernels._layout import crop, pad
from meprop.kernels._rows import add_patches
from meprop.kernels._simd import LANES, field, fill, get, geti, put, puti


@inner
def _lists_by_map(
    first: int, stop: int, origin: int, position: int, channel: int, value: int, maps: int,
    patch: int, starts: int, at: int, scaled: int,
) -> None:  # fmt: skip
    """Sort entries first:stop by map; at: where the patch of the entry's position begins."""
    fill(starts, maps + 2)
    for i in range(first, stop):
        c = geti(channel, i) + 2
        puti(starts, c, geti(starts, c) + 1)
    for c in range(2, maps + 2):
        puti(starts, c, geti(starts, c) + geti(starts, c - 1))
    for i in range(first, stop):
        c = geti(channel, i) + 1
        slot = geti(starts, c)
        puti(starts, c, slot + 1)
        puti(at, slot, geti(patch, geti(position, i) - origin))
        put(scaled, slot, get(value, i))


@inner
def _lists_by_position(
    first: int, stop: int, origin: int, places: int, position: int, channel: int, value: int,
    groups: int, group_maps: int, row_size: int, patch: int, counts: int, starts: int, rows: int,
    at: int, scaled: int, group_row: int,
) -> None:  # fmt: skip
    """Sort entries by (group, position), leaving positions without any out.

    starts: where a row's list begins; rows: where its patch begins; at: where the map's filter
    begins; group_row: the first row of each group.
    """
    keys = groups * places
    fill(counts, keys + 1)
    per_group = 1.0 / group_maps
    for i in range(first, stop):
        key = geti(position, i) - origin
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
        c = geti(channel, i)
        if groups > 1:
            key += int((c + 0.5) * per_group) * places
        mine = geti(counts, key) + 1
        slot = geti(starts, mine)
        puti(starts, mine, slot + 1)
        puti(at, slot, c * row_size)
        put(scaled, slot, get(value, i))


def scratch_words(together: int, groups: int, maps: int, area: int) -> int:
    """Words of scratch that `backward` needs besides its lists."""
    keys = groups * together * area + maps + 2
    return together * area + 3 * keys + groups + 1 + 4 * LANES


@kernel("void(" + ",".join(["i8"] * 22) + ")")
def backward(
    first: int, last: int, position: int, channel: int, value: int, sample_start: int,
    x: int, x_sample: int, x_channel: int, x_row: int, x_column: int,
    dx: int, dx_sample: int, dx_channel: int, dx_row: int, dx_column: int,
    filters: int, dfilters: int, padded: int, scratch: int, entries: int, geometry: int,
) -> None:  # fmt: skip
    """Write the weight gradient of samples first:last to `dfilters`, their input gradient to `dx`.

    An address of 0 for `dfilters` or `dx`: not wanted. padded = 0: `x` and `dx` are used as they
    are. scratch: room for the lists of `entries` entries and for `scratch_words`. geometry:
    address of a `Geometry`.
    """
    together, together_input, groups = field(geometry, 0), field(geometry, 1), field(geometry, 2)
    width, maps, height = field(geometry, 3), field(geometry, 4), field(geometry, 5)
    columns, pad_y, pad_x = field(geometry, 6), field(geometry, 7), field(geometry, 8)
    out_height, out_columns, outer = field(geometry, 9), field(geometry, 10), field(geometry, 11)
    segments, length, row_step = field(geometry, 12), field(geometry, 13), field(geometry, 14)
    column_step, segment_step = field(geometry, 15), field(geometry, 16)
    outer_step, stretch = field(geometry, 17), field(geometry, 18)
    area = out_height * out_columns
    line = (columns + 2 * pad_x) * width
    image = (height + 2 * pad_y) * line
    group_maps = maps // groups
    row_size = outer * segments * stretch
    places = max(together, together_input) * area
    keys = groups * places + maps + 2
    at = scratch
    scaled = at + 4 * entries
    patch = scaled + 4 * entries
    counts = patch + 4 * places
    starts = counts + 4 * keys
    rows = starts + 4 * keys
    group_row = rows + 4 * keys
    lanes = group_row + 4 * (groups + 1)
    full = lanes + 8 * LANES  # sixteen ones
    for i in range(2 * LANES):
        puti(full, i, 1)
        puti(lanes, i, int(i < LANES or i - LANES < length - (length - 1) // LANES * LANES))
    i = 0
    for sample in range(max(together, together_input)):
        for y in range(out_height):
            for column in range(out_columns):
                puti(patch, i, sample * image + y * row_step + column * column_step)
                i += 1
    if dfilters != 0:
        fill(dfilters, maps * row_size)
    for side in range(2):  # the weight's gradient, then the input's
        if (dfilters if side == 0 else dx) == 0:
            continue
        step = together if side == 0 else together_input
        for begin in range(first, last, step):
            end = min(begin + step, last)
            samples = end - begin
            here, there = geti(sample_start, begin), geti(sample_start, end)
            if side == 0:
                images = x + 4 * begin * x_sample
                if padded != 0:
                    pad(
                        images, x_sample, x_channel, x_row, x_column, samples, groups, width,
                        height, columns, pad_y, pad_x, padded,
                    )  # fmt: skip
                    images = padded
                _lists_by_map(
                    here, there, begin * area, position, channel, value, maps, patch, starts, at,
                    scaled,
                )  # fmt: skip
                for c in range(maps):
                    puti(rows, c, c * row_size)
                for g in range(groups + 1):
                    puti(group_row, g, g * group_maps)
            else:
                images = padded if padded != 0 else dx + 4 * begin * dx_sample
                fill(images, groups * samples * image)
                _lists_by_position(
                    here, there, begin * area, samples * area, position, channel, value, groups,
                    group_maps, row_size, patch, counts, starts, rows, at, scaled, group_row,
                )  # fmt: skip
            for g in range(groups):
                row = geti(group_row, g)
                for part in range(outer):
                    image_at = images + 4 * (g * samples * image + part * outer_step)
                    filter_at = 4 * part * segments * stretch
                    sums, sums_step = image_at, 4 * segment_step
                    source, source_step = filters + filter_at, 4 * stretch
                    if side == 0:
                        source, source_step = image_at, 4 * segment_step
                        sums, sums_step = dfilters + filter_at, 4 * stretch
                    add_patches(
                        geti(group_row, g + 1) - row, starts + 4 * row, rows + 4 * row, at, scaled,
                        sums, sums_step, source, source_step, segments, length,
                        full if side == 0 else lanes,
                    )  # fmt: skip
            if side == 1 and padded != 0:
                crop(
                    padded, samples, groups, width, height, columns, pad_y, pad_x,
                    dx + 4 * begin * dx_sample, dx_sample, dx_channel, dx_row, dx_column,
                )  # fmt: skip
