"""Between torch's layouts and the one the kernels walk: padded, and groups of channels outermost.

Input samples become [group][sample][row][column][channel of the group], with the zeros of the
padding around them, so that a row of a patch is one stretch of floats and needs no test at the
border; filters become [map][segment][stretch, padded to whole vectors]. Strides are in
floats and may be anything.
"""

from __future__ import annotations

import numpy as np

from meprop.kernels._jit import inner, kernel
from meprop.kernels._simd import ROW, copy, fill, get, put, sum_columns

_BLOCK = 16  # channels that are transposed at a time: a cache line of them


@inner
def pad(
    source: int, sample_step: int, channel_step: int, row_step: int, column_step: int,
    samples: int, groups: int, width: int, height: int, columns: int, top: int, left: int,
    target: int,
) -> None:  # fmt: skip
    """Copy `samples` inputs, with `top` rows and `left` columns of zeros on either side."""
    line = (columns + 2 * left) * width
    image = (height + 2 * top) * line
    for group in range(groups):
        for sample in range(samples):
            to = target + 4 * (group * samples + sample) * image
            origin = source + 4 * (sample * sample_step + group * width * channel_step)
            fill(to, top * line + left * width)
            to += 4 * (top * line + left * width)
            for y in range(height):
                start = origin + 4 * y * row_step
                if channel_step == 1 and column_step == width:
                    copy(to, start, columns * width)
                elif channel_step == 1:
                    for x in range(columns):
                        copy(to + 4 * x * width, start + 4 * x * column_step, width)
                else:
                    for block in range(0, width, _BLOCK):
                        for x in range(columns):
                            for c in range(block, min(block + _BLOCK, width)):
                                put(
                                    to,
                                    x * width + c,
                                    get(start, c * channel_step + x * column_step),
                                )
                last = y == height - 1
                margin = left * width if last else 2 * left * width
                fill(to + 4 * columns * width, margin)
                to += 4 * line
            fill(to - 4 * left * width, top * line)


@inner
def crop(
    source: int, samples: int, groups: int, width: int, height: int, columns: int, top: int,
    left: int, target: int, sample_step: int, channel_step: int, row_step: int, column_step: int,
) -> None:  # fmt: skip
    """The reverse of `pad`."""
    line = (columns + 2 * left) * width
    image = (height + 2 * top) * line
    for group in range(groups):
        for sample in range(samples):
            start = source + 4 * ((group * samples + sample) * image + top * line + left * width)
            origin = target + 4 * (sample * sample_step + group * width * channel_step)
            for y in range(height):
                to = origin + 4 * y * row_step
                if channel_step == 1 and column_step == width:
                    copy(to, start, columns * width)
                elif channel_step == 1:
                    for x in range(columns):
                        copy(to + 4 * x * column_step, start + 4 * x * width, width)
                else:
                    for block in range(0, width, _BLOCK):
                        for x in range(columns):
                            for c in range(block, min(block + _BLOCK, width)):
                                put(
                                    to,
                                    c * channel_step + x * column_step,
                                    get(start, x * width + c),
                                )
                start += 4 * line


@inner
def _pixel(ky: int, kx: int, columns: int, width: int, stretch: int, joined: int) -> int:
    """Where a filter's pixel lies in its row; joined: a line of the filter is one stretch."""
    return ky * stretch + kx * width if joined != 0 else (ky * columns + kx) * stretch


@kernel("void(i8,i8,i8,i8,i8,i8,i8,i8,i8,i8,i8,i8,i8)")
def filters_in(
    weight: int, map_step: int, channel_step: int, row_step: int, column_step: int, maps: int,
    width: int, lines: int, columns: int, stretch: int, joined: int, row_size: int, rows: int,
) -> None:  # fmt: skip
    """Filters [map][channel][ky][kx] of any strides to the kernels' rows."""
    fill(rows, maps * row_size)
    for o in range(maps):
        for ky in range(lines):
            for kx in range(columns):
                to = rows + 4 * o * row_size
                to += 4 * _pixel(ky, kx, columns, width, stretch, joined)
                pixel = weight + 4 * (o * map_step + ky * row_step + kx * column_step)
                for c in range(width):
                    put(to, c, get(pixel, c * channel_step))


@kernel("void(i8,i8,i8,i8,i8,i8,i8,i8,i8,i8,i8,i8,i8,i8)")
def filters_out(
    rows: int, parts: int, weight: int, map_step: int, channel_step: int, row_step: int,
    column_step: int, maps: int, width: int, lines: int, columns: int, stretch: int, joined: int,
    row_size: int,
) -> None:  # fmt: skip
    """The sum of the threads' weight gradients, in their order, in the weight's own layout."""
    for part in range(1, parts):
        for i in range(maps * row_size):
            put(rows, i, get(rows, i) + get(rows, part * maps * row_size + i))
    for o in range(maps):
        for ky in range(lines):
            for kx in range(columns):
                at = rows + 4 * o * row_size
                at += 4 * _pixel(ky, kx, columns, width, stretch, joined)
                pixel = weight + 4 * (o * map_step + ky * row_step + kx * column_step)
                for c in range(width):
                    put(pixel, c * channel_step, get(at, c))


@kernel("void(i8,i8,i8,i8,i8,i8,i8)")
def map_sums(grad: int, nhwc: int, samples: int, maps: int, area: int, work: int, out: int) -> None:
    """Bias gradient: equals `grad.sum((0, 2, 3))`; in float64 across samples."""
    totals = np.zeros(maps, np.float64)
    for sample in range(samples):
        if nhwc != 0:
            image = grad + 4 * sample * area * maps
            for c in range(0, maps // ROW * ROW, ROW):
                sum_columns(image + 4 * c, 4 * maps, area, work)
                for j in range(ROW):
                    totals[c + j] += get(work, j)
            for c in range(maps // ROW * ROW, maps):
                for place in range(area):
                    totals[c] += get(image, place * maps + c)
        else:
            for c in range(maps):
                plane = grad + 4 * (sample * maps + c) * area
                if area >= ROW:
                    sum_columns(plane, 4 * ROW, area // ROW, work)
                    for j in range(ROW):
                        totals[c] += get(work, j)
                for i in range(area // ROW * ROW, area):
                    totals[c] += get(plane, i)
    for c in range(maps):
        put(out, c, np.float32(totals[c]))
