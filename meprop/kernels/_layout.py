"""Between torch's layouts and the one the kernels walk: padded, and groups of channels outermost.

Input samples become [group][sample][row][column][channel of the group], with the zeros of the
padding around them, so that a row of a patch is one stretch of floats and needs no test at the
border; filters become [map][segment][stretch, padded to whole vectors]. Strides are in
floats and may be anything.
"""

from __future__ import annotations

import numpy as np

from meprop.kernels._jit import inner
from meprop.kernels._plan import DW, WEIGHT, read_job, read_steps
from meprop.kernels._simd import LANES, ROW, add_all, copy, fill, get, getd, put, putd, sum_columns

_BLOCK = 16  # channels that are transposed at a time: a cache line of them


@inner
def _line(
    torchs: int, channel_step: int, column_step: int, columns: int, width: int, ours: int,
    ours_column: int, back: bool,
) -> None:  # fmt: skip
    """Copy a line of an image, or of a filter, from torch's memory to ours, or `back`."""
    if channel_step == 1 and column_step == ours_column and column_step == width:
        copy(torchs if back else ours, ours if back else torchs, columns * width)
    elif channel_step == 1:
        for x in range(columns):
            here, there = ours + 4 * x * ours_column, torchs + 4 * x * column_step
            copy(there if back else here, here if back else there, width)
    else:
        for block in range(0, width, _BLOCK):
            stop = min(block + _BLOCK, width)
            for x in range(columns):
                here, there = ours + 4 * x * ours_column, torchs + 4 * x * column_step
                if back:
                    for c in range(block, stop):
                        put(there, c * channel_step, get(here, c))
                else:
                    for c in range(block, stop):
                        put(here, c, get(there, c * channel_step))


@inner
def move_images(
    job: int, steps: int, torchs: int, ours: int, together: int, samples: int, top: int,
    bottom: int, back: bool,
) -> None:  # fmt: skip
    """Copy rows top:bottom of some samples between the zeros of the padding, or `back`.

    together: samples that there is room for; steps: where in a `Job` the strides of torch's begin.
    """
    p, step = read_job(job), read_steps(job + 8 * steps)
    for group in range(p.channel_groups):
        for sample in range(samples):
            image = ours + 4 * ((group * together + sample) * p.image + p.pad_x * p.width)
            origin = torchs + 4 * (sample * step.outer + group * p.width * step.channel)
            for y in range(top, bottom):
                _line(
                    origin + 4 * y * step.row, step.channel, step.column, p.columns, p.width,
                    image + 4 * (p.pad_y + y) * p.line, p.width, back,
                )  # fmt: skip


@inner
def _move_filters(
    job: int, steps: int, torchs: int, ours: int, first: int, last: int, back: bool
) -> None:
    """Copy filters [map][channel][ky][kx] of any strides to the kernels' rows, or `back`."""
    p, step = read_job(job), read_steps(job + 8 * steps)
    column = p.width if p.joined != 0 else p.stretch
    line = p.row_size // p.lines
    for o in range(first, last):
        for ky in range(p.lines):
            _line(
                torchs + 4 * (o * step.outer + ky * step.row), step.channel, step.column,
                p.kernel_columns, p.width, ours + 4 * (o * p.row_size + ky * line), column, back,
            )  # fmt: skip


@inner
def filters_in(job: int, task: int) -> None:
    """Some filters to the kernels' rows."""
    p = read_job(job)
    first, last = p.maps * task // p.filter_tasks, p.maps * (task + 1) // p.filter_tasks
    fill(p.filters + 4 * first * p.row_size, (last - first) * p.row_size)
    _move_filters(job, WEIGHT, p.weight, p.filters, first, last, False)


@inner
def filters_out(job: int, task: int) -> None:
    """Some filters of the weight's gradient, of all cuts by sample, in the weight's own layout."""
    p = read_job(job)
    first, last = p.maps * task // p.out_tasks, p.maps * (task + 1) // p.out_tasks
    sums = p.dfilters + 4 * first * p.row_size
    for cut in range(1, p.sample_cuts):
        more = sums + 4 * cut * p.maps * p.row_size
        add_all(sums, more, (last - first) * p.row_size // LANES)
    _move_filters(job, DW, p.dw, p.dfilters, first, last, True)


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
