"""Between torch's layouts and the one the kernels walk: padded, and groups of channels outermost.

Input samples become [group][sample][row][column][channel of the group], with the zeros of the
padding around them, so that a row of a patch is one stretch of floats and needs no test at the
border; filters become [map][segment][stretch, padded to whole vectors]. Strides are in
floats and may be anything.
"""

from __future__ import annotations

import numpy as np

from meprop.kernels._jit import inner
from meprop.kernels._plan import read_job
from meprop.kernels._simd import LANES, ROW, add_all, copy, fill, get, getd, put, putd, sum_columns

_BLOCK = 16  # channels that are transposed at a time: a cache line of them


@inner
def _line(
    torchs: int, channel_step: int, column_step: int, columns: int, width: int, ours: int,
    back: bool,
) -> None:  # fmt: skip
    """Copy a line of an image from torch's memory to ours, or `back`."""
    if channel_step == 1 and column_step == width:
        copy(torchs if back else ours, ours if back else torchs, columns * width)
    elif channel_step == 1:
        for x in range(columns):
            here, there = ours + 4 * x * width, torchs + 4 * x * column_step
            copy(there if back else here, here if back else there, width)
    else:
        for block in range(0, width, _BLOCK):
            for x in range(columns):
                for c in range(block, min(block + _BLOCK, width)):
                    if back:
                        put(torchs, c * channel_step + x * column_step, get(ours, x * width + c))
                    else:
                        put(ours, x * width + c, get(torchs, c * channel_step + x * column_step))


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
                _line(start, channel_step, column_step, columns, width, to, False)
                last = y == height - 1
                margin = left * width if last else 2 * left * width
                fill(to + 4 * columns * width, margin)
                to += 4 * line
            fill(to - 4 * left * width, top * line)


@inner
def crop(
    source: int, samples: int, groups: int, width: int, height: int, columns: int, top: int,
    left: int, first: int, last: int, target: int, sample_step: int, channel_step: int,
    row_step: int, column_step: int,
) -> None:  # fmt: skip
    """The reverse of `pad`, for rows first:last."""
    line = (columns + 2 * left) * width
    image = (height + 2 * top) * line
    for group in range(groups):
        for sample in range(samples):
            start = (group * samples + sample) * image + (top + first) * line + left * width
            start = source + 4 * start
            origin = target + 4 * (sample * sample_step + group * width * channel_step)
            for y in range(first, last):
                to = origin + 4 * y * row_step
                _line(to, channel_step, column_step, columns, width, start, True)
                start += 4 * line


@inner
def _pixel(ky: int, kx: int, columns: int, width: int, stretch: int, joined: int) -> int:
    """Where a filter's pixel lies in its row; joined: a line of the filter is one stretch."""
    return ky * stretch + kx * width if joined != 0 else (ky * columns + kx) * stretch


@inner
def filters_in(job: int, task: int) -> None:
    """Some filters [map][channel][ky][kx] of any strides to the kernels' rows."""
    p = read_job(job)
    first, last = p.maps * task // p.filter_tasks, p.maps * (task + 1) // p.filter_tasks
    fill(p.filters + 4 * first * p.row_size, (last - first) * p.row_size)
    for o in range(first, last):
        for ky in range(p.lines):
            for kx in range(p.kernel_columns):
                to = p.filters + 4 * o * p.row_size
                to += 4 * _pixel(ky, kx, p.kernel_columns, p.width, p.stretch, p.joined)
                pixel = o * p.weight_map + ky * p.weight_row + kx * p.weight_column
                for c in range(p.width):
                    put(to, c, get(p.weight, pixel + c * p.weight_channel))


@inner
def filters_out(job: int, task: int) -> None:
    """Some filters of the weight's gradient, of all cuts by sample, in the weight's own layout."""
    p = read_job(job)
    first, last = p.maps * task // p.filter_tasks, p.maps * (task + 1) // p.filter_tasks
    size = p.maps * p.row_size
    for cut in range(1, p.sample_cuts):
        add_all(
            p.dfilters + 4 * first * p.row_size,
            p.dfilters + 4 * (cut * size + first * p.row_size),
            (last - first) * p.row_size // LANES,
        )
    for o in range(first, last):
        for ky in range(p.lines):
            for kx in range(p.kernel_columns):
                at = p.dfilters + 4 * o * p.row_size
                at += 4 * _pixel(ky, kx, p.kernel_columns, p.width, p.stretch, p.joined)
                pixel = o * p.dw_map + ky * p.dw_row + kx * p.dw_column
                for c in range(p.width):
                    put(p.dw, pixel + c * p.dw_channel, get(at, c))


@inner
def map_sums(job: int, task: int, work: int) -> None:
    """Bias gradient of 32 maps: equals `grad.sum((0, 2, 3))`; in float64 across samples."""
    p = read_job(job)
    first, last = task * ROW, min((task + 1) * ROW, p.maps)
    totals = work + 4 * ROW
    fill(totals, 2 * ROW)
    area, maps = p.area, p.maps
    for sample in range(p.samples):
        image = p.grad + 4 * sample * area * maps
        if p.nhwc == 0:
            for c in range(first, last):
                plane = image + 4 * c * area
                total = getd(totals, c - first)
                if area >= ROW:
                    sum_columns(plane, 4 * ROW, area // ROW, work)
                    for j in range(ROW):
                        total += get(work, j)
                for i in range(area // ROW * ROW, area):
                    total += get(plane, i)
                putd(totals, c - first, total)
        elif last - first == ROW or (ROW % maps == 0 and area * maps >= ROW):
            # Few maps: several positions side by side.
            rows = area if maps >= ROW else area * maps // ROW
            sum_columns(image + 4 * first, 4 * max(maps, ROW), rows, work)
            for j in range(ROW):
                c = j % min(maps, ROW)
                putd(totals, c, getd(totals, c) + get(work, j))
            for i in range(rows * ROW if maps < ROW else area * maps, area * maps):
                putd(totals, i % maps, getd(totals, i % maps) + get(image, i))
        else:
            for place in range(area):
                for c in range(first, last):
                    total = getd(totals, c - first) + get(image, place * maps + c)
                    putd(totals, c - first, total)
    for c in range(first, last):
        put(p.bias, c, np.float32(getd(totals, c - first)))
