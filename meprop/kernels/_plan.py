"""What a call's shapes decide: groups of the selection, how it is cut, where its memory lies."""

from __future__ import annotations

import math
import struct
from collections import namedtuple
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from meprop.kernels._jit import reader
from meprop.kernels._simd import LANES, ROW
from meprop.rule import TopK

# Floats of input that are walked per tile: few, so that they stay in a near cache; more where the
# filters do not fit there, which are fetched anew for each block of samples.
_NEAR, _FAR = 1 << 14, 1 << 16
_DRAWN = 1024  # entries of a group that set the threshold of a draw
_PIECES = 4  # tasks a thread finds in a stage, so that none waits long for another
_LONG = 1 << 21  # entries; below, each thread scans one stretch
STAGES = 16  # more than a call can go through
TILE = 12  # vectors of sums that are under way at a time; four of AVX2's registers stay free


class Groups(NamedTuple):
    """An entry belongs to group `sample * by_sample + map * by_map`; each keeps k of `size`."""

    by_sample: int
    by_map: int
    k: int
    size: int
    number: int
    sampled: int  # entries of a group that its bound is guessed from


@lru_cache(maxsize=512)
def groups_of(rule: TopK | None, samples: int, maps: int, area: int) -> Groups:
    """The groups of a gradient (samples, maps, area); without a rule every entry is kept."""
    total = samples * maps * area
    if rule is None:
        return Groups(0, 0, total, total, 1, 0)
    if rule.scope == "unified":  # which units pass is known: their bound is 0
        return Groups(0, 1, samples, samples, maps, 0)
    by_sample, by_map, size = {
        "map": (0, 1, samples * area),
        "sample": (maps, 1, area),
        "mixed": (1, 0, maps * area),
        "layer": (0, 0, total),
    }[rule.scope]
    # Where a larger sample costs as much as the fewer candidates save.
    sampled = (5.7 * size * math.sqrt(rule.ratio)) ** (2 / 3)
    sampled = min(size, max(128, 32 * math.ceil(sampled / 32)))
    if rule.pick == "unbiased":  # all are kept of what was drawn
        sampled = min(sampled, _DRAWN)
    k = size if rule.ratio == 1 or rule.pick == "unbiased" else rule.k(size)
    return Groups(by_sample, by_map, k, size, total // size, sampled)


class Part(NamedTuple):
    """A stretch of the gradient that is scanned at once, in the order of memory."""

    first: int  # row: a position in channels_last, else a plane
    last: int
    start: int  # its first entry, and where its lists begin
    stop: int
    first_group: int  # it has entries of these groups only
    last_group: int
    slot: int  # where the numbers by group begin
    keys: int  # where the ranks of the first group begin, in words
    stride: int  # and from there to the next group's


# All that the kernels know of a call; `reader` makes its fields readable by name there.
Job = namedtuple(
    "Job",
    # The gradient (in channels_last or not), and its groups.
    "nhwc samples maps area by_sample by_map k size groups sampled "
    # The rule: decay and drawn share as the bits of a double; what becomes of the selected values.
    "decay drawn centred sparse_bias "
    # How many tasks a stage has: of the filters there and back, of the bias, of the gradients. The
    # weight's is cut by samples, each with a sum of its own, and by maps; the input's by samples,
    # or where those are few by rows of a sample.
    "threads parts part_table guess_tasks filter_tasks bias_tasks group_tasks weight_tasks "
    "input_tasks out_tasks sample_cuts map_cuts row_cuts "
    # The convolution. Samples that are walked at a time for the weight's gradient, and the input's;
    # `line` and `image` are sizes in the padded input.
    "together together_input channel_groups width height columns line image pad_y pad_x "
    "out_height out_columns lines kernel_columns stride_y dilation_y "
    # A patch is `outer` times `segments` stretches of `length` floats (joined: a line of the filter
    # is one), and how far apart they are in the padded input; a filter's are `stretch` apart.
    "joined outer segments length row_step column_step segment_step outer_step stretch row_size "
    # Whether weight and input lie as the kernels need them.
    "in_rows direct "
    # Strides, each four as `Steps`.
    "x_sample x_channel x_row x_column dx_sample dx_channel dx_row dx_column "
    "weight_map weight_channel weight_row weight_column dw_map dw_channel dw_row dw_column "
    # Places in a thread's memory, in bytes, after the padded images: of each entry of the lists
    # where it is added from and its value; where the patch of each position begins; of each key the
    # number of entries, and then its row; of each row where its list and its sum begin; the first
    # row of each group; see `add_patches`.
    "entry scale patch counted starts rows group_row lanes "
    # Places in the memory of a call: bytes from its beginning, and then addresses. Guessed and
    # exact bounds of the groups; by part and group counts and ties; by part and map sums; lists by
    # part (index, channel and score of what exceeds its bound) and of all that is selected.
    "counters low bounds counts ties part_count wild sums found sample_start raw position channel "
    "value keys scores filters dfilters private private_size "
    # Addresses of the tensors, 0: there is none, or it is not wanted (kept: the gradient that is
    # passed on); the key of an unbiased draw; the function that gives a processor to others.
    "grad score run x dx weight dw bias kept key second pause",
)
FIELDS = Job._fields
FIRST_PLACE, FIRST_TENSOR = FIELDS.index("counters"), FIELDS.index("private_size")
# What a call adds to its layout: the fields after `private_size`; bounds of the groups, where they
# are given; addresses of the layout's `Job`, of its memory, of the function `work`, and where there
# are several threads of `Threads.parallel`.
Call: Any = namedtuple(  # type: ignore[misc]
    "Call", (*FIELDS[FIRST_TENSOR + 1 :], "low", "layout", "memory", "work", "parallel")
)
Steps = namedtuple("Steps", "outer channel row column")
STEPS = X, DX, WEIGHT, DW = tuple(
    FIELDS.index(name) for name in ("x_sample", "dx_sample", "weight_map", "dw_map")
)
read_job, read_part, read_steps, read_call = map(reader, (Job, Part, Steps, Call))


class Layout(NamedTuple):
    """How a call is laid out in memory."""

    job: Tensor  # a `Job`, as int64
    parts: Tensor  # its `Part`s
    words: int  # of memory


@lru_cache(maxsize=512)
def layout_of(
    shape: tuple[int, int, int], nhwc: bool, rule: TopK | None, threads: int,
    needs: tuple[bool, bool, bool], convolution: Any,
) -> Layout:  # fmt: skip
    """Lay out a call for a gradient (samples, maps, area).

    needs: which gradients are wanted, of input, weight and bias. convolution: (shape and strides of
    input and weight, strides of their gradients, output's height and width, stride, padding,
    dilation, groups), or None where neither of the first two is.
    """
    samples, maps, area = shape
    total = samples * maps * area
    groups = groups_of(rule, samples, maps, area)
    drawn = rule.ratio if rule is not None and rule.pick == "unbiased" else 0.0
    decay = rule.decay if rule is not None and rule.pick != "random" else 0.0
    sparse_bias = rule is not None and rule.bias == "sparse"
    many = 1 if threads == 1 else _PIECES * threads
    scanned = threads if total < _LONG else many
    parts = list(_parts(samples, maps, area, nhwc, groups, scanned))
    kept = min(total, groups.k * groups.number)
    across = nhwc and groups.by_map != 0
    units = groups.number // maps * -(-maps // ROW) if across else groups.number
    given = rule is not None and rule.scope == "unified"
    fields: dict[str, int] = dict.fromkeys(FIELDS, 0)
    fields |= dict(
        nhwc=int(nhwc), samples=samples, maps=maps, area=area, groups=groups.number,
        decay=_bits(decay), drawn=_bits(drawn),
        centred=int(rule is not None and rule.centres), sparse_bias=int(sparse_bias),
        threads=threads, parts=len(parts), guess_tasks=0 if given else min(units, many),
        bias_tasks=-(-maps // ROW) if needs[2] and not sparse_bias else 0,
        group_tasks=min(groups.number, scanned),
    ) | {name: n for name, n in groups._asdict().items() if name != "number"}  # fmt: skip
    filters = padded = 0
    if convolution is not None:
        extra, padded = _convolution(shape, kept, threads, many, needs, *convolution)
        fields |= extra
        filters = maps * fields["row_size"]
    guessed = (groups.sampled + ROW) * (1 + (ROW if across else 1)) + 8 * ROW
    scratch = guessed, 4 * 64 * maps + 128, padded
    private = -(-max(scratch) // 16) * 16 + 64
    slots = sum(part.last_group - part.first_group for part in parts)
    chosen = groups.k < groups.size
    places = dict(
        counters=48 * (STAGES + 1), low=groups.number, bounds=groups.number, counts=slots,
        ties=slots, part_count=len(parts), wild=len(parts), sums=2 * len(parts) * maps,
        found=2 * len(parts) * maps, sample_start=samples + 1, raw=3 * total + 64,
        position=kept + 16, channel=kept + 16, value=kept + 16,
        keys=parts[-1].keys + (parts[-1].last_group - parts[-1].first_group) * parts[-1].stride
        if chosen else 0,
        scores=total if decay > 0 else 0, filters=filters,
        dfilters=fields["sample_cuts"] * filters, private=threads * private,
    )  # fmt: skip
    fields |= _laid_out(places, -(-8 * len(FIELDS) // 64) * 64)
    fields["private_size"] = 4 * private
    table = torch.tensor(parts, dtype=torch.int64)
    fields["part_table"] = table.data_ptr()
    words = fields["private"] // 4 + threads * private + 16
    return Layout(torch.tensor(Job(**fields), dtype=torch.int64), table, words)


def _laid_out(words: dict[str, int], start: int) -> dict[str, int]:
    """Where each begins, in bytes, one after the other in whole cache lines with one between."""
    places = {}
    for name, count in words.items():
        places[name] = start
        start += -(-count // 16) * 64 + 64
    return places


def _bits(value: float) -> int:
    return struct.unpack("q", struct.pack("d", value))[0]


def _parts(
    samples: int, maps: int, area: int, nhwc: bool, groups: Groups, many: int
) -> Iterator[Part]:
    """Cut the rows of a gradient into equal stretches."""
    per_sample, row = (area, maps) if nhwc else (maps, area)
    rows, slot, keys = samples * per_sample, 0, 0
    many = min(many, rows)
    for index in range(many):
        first, last = rows * index // many, rows * (index + 1) // many
        first_group, last_group = 0, groups.number
        most = (last - first) * row
        if groups.by_sample != 0:
            of_sample = max(1, groups.by_sample)
            first_group = first // per_sample * of_sample
            last_group = (-(-last // per_sample)) * of_sample
            most = min(most, groups.size)
        elif groups.by_map != 0:
            most = last - first if nhwc else -(-(last - first) // maps) * area
        if groups.by_sample != 0 and groups.by_map != 0 and nhwc:
            most = min(last - first, area)
        stride = -(-most // ROW) * ROW + ROW
        yield Part(
            first, last, first * row, last * row, first_group, last_group, slot, keys, stride
        )
        slot += last_group - first_group
        keys += (last_group - first_group) * stride


def _convolution(
    shape: tuple[int, int, int], kept: int, threads: int, many: int, needs: tuple, x_shape: tuple,
    x_steps: tuple, dx_steps: tuple, weight_shape: tuple, weight_steps: tuple, dw_steps: tuple,
    out_shape: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int],
    dilation: tuple[int, int], groups: int,
) -> tuple[dict[str, int], int]:  # fmt: skip
    """The convolution's fields of a `Job`, and the words of scratch that a thread needs for it."""
    samples, maps, area = shape
    _, channels, height, columns = x_shape
    _, width, lines, kernel_columns = weight_shape
    line = (columns + 2 * padding[1]) * width
    pixels = (height + 2 * padding[0]) * (columns + 2 * padding[1])
    joined = dilation[1] == 1 or kernel_columns == 1
    if joined:
        outer, segments, length = 1, lines, kernel_columns * width
        segment_step, outer_step = dilation[0] * line, 0
    else:
        outer, segments, length = lines, kernel_columns, width
        segment_step, outer_step = dilation[1] * width, dilation[0] * line
    stretch = -(-length // LANES) * LANES
    row_size = outer * segments * stretch
    whole = length == stretch
    x_last, dx_last = (_channels_last(x_shape, steps) for steps in (x_steps, dx_steps))
    weights = (weight_steps, dw_steps)
    weight_last, dw_last = (_channels_last(weight_shape, steps) for steps in weights)
    sample_cuts, map_cuts = _weight_cuts(
        threads, samples, maps, maps * row_size, samples * channels * pixels, kept
    )
    walked = pixels * min(width, TILE * LANES)
    budgets = (_FAR, 4 * _FAR) if maps * row_size > _FAR else (_NEAR, _NEAR)
    longest = -(-samples // sample_cuts)
    together = max(1, min(longest, budgets[0] // walked))
    blocks = max(1, min(samples, budgets[1] // walked))
    together_input = blocks if threads == 1 else max(1, min(blocks, samples // many))
    input_tasks, row_cuts = -(-samples // together_input), 1
    if threads > 1 and input_tasks < 2 * threads:
        together_input = 1
        row_cuts = min(max(1, height // 2), -(-2 * threads // samples))
        input_tasks = samples * row_cuts
    direct = groups == 1 and padding == (0, 0) and whole and x_last and dx_last
    in_rows = whole and weight_last and dw_last
    most = max(together, together_input)
    entries = min(kept, most * maps * area)
    keys = groups * most * area + maps + 2
    scratch = dict(
        images=most * pixels * channels + 2 * LANES, entry=entries, scale=entries,
        patch=most * area, counted=keys, starts=keys, rows=keys, group_row=groups + 1,
        lanes=4 * LANES,
    )  # fmt: skip
    places = _laid_out(scratch, 0)
    fields = dict(
        filter_tasks=min(maps, many) if needs[0] and not in_rows else 0,
        weight_tasks=sample_cuts * map_cuts if needs[1] else 0,
        input_tasks=input_tasks if needs[0] else 0,
        out_tasks=min(maps, many) if needs[1] and (not in_rows or sample_cuts > 1) else 0,
        sample_cuts=sample_cuts, map_cuts=map_cuts, row_cuts=row_cuts, together=together,
        together_input=together_input, channel_groups=groups, width=width, height=height,
        columns=columns, line=line, image=pixels * width, pad_y=padding[0], pad_x=padding[1],
        out_height=out_shape[0], out_columns=out_shape[1], lines=lines,
        kernel_columns=kernel_columns, stride_y=stride[0], dilation_y=dilation[0],
        joined=int(joined), outer=outer, segments=segments, length=length,
        row_step=stride[0] * line, column_step=stride[1] * width, segment_step=segment_step,
        outer_step=outer_step, stretch=stretch, row_size=row_size, in_rows=int(in_rows),
        direct=int(direct),
    )  # fmt: skip
    for first, steps in zip(STEPS, (x_steps, dx_steps, weight_steps, dw_steps), strict=True):
        fields |= dict(zip(FIELDS[first : first + 4], steps, strict=True))
    size = places["lanes"] // 4 + 5 * LANES
    return fields | {name: places[name] for name in list(scratch)[1:]}, size


def _weight_cuts(
    threads: int, samples: int, maps: int, weights: int, inputs: int, kept: int
) -> tuple[int, int]:
    """How often the weight's gradient is cut by samples, and by maps.

    Each cut by samples has a sum of its own, all of which are added; each cut by maps reads the
    whole input and all lists.
    """
    ways = []
    for sample_cuts in range(1, min(threads, samples) + 1):
        map_cuts = min(maps, -(-threads // sample_cuts))
        idle = threads > sample_cuts * map_cuts or sample_cuts * map_cuts % threads
        cost = 0.6 * sample_cuts * weights + map_cuts * (0.18 * inputs + 2.0 * kept)
        ways.append((bool(idle), cost, sample_cuts, map_cuts))
    return min(ways)[2:]


def _channels_last(shape: tuple, steps: tuple) -> bool:
    tensor = torch.empty_strided(shape, steps, device="meta")
    return tensor.is_contiguous(memory_format=torch.channels_last)
