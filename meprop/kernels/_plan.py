"""What a call's shapes decide: groups of the selection, channel blocks, how samples are cut."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from meprop.kernels._conv import scratch_words
from meprop.kernels._simd import LANES, ROW
from meprop.kernels._tiles import TILE
from meprop.rule import TopK

# Floats of input that are walked per tile: few, so that they stay in a near cache; more where the
# filters do not fit there, which are fetched anew for each block of samples.
_NEAR, _FAR = 1 << 14, 1 << 16
_DRAWN = 1024  # entries of a group that set the threshold of a draw


class Groups(NamedTuple):
    """An entry belongs to group `sample * by_sample + map * by_map`; each keeps k of `size`."""

    by_sample: int
    by_map: int
    k: int
    size: int
    number: int
    sampled: int


@lru_cache(maxsize=512)
def groups_of(rule: TopK | None, samples: int, maps: int, area: int) -> Groups:
    """The groups of a gradient (samples, maps, area); without a rule every entry is kept."""
    total = samples * maps * area
    if rule is None or rule.scope == "unified":
        return Groups(0, 0, total, total, 1, 0)
    by_sample, by_map, size = {
        "map": (0, 1, samples * area),
        "sample": (maps, 1, area),
        "mixed": (1, 0, maps * area),
        "layer": (0, 0, total),
    }[rule.scope]
    # Where a larger sample costs as much as the fewer candidates save.
    sampled = (5.7 * size * math.sqrt(rule.ratio)) ** (2 / 3)
    sampled = min(size, max(128, 32 * math.ceil(sampled / 32)))
    if rule.pick == "unbiased":
        sampled = min(sampled, _DRAWN)
    k = size if rule.ratio == 1 else rule.k(size)
    return Groups(by_sample, by_map, k, size, total // size, sampled)


def work_words(groups: Groups, maps: int, entries: int) -> int:
    """Words of scratch that `_choose.guess` and `_choose.cut` need."""
    padded = maps + ROW
    sample = (groups.sampled + ROW) * (padded + 1) + 5 * padded
    keys = entries + (2 * ROW + 3) * groups.number if groups.k < groups.size else 3 * groups.number
    return max(sample, keys) + 128


class Geometry(NamedTuple):
    """What `_conv.backward` reads, in its order."""

    together: int  # samples at a time for the weight's gradient
    together_input: int  # and for the input's
    groups: int
    width: int
    maps: int
    height: int
    columns: int
    pad_y: int
    pad_x: int
    out_height: int
    out_columns: int
    outer: int
    segments: int
    length: int
    row_step: int  # floats of padded input from one output row to the next
    column_step: int
    segment_step: int  # and from one segment of a patch to the next
    outer_step: int
    stretch: int  # floats of a filter's segment


class Plan(NamedTuple):
    """How a convolution is walked, sample by sample or `together` at a time."""

    geometry: Tensor  # a `Geometry`, as int64
    filters: tuple[int, ...]  # shape arguments of `_layout.filters_in` and `filters_out`
    row_size: int  # floats of a filter's row
    padded: int  # floats of the padded samples
    scratch: int
    whole: bool  # every stretch is of whole vectors
    direct: bool  # channels_last samples can be used as they are


@lru_cache(maxsize=512)
def plan_of(
    x_shape: torch.Size, weight_shape: torch.Size, out_shape: tuple[int, int],
    stride: tuple[int, int], padding: tuple[int, int], dilation: tuple[int, int], groups: int,
    samples: int,
) -> Plan:  # fmt: skip
    """Lay out a convolution whose parts are of `samples` samples."""
    _, channels, height, columns = x_shape
    maps, width, lines, kernel_columns = weight_shape
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
    walked = pixels * min(width, TILE * LANES)
    far = maps * row_size > _FAR
    together, together_input = (
        max(1, min(samples, budget // walked))
        for budget in ((_FAR, 4 * _FAR) if far else (_NEAR, _NEAR))
    )
    most = max(together, together_input)
    geometry = Geometry(
        together, together_input, groups, width, maps, height, columns, *padding, *out_shape,
        outer, segments, length, stride[0] * line, stride[1] * width, segment_step, outer_step,
        stretch,
    )  # fmt: skip
    return Plan(
        geometry=torch.tensor(geometry, dtype=torch.int64),
        filters=(maps, width, lines, kernel_columns, stretch, int(joined), row_size),
        row_size=row_size,
        padded=most * pixels * channels + LANES,
        scratch=scratch_words(most, groups, maps, out_shape[0] * out_shape[1]),
        whole=length == stretch,
        direct=groups == 1 and padding == (0, 0) and length == stretch,
    )
